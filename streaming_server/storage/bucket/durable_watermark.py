"""A small file beside a bucket that says how far its changelog was durable: the witness against a shortened log.

RocksDB takes a damaged record length near the end of its write-ahead log for a write that a crash cut short, and opens
without the records behind it, silently. Everything acknowledged has an offset below this mark, so a bucket that comes
up with less has lost acknowledged writes. The mark is written after each sync and not synced itself: after a power
failure it may be too low, which is harmless, and is never too high.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import google_crc32c

from scankv.model.errors import DataLoss
from streaming_server.storage.files.checked_json import sync_directory
from streaming_server.storage.files.disk_space import translate_disk_errors

if TYPE_CHECKING:
    from pathlib import Path

_MARK = struct.Struct("<8sQ")
_MAGIC = b"SKVMARK1"
_CHECKSUM = struct.Struct("<I")
_BYTES = _MARK.size + _CHECKSUM.size


class DurableWatermark:
    """The durable watermark of one open bucket. Written by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Opens the mark, making it (durably, at offset 0) when the file is not there. Raises DiskFull or DataLoss."""
        self._directory = path.parent
        try:
            with translate_disk_errors(path.parent):
                self._open(path)
        except OSError as error:
            raise DataLoss(f"how far {path.with_suffix('')} is durable cannot be read: {error}") from error

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(self._fd).st_size == 0:
                self.write(0)
                os.fsync(self._fd)
                sync_directory(path.parent)
        except BaseException:
            os.close(self._fd)
            raise

    def read(self) -> int | None:
        """The offset up to which the changelog was durable, or None when the file is damaged."""
        data = os.pread(self._fd, _BYTES + 1, 0)
        if len(data) != _BYTES:
            return None
        magic, offset = _MARK.unpack_from(data)
        (checksum,) = _CHECKSUM.unpack_from(data, _MARK.size)
        if magic != _MAGIC or checksum != google_crc32c.value(data[: _MARK.size]):
            return None
        return int(offset)

    def write(self, offset: int) -> None:
        """Says that everything below this offset is durable."""
        body = _MARK.pack(_MAGIC, offset)
        with translate_disk_errors(self._directory):
            os.pwrite(self._fd, body + _CHECKSUM.pack(google_crc32c.value(body)), 0)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
