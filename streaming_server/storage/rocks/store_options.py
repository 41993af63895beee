"""What do all stores of a process share, and with which options are they opened and scanned?"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Semaphore

import rocksdict

from streaming_server.histogram import Histogram
from streaming_server.storage.files.disk_reserve import MEMTABLE_BYTES

_COMPRESSION = {
    "none": rocksdict.DBCompressionType.none,
    "lz4": rocksdict.DBCompressionType.lz4,
    "zstd": rocksdict.DBCompressionType.zstd,
}
_BLOCK_BYTES = 16 * 1024
# A share of the 64 MiB of a memtable: four bits for each of about 700,000 rows, which exclude five of six absent keys.
_FILTER_SHARE = 0.005
_FILTER_BYTES = 400 * 1024
_FOREVER_SECONDS = 2**64 - 1
# A file in which half of this many adjacent entries are tombstones is compacted as soon as it is written, because
# readers skip only about five tombstones per microsecond, and in steps.
_DELETION_WINDOW, _MANY_DELETIONS = 4096, 2048


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

    @property
    def memtable_bytes(self) -> int:
        """The size of a memtable, and of an SST file: small if all unflushed writes together must be."""
        return min(MEMTABLE_BYTES, self.write_buffers.get_buffer_size())

    @property
    def has_small_memtables(self) -> bool:
        """Whether the disk or the memory is so small that memtables are smaller than usual."""
        return self.memtable_bytes < MEMTABLE_BYTES

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


def store_options(compression: str, resources: RocksResources, *, filtered: bool = False) -> rocksdict.Options:
    """Returns the options of a store, or of a file that a store can take in.

    Args:
        compression: `none`, `lz4` or `zstd`.
        resources: Shared by all buckets of the process.
        filtered: Whether unflushed keys have a Bloom filter: see `RocksResources.filters`.
    """
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
    # After a flush or a compaction found no space, RocksDB waits until as much as it handles at once is free.
    options.set_write_buffer_size(resources.memtable_bytes)
    options.set_target_file_size_base(resources.memtable_bytes)
    options.set_max_bytes_for_level_base(4 * resources.memtable_bytes)
    if resources.has_small_memtables:
        # A write sees that a flush has failed before it would have to wait for it.
        options.set_max_write_buffer_number(8)
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
