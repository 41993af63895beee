"""Pins, renewals, releases and splits with a server whose answers are lost, late or errors."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import anyio
import grpc
import pytest

from aio_client import (
    DeadlineExceeded,
    ProtocolViolation,
    ScanSpec,
    SnapshotLost,
    SnapshotNotTaken,
    Table,
    TooManySnapshots,
    Unavailable,
    UsageError,
    connect,
)
from aio_client._scan.snapshot import split_scan
from scankv.model.keys.key_range import KeyRange
from scankv.v1 import scan_pb2, snapshot_pb2, table_pb2
from scankv.v1.snapshot_pb2_grpc import SnapshotServiceServicer, add_SnapshotServiceServicer_to_server
from tests.support.waiting import await_until
from tests.unit.client.messages import SCHEMA
from tests.unit.client.misbehaving import FOREVER, RefusesTables, end_with, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aio_client._transport.transport import Transport

UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, None, None)
LOST = (grpc.StatusCode.FAILED_PRECONDITION, "SNAPSHOT_LOST", None)
NOT_TAKEN = (grpc.StatusCode.ABORTED, "SNAPSHOT_NOT_TAKEN", 0.01)
TOO_MANY = (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_SNAPSHOTS", None)
SPEC = ScanSpec("game.scores", snapshot_id="pinned", buckets=(0, 2), key_range=KeyRange(b"b", None))

Failure = tuple[grpc.StatusCode, str | None, float | None]


class ScriptedSnapshots(SnapshotServiceServicer):
    """Fails with what `failures` has for a call, one after another, and then answers as it should.

    Attributes:
        pins, renewals, releases, cuts: The requests that came.
        failures: What the next calls fail with, by the call's name.
        ranges: What a scan is cut into.
    """

    def __init__(self, **failures: list[Failure]) -> None:
        self.pins: list[snapshot_pb2.PinSnapshotRequest] = []
        self.renewals: list[snapshot_pb2.RenewSnapshotRequest] = []
        self.releases: list[str] = []
        self.cuts: list[snapshot_pb2.SplitSnapshotRequest] = []
        self.failures = failures
        self.ranges: list[scan_pb2.KeyRange] = []
        self._ttl_millis = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        add_SnapshotServiceServicer_to_server(self, server)

    async def PinSnapshot(self, request: snapshot_pb2.PinSnapshotRequest, context: Any) -> Any:
        self.pins.append(request)
        await self._fail("pin", context)
        self._ttl_millis = request.ttl_millis
        return snapshot_pb2.PinSnapshotResponse(snapshot=self._snapshot(request.lease_id))

    async def PinSnapshots(self, request: snapshot_pb2.PinSnapshotsRequest, context: Any) -> Any:
        raise NotImplementedError

    async def RenewSnapshot(self, request: snapshot_pb2.RenewSnapshotRequest, context: Any) -> Any:
        self.renewals.append(request)
        await self._fail("renew", context)
        self._ttl_millis = request.ttl_millis or self._ttl_millis
        return snapshot_pb2.RenewSnapshotResponse(snapshot=self._snapshot(request.snapshot_id))

    async def ReleaseSnapshot(self, request: snapshot_pb2.ReleaseSnapshotRequest, context: Any) -> Any:
        self.releases.append(request.snapshot_id)
        await self._fail("release", context)
        return snapshot_pb2.ReleaseSnapshotResponse()

    async def SplitSnapshot(self, request: snapshot_pb2.SplitSnapshotRequest, context: Any) -> Any:
        self.cuts.append(request)
        return snapshot_pb2.SplitSnapshotResponse(ranges=self.ranges)

    async def ListSnapshots(self, request: snapshot_pb2.ListSnapshotsRequest, context: Any) -> Any:
        raise NotImplementedError

    def UseSnapshot(self, request: snapshot_pb2.UseSnapshotRequest, context: Any) -> Any:
        raise NotImplementedError

    async def _fail(self, call: str, context: Any) -> None:
        if failures := self.failures.get(call):
            await end_with(context, *failures.pop(0))

    def _snapshot(self, snapshot_id: str) -> snapshot_pb2.Snapshot:
        return snapshot_pb2.Snapshot(
            snapshot_id=snapshot_id,
            view_id="view-1",
            table="game.scores",
            arrow_schema=SCHEMA.serialize().to_pybytes(),
            log_offsets={0: 7},
            view_micros=1_500_000,
            rows=7,
            ttl_millis=self._ttl_millis,
            remaining_millis=self._ttl_millis,
        )


class HasOneTable(RefusesTables):
    def __init__(self) -> None:
        super().__init__(grpc.StatusCode.UNIMPLEMENTED)

    async def GetTable(self, request: table_pb2.GetTableRequest, context: Any) -> table_pb2.GetTableResponse:
        schema = SCHEMA.serialize().to_pybytes()
        return table_pb2.GetTableResponse(
            table=table_pb2.Table(name="game.scores", arrow_schema=schema, primary_key=["id"], buckets=3)
        )


@asynccontextmanager
async def table_of(server: ScriptedSnapshots, **timeouts: float) -> AsyncIterator[Table]:
    async with serving(HasOneTable(), cast("Any", server)) as url, connect(url, **cast("Any", timeouts)) as client:
        yield await client.table("game.scores")


async def seen(condition: Callable[[], bool], what: str) -> None:
    async def check() -> bool:
        return condition()

    await await_until(check, what)


def noted(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Returns the client's log messages. On a busy machine, asyncio also logs slow callbacks."""
    return [record for record in caplog.records if record.name == "aio_client"]


