"""The partitions of one table: listed, created ahead of time, and dropped in all buckets at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest, Unavailable
from streaming_server.engine.bucket.locking import lock_buckets
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.storage.changelog.retention_holds import UNDO_OWNER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from scankv.model.tables.partitioning import PartitionDrop, Partitioning
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.writes.column_locks import TableColumnLocks
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.partitions import PartitionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """The statistics of one partition, over all buckets. Immutable.

    Attributes:
        prefix: The encoded values of the partition.
        rows: Live rows, exact. None: unknown.
        disk_bytes: About how many bytes of SST files the rows take. None: unknown.
        created_micros: When it was created, in microseconds since 1970 UTC.
        written_micros: When it was written last. 0: never.
    """

    prefix: bytes
    rows: int | None
    disk_bytes: int | None
    created_micros: int
    written_micros: int


class TablePartitions:
    """The partitions of one table. Bound to the server's event loop.

    Args:
        table: The table.
        locks: The locks on its columns.
        alter: Uses a newer definition of the table from now on.
    """

    def __init__(self, table: TableState, locks: TableColumnLocks, alter: Callable[[TableDefinition], None]) -> None:
        self._table = table
        self._locks = locks
        self._alter = alter
        # The last drop that all buckets are known to have followed durably.
        self._durable_drop: PartitionDrop | None = None

    async def list_partitions(self, prefix: bytes = b"") -> list[PartitionStats]:
        """Returns the partitions whose encoded values begin with a prefix, in key order. Opens all buckets.

        Raises:
            InvalidRequest: The table is not partitioned.
            InvalidKey: The prefix is not the encoding of values of the first partition columns.
            DataLoss: A bucket is damaged.
        """
        self._check(prefix)
        async with lock_buckets([*self._table.buckets]) as opened:
            return await self._read(opened, [prefix])

    async def create(self, prefix: bytes) -> bool:
        """Creates a partition without rows, durably. Returns whether it is new.

        Raises:
            InvalidRequest, InvalidKey, DataLoss: As `list_partitions`.
            DiskFull: Less than the reserve of disk space is free, or the disk is full.
        """
        self._partitioning.check(prefix, complete=True)
        self._table.reserve.check()
        async with lock_buckets([*self._table.buckets]) as opened:
            if await self._read(opened, [prefix]):
                return False
            # One bucket is enough, because listing reads all of them.
            live, bucket = opened[0]
            await live.run(bucket.create_partition, prefix)
        await live.wait_written()
        return True

    async def drop(
        self, prefixes: Sequence[bytes], store: Callable[[TableDefinition], Awaitable[TableDefinition]]
    ) -> list[PartitionStats]:
        """Drops the partitions whose encoded values begin with one of some prefixes, in all buckets at one instant.

        The caller keeps the definition from being changed otherwise. Storing the definition is the decision: after a
        crash, each bucket follows it when it is opened. Writers wait only while the buckets follow, and not for the
        storing: rows that are written to the partitions in the meantime are dropped as well, as if they had been
        written before.

        Args:
            prefixes: The prefixes.
            store: Stores a definition durably, and returns it as it is stored.

        Returns:
            The dropped partitions, as they were before. None of them: nothing was stored.

        Raises:
            InvalidRequest, InvalidKey, DataLoss: As `list_partitions`. Nothing was dropped.
            ColumnLocked: A column of the table is locked.
            DiskFull: Less than the reserve of disk space is free, so nothing was dropped; or the disk is full.
        """
        for prefix in prefixes:
            self._check(prefix)
        self._table.reserve.check()
        buckets = [*self._table.buckets]
        with self._locks.admit(None, frozenset()):
            async with lock_buckets(buckets) as opened:
                self._check_followed(opened)
                found = await self._read(opened, prefixes)
            if not found:
                return []
            if self._table.definition.last_drop != self._durable_drop:
                # The definition keeps only one drop, so every bucket must have followed the one before durably.
                await all_ended(live.wait_written() for live in buckets)
            definition = await store(self._table.definition.drop_partitions(prefixes))
            async with lock_buckets(buckets) as opened:
                found = await self._read(opened, prefixes)
                self._alter(definition)
                # Every bucket that can be written follows the definition, even if another one fails.
                await all_ended(live.open() for live in buckets)
            await all_ended(live.wait_written() for live in buckets)
            self._durable_drop = definition.last_drop
        return found

    @property
    def _partitioning(self) -> Partitioning:
        definition = self._table.definition
        if definition.partitioning is None:
            raise InvalidRequest(
                f"table {definition.name} is not partitioned: create a table with partition_by to have partitions",
                table=definition.name,
            )
        return definition.partitioning

    def _check(self, prefix: bytes) -> None:
        partitioning = self._partitioning
        if prefix:
            partitioning.check(prefix, complete=False)

    def _check_followed(self, opened: Iterable[tuple[LiveBucket, Bucket]]) -> None:
        last = self._table.definition.last_drop
        for live, bucket in opened:
            if last is not None and bucket.state.last_drop < last.number:
                raise Unavailable(
                    f"{live.location} has not followed the last drop of partitions yet, because it cannot be written: "
                    "read the reason in the server's log, and try again",
                    table=live.table,
                )
            if any(owner.startswith(UNDO_OWNER) for owner in bucket.log.holds.owners):
                raise InvalidRequest(
                    f"{live.location}: an undo is running, which needs the changelog as it is: drop partitions when it "
                    "is done",
                    table=live.table,
                )

    async def _read(
        self, opened: Iterable[tuple[LiveBucket, Bucket]], prefixes: Collection[bytes]
    ) -> list[PartitionStats]:
        """Returns the partitions of open buckets. Hold their mutexes."""
        parts: dict[bytes, list[tuple[PartitionRecord, float | None]]] = {}
        for live, bucket in opened:
            records = await live.run(_records_within, bucket, prefixes)
            rows, size = bucket.state.rows, bucket.family_bytes().rows
            for name, record in records.items():
                share = None if record.rows is None or rows is None else size * record.rows / max(rows, 1)
                parts.setdefault(name, []).append((record, share))
        return [_combine(name, parts[name]) for name in sorted(parts)]


def _records_within(bucket: Bucket, prefixes: Collection[bytes]) -> Mapping[bytes, PartitionRecord]:
    return {name: record for prefix in prefixes for name, record in bucket.partitions.within(prefix).items()}


def _combine(name: bytes, parts: Sequence[tuple[PartitionRecord, float | None]]) -> PartitionStats:
    rows = [record.rows for record, _ in parts]
    shares = [share for _, share in parts]
    return PartitionStats(
        prefix=name,
        rows=None if None in rows else sum(each for each in rows if each is not None),
        disk_bytes=None if None in shares else round(sum(each for each in shares if each is not None)),
        created_micros=min(record.created_micros for record, _ in parts),
        written_micros=max(record.written_micros for record, _ in parts),
    )
