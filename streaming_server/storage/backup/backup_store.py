"""Where backups are stored: a local directory, or an object store that `pyarrow.fs` knows.

manifests/<backup>.json    one backup: its tables, and which object each of their files is; written last
objects/ab/abcd...         the content of files, by SHA-256; backups share the objects of unchanged files
claims/<name>.json         what is working on the location: a backup that is being created, or a prune
archive/<segment>.json     what was written since the segment before it; written after its data
archive/<segment>-0001.wal parts of the write-ahead logs of buckets
archive/reached.json       up to which instant the archive is complete, if nothing was written since its last segment

Rule: an object with its final name is complete and durable, and its content never changes.
"""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import xxhash
from pyarrow import fs

from scankv.model.errors import BackupFailed, DataLoss, ScanKvError, UsageError
from scankv.model.shown_uris import has_user, show_location, show_reason, show_uri
from streaming_server.storage.files.checked_json import (
    from_checked_bytes,
    make_directory,
    sync_directory,
    to_checked_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES: Final = 1 << 20
"""How much of a file is in memory at once."""

MAX_PACK_BYTES: Final = 1 << 30
"""The largest object with small files of a bucket. Each has up to 1 MiB, and a bucket has a few dozen."""

MAX_JSON_BYTES: Final = 1 << 30
"""The largest manifest or segment. The manifest of a backup of a million files has about half as much."""

_MANIFESTS: Final = "manifests"
_OBJECTS: Final = "objects"
_CLAIMS: Final = "claims"
_ARCHIVE: Final = "archive"
_REACHED: Final = "reached"
_SUFFIX: Final = ".json"
_DATA_SUFFIX: Final = ".wal"


class BackupStore:
    """The location of backups. Its methods block, and threads may call them concurrently.

    Args:
        location: A directory, or a URI such as `s3://bucket/backups`. Credentials come from the environment, as the
            documentation of `pyarrow.fs` says.

    Attributes:
        location: The location.
        shown: The location, for people: without the values of a query.
        local: The directory. None: the location is not on a local file system.

    Raises:
        UsageError: The location cannot be used: it has another form, or contains credentials.
    """

    def __init__(self, location: str) -> None:
        self.location, self.shown = location, show_location(location)
        try:
            self._files, self._root = _open_location(location)
        except (pa.ArrowException, OSError, ValueError) as error:
            # Without its cause, which may have the complete URI.
            raise UsageError(
                f'"{self.shown}" is no location for backups ({show_reason(error, location)}): give a '
                "directory, or a URI such as s3://bucket/backups"
            ) from None
        self.local = Path(self._root) if isinstance(self._files, fs.LocalFileSystem) else None
        self._durable: set[Path] = set()

    def manifests(self) -> list[str]:
        """Returns the ids of all backups, the oldest first."""
        return sorted(name.removesuffix(_SUFFIX) for name in self._names(_MANIFESTS) if name.endswith(_SUFFIX))

    def read_manifest(self, backup_id: str) -> dict[str, Any]:
        """Returns what `write_manifest` wrote. Raises DataLoss if it is missing or damaged."""
        name = f"{_MANIFESTS}/{backup_id}{_SUFFIX}"
        return from_checked_bytes(self._read(name, MAX_JSON_BYTES), f"the backup manifest {name} in {self.shown}")

    def write_manifest(self, backup_id: str, content: dict[str, Any]) -> None:
        """Completes a backup. All of its objects must have been put. Raises BackupFailed if it has too many files."""
        self._put_json(f"{_MANIFESTS}/{backup_id}{_SUFFIX}", content)

    def remove_manifest(self, backup_id: str) -> None:
        """Removes a backup. Its objects remain until `prune` finds that no backup needs them."""
        self._remove(f"{_MANIFESTS}/{backup_id}{_SUFFIX}")

    def objects(self) -> dict[str, int]:
        """Returns the bytes of every object, by SHA-256."""
        return {
            info.base_name: info.size
            for info in self._list(_OBJECTS, recursive=True)
            if info.type == fs.FileType.File and len(info.base_name) == 64
        }

    def partial_objects(self) -> list[str]:
        """Returns the names of files that a crash has left while an object was being put."""
        root = f"{self._root}/"
        return [
            info.path.removeprefix(root)
            for info in self._list(_OBJECTS, recursive=True)
            if info.type == fs.FileType.File and ".partial-" in info.base_name
        ]

    def put_object(self, sha256: str, content: Path | bytes) -> None:
        """Stores an object durably. The caller knows the SHA-256 of the content."""
        self._put(_object(sha256), content)

    def read_object(self, sha256: str, most_bytes: int) -> bytes:
        """Returns a small object. Raises DataLoss if it is missing or differs, or has more than `most_bytes`."""
        content = self._read(_object(sha256), most_bytes)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise self.damaged(sha256)
        return content

    def find_damage(self, sha256: str) -> str | None:
        """Reads an object, and returns what is wrong with it. None: nothing."""
        try:
            digest = hashlib.sha256()
            for piece in self.read_pieces(sha256):
                digest.update(piece)
        except DataLoss as error:
            return error.message
        return None if digest.hexdigest() == sha256 else self.damaged(sha256).message

    def damaged(self, sha256: str) -> DataLoss:
        """Returns the error for an object whose content differs."""
        return DataLoss(f"the object {_object(sha256)} in {self.shown} is damaged: its content differs")

    def read_pieces(self, sha256: str) -> Iterator[memoryview]:
        """Yields the content of an object in pieces, unverified, each valid until the next one.

        Raises:
            DataLoss: The object is missing.
        """
        # One buffer for all pieces: new ones would take most of the time, because the system clears their pages.
        name, buffer = _object(sha256), memoryview(bytearray(PIECE_BYTES))
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as stream:
                while count := stream.readinto(buffer):
                    yield buffer[:count]
        except FileNotFoundError as error:
            raise DataLoss(f"the object {name} in {self.shown} is missing") from error
        except (OSError, pa.ArrowException) as error:
            raise self._failure(error) from error

    def remove_object(self, sha256: str) -> None:
        """Removes an object that no backup needs."""
        self._remove(_object(sha256))

    def remove_partial(self, name: str) -> None:
        """Removes one of `partial_objects`."""
        self._remove(name)

    def claims(self) -> dict[str, int]:
        """Returns when each claim was written last, in microseconds by the clock of the store."""
        return {
            info.base_name.removesuffix(_SUFFIX): int(info.mtime_ns // 1000)
            for info in self._list(_CLAIMS)
            if info.base_name.endswith(_SUFFIX)
        }

    def write_claim(self, name: str) -> None:
        """Claims the location, or renews a claim."""
        self._put(f"{_CLAIMS}/{name}{_SUFFIX}", json.dumps({"pid": os.getpid()}).encode(), is_durable=False)

    def remove_claim(self, name: str) -> None:
        """Ends a claim. An unknown one is no error."""
        self._remove(f"{_CLAIMS}/{name}{_SUFFIX}")

    def segments(self) -> list[str]:
        """Returns the ids of the segments of the archive, the oldest first."""
        names = [name.removesuffix(_SUFFIX) for name in self._names(_ARCHIVE) if name.endswith(_SUFFIX)]
        return sorted(name for name in names if name != _REACHED)

    def archived_data(self) -> dict[str, int]:
        """Returns the bytes of each piece of data in the archive, by name."""
        return {info.base_name: info.size for info in self._list(_ARCHIVE) if info.base_name.endswith(_DATA_SUFFIX)}

    def read_segment(self, segment_id: str) -> dict[str, Any]:
        """Returns what `write_segment` wrote. Raises DataLoss if it is missing or damaged."""
        name = f"{_ARCHIVE}/{segment_id}{_SUFFIX}"
        return from_checked_bytes(self._read(name, MAX_JSON_BYTES), f"the segment {name} in {self.shown}")

    def write_segment(self, segment_id: str, content: dict[str, Any]) -> None:
        """Completes a segment. All of its data must have been put. Raises BackupFailed if it has too many parts."""
        self._put_json(f"{_ARCHIVE}/{segment_id}{_SUFFIX}", content)

    def remove_segment(self, segment_id: str) -> None:
        """Removes a segment. Its data remains."""
        self._remove(f"{_ARCHIVE}/{segment_id}{_SUFFIX}")

    def put_archived(self, name: str, content: bytes) -> None:
        """Stores data of a segment durably."""
        self._put(f"{_ARCHIVE}/{name}", content)

    def read_archived(self, name: str, offset: int, size: int, checksum: str) -> bytes:
        """Returns a part of the data of a segment. Raises DataLoss if it is missing or differs."""
        path = f"{_ARCHIVE}/{name}"
        try:
            with self._files.open_input_file(f"{self._root}/{path}") as file:
                # Reading takes as much memory as is asked for, even if the file is shorter.
                if offset + size > (existing := file.size()):
                    raise DataLoss(
                        f"the file {path} in {self.shown} has {existing:,} bytes, and the segment needs {size:,} "
                        f"from {offset:,} on"
                    )
                content = bytes(file.read_at(size, offset))
        except FileNotFoundError as error:
            raise DataLoss(f"the file {path} in {self.shown} is missing") from error
        except (OSError, pa.ArrowException) as error:
            raise self._failure(error) from error
        if xxhash.xxh3_128_hexdigest(content) != checksum:
            raise DataLoss(f"the file {path} in {self.shown} is damaged: its content differs")
        return content

    def remove_archived(self, name: str) -> None:
        """Removes data of a segment."""
        self._remove(f"{_ARCHIVE}/{name}")

    def read_reached(self) -> dict[str, Any]:
        """Returns what `write_reached` wrote last. Empty: nothing was written, or it cannot be read."""
        try:
            return from_checked_bytes(self._read(f"{_ARCHIVE}/{_REACHED}{_SUFFIX}", MAX_JSON_BYTES), "")
        except DataLoss:
            return {}

    def write_reached(self, content: dict[str, Any]) -> None:
        """Replaces the record of how far the archive is complete."""
        self._put(f"{_ARCHIVE}/{_REACHED}{_SUFFIX}", to_checked_bytes(content), is_durable=False)

    def _put(self, name: str, content: Path | bytes, *, is_durable: bool = True) -> None:
        path = f"{self._root}/{name}"
        try:
            if self.local is None:
                # Object stores show an object only once it is complete.
                self._write(path, content)
                return
            partial = f"{path}.partial-{uuid.uuid4().hex[:8]}"
            directory = Path(path).parent
            self._make_directory(directory)
            try:
                self._write(partial, content)
                if is_durable:
                    _sync_file(partial)
                os.replace(partial, path)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
            if is_durable:
                sync_directory(directory)
        except (OSError, pa.ArrowException) as error:
            raise self._failure(error) from error

    def _make_directory(self, directory: Path) -> None:
        """Creates a directory of the location. Its name, and those above it, are durable when this returns."""
        if directory in self._durable and directory.is_dir():
            return
        if directory != self.local:
            self._make_directory(directory.parent)
        # Also if it exists, since a crash may have come between its creation and the sync.
        make_directory(directory)
        self._durable.add(directory)

    def _write(self, path: str, content: Path | bytes) -> None:
        stream = self._files.open_output_stream(path)
        try:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                with content.open("rb") as file:
                    while piece := file.read(PIECE_BYTES):
                        stream.write(piece)
        except BaseException:
            # Closing completes an object in an object store, so what is incomplete is removed right after.
            stream.close()
            self._files.delete_file(path)
            raise
        stream.close()

    def _put_json(self, name: str, content: dict[str, Any]) -> None:
        data = to_checked_bytes(content)
        if len(data) > MAX_JSON_BYTES:
            raise BackupFailed(
                f"the file {name} of a backup has {len(data):,} bytes; the limit is {MAX_JSON_BYTES:,}: create tables "
                "with fewer buckets, or divide the tables among several servers"
            )
        self._put(name, data)

    def _read(self, name: str, most_bytes: int) -> bytes:
        """Returns a file. Raises DataLoss if it is missing, or has more than `most_bytes`."""
        content = bytearray()
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as stream:
                while len(content) <= most_bytes and (piece := stream.read(PIECE_BYTES)):
                    content += piece
            if len(content) > most_bytes:
                raise DataLoss(
                    f"the file {name} in {self.shown} has more than {most_bytes:,} bytes; this is the limit: ScanKV "
                    "has not written it, so remove or restore it"
                )
            return bytes(content)
        except FileNotFoundError as error:
            raise DataLoss(f"the file {name} in {self.shown} is missing") from error
        except (OSError, pa.ArrowException) as error:
            raise self._failure(error) from error

    def _remove(self, name: str) -> None:
        try:
            self._files.delete_file(f"{self._root}/{name}")
        except FileNotFoundError:
            pass
        except (OSError, pa.ArrowException) as error:
            raise self._failure(error) from error

    def _names(self, directory: str) -> list[str]:
        return [info.base_name for info in self._list(directory)]

    def _list(self, directory: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        selector = fs.FileSelector(f"{self._root}/{directory}", allow_not_found=True, recursive=recursive)
        try:
            try:
                return list(self._files.get_file_info(selector))
            except FileNotFoundError:
                # The directory was created after it was not found.
                return list(self._files.get_file_info(selector))
        except (OSError, pa.ArrowException) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> ScanKvError:
        return BackupFailed(f"the location of backups {self.shown} cannot be read or written: {error}")


def local_directory(location: str) -> Path | None:
    """Returns the directory of a location. None: an object store, which is not asked.

    Raises:
        UsageError: The location is a URI that contains credentials.
    """
    if "://" not in location:
        return Path(location).absolute()
    if has_user(location):
        # It would appear in logs and in the list of processes.
        raise UsageError(
            f"the location {show_uri(location)} contains credentials: leave them out, and set them in the environment, "
            "such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def prepare_directory(directory: Path) -> None:
    """Creates the directory of a location if it does not exist, and checks that backups can be written there. Blocks.

    A full disk is no error, because it may have space when a backup is created.

    Raises:
        UsageError: The directory cannot be created or written.
    """
    try:
        if not directory.is_dir():
            make_directory(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return
        why = "it is not a directory" if error.errno == errno.EEXIST else error.strerror
        raise UsageError(
            f"backups cannot be written to {directory}: {why}; give another --backup-location, or make it a directory "
            "that the user of the server may write to",
            option="backup_location",
        ) from error


def instant_id(micros: int) -> str:
    """Returns the id of what is as of an instant, in microseconds since 1970 UTC. Ids ascend with the time."""
    return f"{dt.datetime.fromtimestamp(micros / 1e6, dt.UTC):%Y%m%d-%H%M%S}-{micros % 1_000_000:06}"


def archived_name(segment_id: str, number: int) -> str:
    """Returns the name of data of a segment."""
    return f"{segment_id}-{number:04}{_DATA_SUFFIX}"


def segment_of(name: str) -> str:
    """Returns the id of the segment to which data belongs."""
    return name.rpartition("-")[0]


def _open_location(location: str) -> tuple[fs.FileSystem, str]:
    directory = local_directory(location)
    if directory is not None:
        return fs.LocalFileSystem(), str(directory)
    files, root = fs.FileSystem.from_uri(location)
    return files, str(root).rstrip("/")


def _object(sha256: str) -> str:
    return f"{_OBJECTS}/{sha256[:2]}/{sha256}"


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