@pytest.mark.asyncio
async def test_a_pin_whose_answer_is_lost_is_repeated_under_the_same_name() -> None:
    server = ScriptedSnapshots(pin=[NOT_TAKEN, UNAVAILABLE, NOT_TAKEN])
    async with table_of(server) as table:
        snapshot = await table.snapshot()
    assert [pin.lease_id for pin in server.pins] == [snapshot.id] * 4


@pytest.mark.asyncio
@pytest.mark.parametrize(("failure", "error"), [(NOT_TAKEN, SnapshotNotTaken), (UNAVAILABLE, Unavailable)])
async def test_a_pin_is_given_up_when_the_operation_timeout_is_over(failure: Failure, error: type[Exception]) -> None:
    server = ScriptedSnapshots(pin=[failure] * 10_000)
    async with table_of(server, operation_timeout=0.5) as table:
        # The last attempt may be cut short by the timeout.
        with pytest.raises((error, DeadlineExceeded)) as raised:
            await table.snapshot()
    assert len(server.pins) > 1
    assert error.__name__ in "".join(raised.value.__notes__)


@pytest.mark.asyncio
@pytest.mark.parametrize(("failure", "error"), [(TOO_MANY, TooManySnapshots), (LOST, SnapshotLost)])
async def test_a_pin_that_is_refused_is_not_repeated(failure: Failure, error: type[Exception]) -> None:
    server = ScriptedSnapshots(pin=[failure])
    async with table_of(server) as table:
        with pytest.raises(error):
            async with table.snapshot(same_view_as="other"):
                pytest.fail("there is no snapshot")
    assert [pin.same_view_as for pin in server.pins] == ["other"]


@pytest.mark.asyncio
async def test_each_use_of_a_pinning_takes_a_snapshot_of_its_own() -> None:
    server = ScriptedSnapshots()
    async with table_of(server) as table:
        pinning = table.snapshot()
        first, second = await pinning, await pinning
        third = await table.snapshot(same_view_as=first)
    assert first.id != second.id
    assert [pin.same_view_as for pin in server.pins] == ["", "", first.id]
    assert third.id not in (first.id, second.id)


@pytest.mark.asyncio
async def test_a_pinning_is_in_one_context_at_a_time_so_that_each_snapshot_is_released() -> None:
    server = ScriptedSnapshots()
    async with table_of(server) as table:
        pinning = table.snapshot()
        for _ in range(2):
            async with pinning:
                with pytest.raises(UsageError, match="in use"):
                    await pinning.__aenter__()
    assert server.releases == [pin.lease_id for pin in server.pins]
    assert len(server.pins) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("ttl", [0, 0.99, -1, 604_801, float("nan"), float("inf"), True, "600", None])
async def test_a_ttl_out_of_its_range_is_refused_before_anything_is_sent(ttl: Any) -> None:
    server = ScriptedSnapshots()
    async with table_of(server) as table:
        with pytest.raises(UsageError, match="between 1 and 604,800 seconds"):
            table.snapshot(ttl)
        if ttl is not None:
            snapshot = await table.snapshot()
            with pytest.raises(UsageError, match="between 1 and 604,800 seconds"):
                await snapshot.renew(ttl)
    assert server.renewals == []


