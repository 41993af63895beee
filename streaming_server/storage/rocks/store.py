"""One RocksDB directory: its options, its life cycle, and the translation of its errors."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from threading import Semaphore
from typing import TYPE_CHECKING, Final, cast

import rocksdict

from scankv.model.errors import DataLoss, DiskFailed, DiskFull, InternalError, ScanKvError
from scankv.model.limits import MAX_KEY_BYTES
from streaming_server.histogram import Histogram
from streaming_server.storage.files.disk_space import disk_failed, disk_full, find_disk_failure, has_space
from streaming_server.storage.files.disk_use import FamilyBytes
from streaming_server.storage.files.file_limit import too_many_files
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.rocks.read_only_alias import ReadOnlyAlias
from streaming_server.storage.rocks.small_files import SstFile, find_small_runs
from streaming_server.storage.rocks.store_readers import StoreReaders
from streaming_server.storage.rocks.write_ahead_log import find_log_files, remove_kept_logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from scankv.model.keys.key_range import KeyRange

_COMPRESSION = {
    "none": rocksdict.DBCompressionType.none,
    "lz4": rocksdict.DBCompressionType.lz4,
    "zstd": rocksdict.DBCompressionType.zstd,
}
# Changelog records are compressed before they are stored, where that pays off for readers. Decompressing them a second
# time with LZ4 would take a third of a reader's time, so only the dense compression of a table applies to them.
_DENSE = frozenset(["zstd"])
_BLOCK_BYTES = 16 * 1024
META: Final = "meta"
"""The column family with the metadata of a bucket."""

_COLUMN_FAMILIES = ("rows", "log", "index", META)
_FIRST_FAMILIES = frozenset(["rows", "log", "meta"])  # Checkpoints from before indexes existed have no others.
# A share of the 64 MiB of a memtable: four bits for each of about 700,000 rows, which exclude five of six absent keys.
_FILTER_SHARE = 0.005
_FILTER_BYTES = 400 * 1024
_ADVICE = (
    "reads continue; to write again, free some space by dropping tables or releasing snapshots, or enlarge the disk, "
    "and retry after some seconds"
)
_FOREVER_SECONDS = 2**64 - 1
# A file in which half of this many adjacent entries are tombstones is compacted as soon as it is written, because
# readers skip only about five tombstones per microsecond, and in steps.
_DELETION_WINDOW, _MANY_DELETIONS = 4096, 2048
# After this many deletes, tombstones in memory are flushed, so that the rule above applies to them.
_FLUSHED_DELETIONS = 100_000
_PIECE_BYTES = 1 << 20
_PUTS_AT_ONCE = 2048  # in a file, while which other threads wait
_MEMTABLES = "rocksdb.cur-size-all-mem-tables"
_MOST_PROBED = 256  # deleted rows that a probe for rows skips
_log = logging.getLogger(__name__)
_BEYOND_ALL_KEYS = b"\xff" * (MAX_KEY_BYTES + 1)
_FILE_NUMBER = re.compile(r"^ *(\d+):\d+\[", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksResources:
    """What all buckets of a process share: one block cache, and one limit on the memory of unflushed writes.

    Attributes:
        block_cache: Caches blocks that were read by key.
        write_buffers: Limits the memory of unflushed writes.
        filters: A semaphore over the buckets that have a Bloom filter of their unflushed keys. The filter makes lookups
            of absent keys, such as those of inserts, two to three times as fast. Its full size counts as memory of
            unflushed writes from the start, so all filters together take at most a quarter of that memory.
        files_per_store: The most SST files that a store keeps open. It opens others when it reads them.
        keeps_logs: Whether stores keep files of their write-ahead logs that they no longer need, until others remove
            them.
        write_seconds: The durations of writes.
        sync_seconds: The durations of syncs of write-ahead logs.
    """

    block_cache: rocksdict.Cache
    write_buffers: rocksdict.WriteBufferManager
    filters: Semaphore
    files_per_store: int = 256
    keeps_logs: bool = False
    write_seconds: Histogram = field(default_factory=Histogram)
    sync_seconds: Histogram = field(default_factory=Histogram)

    @classmethod
    def of_sizes(
        cls,
        *,
        block_cache_bytes: int,
        write_buffer_bytes: int,
        files_per_store: int = 256,
        keeps_logs: bool = False,
    ) -> RocksResources:
        """Creates resources of these sizes in bytes. While flushes catch up, writers are slowed, not refused."""
        return cls(
            block_cache=rocksdict.Cache(block_cache_bytes),
            write_buffers=rocksdict.WriteBufferManager(write_buffer_bytes, False),
            filters=Semaphore(write_buffer_bytes // 4 // _FILTER_BYTES),
            files_per_store=files_per_store,
            keeps_logs=keeps_logs,
        )


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


def is_complete(path: Path) -> bool:
    """Whether a store was completely created in a directory: RocksDB adds the column families after `CURRENT`."""
    if not (path / "CURRENT").exists():
        return False
    with suppress(Exception):
        return _FIRST_FAMILIES <= set(rocksdict.Rdict.list_cf(str(path)))
    return True  # Opening it reports what is wrong.


def families_of(path: Path) -> list[str]:
    """Returns the names of the column families of a store, which may be open. The index is the number of the family."""
    return list(rocksdict.Rdict.list_cf(str(path)))


def create_empty(path: Path, families: Sequence[str], resources: RocksResources) -> None:
    """Creates a store without writes, whose column families have the same numbers as those of another store."""
    options = _options("none", resources)
    store = rocksdict.Rdict(str(path), options)
    for name in families[1:]:
        store.create_column_family(name, options)
    store.close()
    for file in find_log_files(path):
        file.path.unlink()


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
            self._writer = rocksdict.SstFileWriter(_options(compression, resources))
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
            return disk_full(self._path, _ADVICE)
        if (cause := find_disk_failure(text)) is not None:
            return disk_failed(self._path, cause)
        _log.error("%s: %s", self._path, text)
        return InternalError(f"{self._path} cannot be written; the log of the server has RocksDB's message")


class RocksStore:
    """One open RocksDB directory with its column families `rows`, `log`, `index` and `meta`.

    Not thread-safe: callers serialize writes and the creation of iterators. `sync`, `flush` and `checkpoint` may run
    concurrently with both. A `read_only` store is a checkpoint, which never changes, or a bucket on a full disk; it
    takes no lock on the directory. Every failure is a `ScanKvError` that names `location`: `DataLoss` for damage,
    `DiskFull` when no space is left, `DiskFailed` when the disk is read-only or reports an error, `ServerBusy` when too
    many files are open, `InternalError` for anything else. A store that is opened `point_in_time` drops what
    comes after damage in its write-ahead log.

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
    ) -> None:
        self.location = location
        self.is_read_only = read_only
        self.refusal: ScanKvError | None = None
        self._sync_failed = False
        self._is_closed = False
        self._path = path
        self._unflushed_deletions = 0
        self.readers = StoreReaders(self.failure)
        self._resources = resources
        self._has_filter = not read_only and resources.filters.acquire(blocking=False)
        options = _options(compression, resources)
        if point_in_time:
            options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
        row_options = _options(compression, resources, filtered=self._has_filter)
        self._alias: ReadOnlyAlias | None = None
        try:
            # Checkpoints from before indexes existed lack a family, and RocksDB cannot add one when it only reads.
            names = rocksdict.Rdict.list_cf(str(path), options) if read_only else ()
            families = {name: options for name in _COLUMN_FAMILIES if not read_only or name in names}
            families["rows"] = row_options
            families["log"] = _options(compression if compression in _DENSE else "none", resources)
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
            self.refusal = disk_full(self._path, _ADVICE)
        # After the first such error, RocksDB reports different ones.
        if is_full or (isinstance(self.refusal, DiskFull) and text.startswith("IO error")):
            return disk_full(self._path, _ADVICE)
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
            began = time.perf_counter()
            self._db.write(batch.writes)
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
            raise disk_full(self._path, _ADVICE)
        if self.refusal is not None:
            raise copy(self.refusal)

    def get_rows(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored rows of some keys, None for a key without a row. Releases the interpreter lock."""
        try:
            found = cast("list[bytes | None]", self.rows.get(keys))  # type: ignore[arg-type]  # list is invariant
        except Exception as error:
            raise self.failure(error) from error
        return found

    def has_rows_between(self, first: bytes, last: bytes) -> bool:
        """Whether a row may exist with a key from `first` to `last`, both included.

        Costs as much as a few lookups. After many deleted rows, or at damage, the answer is True.
        """
        options = scan_options(last + b"\0", max_skips=_MOST_PROBED)
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

    def compact_ranges(self, rows: Iterable[KeyRange], entries: Iterable[KeyRange]) -> None:
        """Compacts key ranges of rows and of index entries. Blocks. May run concurrently with all but `close`."""
        try:
            for keys in rows:
                self.rows.compact_range(keys.start, keys.end)
            for keys in entries:
                self.index.compact_range(keys.start, keys.end)
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

    def close(self) -> None:
        """Closes the directory and releases its lock. Every iterator must have been dropped before.

        Releasing the last reference shuts RocksDB down. If that were a handle of a column family, the shutdown would
        hold the interpreter lock. So the handles go first, and then `Rdict.close` shuts down without the lock.
        """
        self._is_closed = True
        del self.rows, self.log, self.meta, self._index, self._handles
        try:
            self._db.close()
        except Exception as error:
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


class StoreBatch:
    """Writes to several column families that are applied together. Can be applied once.

    Attributes:
        writes: The writes.
        deletions: How many of them delete one row or index entry.
    """

    def __init__(self, handles: dict[str, rocksdict.ColumnFamily]) -> None:
        self._handles = handles
        self.deletions = 0
        self.writes = rocksdict.WriteBatch(raw_mode=True)

    def release(self) -> None:
        """Drops the references to the store and to all writes."""
        del self._handles, self.writes

    def put_rows(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Puts rows with these keys and values."""
        # A deque that drains `map` is Python's fastest loop for this.
        self.writes.set_default_column_family(self._handles["rows"])
        deque(map(self.writes.put, keys, values), maxlen=0)

    def delete_rows(self, keys: Iterable[bytes]) -> None:
        """Deletes rows."""
        self.writes.set_default_column_family(self._handles["rows"])
        self._delete(keys)

    def delete_adjacent_rows(self, keys: Sequence[bytes]) -> None:
        """Deletes rows with ascending keys as one range. No other rows lie between the first and the last."""
        self.delete_row_range(keys[0], keys[-1] + b"\0")
        self.deletions += len(keys)

    def _delete(self, keys: Iterable[bytes]) -> None:
        before = self.writes.len()
        deque(map(self.writes.delete, keys), maxlen=0)
        self.deletions += self.writes.len() - before

    def delete_row_range(self, start: bytes, end: bytes | None) -> None:
        """Deletes the rows from `start` up to, but without, `end`, in constant time. None: up to the last row."""
        self.writes.delete_range(start, _BEYOND_ALL_KEYS if end is None else end, self._handles["rows"])

    def put_entries(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Puts index entries with these keys and values."""
        self.writes.set_default_column_family(self._handles["index"])
        deque(map(self.writes.put, keys, values), maxlen=0)

    def delete_entries(self, keys: Iterable[bytes]) -> None:
        """Deletes index entries."""
        self.writes.set_default_column_family(self._handles["index"])
        self._delete(keys)

    def delete_entry_range(self, start: bytes, end: bytes) -> None:
        """Deletes the index entries from `start` up to, but without, `end`, in constant time."""
        self.writes.delete_range(start, end, self._handles["index"])

    def put_log(self, key: bytes, record: bytes) -> None:
        """Puts one changelog record."""
        self.writes.put(key, record, self._handles["log"])

    def delete_log(self, start: bytes, end: bytes) -> None:
        """Deletes the changelog records from `start` up to, but without, `end`."""
        self.writes.delete_range(start, end, self._handles["log"])

    def delete_meta_range(self, start: bytes, end: bytes) -> None:
        """Deletes the metadata of the bucket with keys from `start` up to, but without, `end`."""
        self.writes.delete_range(start, end, self._handles["meta"])

    def put_meta(self, key: bytes, value: bytes) -> None:
        """Puts one entry of the bucket's metadata."""
        self.writes.put(key, value, self._handles["meta"])

    def delete_meta(self, key: bytes) -> None:
        """Deletes one entry of the bucket's metadata."""
        self.writes.delete(key, self._handles["meta"])


def _table_bytes(family: rocksdict.Rdict | None) -> int:
    return 0 if family is None else family.property_int_value("rocksdb.total-sst-files-size") or 0


def scan_options(end: bytes | None = None, *, max_skips: int = 0) -> rocksdict.ReadOptions:
    """Returns the read options of one scan, which does not evict blocks of others from the cache.

    An iterator only borrows its options, so its owner keeps them, unchanged, for as long as the iterator. A parameter
    `start` is missing on purpose: rocksdict 0.3.29 sets the upper bound when it is asked to set the lower one.

    Args:
        end: The scan stays below this key.
        max_skips: The most adjacent entries, deleted or newer than the iterator, that the iterator skips. After more it
            becomes invalid, with a status that says so. 0: it skips any number.
    """
    options = rocksdict.ReadOptions()
    if end is not None:
        options.set_iterate_upper_bound(end)
    if max_skips:
        options.set_max_skippable_internal_keys(max_skips)
    options.fill_cache(False)  # type: ignore[call-arg]  # rocksdict's stub lacks the argument
    options.set_background_purge_on_iterator_cleanup(True)
    return options


def make_logs_durable(path: Path) -> None:
    """Makes the write-ahead logs of a store durable, which opening it only for reading does not. Blocks.

    Overwrites every byte with itself, which takes no space. A sync alone would not suffice after a failed sync: the
    system considers those pages written, and would write only later ones.

    Raises:
        DiskFull: The operating system has accepted writes for which the disk has no space.
        OSError: Anything else.
    """
    for log in sorted(path.glob("*.log")):
        with log.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                write_at(log, piece, file.tell() - len(piece), sync=False)
        write_at(log, b"", 0, sync=True)


def _options(compression: str, resources: RocksResources, *, filtered: bool = False) -> rocksdict.Options:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(resources.block_cache)
    table.set_block_size(_BLOCK_BYTES)
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(_COMPRESSION[compression]())
    options.set_write_buffer_manager(resources.write_buffers)
    # After damage in the middle of a log, the default mode silently opens with a gap; this mode refuses to open.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    # RocksDB computes the age of a file without regard to its sign, and by its coarse clock a file may be of the next
    # second. With a shorter time to live, RocksDB would take such a file for a very old one, and remove it.
    options.set_wal_ttl_seconds(_FOREVER_SECONDS if resources.keeps_logs else 0)
    options.set_max_background_jobs(2)
    options.set_max_open_files(resources.files_per_store)
    # RocksDB would divide the open files among 64 shards and give each of them at least one.
    options.set_table_cache_num_shard_bits(0)
    options.add_compact_on_deletion_collector_factory(_DELETION_WINDOW, _MANY_DELETIONS, 0.0)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    if filtered:
        options.set_memtable_prefix_bloom_ratio(_FILTER_SHARE)
        options.set_memtable_whole_key_filtering(True)
    return options
