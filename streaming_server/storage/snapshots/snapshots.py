"""Pinned snapshots on disk: checkpoints of all buckets of a table, their manifest, and the leases that keep them.

<table>/snapshots/<view>/manifest.json        what the view contains; written last, so a view is complete or absent
<table>/snapshots/<view>/buckets/0003         the RocksDB checkpoint of bucket 3; its SST files are hard links
<table>/snapshots/<view>/bases/0003           the columnar base of bucket 3, see `pinned_base`
<table>/snapshots/<view>/leases/<lease>.json  one file for each lease
<table>/snapshots/<view>/splits.json          a sample of the keys, once the view was split
<table>/ended_snapshots                       the ids of ended shared leases, one per line
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scankv.model.errors import DataLoss, NewerFormat, ScanKvError, SnapshotLost
from scankv.model.tables.schema import TableDefinition
from streaming_server.storage.files.checked_json import (
    find_checked_json,
    read_checked_json,
    sync_directory,
    write_checked_json,
)
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.snapshots.pinned_base import PinnedBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from streaming_server.storage.bucket.bucket_state import BucketState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedBucket:
    """One bucket, as the manifest of a view describes it.

    Attributes:
        log_offset: The offset of the first change that is not in the view.
        rows: Rows in the view, exact. None: unknown, see `BucketState`.
        longest_row: Bytes of the longest row ever written to the bucket.
        base: The columnar base of the bucket in the view. None: the view has none.
    """

    log_offset: int
    rows: int | None
    longest_row: int
    base: PinnedBase | None = None

    @classmethod
    def of(cls, state: BucketState, base: PinnedBase | None = None) -> PinnedBucket:
        """Describes a bucket in a state."""
        return cls(log_offset=state.log_offset, rows=state.rows, longest_row=state.longest_row, base=base)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PinnedBucket:
        """Reads the result of `asdict`. Views of earlier versions have no bases."""
        base = values.get("base")
        return cls(**{**values, "base": None if base is None else PinnedBase(**base)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewManifest:
    """What a view contains.

    Attributes:
        view_id: The unique name of the view.
        definition: The definition of the table at the instant of the view.
        view_micros: The instant of the view by the server's clock, in microseconds since 1970 UTC.
        buckets: The buckets by number.
    """

    view_id: str
    definition: TableDefinition
    view_micros: int
    buckets: Mapping[int, PinnedBucket]

    def to_json(self) -> dict[str, Any]:
        """Returns the manifest as JSON values."""
        return {
            "view_id": self.view_id,
            "definition": self.definition.to_json(),
            "view_micros": self.view_micros,
            "buckets": {str(number): asdict(one) for number, one in self.buckets.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ViewManifest:
        """Reads the result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            view_id=values["view_id"],
            definition=TableDefinition.from_json(values["definition"]),
            view_micros=values["view_micros"],
            buckets={int(number): PinnedBucket.from_json(one) for number, one in values["buckets"].items()},
        )


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One lease, as it is stored.

    Attributes:
        ttl: The time to live in seconds. None: the file cannot be read.
        shared: Whether the lease is shared, so that its id is never used again.
        name: The name of the snapshot. Empty: it has none.
        pending: Whether other tablets of the table are not pinned yet.
        principal: The principal that it belongs to. Empty: it belongs to nobody.
    """

    ttl: float | None
    shared: bool
    name: str = ""
    pending: bool = False
    principal: str = ""


class ViewDirectory:
    """The directory of one view. Its methods block, and are durable when they return.

    Args:
        table: The directory of the view's table.
        view_id: The view.
    """

    def __init__(self, table: Path, view_id: str) -> None:
        self.view_id = view_id
        self.path = table / "snapshots" / view_id
        self._leases = self.path / "leases"

    def prepare(self) -> None:
        """Creates the directories. The next start removes a view without a manifest."""
        with translate_disk_errors(self.path.parent.parent):
            self.path.parent.mkdir(exist_ok=True)
            sync_directory(self.path.parent.parent)
            (self.path / "buckets").mkdir(parents=True)
            self._leases.mkdir()

    def bucket(self, number: int) -> Path:
        """Returns the directory of the checkpoint of a bucket."""
        return self.path / "buckets" / f"{number:04}"

    def store(self, number: int) -> Path:
        """Returns the directory through which the checkpoint of a bucket is opened."""
        return self.bucket(number)

    def base(self, number: int) -> Path:
        """Returns the directory of the columnar base of a bucket."""
        return self.path / "bases" / f"{number:04}"

    @property
    def is_kept(self) -> bool:
        """Whether the view is complete and has a lease. Others are left by crashes, and the next start removes them."""
        return (self.path / "manifest.json").exists() and any(self._leases.glob("*.json"))

    def exists(self) -> bool:
        """Whether the view has not been removed."""
        return self.path.exists()

    def gone_error(self) -> ScanKvError:
        """Returns the error for a view that was removed."""
        return SnapshotLost(
            f"the snapshot view {self.view_id} is gone: its snapshots were released, have expired, or were dropped "
            "with their table; take a new one",
            view=self.view_id,
        )

    def complete(self, manifest: ViewManifest) -> None:
        """Completes the view, after all its checkpoints have been made."""
        sync_directory(self.path / "buckets")
        write_checked_json(self.path / "manifest.json", manifest.to_json())
        sync_directory(self.path.parent)

    def manifest(self) -> ViewManifest:
        """Reads the manifest. Raises DataLoss, which names the file."""
        file = self.path / "manifest.json"
        content = read_checked_json(file)
        try:
            manifest = ViewManifest.from_json(content)
        except (ValueError, LookupError, TypeError, pa.ArrowException, ScanKvError) as error:
            raise DataLoss(f"the snapshot manifest {file} cannot be read: {error}") from error
        if manifest.view_id != self.view_id or set(manifest.buckets) != set(manifest.definition.own_buckets):
            raise DataLoss(f"the snapshot manifest {file} is of another view")
        return manifest

    def leases(self) -> dict[str, LeaseRecord]:
        """Reads all leases, by id. Raises NewerFormat."""
        return {file.stem: _read_lease(file) for file in sorted(self._leases.glob("*.json"))}

    def write_lease(
        self,
        lease_id: str,
        ttl: float,
        *,
        shared: bool = False,
        name: str = "",
        pending: bool = False,
        principal: str = "",
    ) -> None:
        """Adds a lease, or changes it. `ttl` is in seconds."""
        values = {"ttl_seconds": ttl, "shared": shared} | ({"name": name} if name else {})
        values |= {"pending": True} if pending else {}
        values |= {"principal": principal} if principal else {}
        write_checked_json(self._leases / f"{lease_id}.json", values)

    def remove_lease(self, lease_id: str) -> None:
        """Removes a lease. A missing lease or view is no error."""
        with suppress(FileNotFoundError):
            (self._leases / f"{lease_id}.json").unlink()
            sync_directory(self._leases)

    def read_splits(self) -> dict[str, Any] | None:
        """Reads what `write_splits` wrote. None: the view was not split yet. Raises DataLoss, which names the file."""
        return find_checked_json(self.path / "splits.json")

    def write_splits(self, content: dict[str, Any]) -> None:
        """Stores a sample of the keys of the view."""
        write_checked_json(self.path / "splits.json", content)

    def remove(self, trash: Path) -> None:
        """Removes the view atomically: moves it into `trash` and deletes it there. A missing view is no error."""
        gone = trash / f"view-{self.view_id}"
        with suppress(FileNotFoundError):
            self.path.rename(gone)
            sync_directory(self.path.parent)
        shutil.rmtree(gone, ignore_errors=True)


def load_views(table: Path, trash: Path) -> Iterator[ViewDirectory]:
    """Yields the views of a table that have a manifest and a lease. Removes all others, which a crash has left."""
    root = table / "snapshots"
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        view = ViewDirectory(table, path.name)
        if view.is_kept:
            yield view
        else:
            _log.info("removing %s, which is incomplete or has no lease", path)
            try:
                view.remove(trash)
            except OSError as error:
                _log.warning("%s cannot be removed before the next start: %s", path, error)


def unshared_snapshot_bytes(tables: Iterable[Path]) -> int:
    """Returns the bytes of files that only the snapshots of these tables keep, and no live bucket or base."""
    held: dict[int, int] = {}
    for table in tables:
        files: dict[int, int] = {}
        for view in _directories(table / "snapshots"):
            for path in (view, *_directories(os.path.join(view, "buckets")), *_bases(os.path.join(view, "bases"))):
                files.update(_files(path))
        for path in (*_directories(table / "buckets"), *_bases(table / "bases")):
            for inode in _files(path):
                files.pop(inode, None)
        held.update(files)
    return sum(held.values())


def _bases(path: Path | str) -> list[str]:
    """Returns the directories of the buckets' bases, and of the bases themselves."""
    buckets = _directories(path)
    return [*buckets, *(base for bucket in buckets for base in _directories(bucket))]


def _directories(path: Path | str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _files(path: str) -> dict[int, int]:
    """Returns the bytes of the files in a directory, by inode. Tolerates concurrent changes."""
    found = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found[status.st_ino] = status.st_size
    except FileNotFoundError:
        pass
    return found


def _read_lease(file: Path) -> LeaseRecord:
    try:
        content = read_checked_json(file)
        # Earlier versions wrote no names and no principals.
        name, pending = str(content.get("name", "")), content.get("pending") is True
        principal = str(content.get("principal", ""))
        return LeaseRecord(float(content["ttl_seconds"]), content["shared"] is True, name, pending, principal)
    except NewerFormat:
        raise
    except (DataLoss, LookupError, ValueError, TypeError) as error:
        _log.error("the lease %s cannot be read and gets the default time to live: %s", file, error)
        # The lease may have been shared, so its id must not be used again.
        return LeaseRecord(None, shared=True)