@pytest.mark.asyncio
@pytest.mark.parametrize("other", ["", 7, b"id", object()])
async def test_what_is_no_snapshot_has_no_view_to_keep(other: Any) -> None:
    server = ScriptedSnapshots()
    async with table_of(server) as table:
        with pytest.raises(UsageError, match="a snapshot or its id"):
            table.snapshot(same_view_as=other)
    assert server.pins == []


@pytest.mark.asyncio
async def test_an_awaited_snapshot_is_renewed_and_released_by_its_holder_alone() -> None:
    server = ScriptedSnapshots(release=[LOST])
    async with table_of(server) as table:
        snapshot = await table.snapshot(ttl=10)
        await snapshot.renew()
        assert snapshot.ttl == 10
        await snapshot.renew(20)
        assert snapshot.ttl == 20
        assert snapshot.remaining > 10
        await snapshot.release()
        await snapshot.release()
        assert snapshot.remaining == 0
    assert [renewal.ttl_millis for renewal in server.renewals] == [0, 20_000]
    assert server.releases == [snapshot.id] * 2


@pytest.mark.asyncio
async def test_a_release_that_is_not_answered_is_an_error_to_whoever_asks_for_it() -> None:
    async with table_of(ScriptedSnapshots(release=[UNAVAILABLE])) as table:
        snapshot = await table.snapshot()
        with pytest.raises(Unavailable):
            await snapshot.release()
        assert snapshot.remaining > 0


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_renewal_that_does_not_get_through_is_tried_again() -> None:
    server = ScriptedSnapshots(renew=[UNAVAILABLE, UNAVAILABLE])
    async with table_of(server) as table, table.snapshot(ttl=2) as snapshot:
        await seen(lambda: len(server.renewals) >= 4, "renewed after two failures")
        assert snapshot.remaining > 0
    assert server.releases == [snapshot.id]


@pytest.mark.asyncio
async def test_renewals_end_with_a_warning_when_the_snapshot_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    server = ScriptedSnapshots(renew=[LOST], release=[LOST])
    async with table_of(server) as table, table.snapshot(ttl=1) as snapshot:
        await seen(lambda: bool(noted(caplog)), "warned")
    (record,) = noted(caplog)
    assert (record.name, record.levelno) == ("aio_client", logging.WARNING)
    assert snapshot.id in record.getMessage()
    assert len(server.renewals) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("failure", [UNAVAILABLE, (grpc.StatusCode.INTERNAL, "INTERNAL", None)])
@pytest.mark.breadth
async def test_renewals_go_on_with_one_warning_when_the_time_to_live_is_over_because_a_restart_begins_it_anew(
    failure: Failure, caplog: pytest.LogCaptureFixture
) -> None:
    server = ScriptedSnapshots(renew=[failure] * 10_000)

    async with table_of(server) as table, table.snapshot(ttl=1) as snapshot:
        await seen(lambda: bool(noted(caplog)), "warned")
        assert snapshot.remaining == 0
        tried = len(server.renewals)
        await seen(lambda: len(server.renewals) >= tried + 2, "tried on")
        server.failures.clear()
        await seen(lambda: snapshot.remaining > 0, "renewed after the restart")
    (warning,) = noted(caplog)
    assert "could not be renewed in its time to live" in warning.getMessage()


@pytest.mark.asyncio
async def test_a_shorter_time_to_live_makes_renewals_more_frequent_at_once() -> None:
    server = ScriptedSnapshots()
    async with table_of(server) as table, table.snapshot(ttl=600) as snapshot:
        await snapshot.renew(1)
        await seen(lambda: len(server.renewals) >= 3, "renewed by itself")


@pytest.mark.asyncio
async def test_a_snapshot_released_inside_its_context_is_not_renewed(caplog: pytest.LogCaptureFixture) -> None:
    server = ScriptedSnapshots(release=[])
    async with table_of(server) as table, table.snapshot(ttl=60) as snapshot:
        await snapshot.release()
        (task,) = (each for each in asyncio.all_tasks() if each.get_name().startswith("renewal"))
        await asyncio.wait_for(task, 60)
    assert server.renewals == []
    assert noted(caplog) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("failure", [UNAVAILABLE, LOST, (grpc.StatusCode.INTERNAL, "INTERNAL", None)])
async def test_a_failed_release_at_the_end_of_the_context_is_no_error(failure: Failure) -> None:
    server = ScriptedSnapshots(release=[failure])
    async with table_of(server) as table, table.snapshot():
        pass
    assert len(server.releases) == 1


