"""The durable watermark: a small file beside a bucket that says how far its changelog is known to be durable.

It detects a write-ahead log that has lost its end. RocksDB mistakes a damaged record length near the end of its
write-ahead log for a write that a crash cut short, and silently opens without the records after it. Every acknowledged
change has an offset below the watermark, so a bucket that opens with fewer changes has lost acknowledged writes.

The watermark is written after each sync and is not synced itself. After a power failure it may be too low, which is
harmless; it is never too high.
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

_WATERMARK = struct.Struct("<8sQ")
_MAGIC = b"SKVMARK1"
_CHECKSUM = struct.Struct("<I")
_BYTES = _WATERMARK.size + _CHECKSUM.size


class DurableWatermark:
    """The durable watermark of one open bucket or log. One thread at a time may write it."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or creates it durably with offset 0. Raises DiskFull or DataLoss."""
        self._directory = path.parent
        try:
            with translate_disk_errors(path.parent):
                self._open(path)
        except OSError as error:
            raise DataLoss(f"the durable watermark {path} cannot be read: {error}") from error

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
        """Returns the offset up to which the changelog was durable. None: the file is damaged."""
        data = os.pread(self._fd, _BYTES + 1, 0)
        if len(data) != _BYTES:
            return None
        magic, offset = _WATERMARK.unpack_from(data)
        (checksum,) = _CHECKSUM.unpack_from(data, _WATERMARK.size)
        if magic != _MAGIC or checksum != google_crc32c.value(data[: _WATERMARK.size]):
            return None
        return int(offset)

    def write(self, offset: int) -> None:
        """Records that everything before this offset is durable."""
        body = _WATERMARK.pack(_MAGIC, offset)
        with translate_disk_errors(self._directory):
            os.pwrite(self._fd, body + _CHECKSUM.pack(google_crc32c.value(body)), 0)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
