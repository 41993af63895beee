"""An Arrow IPC file of a columnar base, mapped into memory: each block is verified before it is used.

Reading a map beyond the end of its file, or at a bad disk block, crashes the process. So each access to a message first
checks the size of the file, and the first access reads the message with a system call and not through the map. Two
cases remain: the file is truncated between the check and the use of the message, or the system has evicted a page since
and the disk cannot deliver it again.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import pyarrow as pa

from scankv.model.counts import counted
from scankv.model.errors import DataLoss

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_READ_AHEAD: Final = 1
"""On the first read of a message, the system reads this many neighbours ahead, both before and after it."""


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A block of a file: `size` bytes from `offset` on, with this CRC32C."""

    offset: int
    size: int
    crc32c: int


class MappedFile:
    """An Arrow IPC file mapped into memory. Each block is verified against its checksum before use. Thread-safe.

    The file stays open and readable, even when it is removed.

    Args:
        path: The file.
        location: The name of the bucket in errors.
        blocks: The head of the file, its messages, and its tail; together they cover the file.

    Attributes:
        size: Bytes of the file.

    Raises:
        DataLoss: The file has another size, or its first or last block is damaged.
    """

    def __init__(self, path: Path, location: str, blocks: Sequence[FileBlock]) -> None:
        self._path = path
        self._location = location
        self._blocks = blocks
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self.size = os.fstat(self._file).st_size
        # Negative or overlapping blocks must never become slices, and an empty file cannot be mapped.
        end = 0
        for block in blocks:
            if block.offset != end or block.size <= 0:
                raise self._damage("the manifest contradicts itself")
            end += block.size
        if len(blocks) < 2 or end != self.size:
            raise self._damage(f"it has {self.size:,} bytes instead of {end:,}")
        with pa.memory_map(str(path)) as file:
            self._data = file.read_buffer(end)
        self._verified: set[int] = set()
        self._verified_block(0)
        self._verified_block(len(blocks) - 1)

    def __len__(self) -> int:
        """Returns the number of messages."""
        return len(self._blocks) - 2

    def message(self, number: int) -> pa.Buffer:
        """Returns a verified message. Raises DataLoss."""
        return self._verified_block(number + 1)

    def bytes_in(self, number: int) -> int:
        """Returns the bytes of a message."""
        return self._blocks[number + 1].size

    def crc32c(self, number: int) -> int:
        """Returns the CRC32C of a message."""
        return self._blocks[number + 1].crc32c

    def batch(self, number: int, schema: pa.Schema, rows: int) -> pa.RecordBatch:
        """Returns the record batch of a message, which must have `rows` rows. Raises DataLoss."""
        message = self.message(number)
        try:
            batch = pa.ipc.read_record_batch(message, schema)
        except (OSError, pa.ArrowException) as error:
            raise self._damage(f"batch {number:,} cannot be decoded: {error}") from error
        if batch.num_rows != rows:
            raise self._damage(f"batch {number:,} has {counted(batch.num_rows, 'row')} instead of {rows:,}")
        return batch

    def verified_copy(self) -> pa.Buffer:
        """Returns a copy of the complete file, verified. Raises DataLoss."""
        copy = pa.py_buffer(os.pread(self._file, self.size, 0))
        for number, block in enumerate(self._blocks):
            self._check(number, copy.slice(block.offset, block.size))
        return copy

    def _verified_block(self, number: int) -> pa.Buffer:
        block = self._blocks[number]
        if os.fstat(self._file).st_size < self.size:
            raise self._damage(f"it was truncated from {self.size:,} bytes")
        data = self._data.slice(block.offset, block.size)
        # Two threads may verify the same block concurrently, with the same result.
        if number not in self._verified:
            self._read_ahead(number)
            self._check(number, self._read(block))
            self._verified.add(number)
        return data

    def _read_ahead(self, number: int) -> None:
        """Makes the system read the neighbours of a message, because a scan will read one of them next."""
        first, last = max(0, number - _READ_AHEAD), min(len(self._blocks) - 1, number + _READ_AHEAD)
        start, end = self._blocks[first].offset, self._blocks[last].offset + self._blocks[last].size
        os.posix_fadvise(self._file, start, end - start, os.POSIX_FADV_WILLNEED)

    def _read(self, block: FileBlock) -> bytes:
        try:
            return os.pread(self._file, block.size, block.offset)
        except OSError as error:
            what = f"the {block.size:,} bytes at offset {block.offset:,} cannot be read: {error.strerror}"
            raise self._damage(what) from error

    def _check(self, number: int, data: pa.Buffer | bytes) -> None:
        block = self._blocks[number]
        if len(data) != block.size or google_crc32c.value(data) != block.crc32c:
            raise self._damage(f"the {block.size:,} bytes at offset {block.offset:,} have another checksum")

    def _damage(self, what: str) -> DataLoss:
        return DataLoss(f"{self._location}: the file {self._path} of a columnar base is damaged: {what}")
