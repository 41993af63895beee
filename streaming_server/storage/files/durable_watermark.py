"""The durable watermark: a small file beside a bucket that says how far its changelog is known to be durable.

The watermark is a log offset, so it contains the epoch, too. It survives if the files of the bucket are lost.

It detects a write-ahead log that has lost its end. RocksDB mistakes a damaged record length near the end of its
write-ahead log for a write that a crash cut short, and silently opens without the records after it. Every acknowledged
change has an offset below the watermark, so a bucket that opens with fewer changes has lost acknowledged writes.

The watermark is written after each sync and is not synced itself, except for a new epoch. After a power failure it may
be too low, which is harmless; it is never too high.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import google_crc32c

from scankv.model.errors import DataLoss
from streaming_server.storage.files.checked_json import sync_directory
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.files.formats import newer_format
from streaming_server.storage.files.frames import write_at

if TYPE_CHECKING:
    from pathlib import Path

_WATERMARK = struct.Struct("<8sQ")
_MAGIC = b"SKVMARK1"
_FORMAT: Final = 1  # the digit at the end of the magic bytes
_CHECKSUM = struct.Struct("<I")
_BYTES = _WATERMARK.size + _CHECKSUM.size


class DurableWatermark:
    """The durable watermark of one open bucket or log. One thread at a time may write it."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or creates it durably with offset 0. On a read-only disk, opens it only for reading.

        Raises:
            DiskFull, DiskFailed: The file cannot be opened or created.
            DataLoss: The file cannot be read for another reason.
        """
        self._path = path
        self._directory = path.parent
        try:
            with translate_disk_errors(path.parent):
                self._open(path)
        except OSError as error:
            raise DataLoss(f"the durable watermark {path} cannot be read: {error}") from error

    def _open(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                # The disk failed before the file was first created, so nothing is lost.
                raise error from None
            return
        try:
            if os.fstat(self._fd).st_size == 0:
                self._create(path)
            elif self._read() == _encode(0):
                # A crash may have come before the name was durable. A disk that refuses the sync may still be readable.
                with suppress(OSError):
                    _sync_once(path.parent)
        except BaseException:
            os.close(self._fd)
            raise

    def _create(self, path: Path) -> None:
        # Replaces the empty file at once, because a part of a watermark would look like damage.
        partial = path.with_name(path.name + ".partial")
        write_at(partial, _encode(0), 0, sync=True)
        fd = os.open(partial, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd = fd
        partial.replace(path)
        sync_directory(path.parent)

    def read(self) -> int | None:
        """Returns the offset up to which the changelog was durable. None: the file is damaged.

        Raises:
            NewerFormat: A newer ScanKV has written the file.
        """
        data = self._read()
        newer = data[len(_MAGIC) - 1 : len(_MAGIC)]
        if data.startswith(_MAGIC[:-1]) and newer.isdigit() and int(newer) > _FORMAT:
            raise newer_format(f"the durable watermark {self._path}", int(newer), _FORMAT)
        if len(data) != _BYTES:
            return None
        magic, offset = _WATERMARK.unpack_from(data)
        (checksum,) = _CHECKSUM.unpack_from(data, _WATERMARK.size)
        if magic != _MAGIC or checksum != google_crc32c.value(data[: _WATERMARK.size]):
            return None
        return int(offset)

    def write(self, offset: int) -> None:
        """Records that everything before this offset is durable."""
        data = _encode(offset)
        with translate_disk_errors(self._directory):
            # A disk that becomes full takes a part of the first write.
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], written)

    def sync(self) -> None:
        """Makes the last write durable. Needed for a new epoch, and for a position that is lower than before."""
        with translate_disk_errors(self._directory):
            os.fsync(self._fd)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def _read(self) -> bytes:
        # One byte more than this format has, because a newer format may be longer.
        return os.pread(self._fd, _BYTES + 1, 0)


@lru_cache(maxsize=4096)
def _sync_once(directory: Path) -> None:
    """Makes the names in a directory that were there before this process durable."""
    sync_directory(directory)


def _encode(offset: int) -> bytes:
    body = _WATERMARK.pack(_MAGIC, offset)
    return body + _CHECKSUM.pack(google_crc32c.value(body))
