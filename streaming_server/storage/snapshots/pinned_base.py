"""The columnar base of a bucket in a pinned view, with its merged delta up to the pin.

<view>/bases/0003/<name>        the base: hard links to its files
<view>/bases/0003/delta.arrow   the merged delta: encoded keys, ascending, and stored rows, null for deleted ones

The checkpoint of the bucket has the same rows, so a loss or damage of these files only makes scans of the view slower.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import pyarrow as pa

from scankv.model.errors import DataLoss
from streaming_server.storage.columnar.columnar_base import ColumnarBase

if TYPE_CHECKING:
    from pathlib import Path

_DELTA_FILE: Final = "delta.arrow"
_DELTA_SCHEMA: Final = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("row", pa.binary())])


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedBase:
    """The base of a bucket, as the manifest of a view describes it.

    Attributes:
        name: The name of the base.
        delta_crc32c: The CRC32C of the file of the merged delta.
    """

    name: str
    delta_crc32c: int


def link_base(base: Path, directory: Path) -> None:
    """Links the files of a base into a view, so that they outlive the base. Takes a fraction of a millisecond.

    Not durable: after a power failure, the view may lack the base.

    Args:
        base: The directory of the base, which must not be removed concurrently.
        directory: The view's directory for the base of this bucket, which must not exist.

    Raises:
        OSError: The links cannot be created.
    """
    linked = directory / base.name
    linked.mkdir(parents=True)
    for file in base.iterdir():
        os.link(file, linked / file.name)


def write_delta(directory: Path, name: str, keys: pa.BinaryArray, rows: pa.BinaryArray) -> PinnedBase:
    """Writes the merged delta between base and pin into the directory of the linked base. Blocks.

    Args:
        directory: As for `link_base`.
        name: The name of the base.
        keys: Encoded keys, ascending.
        rows: The rows as they are stored, null for deleted ones.

    Raises:
        OSError: The file cannot be written.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _DELTA_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([keys, rows], schema=_DELTA_SCHEMA))
    data = sink.getvalue()
    (directory / _DELTA_FILE).write_bytes(data)
    return PinnedBase(name=name, delta_crc32c=google_crc32c.value(data))


def open_pinned_base(
    directory: Path, pinned: PinnedBase, location: str
) -> tuple[ColumnarBase, pa.BinaryArray, pa.BinaryArray]:
    """Opens a base of a view: the base, and the keys and rows of its merged delta, mapped into memory. Blocks.

    Args:
        directory: As for `link_base`.
        pinned: The entry in the manifest of the view.
        location: The name of the bucket in errors.

    Raises:
        DataLoss: The files are damaged or missing.
    """
    base = ColumnarBase.open(directory / pinned.name, location)
    file = directory / _DELTA_FILE
    try:
        with pa.memory_map(str(file)) as mapped:
            data = mapped.read_buffer()
        # Before Arrow sees the file, because damage could make Arrow read out of bounds.
        if google_crc32c.value(data) != pinned.delta_crc32c:
            raise DataLoss(f"{location}: the file {file} of a pinned view is damaged: it has another checksum")
        delta = pa.ipc.open_file(data).read_all().combine_chunks()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataLoss(f"{location}: the file {file} of a pinned view cannot be read: {error}") from error
    keys, rows = (_only(delta.column(number)) for number in (0, 1))
    return base, keys, rows


def remove_base(directory: Path) -> None:
    """Removes the base of a view, or its remains. Blocks."""
    shutil.rmtree(directory, ignore_errors=True)


def _only(column: pa.ChunkedArray) -> pa.BinaryArray:
    return column.chunk(0) if column.num_chunks else pa.array([], pa.binary())
