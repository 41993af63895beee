"""Copies files of tables into a backup. Files that an earlier backup has are not read again."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

import xxhash

from streaming_server.storage.backup.backup_manifest import StoredFile
from streaming_server.storage.backup.backup_store import MAX_PACK_BYTES, PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from streaming_server.storage.backup.backup_manifest import BackupManifest
    from streaming_server.storage.backup.backup_store import BackupStore

_TAIL_BYTES: Final = 4096
_SMALL_BYTES: Final = 1 << 20
_AT_ONCE: Final = 4
# Files of RocksDB that a restored bucket does not need.
_LEFT_OUT: Final = ("LOCK", "LOG")
# Never changes once it is complete.
_TABLE_FILE: Final = ".sst"


class BackupWriter:
    """Copies the files of tables for one backup. Its methods block.

    Args:
        store: The location.
        before: The newest backup, whose files are not copied again if they are unchanged. None: all are copied.
        check: Called before each piece of work. It raises an error to end the work.
        max_pack_bytes: The most bytes of an object with small files. A restore refuses more than `MAX_PACK_BYTES`.

    Attributes:
        new_bytes: The bytes that were copied so far.
        done_bytes: The bytes of all files that are in the backup so far.
    """

    def __init__(
        self,
        store: BackupStore,
        before: BackupManifest | None,
        check: Callable[[], None],
        max_pack_bytes: int = MAX_PACK_BYTES,
    ) -> None:
        self._store = store
        self._check = check
        self._max_pack_bytes = max_pack_bytes
        # Listed after the backup has claimed the location, so nothing is removed any more.
        self._objects = store.objects()
        self._known = {
            (table.definition.incarnation, file.path, file.size, file.tail): file
            for table in (() if before is None else before.tables)
            for file in table.files
            if not file.pack
        }
        self._lock = threading.Lock()
        self.new_bytes = 0
        self.done_bytes = 0

    def copy(self, table: Path, incarnation: str) -> tuple[StoredFile, ...]:
        """Copies the files of the buckets of a table, and returns where they are.

        Args:
            table: The directory with `buckets`. Nothing changes in it.
            incarnation: The incarnation of the table.

        Raises:
            BackupFailed: The location cannot be written.
        """
        files = _files_of(table)
        large = [path for path in files if path.suffix == _TABLE_FILE or path.stat().st_size > _SMALL_BYTES]
        others = (path for path in files if path not in set(large))
        small = [list(of_bucket) for _, of_bucket in groupby(others, key=lambda path: path.parent)]
        with ThreadPoolExecutor(_AT_ONCE, "backup") as threads:
            copied = list(threads.map(lambda path: self._copy(path, table, incarnation), large))
            packed = list(threads.map(lambda paths: self._pack(paths, table), small))
        return (*copied, *chain.from_iterable(packed))

    def has_objects(self, backup: BackupManifest) -> bool:
        """Whether the location has all objects of a backup."""
        return all(self._objects.get(name) == size for name, size in backup.objects.items())

    def reuse(self, files: Iterable[StoredFile]) -> None:
        """Counts files that are as in an earlier backup."""
        self.done_bytes += sum(file.size for file in files)

    def _copy(self, path: Path, table: Path, incarnation: str) -> StoredFile:
        self._check()
        name, size, tail = str(path.relative_to(table)), path.stat().st_size, _digest_of_tail(path)
        known = self._known.get((incarnation, name, size, tail)) if path.suffix == _TABLE_FILE else None
        if known is None or self._objects.get(known.sha256) != size:
            sha256, checksum = _digests(path, self._check)
            self._put(sha256, path, size)
            known = StoredFile(path=name, size=size, sha256=sha256, checksum=checksum, tail=tail)
        with self._lock:
            self.done_bytes += size
        return known

    def _pack(self, paths: Iterable[Path], table: Path) -> list[StoredFile]:
        """Stores the small files of a bucket in one object, because a small object takes as long as a large one.

        Another object begins where this one would have too many bytes.
        """
        stored: list[StoredFile] = []
        files: list[tuple[str, int, bytes]] = []
        pack = io.BytesIO()
        for path in paths:
            content = path.read_bytes()
            if files and pack.tell() + len(content) > self._max_pack_bytes:
                stored += self._store_pack(pack, files)
                pack, files = io.BytesIO(), []
            files.append((str(path.relative_to(table)), pack.tell(), content))
            pack.write(content)
        return stored + self._store_pack(pack, files)

    def _store_pack(self, pack: io.BytesIO, files: Sequence[tuple[str, int, bytes]]) -> list[StoredFile]:
        """Stores an object, and returns its files. Each is given by path, offset in the object, and content."""
        name = hashlib.sha256(pack.getvalue()).hexdigest()
        if files:
            self._check()
            self._put(name, pack.getvalue(), pack.tell())
            with self._lock:
                self.done_bytes += pack.tell()
        return [
            StoredFile(
                path=path,
                size=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                checksum=xxhash.xxh3_128_hexdigest(content),
                tail=hashlib.sha256(content[-_TAIL_BYTES:]).hexdigest(),
                pack=name,
                offset=offset,
            )
            for path, offset, content in files
        ]

    def _put(self, sha256: str, content: Path | bytes, size: int) -> None:
        if self._objects.get(sha256) == size:
            return
        self._store.put_object(sha256, content)
        with self._lock:
            self._objects[sha256] = size
            self.new_bytes += size


def link_files(source: Path, target: Path) -> None:
    """Makes a copy of the directory of a closed bucket, with hard links. RocksDB replaces its files when it opens."""
    target.mkdir()
    for path in source.iterdir():
        if not path.name.startswith(_LEFT_OUT) and path.is_file():
            os.link(path, target / path.name)


def _files_of(table: Path) -> list[Path]:
    return sorted(path for path in (table / "buckets").glob("*/*") if not path.name.startswith(_LEFT_OUT))


def files_bytes(tables: Iterable[Path]) -> int:
    """Returns the bytes of the files of tables that a backup copies."""
    return sum(path.stat().st_size for table in tables for path in _files_of(table))


def _digests(path: Path, check: Callable[[], None]) -> tuple[str, str]:
    """Returns the SHA-256 of a file, and its checksum."""
    sha256, checksum = hashlib.sha256(), xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            check()
            sha256.update(piece)
            checksum.update(piece)
    return sha256.hexdigest(), checksum.hexdigest()


def _digest_of_tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return hashlib.sha256(file.read()).hexdigest()
