"""Opening one RocksDB directory the way ScanKV needs it, closing it for good, and naming its failures."""

from __future__ import annotations

import logging
import re
from collections import deque
from copy import copy
from dataclasses import dataclass
from threading import Semaphore
from typing import TYPE_CHECKING, cast

import rocksdict

from scankv.model.errors import DataLoss, DiskFull, InternalError, ScanKvError
from streaming_server.storage.files.disk_space import disk_full, has_space
from streaming_server.storage.files.disk_use import FamilyBytes
from streaming_server.storage.files.file_limit import too_many_files
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.rocks.small_files import SstFile, find_small_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_COMPRESSION = {
    "none": rocksdict.DBCompressionType.none,
    "lz4": rocksdict.DBCompressionType.lz4,
    "zstd": rocksdict.DBCompressionType.zstd,
}
# Records of the changelog compress themselves where that is worth it to those who read them: doing so again, as LZ4
# would, takes a third of their time. Who asks for a dense table gets it.
_DENSE = frozenset(["zstd"])
_BLOCK_BYTES = 16 * 1024
_COLUMN_FAMILIES = ("rows", "log", "index", "meta")
# Of the 64 MiB of a memtable: four bits for each of some 700,000 rows, which rules out five of six keys without a row.
_FILTER_SHARE = 0.005
_FILTER_BYTES = 400 * 1024
_ADVICE = (
    "reads go on; to write again, free some space, by dropping tables or releasing snapshots, or make the disk larger, "
    "and try again after some seconds"
)
# A file of which half of so many entries in a row are deletions is compacted as soon as it is written: readers pass
# over deleted entries at five a microsecond, in steps.
_DELETION_WINDOW, _MANY_DELETIONS = 4096, 2048
_PIECE_BYTES = 1 << 20
_log = logging.getLogger(__name__)
_FILE_NUMBER = re.compile(r"^ *(\d+):\d+\[", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksResources:
    """What all buckets of a process share: one block cache, and one bound on the memory of unflushed writes.

    Attributes:
        block_cache: Blocks that were read by key.
        write_buffers: Bounds the memory of unflushed writes.
        filters: Lets so many buckets have a filter of their unflushed keys. It makes looking for keys that are not
            there, as inserts do, two to three times as fast, but lies in the memory of unflushed writes from the
            beginning: so all of them together take a quarter of it at most.
        files_per_store: How many table files each store keeps open at most; others are opened when they are read.
    """

    block_cache: rocksdict.Cache
    write_buffers: rocksdict.WriteBufferManager
    filters: Semaphore
    files_per_store: int = 256

    @classmethod
    def of_sizes(cls, *, block_cache_bytes: int, write_buffer_bytes: int, files_per_store: int = 256) -> RocksResources:
        """Resources of these sizes in bytes. Writers are slowed, not refused, while flushes catch up."""
        return cls(
            block_cache=rocksdict.Cache(block_cache_bytes),
            write_buffers=rocksdict.WriteBufferManager(write_buffer_bytes, False),
            filters=Semaphore(write_buffer_bytes // 4 // _FILTER_BYTES),
            files_per_store=files_per_store,
        )


def is_complete(path: Path) -> bool:
    """Whether RocksDB has finished making its database in a directory: it writes the file `CURRENT` last."""
    return (path / "CURRENT").exists()


class RocksStore:
    """One open RocksDB directory with its column families `rows`, `log`, `index` and `meta`.

    Not thread-safe: callers serialise writes and the creation of iterators. `sync`, `flush` and `checkpoint` may run
    concurrently with both. A `read_only` store is a checkpoint, which never changes, or a bucket on a full disk; it
    takes no lock on the directory. Every failure is a `ScanKvError` that names `location`: `DataLoss` for damage,
    `DiskFull` when no space is left, `ServerBusy` when too many files are open, `InternalError` for anything else.

    Attributes:
        location: What errors call it.
        is_read_only: As above.
        refusal: Why it takes no writes until it is opened again: one has failed, or a sync. None: it takes them.
        sequence: RocksDB's number of the last write that it has.
        readers: How many cursors read it: it must not be closed before they are.
    """

    def __init__(
        self, path: Path, location: str, *, compression: str, resources: RocksResources, read_only: bool = False
    ) -> None:
        self.location = location
        self.is_read_only = read_only
        self.refusal: ScanKvError | None = None
        self._sync_failed = False
        self._path = path
        self.readers = 0
        self._resources = resources
        self._has_filter = not read_only and resources.filters.acquire(blocking=False)
        options = _options(compression, resources)
        of_rows = _options(compression, resources, filtered=self._has_filter)
        access = rocksdict.AccessType.read_only() if read_only else rocksdict.AccessType.read_write()
        try:
            # Checkpoints made before there were indexes lack a family, and cannot be given one.
            names = rocksdict.Rdict.list_cf(str(path), options) if read_only else ()
            families = {name: options for name in _COLUMN_FAMILIES if not read_only or name in names}
            families["rows"] = of_rows
            families["log"] = _options(compression if compression in _DENSE else "none", resources)
            self._db = rocksdict.Rdict(str(path), options, column_families=families, access_type=access)
        except Exception as error:
            self._give_filter()
            raise self.failure(error) from error
        self.rows = self._db.get_column_family("rows")
        self.log = self._db.get_column_family("log")
        self.meta = self._db.get_column_family("meta")
        self._index = self._db.get_column_family("index") if "index" in families else None
        self._handles = {name: self._db.get_column_family_handle(name) for name in families}
        self.sequence = self._db.latest_sequence_number()

    @property
    def index(self) -> rocksdict.Rdict:
        """The entries of indexes. Not for a checkpoint in whose state no index is ready: it may have none."""
        assert self._index is not None
        return self._index

    @property
    def _families(self) -> list[rocksdict.Rdict]:
        return [family for family in (self.rows, self.log, self._index, self.meta) if family is not None]

    def failure(self, error: Exception) -> ScanKvError:
        """The error to raise for one of RocksDB's: damage is told from trouble by the status that begins its text."""
        if isinstance(error, ScanKvError):
            return error
        text = str(error)
        if text.startswith("Corruption") or "No such file" in text or "Result incomplete" in text:
            _log.error("%s: %s", self.location, text)
            return DataLoss(f"{self.location} is damaged; the server's log has what RocksDB reports")
        if "Too many open files" in text:
            return too_many_files(f"{self.location} cannot be read or written")
        is_full = "No space left on device" in text or "Disk quota exceeded" in text
        # What a sync reports beside a write that has failed, and has not said so yet.
        is_full = is_full or ("Writer has previous error" in text and not has_space(self._path))
        if is_full:
            self.refusal = disk_full(self._path, _ADVICE)
        # After the first one, RocksDB reports others.
        if is_full or (isinstance(self.refusal, DiskFull) and text.startswith("IO error")):
            return disk_full(self._path, _ADVICE)
        _log.error("%s: %s", self.location, text)
        return InternalError(f"{self.location} cannot be read or written; the server's log has what RocksDB reports")

    def _refuse(self, error: Exception) -> ScanKvError:
        """The error for a write or a sync that has failed, with which all later ones are refused."""
        is_first = self.refusal is None
        failure = self.failure(error)
        if not isinstance(failure, DataLoss):
            # A copy: the traceback of the one that is raised has whatever the callers have.
            self.refusal = self.refusal or copy(failure)
            if is_first:
                _log.error(
                    "%s takes no writes until it is opened again: %s [%s]", self.location, failure.message, error
                )
        return failure

    def batch(self) -> StoreBatch:
        """A new, empty batch of writes."""
        return StoreBatch(self._handles)

    def write(self, batch: StoreBatch) -> None:
        """Applies a batch, all of it or nothing. Durable only after a later `sync`."""
        try:
            self.check_writable()
            self._db.write(batch.writes)
            self.sequence = self._db.latest_sequence_number()
        except Exception as error:
            # The error's traceback has it, and its handles would keep RocksDB's lock beyond `close`.
            batch.release()
            raise self._refuse(error) from error

    def sync(self) -> None:
        """Makes everything written before the call durable. Releases the interpreter lock while the disk works.

        Rule: after a sync has failed, none is tried again on the same pages: the system takes them for written, and
        would report success. The store is to be opened again, which writes what its logs have into new files.
        """
        if self._sync_failed:
            self.check_writable()
        try:
            self._db.flush_wal(True)
        except Exception as error:
            self._sync_failed = True
            raise self._refuse(error) from error

    def check_writable(self) -> None:
        """Raises why it takes no writes, if it does not."""
        if isinstance(self.refusal, DiskFull):
            raise disk_full(self._path, _ADVICE)
        if self.refusal is not None:
            raise copy(self.refusal)

    def get_rows(self, keys: list[bytes]) -> list[bytes | None]:
        """The stored rows of some keys, None where there is none. Releases the interpreter lock."""
        try:
            found = cast("list[bytes | None]", self.rows.get(keys))  # type: ignore[arg-type]  # list is invariant
        except Exception as error:
            raise self.failure(error) from error
        return found

    def snapshot_rows(self) -> RowsSnapshot:
        """The rows as of now, to be read by key; let it go before the store is closed. Takes microseconds."""
        return RowsSnapshot(self, self.rows.snapshot())

    def read_log_records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the changelog in order. Raises DataLoss at damage."""
        options = scan_options()
        iterator = self.log.iter(options)
        iterator.seek_to_first()
        while iterator.valid():
            yield cast("bytes", iterator.key()), cast("bytes", iterator.value())
            iterator.next()
        try:
            iterator.status()
        except Exception as error:
            raise self.failure(error) from error

    def family_bytes(self) -> FamilyBytes:
        """Bytes of the table files, also of those that only open cursors keep. Takes microseconds."""
        rows, log, index = (_table_bytes(family) for family in (self.rows, self.log, self._index))
        return FamilyBytes(rows=rows, changelog=log, indexes=index)

    def flush(self) -> None:
        """Moves unflushed writes into table files."""
        try:
            self.check_writable()
            # Without a name for the family: the frame of an error would keep it, and with it the lock of the store.
            deque(map(rocksdict.Rdict.flush, self._families), maxlen=0)
        except Exception as error:
            raise self.failure(error) from error

    def compact_small_files(self) -> int:
        """Makes table files one where many small ones lie side by side; how many places that were. Blocks.

        May run beside all but `close`.
        """
        if self.is_read_only or self.refusal is not None:
            return 0
        options = rocksdict.CompactOptions()
        # Else files that lie in the last level already, and have nothing deleted, would stay as they are.
        options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        places = 0
        family = None
        try:
            for family, files in zip(self._families, self._files(), strict=True):
                for first, last in find_small_runs(files):
                    family.compact_range(first, last, options)
                    places += 1
        except Exception as error:
            raise self.failure(error) from error
        finally:
            del family  # As above.
        return places

    def _files(self) -> list[list[SstFile]]:
        """The table files of each family."""
        files = {
            int(file["name"].strip("/").removesuffix(".sst")): SstFile(file["size"], file["start_key"], file["end_key"])
            for file in self._db.live_files()
        }
        # `live_files` does not tell families apart, whichever is asked; this text does, by the files' numbers.
        texts = [family.property_value("rocksdb.sstables") or "" for family in self._families]
        return [[files[int(name)] for name in _FILE_NUMBER.findall(text) if int(name) in files] for text in texts]

    def checkpoint(self, path: Path) -> None:
        """Makes a copy of the directory as of now in `path`, which must not exist: table files are hard links.

        What is not yet in table files is flushed first. Holds the interpreter lock: about 2 ms.
        """
        try:
            self.check_writable()
            rocksdict.Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:
            raise self.failure(error) from error

    def close(self) -> None:
        """Closes the directory and gives its lock back. Every iterator must be gone before.

        Lets others have the interpreter lock: RocksDB is shut down by whoever lets go of it last. That must be `close`,
        which does so without the lock, and not the handles of the families, which would hold it for as long.
        """
        del self.rows, self.log, self.meta, self._index, self._handles
        try:
            self._db.close()
        except Exception as error:
            raise self.failure(error) from error
        finally:
            del self._db
            self._give_filter()

    def _give_filter(self) -> None:
        if self._has_filter:
            self._has_filter = False
            self._resources.filters.release()


class RowsSnapshot:
    """The rows of a store as of one instant. Thread-safe.

    RocksDB's snapshots can be read by single keys alone: their iterators see later writes (rocksdict 0.3.29).
    """

    def __init__(self, store: RocksStore, snapshot: rocksdict.Snapshot) -> None:
        self._store = store
        self._snapshot = snapshot

    def get(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The stored rows of some keys, None where there was none. Holds the interpreter lock: 2 microseconds a key."""
        return list(map(self._get, keys))

    def _get(self, key: bytes) -> bytes | None:
        try:
            return cast("bytes", self._snapshot[key])
        except Exception as error:
            if str(error) == "key not found":
                return None
            raise self._store.failure(error) from error


class StoreBatch:
    """Writes to several column families that are applied together. Can be applied once."""

    def __init__(self, handles: dict[str, rocksdict.ColumnFamily]) -> None:
        self._handles = handles
        self.writes = rocksdict.WriteBatch(raw_mode=True)

    def release(self) -> None:
        """Lets go of the store, and of all writes."""
        del self._handles, self.writes

    def put_rows(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Puts rows; the two run side by side. `map` drained by a deque is the fastest loop Python has for this."""
        self.writes.set_default_column_family(self._handles["rows"])
        deque(map(self.writes.put, keys, values), maxlen=0)

    def delete_rows(self, keys: Iterable[bytes]) -> None:
        """Deletes rows."""
        self.writes.set_default_column_family(self._handles["rows"])
        deque(map(self.writes.delete, keys), maxlen=0)

    def put_entries(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Puts index entries; the two run side by side."""
        self.writes.set_default_column_family(self._handles["index"])
        deque(map(self.writes.put, keys, values), maxlen=0)

    def delete_entries(self, keys: Iterable[bytes]) -> None:
        """Deletes index entries."""
        self.writes.set_default_column_family(self._handles["index"])
        deque(map(self.writes.delete, keys), maxlen=0)

    def delete_entry_range(self, start: bytes, end: bytes) -> None:
        """Deletes the index entries from `start` up to, but without, `end`: in no time, however many there are."""
        self.writes.delete_range(start, end, self._handles["index"])

    def put_log(self, key: bytes, record: bytes) -> None:
        """Puts one changelog record."""
        self.writes.put(key, record, self._handles["log"])

    def delete_log(self, start: bytes, end: bytes) -> None:
        """Deletes the changelog records from one key up to, but without, another."""
        self.writes.delete_range(start, end, self._handles["log"])

    def delete_meta_range(self, start: bytes, end: bytes) -> None:
        """Deletes what is noted about the bucket from one key up to, but without, another."""
        self.writes.delete_range(start, end, self._handles["meta"])

    def put_meta(self, key: bytes, value: bytes) -> None:
        """Puts one entry about the bucket itself."""
        self.writes.put(key, value, self._handles["meta"])

    def delete_meta(self, key: bytes) -> None:
        """Deletes one entry about the bucket itself."""
        self.writes.delete(key, self._handles["meta"])


def _table_bytes(family: rocksdict.Rdict | None) -> int:
    return 0 if family is None else family.property_int_value("rocksdb.total-sst-files-size") or 0


def scan_options(end: bytes | None = None, *, max_skips: int = 0) -> rocksdict.ReadOptions:
    """Read options of one scan: it stays below the key `end`, and does not push others' blocks out of the cache.

    With `max_skips`, an iterator becomes invalid, and its status tells that, where more deleted entries than these, or
    later ones, lie in a row.

    An iterator only borrows its options, so whoever makes one keeps these, unchanged, as long as the iterator. There
    is no `start` here: rocksdict 0.3.29 sets the upper bound, too, when it is asked for a lower one.
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
    """Makes what the write-ahead logs of a store have durable, which opening it only to be read does not. Blocks.

    Every byte is written once more in its place, which takes no space: a sync may have failed before, and the next one
    writes nothing but what was written since.

    Raises:
        DiskFull: There is no space for what the system has taken without having any.
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
    # The default mode opens with a silent gap after damage in mid-log; this one refuses to.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_background_jobs(2)
    options.set_max_open_files(resources.files_per_store)
    # RocksDB would divide the files among 64 shards, and let each of them have one at least.
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
