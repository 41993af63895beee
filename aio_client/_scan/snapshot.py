"""Pinned snapshots for their holder: taking, renewing, releasing and splitting them."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client._input.arguments import is_text, principal_of, text_of
from aio_client._input.awaitable import AwaitableOpener
from aio_client._transport.lease import RenewableLease, ttl_millis
from aio_client._transport.repeatable_calls import call_again
from aio_client._transport.retry import PASSING_ERRORS
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import (
    InvalidRequest,
    ProtocolViolation,
    SnapshotLost,
    SnapshotNotTaken,
    UsageError,
)
from scankv.model.expressions.wire import to_proto
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import MAX_SPLITS
from scankv.model.names import check_snapshot_name
from scankv.v1 import scan_pb2, snapshot_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._scan.scan_builder import Pinned
    from aio_client._transport.transport import Transport
    from scankv.model.scans.scan_spec import ScanSpec

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The client chooses the id of the lease, so repeating a pin whose answer was lost does not take a second snapshot.
PIN_RETRIES: Final = (*PASSING_ERRORS, SnapshotNotTaken)


class Snapshot(RenewableLease):
    """A lease on a view of a table: all its buckets at one instant, which the server keeps until the lease ends.

    `scan.as_of(snapshot)` reads the view, and so does `scan.as_of(snapshot.id)` in another process. The lease ends when
    it is released, when it is not renewed within its time to live, and when the table is dropped. Scans that start
    afterwards raise SnapshotLost; running scans continue to their end. The lease survives its client and a restart of
    the server, which starts the time to live again.

    `async with` renews the lease, and releases it at the end.

    Made by `table.snapshot()`, `client.snapshots()` and the methods `adopt_snapshot`. Belongs to the event loop of its
    client. Not picklable: send `id`.
    """

    def __init__(
        self,
        transport: Transport,
        message: snapshot_pb2.Snapshot,
        asked_at: float,
        write_pause_micros: int = 0,
        *,
        shared: bool = False,
    ) -> None:
        """Called by `SnapshotOpener` and `list_snapshots`.

        Args:
            transport: The client's connection.
            message: The server's description of the lease.
            asked_at: The instant of `time.monotonic` before the call. The described lease lasts for at least its
                remaining time from this instant on.
            write_pause_micros: How long the pin paused the table's writers.
            shared: Whether other readers use the same id, so that this reader must not release the lease.
        """
        self._transport = transport
        self._schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(message.arrow_schema))
        self._write_pause_micros = write_pause_micros
        super().__init__(shared=shared)
        self._update(message, asked_at)

    def __repr__(self) -> str:
        name = f'"{self.name}" ' if self.name else ""
        return f"<{type(self).__name__} {name}{self.id} of {self.table}>"

    @property
    def _label(self) -> str:
        return f"snapshot {self.id}"

    @property
    def id(self) -> str:
        """The id of the lease, which scans, renewals and the release name."""
        return self._message.snapshot_id

    @property
    def name(self) -> str | None:
        """The name of the snapshot, unique among the snapshots of its table. None if it was taken without a name."""
        return self._message.name or None

    @property
    def principal(self) -> str | None:
        """The principal that took it: only its tokens, and admins, renew and release it. None: it has no owner."""
        return self._message.principal or None

    @property
    def view_id(self) -> str:
        """The id of the view, equal for all leases that share it."""
        return self._message.view_id

    @property
    def table(self) -> str:
        """The table's name, as `database.table`."""
        return self._message.table

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket, the offset of the first change that is not in the view.

        The changes from there on are kept while the snapshot lives, up to `max_retention_hold_bytes` beyond the
        retention. So `changes(StartFrom.offsets(snapshot.log_offsets))` continues where a reader of the snapshot ended.
        """
        return LogOffsets.of(self._message.log_offsets, self._message.table_incarnation)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        return self._schema

    @property
    def schema_id(self) -> int:
        """The schema version of these columns, which grows by one with every change of the table's columns."""
        return self._message.schema_id

    @property
    def rows(self) -> int | None:
        """The exact number of rows in the view. None if the table does not count rows; see `BucketStats.rows`."""
        return self._message.rows if self._message.HasField("rows") else None

    @property
    def taken_at(self) -> datetime:
        """When the view was taken, by the server's clock, in UTC."""
        return _EPOCH + timedelta(microseconds=self._message.view_micros)

    @property
    def write_pause(self) -> float:
        """How long the pin paused writers, in seconds. 0 for a view that existed already, or a listed snapshot."""
        return self._write_pause_micros / 1_000_000

    @property
    def ttl(self) -> float:
        """The time to live in seconds: the lease ends unless it is renewed within it."""
        return self._message.ttl_millis / 1000

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, counted from the server's last answer to this object. 0 when it has ended."""
        if self._released:
            return 0.0
        return max(0.0, self._asked_at + self._message.remaining_millis / 1000 - time.monotonic())

    async def renew(self, ttl: float | None = None) -> None:
        """Starts the lease's time to live again.

        Args:
            ttl: A new time to live in seconds, 1 to 604,800. Default: as before.

        Raises:
            SnapshotLost: The lease was released or has expired, or its table was dropped.
            UsageError: `ttl` is out of range.
        """
        request = snapshot_pb2.RenewSnapshotRequest(
            snapshot_id=self.id, ttl_millis=0 if ttl is None else ttl_millis(ttl)
        )
        asked_at = time.monotonic()
        response = await self._transport.call(
            lambda: self._transport.services.snapshots.RenewSnapshot, request, repeatable=False
        )
        self._update(response.snapshot, asked_at)

    async def release(self) -> None:
        """Ends the lease. Idempotent: does nothing if the lease has ended already."""
        request = snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=self.id)
        with suppress(SnapshotLost):
            await self._transport.call(
                lambda: self._transport.services.snapshots.ReleaseSnapshot, request, repeatable=False
            )
        self._on_released()

    def _update(self, message: snapshot_pb2.Snapshot, asked_at: float) -> None:
        self._message = message
        self._asked_at = asked_at
        self._on_renewed()


