"""One RocksDB directory: its life cycle, its reads and writes, and the translation of its errors."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import rocksdict

from scankv.model.errors import DataLoss, DiskFailed, DiskFull, InternalError, ScanKvError
from streaming_server.storage.files.disk_space import FREE_SPACE, disk_failed, disk_full, find_disk_failure, has_space
from streaming_server.storage.files.disk_use import FamilyBytes
from streaming_server.storage.files.file_limit import too_many_files
from streaming_server.storage.rocks.read_only_alias import ReadOnlyAlias
from streaming_server.storage.rocks.row_sizes import estimate_row_bytes
from streaming_server.storage.rocks.small_files import SstFile, find_small_runs
from streaming_server.storage.rocks.store_batch import StoreBatch
from streaming_server.storage.rocks.store_options import scan_options, store_options
from streaming_server.storage.rocks.store_readers import StoreReaders
from streaming_server.storage.rocks.write_ahead_log import ends_cut_short, remove_kept_logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from scankv.model.keys.key_range import KeyRange
    from streaming_server.storage.rocks.store_options import RocksResources

# Changelog records are compressed before they are stored, where that pays off for readers. Decompressing them a second
# time with LZ4 would take a third of a reader's time, so only the dense compression of a table applies to them.
_DENSE = frozenset(["zstd"])
META: Final = "meta"
"""The column family with the metadata of a bucket."""

_COLUMN_FAMILIES = ("rows", "log", "index", META)
# After this many deletes, tombstones in memory are flushed, so that the rule above applies to them.
_FLUSHED_DELETIONS = 100_000
_FEW_UNFLUSHED_BYTES = 1 << 18  # which the next opening reads again in a millisecond
_MEMTABLES = "rocksdb.cur-size-all-mem-tables"
_MANY_WRITES = 10_000
_MOST_PROBED = 256  # deleted rows that a probe for rows skips
_log = logging.getLogger(__name__)
_FILE_NUMBER = re.compile(r"^ *(\d+):\d+\[", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksStats:
    """RocksDB's own statistics of one store.

    Attributes:
        memtable_bytes: The memory of unflushed writes.
        table_readers_bytes: The estimated memory for indexes and filters of SST files.
        pending_compaction_bytes: The estimated bytes that compactions have to rewrite.
        running_compactions: The compactions that run now.
        running_flushes: The flushes that run now.
        is_write_stopped: 1 if RocksDB has stopped writes until a flush or a compaction ends; otherwise 0.
        background_errors: The failed flushes and compactions since the store was opened.
    """

    memtable_bytes: int
    table_readers_bytes: int
    pending_compaction_bytes: int
    running_compactions: int
    running_flushes: int
    is_write_stopped: int
    background_errors: int


# Of each column family, and of the store. RocksDB documents them in `DB::Properties` of include/rocksdb/db.h.
_FAMILY_PROPERTIES: Final = {
    "memtable_bytes": "cur-size-all-mem-tables",
    "table_readers_bytes": "estimate-table-readers-mem",
    "pending_compaction_bytes": "estimate-pending-compaction-bytes",
}
_STORE_PROPERTIES: Final = {
    "running_compactions": "num-running-compactions",
    "running_flushes": "num-running-flushes",
    "is_write_stopped": "is-write-stopped",
    "background_errors": "background-errors",
}


class RocksStore:
    """One open RocksDB directory with its column families `rows`, `log`, `index` and `meta`.

    Not thread-safe: callers serialize writes and the creation of iterators. `sync`, `flush` and `checkpoint` may run
    concurrently with both. A `read_only` store is a checkpoint, which never changes, or a bucket on a full disk; it
    takes no lock on the directory. Every failure is a `ScanKvError` that names `location`: `DataLoss` for damage,
    `DiskFull` when no space is left, `DiskFailed` when the disk is read-only or reports an error, `ServerBusy` when too
    many files are open, `InternalError` for anything else. A store that is opened `point_in_time` drops what
    comes after damage in its write-ahead log. A store that `may_be_cut_short` drops a last write of which a power cut
    has left only a part; the owner of the store checks whether a durable write is missing.

    Attributes:
        location: The name of the store in errors.
        is_read_only: Whether the store was opened for reading only.
        refusal: Why the store accepts no writes until it is reopened: a write or a sync has failed. None: it accepts
            writes.
        sequence: RocksDB's number of the last write.
        readers: The cursors that read the store. They must be closed before the store is.
    """

    def __init__(
        self,
        path: Path,
        location: str,
        *,
        compression: str,
        resources: RocksResources,
        read_only: bool = False,
        point_in_time: bool = False,
        may_be_cut_short: bool = False,
    ) -> None:
        self.location = location
        self.is_read_only = read_only
        self.refusal: ScanKvError | None = None
        self._sync_failed = False
        self._is_closed = False
        self._path = path
        self._unflushed_deletions = 0
        self._written_bytes = 0
        self.readers = StoreReaders(self.failure)
        self._resources = resources
        self._has_filter = not read_only and resources.filters.acquire(blocking=False)
        options = store_options(compression, resources)
        if point_in_time:
            options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
        row_options = store_options(compression, resources, filtered=self._has_filter)
        self._alias: ReadOnlyAlias | None = None
        try:
            # Checkpoints from before indexes existed lack a family, and RocksDB cannot add one when it only reads.
            names = rocksdict.Rdict.list_cf(str(path), options) if read_only else ()
            families = {name: options for name in _COLUMN_FAMILIES if not read_only or name in names}
            families["rows"] = row_options
            families["log"] = store_options(compression if compression in _DENSE else "none", resources)
            try:
                self._db = self._open(path, options, families)
            except Exception as error:
                if not (may_be_cut_short and str(error).startswith("Corruption") and ends_cut_short(path)):
                    raise
                _log.warning("%s: dropped the last write, of which a power cut has left only a part", location)
                options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
                self._db = self._open(path, options, families)
        except Exception as error:
            self._release_filter()
            raise self.failure(error) from error
        self.rows = self._db.get_column_family("rows")
        self.log = self._db.get_column_family("log")
        self.meta = self._db.get_column_family("meta")
        self._index = self._db.get_column_family("index") if "index" in families else None
        self._handles = {name: self._db.get_column_family_handle(name) for name in families}
        self.sequence = self._db.latest_sequence_number()
        self._row_bytes, self._row_bytes_until = 0, -1

    def _open(self, path: Path, options: rocksdict.Options, families: dict[str, rocksdict.Options]) -> rocksdict.Rdict:
        if not self.is_read_only:
            if not self._resources.keeps_logs:
                # RocksDB itself would keep a file forever that it was once configured to keep.
                remove_kept_logs(path)
            access = rocksdict.AccessType.read_write()
            return rocksdict.Rdict(str(path), options, column_families=families, access_type=access)
        access = rocksdict.AccessType.read_only()
        try:
            return rocksdict.Rdict(str(path), options, column_families=families, access_type=access)
        except Exception as error:
            if not isinstance(self.failure(error), DiskFull | DiskFailed):
                raise
        self._alias = ReadOnlyAlias(path)
        try:
            return rocksdict.Rdict(str(self._alias.path), options, column_families=families, access_type=access)
        except BaseException:
            self._alias.remove()
            raise

    @property
    def index(self) -> rocksdict.Rdict:
        """The index entries. A checkpoint without a ready index may lack this column family."""
        assert self._index is not None
        return self._index

    @property
    def _families(self) -> list[rocksdict.Rdict]:
        return [family for family in (self.rows, self.log, self._index, self.meta) if family is not None]

    def failure(self, error: Exception) -> ScanKvError:
        """Returns the error to raise for an error of RocksDB, whose text begins with a status."""
        if isinstance(error, ScanKvError):
            return error
        text = str(error)
        if text.startswith("Corruption") or "No such file" in text or "Result incomplete" in text:
            _log.error("%s: %s", self.location, text)
            return DataLoss(f"{self.location} is damaged; the log of the server has RocksDB's message")
        if "Too many open files" in text:
            return too_many_files(f"{self.location} cannot be read or written")
        is_full = "No space left on device" in text or "Disk quota exceeded" in text
        # A sync reports this while a concurrent write has failed and has not raised its error yet.
        is_unknown = "Writer has previous error" in text
        is_full = is_full or (is_unknown and not has_space(self._path))
        if is_full:
            self.refusal = disk_full(self._path, FREE_SPACE)
        # After the first such error, RocksDB reports different ones; and after `stop_waiting`, that it shuts down.
        if is_full or (isinstance(self.refusal, DiskFull) and text.startswith(("IO error", "Shutdown in progress"))):
            return disk_full(self._path, FREE_SPACE)
        _log.error("%s: %s", self.location, text)
        if isinstance(self.refusal, DiskFailed) and text.startswith("IO error"):
            return copy(self.refusal)
        if (cause := find_disk_failure(text)) is not None or is_unknown:
            return disk_failed(self._path, cause or "a write has failed")
        return InternalError(f"{self.location} cannot be read or written; the log of the server has RocksDB's message")

    def _refuse(self, error: Exception) -> ScanKvError:
        """Returns the error for a failed write or sync. All later writes are refused with the same error."""
        is_first = self.refusal is None
        failure = self.failure(error)
        if not isinstance(failure, DataLoss):
            # A copy, because the traceback of the raised error keeps the variables of its callers alive.
            self.refusal = self.refusal or copy(failure)
            if is_first:
                _log.error("%s accepts no writes until it is reopened: %s [%s]", self.location, failure.message, error)
        return failure

    def batch(self) -> StoreBatch:
        """Returns a new, empty batch of writes. Raises InternalError if the store is closed."""
        if self._is_closed:
            raise InternalError(f"{self.location} is closed, and cannot be written before it is opened again")
        return StoreBatch(self._handles)

    def write(self, batch: StoreBatch) -> None:
        """Applies a batch atomically. It is durable only after a later `sync`."""
        try:
            self.check_writable()
            self.readers.create_all()
            began, size = time.perf_counter(), batch.writes.size_in_bytes()
            if self._resources.has_small_memtables and self.lacks_space:
                # RocksDB might make the write wait for flushes, with the interpreter lock held, and for good.
                raise disk_full(self._path, FREE_SPACE)
            self._db.write(batch.writes)
            self._written_bytes += size
            self._count_deletions(batch.deletions)
            self._resources.write_seconds.observe(time.perf_counter() - began)
            self.sequence = self._db.latest_sequence_number()
        except Exception as error:
            # The traceback of the error keeps the batch, whose handles would keep RocksDB's lock beyond `close`.
            batch.release()
            raise self._refuse(error) from error

    def ingest_rows(self, files: Sequence[Path]) -> None:
        """Takes in files of rows, which disappear from where they were. Durable, without the write-ahead log."""
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)
        try:
            self.check_writable()
            self.readers.create_all()
            self.rows.ingest_external_file([str(file) for file in files], options)
        except Exception as error:
            raise self._refuse(error) from error

    def _count_deletions(self, deletions: int) -> None:
        """Begins to flush rows and index entries in the background when many of them were deleted."""
        self._unflushed_deletions += deletions
        if self._unflushed_deletions >= _FLUSHED_DELETIONS:
            self._unflushed_deletions = 0
            # No variable names the family, as in `flush`.
            deque(map(partial(rocksdict.Rdict.flush, wait=False), filter(None, (self.rows, self._index))), maxlen=0)

    def sync(self) -> None:
        """Makes everything written before the call durable. Releases the interpreter lock while the disk works.

        Rule: after a failed sync, no other is tried on the same pages, because the operating system considers them
        written and would report success. Opening the store again writes the contents of its logs into new files.
        """
        if self._sync_failed:
            self.check_writable()
        try:
            began = time.perf_counter()
            self._db.flush_wal(True)
            self._resources.sync_seconds.observe(time.perf_counter() - began)
        except Exception as error:
            self._sync_failed = True
            raise self._refuse(error) from error

    def check_writable(self) -> None:
        """Raises the reason if the store accepts no writes."""
        if isinstance(self.refusal, DiskFull):
            raise disk_full(self._path, FREE_SPACE)
        if self.refusal is not None:
            raise copy(self.refusal)

    def get_rows(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored rows of some keys, None for a key without a row. Releases the interpreter lock."""
        try:
            found = cast("list[bytes | None]", self.rows.get(keys))  # type: ignore[arg-type]  # list is invariant
        except Exception as error:
            raise self.failure(error) from error
        return found

    def has_rows_between(self, first: bytes, last: bytes, *, deleted: int = 0) -> bool:
        """Whether a row may exist with a key from `first` to `last`, both included.

        Costs as much as a few lookups. After many deleted rows beyond those that the caller knows of, or at damage, the
        answer is True.
        """
        # A deleted row leaves itself and its mark.
        options = scan_options(last + b"\0", max_skips=_MOST_PROBED + 2 * deleted)
        iterator = None
        try:
            iterator = self.rows.iter(options)
            iterator.seek(first)
            if not iterator.valid():
                iterator.status()
                return False
        except Exception:
            # Lookups of the keys report damage, and skip any number of deleted rows.
            return True
        finally:
            del iterator  # before its options, which it only borrows
        return True

    def find_cached_rows(self, keys: Iterable[bytes]) -> list[bytes | None] | None:
        """Returns the stored rows of some keys, None for a key without a row, without reading from disk.

        Returns None if a row is not in memory. Takes 2 us for each key.
        """
        rows: list[bytes | None] = []
        may_exist = self.rows.key_may_exist
        for key in keys:
            exists, row = cast("tuple[bool, bytes | None]", may_exist(key, True))
            if exists and row is None:
                return None
            rows.append(row)
        return rows

    def snapshot_rows(self) -> RowsSnapshot:
        """Returns the rows at this instant, for lookups by key; takes microseconds. Drop it before the store closes."""
        return RowsSnapshot(self, self.rows.snapshot())

    def read_rows(self, count: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yields the keys and values of all rows in order, so many at a time. Raises DataLoss at damage."""
        options = scan_options()
        iterator = self.rows.iter(options)
        iterator.seek_to_first()
        keys: list[bytes] = []
        rows: list[bytes] = []
        while iterator.valid():
            keys.append(cast("bytes", iterator.key()))
            rows.append(cast("bytes", iterator.value()))
            if len(keys) == count:
                yield keys, rows
                keys, rows = [], []
            iterator.next()
        try:
            iterator.status()
        except Exception as error:
            raise self.failure(error) from error
        if keys:
            yield keys, rows

    def count_meta(self) -> int:
        """Reads all metadata, and returns the number of entries. Raises DataLoss at damage."""
        options = scan_options()
        iterator, count = self.meta.iter(options), 0
        iterator.seek_to_first()
        while iterator.valid():
            count += 1
            iterator.next()
        try:
            iterator.status()
        except Exception as error:
            raise self.failure(error) from error
        return count

    def estimate_rows(self) -> int:
        """Returns RocksDB's estimate of the number of rows, in which a row may count once for each write of it."""
        return self.rows.property_int_value("rocksdb.estimate-num-keys") or 0

    def estimate_row_bytes(self) -> int:
        """Returns about how many bytes a row has: see `row_sizes`. Computed again after thousands of writes."""
        if self.sequence > self._row_bytes_until:
            self._row_bytes = estimate_row_bytes(self.rows)
            self._row_bytes_until = self.sequence + _MANY_WRITES
        return self._row_bytes

    def family_bytes(self) -> FamilyBytes:
        """Returns the bytes of SST files by column family, including files kept only by cursors. Takes microseconds."""
        rows, log, index = (_table_bytes(family) for family in (self.rows, self.log, self._index))
        return FamilyBytes(rows=rows, changelog=log, indexes=index)

    def rocks_stats(self) -> RocksStats:
        """Returns RocksDB's own statistics. Takes tens of microseconds."""
        families = self._families
        return RocksStats(
            **{
                name: sum(family.property_int_value(f"rocksdb.{key}") or 0 for family in families)
                for name, key in _FAMILY_PROPERTIES.items()
            },
            **{name: self._db.property_int_value(f"rocksdb.{key}") or 0 for name, key in _STORE_PROPERTIES.items()},
        )

    @property
    def unflushed_bytes(self) -> int:
        """The memory of writes that are not in SST files yet. Takes microseconds."""
        return sum(family.property_int_value(_MEMTABLES) or 0 for family in self._families)

    @property
    def unflushed_log_bytes(self) -> int:
        """About the bytes of the write-ahead log of these writes. Takes microseconds."""
        # RocksDB takes memory in blocks of a megabyte, so a few rows seem to take several.
        return min(self.unflushed_bytes, self._written_bytes)

    @property
    def lacks_space(self) -> bool:
        """Whether a flush or a compaction has failed since the store was opened. Takes microseconds."""
        return bool(self._db.property_int_value(f"rocksdb.{_STORE_PROPERTIES['background_errors']}"))

    def stop_waiting(self) -> None:
        """Refuses writes, and ends calls that wait inside RocksDB for space; the store then has to be reopened.

        After a compaction found no space, RocksDB begins none before its complete input is free, even if it writes
        next to nothing. Flushes wait likewise, and so do writes, for flushes and compactions. A store that was
        reopened just tries.
        """
        self.refusal = self.refusal or disk_full(self._path, FREE_SPACE)
        self._db.cancel_all_background(wait=False)

    def flush(self) -> None:
        """Moves unflushed writes into SST files."""
        try:
            self.check_writable()
            # No variable names the family: the frame of an error would keep it, and with it the lock of the store.
            deque(map(rocksdict.Rdict.flush, self._families), maxlen=0)
        except Exception as error:
            raise self.failure(error) from error

    def compact_small_files(self) -> int:
        """Merges runs of many small SST files into one file each; returns how many runs. Blocks.

        May run concurrently with all but `close`.
        """
        if self.is_read_only or self.refusal is not None:
            return 0
        options = rocksdict.CompactOptions()
        # Without this, files of the last level that have no tombstones would stay as they are.
        options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        runs = 0
        family = None
        try:
            for family, files in zip(self._families, self._files(), strict=True):
                for first, last in find_small_runs(files):
                    family.compact_range(first, last, options)
                    runs += 1
        except Exception as error:
            raise self.failure(error) from error
        finally:
            del family  # for the same reason as in `flush`
        return runs

    def compact_ranges(
        self, rows: Iterable[KeyRange], entries: Iterable[KeyRange], records: Iterable[KeyRange]
    ) -> None:
        """Compacts key ranges of rows, of index entries and of changelog records.

        Blocks. May run concurrently with all but `close`.
        """
        try:
            for keys in rows:
                self.rows.compact_range(keys.start, keys.end)
            for keys in entries:
                self.index.compact_range(keys.start, keys.end)
            for keys in records:
                self.log.compact_range(keys.start, keys.end)
        except Exception as error:
            raise self.failure(error) from error

    def _files(self) -> list[list[SstFile]]:
        """Returns the SST files of each column family."""
        files = {
            int(file["name"].strip("/").removesuffix(".sst")): SstFile(file["size"], file["start_key"], file["end_key"])
            for file in self._db.live_files()
        }
        # `live_files` lists the files of all column families. This property lists the file numbers of one family.
        texts = [family.property_value("rocksdb.sstables") or "" for family in self._families]
        return [[files[int(name)] for name in _FILE_NUMBER.findall(text) if int(name) in files] for text in texts]

    def checkpoint(self, path: Path) -> None:
        """Makes a copy of the store at this instant in `path`, which must not exist. SST files become hard links.

        Flushes first what is not in SST files yet. Holds the interpreter lock for about 2 ms.
        """
        try:
            self.check_writable()
            rocksdict.Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:
            raise self.failure(error) from error

    def close(self, *, flush: bool = True) -> None:
        """Closes the directory and releases its lock. Every iterator must have been dropped before.

        Without `flush`, few unflushed writes stay in the write-ahead log, which the caller has synced: the next opening
        takes them from there. To flush them takes four times as long as to close the store.

        Releasing the last reference shuts RocksDB down. If that were a handle of a column family, the shutdown would
        hold the interpreter lock. So the handles go first, and then `Rdict.close` shuts down without the lock.
        """
        self._is_closed = True
        if is_left := not (flush or self.is_read_only) and self.unflushed_log_bytes <= _FEW_UNFLUSHED_BYTES:
            # Releasing a handle flushes its family, unless the store is shutting down.
            self._db.cancel_all_background(wait=False)
        del self.rows, self.log, self.meta, self._index, self._handles
        try:
            self._db.close()
        except Exception as error:
            if not (is_left and str(error).startswith("Shutdown in progress")):
                raise self.failure(error) from error
        finally:
            del self._db
            self._release_filter()
            if self._alias is not None:
                self._alias.remove()

    def _release_filter(self) -> None:
        if self._has_filter:
            self._has_filter = False
            self._resources.filters.release()


class RowsSnapshot:
    """The rows of a store at one instant. Thread-safe.

    Only lookups of single keys honour a RocksDB snapshot; its iterators see later writes (rocksdict 0.3.29).
    """

    def __init__(self, store: RocksStore, snapshot: rocksdict.Snapshot) -> None:
        self._store = store
        self._snapshot = snapshot

    def get(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Returns the stored rows of some keys, None if no row exists. Holds the interpreter lock for 2 µs a key."""
        return list(map(self._get, keys))

    def _get(self, key: bytes) -> bytes | None:
        try:
            return cast("bytes", self._snapshot[key])
        except Exception as error:
            if str(error) == "key not found":
                return None
            raise self._store.failure(error) from error


def _table_bytes(family: rocksdict.Rdict | None) -> int:
    return 0 if family is None else family.property_int_value("rocksdb.total-sst-files-size") or 0
