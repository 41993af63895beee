"""Distributes the rows of a restored table over another number of buckets. Rows are copied as they are stored."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from scankv.model.errors import UsageError
from scankv.model.keys.buckets import KeyPlaces
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import MAX_BUCKETS
from streaming_server.clock import ServerClock
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.bucket.bucket_state import STATE_KEY, BucketState
from streaming_server.storage.bucket.partitions import PartitionRecord, put_partitions
from streaming_server.storage.bucket.removed_changes import put_removed
from streaming_server.storage.rocks.store import RocksStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.backup.backup_manifest import StoredTable
    from streaming_server.storage.rocks.store_options import RocksResources

_SLICE_ROWS: Final = 8192


def check_buckets(table: StoredTable, buckets: int) -> None:
    """Raises UsageError if a table cannot have so many buckets."""
    if not 1 <= buckets <= MAX_BUCKETS:
        raise UsageError(f"a table must have between 1 and {MAX_BUCKETS:,} buckets, not {buckets:,}")
    if buckets < table.definition.tablets:
        raise UsageError(
            f"{table.name} has {table.definition.tablets} tablets, so it must have at least as many buckets, not "
            f"{buckets}"
        )
    if not table.definition.has_key:
        raise UsageError(
            f"{table.name} has no primary key, so its rows keep their order in their buckets: restore it with its "
            f"{table.definition.buckets} buckets"
        )


class Redistribution:
    """Copies the rows of the buckets in one directory to new buckets in another one. Blocks.

    The new buckets have no changes: their changelogs begin here, as after retention. Their indexes are built when a
    server opens them.

    Args:
        before: The definition of the table in the backup.
        definition: Its new definition, with another number of buckets.
        resources: Shared by all buckets of the process.
    """

    def __init__(self, before: TableDefinition, definition: TableDefinition, resources: RocksResources) -> None:
        self._before = before
        self._definition = definition
        self._resources = resources
        key = definition.scan_key_schema
        self._places = KeyPlaces(key, definition.bucket_key, definition.buckets)
        self._rows: Counter[int] = Counter()
        self._rows_in: Counter[tuple[int, bytes]] = Counter()
        self._partitions: dict[bytes, PartitionRecord] = {}
        self._longest_row = self._commit_micros = 0

    def run(self, source: Path, target: Path) -> dict[int, BucketState]:
        """Copies all rows. Returns the states of the new buckets.

        Args:
            source: The directory with the buckets of the backup, which are changed.
            target: The directory of the new buckets, which is empty.

        Raises:
            DataLoss: A bucket is damaged.
        """
        with ExitStack() as opened:
            stores = [self._open(target / f"{number:04}") for number in range(self._definition.buckets)]
            for store in stores:
                opened.callback(store.close)
            for path in sorted(path for path in source.iterdir() if path.is_dir()):
                self._copy(path, stores)
            states = {number: self._state(number) for number in range(len(stores))}
            for number, store in enumerate(stores):
                batch = store.batch()
                batch.put_meta(STATE_KEY, states[number].to_bytes())
                put_removed(batch, states[number].count, self._commit_micros)
                put_partitions(batch, self._records(number))
                store.write(batch)
                store.flush()
        return states

    def _open(self, path: Path) -> RocksStore:
        compression = self._definition.options.compression
        return RocksStore(path, f"bucket {path.name}", compression=compression, resources=self._resources)

    def _copy(self, path: Path, stores: list[RocksStore]) -> None:
        bucket = Bucket(
            path,
            f"bucket {path.name} of the backup",
            compression=self._before.options.compression,
            resources=self._resources,
            clock=ServerClock(),
        )
        try:
            drop = self._before.last_drop
            if drop is not None and bucket.state.last_drop != drop.number:
                bucket.follow_drop(drop, self._before)
            self._longest_row = max(self._longest_row, bucket.state.longest_row)
            self._commit_micros = max(self._commit_micros, bucket.state.commit_micros)
            records = dict(bucket.partitions.records)
            for name, record in records.items():
                known = self._partitions.get(name, record)
                self._partitions[name] = replace(
                    known,
                    created_micros=min(known.created_micros, record.created_micros),
                    written_micros=max(known.written_micros, record.written_micros),
                )
            for keys, rows in bucket.read_stored_rows(_SLICE_ROWS):
                self._put(keys, rows, stores, sorted(records))
        finally:
            bucket.close()

    def _put(self, keys: list[bytes], rows: list[bytes], stores: list[RocksStore], partitions: list[bytes]) -> None:
        places = self._places.buckets_of(keys)
        order = sorted(range(len(keys)), key=places.__getitem__)
        for number, group in groupby(order, key=places.__getitem__):
            chosen = list(group)
            batch = stores[number].batch()
            batch.put_rows(map(keys.__getitem__, chosen), map(rows.__getitem__, chosen))
            stores[number].write(batch)
            self._rows[number] += len(chosen)
        for name, first, end in _within(keys, partitions):
            for number, count in Counter(places[first:end]).items():
                self._rows_in[number, name] += count

    def _state(self, number: int) -> BucketState:
        drop = self._definition.last_drop
        return BucketState(
            # One change, which is not in the changelog: readers from the beginning learn that they must read the rows.
            rows=self._rows[number],
            longest_row=self._longest_row,
            commit_micros=self._commit_micros,
            changelog_starts=(1,) * len(self._definition.earlier_changelogs),
            last_drop=0 if drop is None else drop.number,
        ).after_unrecorded(1)

    def _records(self, number: int) -> Mapping[bytes, PartitionRecord]:
        return {name: replace(record, rows=self._rows_in[number, name]) for name, record in self._partitions.items()}


def _within(keys: list[bytes], partitions: list[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Yields which of the ascending keys are in each partition: the first one, and the end."""
    if not keys:
        return
    first = max(bisect_left(partitions, keys[0]) - 1, 0)
    for name in partitions[first:]:
        if name > keys[-1]:
            break
        begin = bisect_left(keys, name)
        beyond = KeyRange.under(name).end
        end = len(keys) if beyond is None else bisect_left(keys, beyond)
        if end > begin:
            yield name, begin, end
