"""An Arrow IPC file of a columnar base in memory: each piece is compared with its checksum before it is used.

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
class Piece:
    """Some bytes of a file: from `place` on, `size` of them, with this CRC32C."""

    place: int
    size: int
    crc32c: int


class MappedFile:
    """An Arrow IPC file in memory, whose pieces are compared with their checksums before anything looks at them.

    Use it from any thread. It keeps the file open, also when that is removed.

    Args:
        path: The file.
        place: What errors call the bucket.
        pieces: What comes before its messages, these, and what comes behind; together they are the file.

    Attributes:
        size: Bytes of the file.

    Raises:
        DataLoss: It has another size, or its first or last piece is damaged.
    """

    def __init__(self, path: Path, place: str, pieces: Sequence[Piece]) -> None:
        self._path = path
        self._place = place
        self._pieces = pieces
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self.size = os.fstat(self._file).st_size
        # Also that negative or overlapping places never become slices; and an empty file cannot be mapped.
        end = 0
        for piece in pieces:
            if piece.place != end or piece.size <= 0:
                raise self._damaged("the manifest contradicts itself")
            end += piece.size
        if len(pieces) < 2 or end != self.size:
            raise self._damaged(f"it has {self.size} bytes instead of {end}")
        with pa.memory_map(str(path)) as file:
            self._data = file.read_buffer(end)
        self._compared: set[int] = set()
        self._compared_piece(0)
        self._compared_piece(len(pieces) - 1)

    def __len__(self) -> int:
        """How many messages it has."""
        return len(self._pieces) - 2

    def message(self, number: int) -> pa.Buffer:
        """A message, compared. Raises DataLoss."""
        return self._compared_piece(number + 1)

    def bytes_in(self, number: int) -> int:
        """How many bytes a message has."""
        return self._pieces[number + 1].size

    def crc32c(self, number: int) -> int:
        """The checksum of a message."""
        return self._pieces[number + 1].crc32c

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

    def whole(self) -> pa.Buffer:
        """A copy of the file, all of it compared. Raises DataLoss."""
        copy = pa.py_buffer(os.pread(self._file, self.size, 0))
        for number, piece in enumerate(self._pieces):
            self._check(number, copy.slice(piece.place, piece.size))
        return copy

    def _compared_piece(self, number: int) -> pa.Buffer:
        piece = self._pieces[number]
        if os.fstat(self._file).st_size < self.size:
            raise self._damaged(f"it was cut short, and had {self.size} bytes")
        data = self._data.slice(piece.place, piece.size)
        # Two threads may compare the same piece at the same time; both find the same.
        if number not in self._compared:
            self._read_ahead(number)
            self._check(number, self._read(piece))
            self._compared.add(number)
        return data

    def _read_ahead(self, number: int) -> None:
        """Has the system read the messages beside one, which whoever reads this one will ask for next."""
        first, last = max(0, number - _READ_AHEAD), min(len(self._pieces) - 1, number + _READ_AHEAD)
        start, end = self._pieces[first].place, self._pieces[last].place + self._pieces[last].size
        os.posix_fadvise(self._file, start, end - start, os.POSIX_FADV_WILLNEED)

    def _read(self, piece: Piece) -> bytes:
        try:
            return os.pread(self._file, piece.size, piece.place)
        except OSError as error:
            what = f"the {piece.size} bytes at {piece.place} cannot be read: {error.strerror}"
            raise self._damaged(what) from error

    def _check(self, number: int, data: pa.Buffer | bytes) -> None:
        piece = self._pieces[number]
        if len(data) != piece.size or google_crc32c.value(data) != piece.crc32c:
            raise self._damaged(f"the {piece.size} bytes at {piece.place} have another checksum")

    def _damaged(self, what: str) -> DataLoss:
        return DataLoss(f"{self._place}: the file {self._path} of a columnar base is damaged: {what}")