@pytest.mark.asyncio
async def test_a_release_that_is_not_answered_holds_nobody_up_and_is_noted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NeverReleases(ScriptedSnapshots):
        async def ReleaseSnapshot(self, request: snapshot_pb2.ReleaseSnapshotRequest, context: Any) -> Any:
            await asyncio.sleep(FOREVER)

    monkeypatch.setattr("aio_client._transport.lease._RELEASE_SECONDS", 0.2)
    caplog.set_level(logging.INFO, "aio_client")
    async with table_of(NeverReleases()) as table, table.snapshot() as snapshot:
        pass
    assert f"snapshot {snapshot.id} was not released and expires by itself: the server did not answer" in caplog.text


@pytest.mark.asyncio
async def test_a_client_closed_inside_the_context_is_no_error() -> None:
    server = ScriptedSnapshots()
    async with serving(HasOneTable(), cast("Any", server)) as url:
        client = await connect(url)
        table = await client.table("game.scores")
        async with table.snapshot():
            await client.aclose()
    assert server.releases == []


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["error", "scope", "task"])
async def test_the_end_of_the_context_releases_also_when_it_comes_by_an_error_or_a_cancellation(how: str) -> None:
    server = ScriptedSnapshots()

    async def use() -> None:
        async with table.snapshot():
            if how == "error":
                raise LookupError
            pinned.set()
            await asyncio.sleep(3600)

    pinned = asyncio.Event()
    async with table_of(server) as table:
        if how == "error":
            with pytest.raises(LookupError):
                await use()
        elif how == "scope":
            async with anyio.create_task_group() as group:
                group.start_soon(use)
                await pinned.wait()
                group.cancel_scope.cancel()
        else:
            task = asyncio.create_task(use())
            await pinned.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("renewal")]
    assert server.releases == [server.pins[0].lease_id]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(SPEC, snapshot_id=None), r"pin the table first: .*table\.snapshot\(\), then scan\.as_of\(snapshot\)"),
        (replace(SPEC, limit=10), "limit"),
        (replace(SPEC, resume_token=b"token"), "resume token"),
    ],
)
async def test_a_scan_that_has_no_parts_is_not_cut(spec: ScanSpec, message: str) -> None:
    server = ScriptedSnapshots()
    async with transport_to(server) as transport:
        with pytest.raises(UsageError, match=message):
            await split_scan(transport, spec, 2)
        for n in (0, -1, 1025, 1.5, True):
            with pytest.raises(UsageError, match="count must be a whole number between 1 and 1,024"):
                await split_scan(transport, SPEC, cast("int", n))
    assert server.cuts == []


@pytest.mark.asyncio
async def test_the_parts_of_a_scan_are_the_scan_with_other_keys_and_have_numbers() -> None:
    server = ScriptedSnapshots()
    server.ranges = [scan_pb2.KeyRange(start=b"b", end=b"d"), scan_pb2.KeyRange(start=b"d")]
    async with transport_to(server) as transport:
        parts = await split_scan(transport, SPEC, 2)
    assert parts == [
        replace(SPEC, key_range=KeyRange(b"b", b"d"), part=0),
        replace(SPEC, key_range=KeyRange(b"d", None), part=1),
    ]
    (request,) = server.cuts
    assert (request.snapshot_id, request.splits, list(request.buckets)) == ("pinned", 2, [0, 2])
    assert request.key_range == scan_pb2.KeyRange(start=b"b")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(b"b", None)],
        [(b"b", b"d"), (b"e", None)],
        [(b"b", b"d"), (b"c", None)],
        [(b"b", b"d"), (b"d", b"x")],
        [(None, b"d"), (b"d", None)],
        [(b"b", None), (None, None)],
    ],
)
async def test_parts_that_do_not_cover_the_scan_once_are_refused(ranges: list[tuple[bytes | None, bytes]]) -> None:
    server = ScriptedSnapshots()
    server.ranges = [scan_pb2.KeyRange(start=start, end=end) for start, end in ranges]
    async with transport_to(server) as transport:
        with pytest.raises(ProtocolViolation, match="2 key ranges that cover it once"):
            await split_scan(transport, SPEC, 2)


@asynccontextmanager
async def transport_to(server: ScriptedSnapshots) -> AsyncIterator[Transport]:
    async with serving(cast("Any", server)) as url, connect(url) as client:
        yield client._transport
