"""What one task reads. Parts are picklable; they have keys of the table, but no secret."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ScanKvError, SchemaMismatch, SnapshotLost
from spark_bridge.change_rows import another_table, shaping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from aio_client import Client, ClientConfig, ScanSpec, ScanStream, Snapshot
    from spark_bridge.executions import Execution

_MOST_SECONDS_BETWEEN_RENEWALS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(ABC):
    """What every part has.

    Attributes:
        config: How the server is reached.
        spec: The scan.
    """

    config: ClientConfig
    # Its key range is made of values, which do not belong in plans and logs.
    spec: ScanSpec = field(repr=False)

    @abstractmethod
    def opened(self, client: Client, execution: Execution) -> AbstractAsyncContextManager[ScanStream]:
        """The running scan; what it needs of the server is kept during the block.

        Raises:
            SnapshotLost: What it reads is gone; the message says what to do.
        """

    @abstractmethod
    def shape(self, stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """What makes rows of the stream those that Spark was told of, but for their types.

        Raises:
            SchemaMismatch: The table is not the one that was planned with.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart(Part):
    """A part of a table as of the instant of the query that reads it.

    Attributes:
        incarnation: The table that was planned with: keys and buckets of another one are cut in another way.
        plan: Names what `load()` has returned.
        snapshot_ttl: Seconds that the snapshot lives without a task that reads it.
    """

    incarnation: str
    plan: str
    snapshot_ttl: float

    @asynccontextmanager
    async def opened(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
        """See `Part.opened`."""
        snapshot_id = execution.snapshot_id(self.incarnation, self.plan)
        table = await client.table(self.spec.table)
        if table.incarnation != self.incarnation:
            raise self._another_table()
        try:
            async with (
                table.snapshot(self.snapshot_ttl, id=snapshot_id) as snapshot,
                client.scan(replace(self.spec, snapshot_id=snapshot.id)).stream() as stream,
            ):
                yield stream
        except SnapshotLost as error:
            raise SnapshotLost(
                f"the snapshot of table {self.spec.table} that this query reads has ended before the query: no task "
                f"has read it for {self.snapshot_ttl:g} seconds, or the server needed its place. Run the query again; "
                "option snapshot_ttl says for how many seconds a snapshot outlives the task that read it last",
                table=self.spec.table,
            ) from error

    def shape(self, stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """See `Part.shape`."""
        # It may have been created again since `opened` has looked.
        if stream.table_incarnation != self.incarnation:
            raise self._another_table()
        return _unchanged(stream, names)

    def _another_table(self) -> SchemaMismatch:
        return SchemaMismatch(
            f"table {self.spec.table} was dropped and created again since this DataFrame or view was made: load() it "
            "again, or create the view again",
            table=self.spec.table,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart(Part):
    """A part of a snapshot that the user names, and keeps."""

    @asynccontextmanager
    async def opened(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
        """See `Part.opened`."""
        try:
            async with client.scan(self.spec).stream() as stream:
                yield stream
        except SnapshotLost as error:
            raise SnapshotLost(
                f"the snapshot {self.spec.snapshot_id} of table {self.spec.table}, which option snapshot names, is "
                "gone: take another one, and name it",
                table=self.spec.table,
            ) from error

    def shape(self, stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """See `Part.shape`."""
        return _unchanged(stream, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedPart(Part):
    """A part of what a streaming query reads.

    Attributes:
        incarnation: The table that the query follows.
    """

    incarnation: str

    def shape(self, stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """See `Part.shape`: rows may have to come as changes, and changes as rows."""
        if stream.table_incarnation != self.incarnation:
            raise another_table(self.spec.table)
        return shaping(names, is_log=self.spec.log is not None, bucket=lambda: stream.bucket)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPart(FollowedPart):
    """Changes of some buckets, between two offsets of each. The consumer of the query keeps them."""

    @asynccontextmanager
    async def opened(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
        """See `Part.opened`."""
        async with client.scan(self.spec).stream() as stream:
            yield stream


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialPart(FollowedPart):
    """A part of the rows that a query begins with, of the snapshot that it names in its offsets.

    The query releases the snapshot once all of it was committed; until then, its tasks renew it.

    Attributes:
        snapshot_ttl: Seconds that the snapshot lives while the query does not run.
    """

    snapshot_ttl: float

    @asynccontextmanager
    async def opened(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
        """See `Part.opened`."""
        assert self.spec.snapshot_id is not None
        try:
            snapshot = await client.adopt_snapshot(self.spec.snapshot_id, self.snapshot_ttl)
            renewals = asyncio.create_task(_renew(snapshot), name=f"renewal of snapshot {snapshot.id}")
            try:
                async with client.scan(self.spec).stream() as stream:
                    yield stream
            finally:
                renewals.cancel()
                await asyncio.wait([renewals])
        except SnapshotLost as error:
            raise initial_rows_lost(self.spec.table) from error


def initial_rows_lost(table: str) -> SnapshotLost:
    """The error of a streaming query that finds the snapshot gone which it has not read to its end."""
    return SnapshotLost(
        f"the snapshot of table {table} that this query begins with has expired: it did not run for longer than "
        "option snapshot_ttl says. Start it with a new checkpoint, and what it has written before removed",
        table=table,
    )


def _unchanged(stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    if list(stream.schema.names) != list(names):
        raise SchemaMismatch("the table has other columns than those that the query was planned with; load() it again")
    return lambda rows: rows


async def _renew(snapshot: Snapshot) -> None:
    """Renews until cancelled. Errors say nothing here: a scan that is reading goes on without its lease."""
    while True:
        await asyncio.sleep(min(snapshot.ttl / 3, _MOST_SECONDS_BETWEEN_RENEWALS))
        with suppress(ScanKvError):
            await snapshot.renew()