class SnapshotOpener(AwaitableOpener[Snapshot]):
    """The result of `table.snapshot()`: each `async with` or `await` takes a snapshot of its own."""

    call = "table.snapshot()"
    name = "snapshot"
    result = Snapshot

    def __init__(
        self,
        transport: Transport,
        table: str,
        ttl: float,
        same_view_as: Pinned | str | None,
        id_: str | None,
        name: str | None,
        principal: str | None,
    ) -> None:
        """Called by `Table.snapshot`; takes no snapshot yet.

        Raises:
            UsageError: The time to live is out of range, `same_view_as` is not a snapshot, the name is not allowed, or
                both an id and a name are given.
        """
        if name is not None:
            _check_name(name)
        if id_ is not None and name is not None:
            raise UsageError(
                "give id or name, not both: an id is shared by several readers, a name belongs to one", option="name"
            )
        if id_ == "":
            raise UsageError("id must not be empty: leave it out for a new snapshot", option="id")
        self._transport = transport
        self._request = snapshot_pb2.PinSnapshotRequest(
            table=table,
            ttl_millis=ttl_millis(ttl),
            same_view_as="" if same_view_as is None else _id_of(same_view_as),
            lease_id="" if id_ is None else text_of(id_, "id"),
            shared=id_ is not None,
            name=name or "",
            principal=principal_of(principal),
        )

    async def _open(self) -> Snapshot:
        """Takes a snapshot, which the caller renews and releases. Raises as `Table.snapshot`."""
        request = snapshot_pb2.PinSnapshotRequest()
        request.CopyFrom(self._request)
        request.lease_id = request.lease_id or uuid.uuid4().hex

        async def attempt(deadline: float) -> Snapshot:
            asked_at = time.monotonic()
            calls = self._transport
            response = await calls.attempt(lambda: calls.services.snapshots.PinSnapshot, request, deadline=deadline)
            return Snapshot(
                self._transport, response.snapshot, asked_at, response.write_pause_micros, shared=request.shared
            )

        return await self._transport.retry(attempt, request, retries=lambda error: isinstance(error, PIN_RETRIES))


async def adopt_snapshot(transport: Transport, snapshot_id: str, ttl: float | None) -> Snapshot:
    """Renews a lease by its id. Raises as `Client.adopt_snapshot`."""
    request = snapshot_pb2.RenewSnapshotRequest(
        snapshot_id=snapshot_id, ttl_millis=0 if ttl is None else ttl_millis(ttl)
    )
    asked_at = time.monotonic()
    response = await call_again(transport, lambda: transport.services.snapshots.RenewSnapshot, request)
    return Snapshot(transport, response.snapshot, asked_at)


