"""Creates data directories without a server, for tests that damage them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.tables.schema import TableDefinition
from streaming_server.storage.tables.catalog import Catalog
from streaming_server.storage.tables.data_directory import DataDirectory
from tests.support.offline import bucket_path, opened

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
"""The columns of a prepared table. The key is `k`, and the value of a row is `value_of(k)`."""


def value_of(key: int) -> str:
    """Returns the value of a row, which occurs nowhere else in a file."""
    return f"<value {key:08} of a row>"


def prepared_table(data_dir: Path, name: str, rows: int, *, buckets: int = 2, compression: str = "none") -> None:
    """Creates a table with the rows 0, 1, 2, ..., all of them in table files."""
    definition = TableDefinition.create(
        name,
        SCHEMA,
        ["k"],
        buckets=buckets,
        options={"compression": compression},
        incarnation=name.replace(".", "-"),
        created_millis=0,
    )
    directory = DataDirectory(data_dir)
    try:
        Catalog(directory).create(definition)
    finally:
        directory.close()
    for bucket in range(buckets):
        with opened(bucket_path(data_dir, name, bucket), definition) as offline:
            keys = offline.keys.encode(pa.record_batch({"k": range(rows)}))[1]
            offline.upsert(*({"k": key, "v": value_of(key)} for key in range(rows) if keys[key] == bucket))
            offline.bucket.flush()


def keys_in(data_dir: Path, name: str, bucket: int) -> list[int]:
    """Returns the keys in the file of a prepared table's bucket, ascending."""
    data = rows_file(bucket_path(data_dir, name, bucket)).read_bytes()
    return [int(part[:8]) for part in data.split(b"<value ")[1:]]


def rows_file(path: Path) -> Path:
    """Returns the largest table file of a bucket that contains rows, not changes."""
    # The column family's name in the properties of a table file, after the end of the property's name.
    files = [file for file in path.glob("*.sst") if b"namerows" in file.read_bytes()]
    return max(files, key=lambda file: file.stat().st_size)


def flip(file: Path, position: int, bits: int = 0x10) -> None:
    """Damages one byte of a file."""
    data = bytearray(file.read_bytes())
    data[position] ^= bits
    file.write_bytes(data)
