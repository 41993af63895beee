"""What one task reads. Parts are picklable. They contain keys of the table, but no secrets."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from aio_client._scan.scan import Scan
from scankv.model.errors import ScanKvError, SchemaMismatch, SnapshotLost
from spark_bridge.change_rows import make_shaper, recreated_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from aio_client import ClearedRange, Client, ClientConfig, ScanSpec, ScanStream, Snapshot
    from spark_bridge.executions import Execution

_log: Final = logging.getLogger(__name__)
_MOST_SECONDS_BETWEEN_RENEWALS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(ABC):
    """The work of one task: a scan, and how to open it.

    Attributes:
        config: How to reach the server.
        spec: The scan.
        traceparent: The trace that the task continues. None: no trace.
    """

    config: ClientConfig
    # Not in the repr: the key range contains values, which do not belong in plans and logs.
    spec: ScanSpec = field(repr=False)
    traceparent: str | None = None

    @abstractmethod
    def open_stream(self, client: Client, execution: Execution) -> AbstractAsyncContextManager[ScanStream]:
        """Opens the scan. Leases that the scan needs are renewed until the block ends.

        Raises:
            SnapshotLost: The snapshot to read is gone; the message says what to do.
        """

    @abstractmethod
    def make_shaper(self, stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Returns a function that converts a batch of the stream to the columns `names`; `cast_rows` casts their types.

        Raises:
            SchemaMismatch: The table was recreated or altered after planning.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart(Part):
    """A part of a table, read as of the instant of the query that the task belongs to.

    Attributes:
        incarnation: The incarnation of the table at planning. The parts do not fit the keys and buckets of another one.
        plan: The id of the read plan, which is new with each `load()`.
        snapshot_ttl: Seconds that the query's snapshot lives while no task reads it.
    """

    incarnation: str
    plan: str
    snapshot_ttl: float

    @asynccontextmanager
    async def open_stream(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
        snapshot_id = execution.snapshot_id(self.incarnation, self.plan)
        table = await client.table(self.spec.table)
        if table.incarnation != self.incarnation:
            raise self._recreated_error()
        try:
            async with (
                table.snapshot(self.snapshot_ttl, id=snapshot_id) as snapshot,
                client.scan(replace(self.spec, snapshot_id=snapshot.id)).stream() as stream,
            ):
                yield stream
        except SnapshotLost as error:
            raise SnapshotLost(
                f"the snapshot of table {self.spec.table} ended before the query that reads it: no task read it for "
                f"{self.snapshot_ttl:g} seconds, or it made way for a newer snapshot. Run the query again; a greater "
                "option snapshot_ttl lets the snapshot live longer after its last task",
                table=self.spec.table,
            ) from error

    def make_shaper(self, stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        # The table may have been recreated after `open_stream` compared its incarnation.
        if stream.table_incarnation != self.incarnation:
            raise self._recreated_error()
        return _make_identity_shaper(stream, names)

    def _recreated_error(self) -> SchemaMismatch:
        return SchemaMismatch(
            f"table {self.spec.table} was restored, or dropped and created again, after this DataFrame or view was "
            "created: load() it again, or create the view again",
            table=self.spec.table,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart(Part):
    """A part of a snapshot that option `snapshot` names and whose lease the user renews."""

    @asynccontextmanager
    async def open_stream(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
        try:
            async with client.scan(self.spec).stream() as stream:
                yield stream
        except SnapshotLost as error:
            raise SnapshotLost(
                f"option snapshot names snapshot {self.spec.snapshot_id} of table {self.spec.table}, which is gone: "
                "pin another snapshot, and set the option to its id",
                table=self.spec.table,
            ) from error

    def make_shaper(self, stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return _make_identity_shaper(stream, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedPart(Part):
    """A part of what a streaming query reads.

    Attributes:
        incarnation: The incarnation of the table that the query follows.
    """

    incarnation: str

    def make_shaper(self, stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Returns a function that also converts rows to changes, or changes to rows, where the query asks for that."""
        if stream.table_incarnation != self.incarnation:
            raise recreated_error(self.spec.table)
        return make_shaper(names, is_log=self.spec.log is not None, bucket=lambda: stream.bucket)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPart(FollowedPart):
    """The changes of some buckets between two offsets of each. The query's consumer holds them on the server.

    Attributes:
        skips_deleted_ranges: Whether to warn of deleted ranges and continue, rather than fail there.
    """

    skips_deleted_ranges: bool = False

    @asynccontextmanager
    async def open_stream(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
        stream = client.scan(self.spec).stream()
        if self.skips_deleted_ranges:
            of_table = (await client.table(self.spec.table)).scan()
            stream = Scan(of_table._transport, self.spec, of_table.of_table).stream()
            stream.on_cleared(self._warn)
        async with stream:
            yield stream

    def _warn(self, deleted: ClearedRange) -> None:
        _log.warning(
            "table %s, bucket %d, offset %d: all rows of a key range were deleted at once, and the query gets no "
            "change for each of them (option deleted_ranges=skip)",
            *(self.spec.table, deleted.bucket, deleted.offset),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesPart(FollowedPart):
    """A part of a streaming query's initial rows, read from files of a published version.

    Attributes:
        files: How many files the task reads.
    """

    files: int

    @asynccontextmanager
    async def open_stream(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
        from scankv.lake.union.handover import FilesStream

        async with FilesStream(client._transport, self.spec, self.files) as stream:
            yield stream


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialPart(FollowedPart):
    """A part of a streaming query's initial rows, read from the snapshot that is named in the query's offsets.

    The tasks renew the snapshot. The query releases it after committing all of its rows.

    Attributes:
        snapshot_ttl: Seconds that the snapshot lives while the query does not run.
    """

    snapshot_ttl: float

    @asynccontextmanager
    async def open_stream(self, client: Client, execution: Execution) -> AsyncIterator[ScanStream]:
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
            raise initial_rows_lost_error(self.spec.table) from error


def initial_rows_lost_error(table: str) -> SnapshotLost:
    """The error of a streaming query whose snapshot of the initial rows ended before the query had read all of it."""
    return SnapshotLost(
        f"the snapshot with the initial rows of table {table} has expired: the query was stopped for longer than "
        "option snapshot_ttl. Remove what the query has written, and start it with a new checkpoint",
        table=table,
    )


def _make_identity_shaper(stream: ScanStream, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    if list(stream.schema.names) != list(names):
        raise SchemaMismatch("the columns of the table changed after the query was planned: load() the table again")
    return lambda rows: rows


async def _renew(snapshot: Snapshot) -> None:
    """Renews the snapshot until cancelled. Ignores errors, since a started scan continues without the lease."""
    while True:
        await asyncio.sleep(min(snapshot.ttl / 3, _MOST_SECONDS_BETWEEN_RENEWALS))
        with suppress(ScanKvError):
            await snapshot.renew()
