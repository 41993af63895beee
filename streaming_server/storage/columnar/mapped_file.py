"""An Arrow IPC file of a columnar base in memory: each block is compared with its checksum before it is used.

A map that is read behind the end of its file, or where the disk fails, ends the process. So each time that a message is
asked for, the size of the file is compared first, and what is read for the first time is not read through the map. What
is left is a file that is cut short between that and the use of the message, and a page that the system has let go of
since, and that the disk gives no more.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import pyarrow as pa

from scankv.model.errors import DataLoss

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_READ_AHEAD: Final = 1
"""Messages on either side of one that is read for the first time, which the system is to read meanwhile."""


@dataclass(frozen=True, slots=True)
class FileBlock:
    """Some bytes of a file: from `offset` on, `size` of them, with this CRC32C."""

    offset: int
    size: int
    crc32c: int


class MappedFile:
    """An Arrow IPC file in memory, whose blocks are compared with their checksums before anything looks at them.

    Use it from any thread. It keeps the file open, also when that is removed.

    Args:
        path: The file.
        location: What errors call the bucket.
        blocks: What comes before its messages, these, and what comes behind; together they are the file.

    Attributes:
        size: Bytes of the file.

    Raises:
        DataLoss: It has another size, or its first or last block is damaged.
    """

    def __init__(self, path: Path, location: str, blocks: Sequence[FileBlock]) -> None:
        self._path = path
        self._location = location
        self._blocks = blocks
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self.size = os.fstat(self._file).st_size
        # Also that negative or overlapping places never become slices; and an empty file cannot be mapped.
        end = 0
        for block in blocks:
            if block.offset != end or block.size <= 0:
                raise self._damaged("the manifest contradicts itself")
            end += block.size
        if len(blocks) < 2 or end != self.size:
            raise self._damaged(f"it has {self.size} bytes instead of {end}")
        with pa.memory_map(str(path)) as file:
            self._data = file.read_buffer(end)
        self._verified: set[int] = set()
        self._verified_block(0)
        self._verified_block(len(blocks) - 1)

    def __len__(self) -> int:
        """How many messages it has."""
        return len(self._blocks) - 2

    def message(self, number: int) -> pa.Buffer:
        """A message, compared. Raises DataLoss."""
        return self._verified_block(number + 1)

    def bytes_in(self, number: int) -> int:
        """How many bytes a message has."""
        return self._blocks[number + 1].size

    def crc32c(self, number: int) -> int:
        """The checksum of a message."""
        return self._blocks[number + 1].crc32c

    def batch(self, number: int, schema: pa.Schema, rows: int) -> pa.RecordBatch:
        """The record batch of a message, with so many rows. Raises DataLoss."""
        message = self.message(number)
        try:
            batch = pa.ipc.read_record_batch(message, schema)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(f"batch {number} is none: {error}") from error
        if batch.num_rows != rows:
            raise self._damaged(f"batch {number} has {batch.num_rows} rows instead of {rows}")
        return batch

    def verified_copy(self) -> pa.Buffer:
        """A copy of the file, all of it compared. Raises DataLoss."""
        copy = pa.py_buffer(os.pread(self._file, self.size, 0))
        for number, block in enumerate(self._blocks):
            self._check(number, copy.slice(block.offset, block.size))
        return copy

    def _verified_block(self, number: int) -> pa.Buffer:
        block = self._blocks[number]
        if os.fstat(self._file).st_size < self.size:
            raise self._damaged(f"it was cut short, and had {self.size} bytes")
        data = self._data.slice(block.offset, block.size)
        # Two threads may compare the same block at the same time; both find the same.
        if number not in self._verified:
            self._read_ahead(number)
            self._check(number, self._read(block))
            self._verified.add(number)
        return data

    def _read_ahead(self, number: int) -> None:
        """Has the system read the messages beside one, which whoever reads this one will ask for next."""
        first, last = max(0, number - _READ_AHEAD), min(len(self._blocks) - 1, number + _READ_AHEAD)
        start, end = self._blocks[first].offset, self._blocks[last].offset + self._blocks[last].size
        os.posix_fadvise(self._file, start, end - start, os.POSIX_FADV_WILLNEED)

    def _read(self, block: FileBlock) -> bytes:
        try:
            return os.pread(self._file, block.size, block.offset)
        except OSError as error:
            what = f"the {block.size} bytes at {block.offset} cannot be read: {error.strerror}"
            raise self._damaged(what) from error

    def _check(self, number: int, data: pa.Buffer | bytes) -> None:
        block = self._blocks[number]
        if len(data) != block.size or google_crc32c.value(data) != block.crc32c:
            raise self._damaged(f"the {block.size} bytes at {block.offset} have another checksum")

    def _damaged(self, what: str) -> DataLoss:
        return DataLoss(f"{self._location}: the file {self._path} of a columnar base is damaged: {what}")
