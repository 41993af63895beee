"""What a pinned view keeps of a bucket beside its checkpoint: a columnar base, and what was written since to the pin.

<view>/bases/0003/<name>      the base: hard links to its files
<view>/bases/0003/delta.arrow   encoded keys, ascending, and rows as they are stored, null for deleted ones

The checkpoint has the same rows. What is lost or damaged here makes scans of the view slower, nothing else.
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
    """What the manifest of a view says of a bucket's base.

    Attributes:
        name: The name of the base.
        delta_crc32c: The CRC32C of the file of what was written since.
    """

    name: str
    delta_crc32c: int


def link_base(base: Path, directory: Path) -> None:
    """Makes a base a part of a view, so that it stays when the table's goes. Takes a fraction of a millisecond.

    Not durable: after a power failure the view may be without it.

    Args:
        base: The directory of the base, which is not removed meanwhile.
        directory: Where the view keeps what it has of the bucket; there is none.

    Raises:
        OSError: It cannot be made.
    """
    linked = directory / base.name
    linked.mkdir(parents=True)
    for file in base.iterdir():
        os.link(file, linked / file.name)


def write_delta(directory: Path, name: str, keys: pa.BinaryArray, rows: pa.BinaryArray) -> PinnedBase:
    """Writes what was written between base and pin beside the linked base. Blocks.

    Args:
        directory: As for `link_base`.
        name: The name of the base.
        keys: Encoded keys, ascending.
        rows: The rows as they are stored, null for those that were deleted.

    Raises:
        OSError: It cannot be written.
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
    """Opens a base of a view: the base, and keys and rows of what was written since, mapped into memory. Blocks.

    Args:
        directory: As for `link_base`.
        pinned: What the view's manifest says.
        location: What errors call the bucket.

    Raises:
        DataLoss: It is damaged, or not there.
    """
    base = ColumnarBase.open(directory / pinned.name, location)
    file = directory / _DELTA_FILE
    try:
        with pa.memory_map(str(file)) as mapped:
            data = mapped.read_buffer()
        # Before Arrow sees it, which would read out of bounds.
        if google_crc32c.value(data) != pinned.delta_crc32c:
            raise DataLoss(f"{location}: the file {file} of a pinned view is damaged: it has another checksum")
        delta = pa.ipc.open_file(data).read_all().combine_chunks()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataLoss(f"{location}: the file {file} of a pinned view cannot be read: {error}") from error
    keys, rows = (_only(delta.column(number)) for number in (0, 1))
    return base, keys, rows


def remove_base(directory: Path) -> None:
    """Removes what a view has of a base, or some of it. Blocks."""
    shutil.rmtree(directory, ignore_errors=True)


def _only(column: pa.ChunkedArray) -> pa.BinaryArray:
    return column.chunk(0) if column.num_chunks else pa.array([], pa.binary())
