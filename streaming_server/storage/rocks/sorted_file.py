"""Writes SST files of rows, which a store takes in as they are."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import rocksdict

from scankv.model.errors import InternalError
from streaming_server.storage.files.disk_space import FREE_SPACE, disk_failed, disk_full, find_disk_failure, has_space
from streaming_server.storage.rocks.store_options import store_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scankv.model.errors import ScanKvError
    from streaming_server.storage.rocks.store_options import RocksResources

_PUTS_AT_ONCE = 2048  # in a file, while which other threads wait

_log = logging.getLogger(__name__)


class SortedFile:
    """A new SST file of rows, which a store with the same compression can take in. Not thread-safe.

    Args:
        path: The file.
        compression: `none`, `lz4` or `zstd`.
        resources: Shared by all buckets of the process.
    """

    def __init__(self, path: Path, compression: str, resources: RocksResources) -> None:
        self._path = path
        try:
            self._writer = rocksdict.SstFileWriter(store_options(compression, resources))
            self._writer.open(str(path))
        except Exception as error:
            raise self._failure(error) from error

    def put(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Adds rows. Keys ascend, also from call to call."""
        try:
            for start in range(0, len(keys), _PUTS_AT_ONCE):
                end = start + _PUTS_AT_ONCE
                deque(map(self._writer.__setitem__, keys[start:end], rows[start:end]), maxlen=0)
        except Exception as error:
            raise self._failure(error) from error

    def finish(self) -> None:
        """Completes the file, and makes it durable."""
        try:
            self._writer.finish()
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> ScanKvError:
        text = str(error)
        if "No space left on device" in text or "Disk quota exceeded" in text or not has_space(self._path.parent):
            return disk_full(self._path, FREE_SPACE)
        if (cause := find_disk_failure(text)) is not None:
            return disk_failed(self._path, cause)
        _log.error("%s: %s", self._path, text)
        return InternalError(f"{self._path} cannot be written; the log of the server has RocksDB's message")