async def adopt_named_snapshot(transport: Transport, table: str, name: str, ttl: float | None) -> Snapshot:
    """Renews the lease of the snapshot of a table that has a name. Raises as `Table.adopt_snapshot`."""
    _check_name(name)
    for snapshot in await list_snapshots(transport, table):
        if snapshot.name == name:
            return await adopt_snapshot(transport, snapshot.id, ttl)
    raise SnapshotLost(
        f'table {table} has no snapshot named "{name}": it was released, has expired, or was never taken; take it with '
        f"table.snapshot(name={name!r})",
        table=table,
    )


async def list_snapshots(transport: Transport, table: str | None) -> list[Snapshot]:
    """Returns the snapshots of one table, or of all tables, in the order of their views, oldest first.

    Raises:
        TableNotFound: The table does not exist.
    """
    request = snapshot_pb2.ListSnapshotsRequest(table=table or "")
    asked_at = time.monotonic()
    response = await transport.call(lambda: transport.services.snapshots.ListSnapshots, request)
    return [Snapshot(transport, message, asked_at) for message in response.snapshots]


async def split_scan(
    transport: Transport, spec: ScanSpec, count: int, rows_per_split: int | None = None
) -> list[ScanSpec]:
    """Splits a scan of a snapshot. See `Scan.splits` for the arguments, the result and the errors."""
    if rows_per_split is not None and (type(rows_per_split) is not int or not 1 <= rows_per_split < 2**63):
        raise UsageError(f"rows_per_split must be at least 1, not {rows_per_split!r}", option="rows_per_split")
    request = snapshot_pb2.SplitSnapshotRequest(
        snapshot_id=_check_can_split(spec, count),
        splits=count,
        key_range=None if spec.key_range is None else _to_message(spec.key_range),
        buckets=spec.buckets or (),
        where=None if spec.where is None else to_proto(spec.where),
        rows_per_split=rows_per_split or 0,
    )
    response = await call_again(transport, lambda: transport.services.snapshots.SplitSnapshot, request)
    ranges = [_from_message(message) for message in response.ranges]
    wanted = count if rows_per_split is None else min(count, max(1, len(ranges)))
    _check_coverage(ranges, spec.key_range or KeyRange(), wanted)
    return [replace(spec, key_range=part, part=number) for number, part in enumerate(ranges)]


def _check_can_split(spec: ScanSpec, count: int) -> str:
    """Returns the id of the scan's snapshot. Raises UsageError if the scan cannot be split into `count` parts."""
    if spec.snapshot_id is None:
        raise UsageError(
            "only a scan of a snapshot can be split, because parts of the live table would be from different instants: "
            "pin the table first: snapshot = await table.snapshot(), then scan.as_of(snapshot)",
            table=spec.table,
        )
    if spec.limit is not None:
        raise UsageError("a scan with a limit cannot be split, because each part would have the limit: remove it first")
    if spec.resume_token is not None:
        raise UsageError("a scan with a resume token cannot be split: split the scan that the token came from")
    if type(count) is not int or not 1 <= count <= MAX_SPLITS:
        raise UsageError(f"count must be a whole number between 1 and {MAX_SPLITS:,}, not {count!r}", option="count")
    return spec.snapshot_id


def _check_coverage(parts: Sequence[KeyRange], full: KeyRange, n: int) -> None:
    """Raises ProtocolViolation if the parts overlap, or leave a gap whose rows no reader would read."""
    joined = all(before.end is not None and before.end == after.start for before, after in pairwise(parts))
    if len(parts) != n or not joined or parts[0].start != full.start or parts[-1].end != full.end:
        raise ProtocolViolation(f"the server did not split the snapshot into {n:,} key ranges that cover it once")


def _to_message(key_range: KeyRange) -> scan_pb2.KeyRange:
    return scan_pb2.KeyRange(start=key_range.start, end=key_range.end)


def _from_message(message: scan_pb2.KeyRange) -> KeyRange:
    return KeyRange(
        message.start if message.HasField("start") else None, message.end if message.HasField("end") else None
    )


def _check_name(name: str) -> None:
    """Raises UsageError unless a snapshot can have this name."""
    try:
        check_snapshot_name(name)
    except InvalidRequest as error:
        raise UsageError(error.message, option="name") from None


def _id_of(snapshot: Pinned | str) -> str:
    id_ = snapshot if isinstance(snapshot, str) else getattr(snapshot, "id", None)
    if not is_text(id_) or not id_:
        raise UsageError(f"same_view_as must be a snapshot or its id, not {snapshot!r}", option="same_view_as")
    return id_
