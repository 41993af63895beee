"""Queries that wait at the server for another answer: what wakes them, what does not, and that they leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import connect, sync
from scankv.v1 import lookup_pb2, scan_pb2, snapshot_pb2
from streaming_server.config import ServerConfig
from streaming_server.server import Server
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES, scores
from tests.support.waiting import await_until, in_time, wait_until
from tests.support.wire import Wire, refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scankv.v1.lookup_pb2 import TopNRequest, TopNResponse
    from tests.support.wire import Refusal

ROWS = 100
WAIT_SECONDS = 60
NAME = "game.scores"
PLAYERS = [f"p{number:03}" for number in range(ROWS)]


class Questions:
    """A table on a server, and calls that wait for it to change."""

    def __init__(self, client: sync.Client, wire: Wire, name: str) -> None:
        self.client = client
        self.wire = wire
        self.table = client.create_table(name, SCORES, primary_key=["player"], buckets=3)
        self.table.upsert(scores(PLAYERS, list(range(ROWS))))
        self.request = lookup_pb2.TopNRequest(table=name, by="score", n=3)

    def since_now(self, wait_millis: int = WAIT_SECONDS * 1000, **fields: Any) -> TopNRequest:
        """Returns a query that waits until its answer is not the current one."""
        request = lookup_pb2.TopNRequest()
        request.CopyFrom(self.request)
        request.MergeFrom(lookup_pb2.TopNRequest(**fields))
        answer = self.wire.lookups.TopN(request, timeout=60)
        request.if_changed_since, request.wait_millis = answer.version, wait_millis
        return request

    def waiting(self, calls: int = 1, *, timeout: float = 100, **fields: Any) -> list[Any]:
        """Returns calls that are known to wait."""
        request, before = self.since_now(**fields), self.wire.server().waiting_calls
        futures = [self.wire.lookups.TopN.future(request, timeout=timeout) for _ in range(calls)]
        wait_until(lambda: self.wire.server().waiting_calls == before + calls, f"{calls} more that wait")
        return futures


@pytest.fixture
def here(shared_server: ServerProcess, wire: Wire, name: str) -> Iterator[Questions]:
    with sync.connect(shared_server.url) as client:
        yield Questions(client, wire, name)


@pytest.fixture
def alone(server: ServerProcess) -> Iterator[Questions]:
    """Runs the same with its own server."""
    with sync.connect(server.url) as client, Wire(server.url) as wire:
        yield Questions(client, wire, NAME)


def players(answer: TopNResponse) -> list[str]:
    names: list[str] = pa.ipc.open_stream(answer.rows).read_all()["player"].to_pylist()
    return names


def refused(call: Any) -> Refusal:
    with pytest.raises(grpc.RpcError) as caught:
        call.result(timeout=60)
    return refusal_of(caught.value)


def test_a_call_that_waits_is_answered_within_milliseconds_of_a_commit(here: Questions) -> None:
    numbers = itertools.count()

    def attempt() -> float:
        number = next(numbers)
        (call,) = here.waiting()
        here.table.upsert(scores([f"new{number}"], [1000 + number]))
        written = time.monotonic()
        answer = call.result(timeout=60)
        took = time.monotonic() - written
        assert not answer.unchanged
        assert players(answer)[0] == f"new{number}"
        return took

    in_time(attempt, 0.05)


def test_writes_that_change_nothing_wake_nobody_into_an_answer(here: Questions) -> None:
    (call,) = here.waiting()
    before = here.wire.server()
    for _ in range(5):
        here.table.upsert(scores(PLAYERS, list(range(ROWS))))
        here.table.delete(["nobody"])
    here.client.alter_table(here.request.table, add_indexes=["score"])
    after = here.wire.server()
    assert not call.done()
    assert (after.waiting_calls, after.unchanged_results) == (before.waiting_calls, before.unchanged_results)
    here.table.upsert(scores(["new"], [1000]))
    assert players(call.result(timeout=60)) == ["new", "p099", "p098"]


def test_a_call_waits_for_as_long_as_it_asked(here: Questions) -> None:
    request, began = here.since_now(wait_millis=300), time.monotonic()
    answer = here.wire.lookups.TopN(request, timeout=WAIT_SECONDS)
    assert 0.3 <= time.monotonic() - began < WAIT_SECONDS / 2
    assert answer == lookup_pb2.TopNResponse(version=request.if_changed_since, unchanged=True)


@pytest.mark.breadth
def test_a_call_waits_no_longer_than_its_deadline_allows(here: Questions) -> None:
    request = here.since_now()
    # A tenth of the time is for the answer, and a busy machine may need more than a tenth of a second.
    for deadline in (1.0, 4.0, 16.0):
        began = time.monotonic()
        with contextlib.suppress(grpc.RpcError):
            answer = here.wire.lookups.TopN(request, timeout=deadline)
            break
    assert 0.8 * deadline <= time.monotonic() - began < deadline
    assert answer == lookup_pb2.TopNResponse(version=request.if_changed_since, unchanged=True)


def test_a_question_whose_answer_is_another_one_already_does_not_wait(here: Questions) -> None:
    request = here.since_now()
    here.table.upsert(scores(["new"], [1000]))
    assert players(here.wire.lookups.TopN(request, timeout=60))[0] == "new"


@pytest.mark.whole_tables  # Each tablet computes its share.
def test_all_who_wait_for_the_same_have_it_computed_once(here: Questions) -> None:
    calls = here.waiting(50)
    others = here.waiting(3, where=None, ascending=True)
    before = here.wire.server()
    assert before.live_scans == 0
    here.table.upsert(scores(["new"], [1000]))
    answers = [call.result(timeout=60) for call in calls]
    assert {answer.rows for answer in answers} == {answers[0].rows}
    assert {tuple(players(call.result(timeout=60))) for call in others} == {("p000", "p001", "p002")}
    after = here.wire.server()
    assert after.computed_results - before.computed_results == 2
    assert after.cached_results - before.cached_results == 51
    assert after.rows_scanned - before.rows_scanned == 2 * (ROWS + 1)
    assert after.unchanged_results == before.unchanged_results
    assert sum(answer.rows_scanned for answer in answers) == ROWS + 1


def test_an_added_column_is_another_answer(here: Questions) -> None:
    (call,) = here.waiting()
    here.client.alter_table(here.request.table, add_columns=pa.schema([("team", pa.string())]))
    answer = call.result(timeout=60)
    assert pa.ipc.open_stream(answer.rows).schema.names == ["player", "score", "team"]


def test_a_dropped_table_ends_the_calls_that_wait(here: Questions) -> None:
    calls = here.waiting(20)
    here.client.drop_table(here.request.table)
    dropped = time.monotonic()
    assert {refused(call).reason for call in calls} == {"TABLE_NOT_FOUND"}
    assert time.monotonic() - dropped < WAIT_SECONDS / 2


@pytest.mark.breadth
def test_a_pinned_snapshot_is_waited_for_until_it_ends(here: Questions) -> None:
    pin = here.wire.pin(here.request.table)
    pinned = scan_pb2.PinnedSnapshot(snapshot_id=pin.snapshot.snapshot_id)
    calls = here.waiting(2, snapshot=pinned)
    (short,) = here.waiting(snapshot=pinned, wait_millis=2000)
    here.table.upsert(scores(["new"], [1000]))
    assert short.result(timeout=60).unchanged
    assert not any(call.done() for call in calls)
    here.wire.snapshots.ReleaseSnapshot(
        snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=pin.snapshot.snapshot_id), timeout=20
    )
    assert {refused(call).reason for call in calls} == {"SNAPSHOT_LOST"}


@pytest.mark.breadth
def test_a_lease_that_expires_ends_the_calls_that_wait_for_it(here: Questions) -> None:
    pin = here.wire.pin(here.request.table, ttl_millis=4000)
    (call,) = here.waiting(snapshot=scan_pb2.PinnedSnapshot(snapshot_id=pin.snapshot.snapshot_id))
    assert refused(call).reason == "SNAPSHOT_LOST"


@pytest.mark.parametrize(
    ("millis", "since", "said"),
    [
        (60_001, b"v", "wait_millis must be between 0 and 60,000, not 60,001"),
        (2**32 - 1, b"v", "60,000"),
        (1, None, "wait_millis is set without if_changed_since"),
    ],
)
def test_a_wait_that_cannot_be_is_refused_at_once(here: Questions, millis: int, since: bytes | None, said: str) -> None:
    request = lookup_pb2.TopNRequest(
        table=here.request.table, by="score", n=1, wait_millis=millis, if_changed_since=since
    )
    answer = refusal(here.wire.lookups.TopN, request)
    assert (answer.code, answer.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert said in answer.message


def test_fifty_calls_that_are_cancelled_leave_nothing(here: Questions) -> None:
    before = here.wire.server()
    calls = here.waiting(50)
    assert here.wire.server().tasks >= before.tasks + 50
    for call in calls:
        call.cancel()

    def nothing_is_left() -> bool:
        now = here.wire.server()
        return now.waiting_calls == before.waiting_calls and now.tasks <= before.tasks

    wait_until(nothing_is_left, "all of them gone")
    (call,) = here.waiting()
    here.table.upsert(scores(["new"], [1000]))
    assert not call.result(timeout=60).unchanged


@pytest.mark.breadth
@pytest.mark.whole_tables  # It looks at the buckets of the table in this process.
@pytest.mark.asyncio
async def test_listeners_are_shared_by_all_who_wait_and_gone_with_the_last(tmp_path: Path) -> None:
    async with Server(ServerConfig(data=tmp_path / "data", port=0)) as server, connect(server.address) as client:
        table = await client.create_table(NAME, SCORES, primary_key=["player"], buckets=3)
        await table.upsert(scores(PLAYERS, list(range(ROWS))))
        live = server._tables.table(NAME)
        commits = [bucket._commit for bucket in live.buckets]

        def listeners() -> list[int]:
            return [len(commit._listeners) for commit in commits if commit is not None] + [len(live.state._listeners)]

        watches = [table.watch_top_n(number + 1, "score", every=0.1) for number in range(10)]
        for watch in watches:
            await anext(watch)
        for ending in ("cancelled", "answered"):
            reads = [asyncio.ensure_future(anext(watch)) for watch in watches]

            async def all_wait() -> bool:
                return server._waiting.waiting == len(watches)

            await await_until(all_wait, "all of them waiting")
            assert listeners() == [1, 1, 1, 1]
            if ending == "cancelled":
                for read in reads:
                    read.cancel()
            else:
                await table.upsert(scores(["new"], [1000]))
            await asyncio.wait(reads, timeout=60)

            async def none_waits() -> bool:
                return server._waiting.waiting == 0

            await await_until(none_waits, f"all of them {ending}")
            assert listeners() == [0, 0, 0, 0]
            assert server._waiting._groups == {}


@pytest.mark.breadth
def test_no_change_is_missed_by_who_asks_again_and_again_beside_a_writer(here: Questions) -> None:
    last, written = 1150, [0]

    def write() -> None:
        for score in range(1000, last + 1):
            here.table.upsert(scores([f"p{score % 7:03}"], [score]))
            written.append(score)

    request, found, answers = here.since_now(), 0, 0
    writer = threading.Thread(target=write)
    writer.start()
    while found < last:
        floor = written[-1]
        # A missed change would only be found after nine tenths of this time, and as unchanged.
        answer = here.wire.lookups.TopN(request, timeout=60)
        assert not answer.unchanged
        found = pa.ipc.open_stream(answer.rows).read_all()["score"][0].as_py()
        assert found >= floor
        request.if_changed_since = answer.version
        answers += 1
    writer.join()
    assert answers > 10


def test_a_drain_does_not_wait_for_calls_that_wait(alone: Questions, server: ServerProcess) -> None:
    calls = alone.waiting(30)
    server.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert {refused(call).reason for call in calls} == {"SERVER_DRAINING"}
    assert server.process.wait(60) == 0
    assert time.monotonic() - began < WAIT_SECONDS / 2


def test_calls_that_wait_at_a_server_that_is_killed_end(alone: Questions, server: ServerProcess) -> None:
    calls = alone.waiting(3)
    server.kill()
    assert {refused(call).code for call in calls} == {"UNAVAILABLE"}


@pytest.mark.whole_tables  # One live scan is allowed, and a scan is one for each tablet.
def test_no_more_calls_wait_than_the_setting_says_and_none_takes_the_place_of_a_scan(tmp_path: Path) -> None:
    settings = ("max_waiting_calls=3", "max_live_scans=1", "max_waiting_scans=0", "admission_wait_seconds=0")
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    with (
        ServerProcess(tmp_path / "data", *arguments) as server,
        sync.connect(server.url) as client,
        Wire(server.url) as wire,
    ):
        here = Questions(client, wire, NAME)
        calls = here.waiting(3)
        request, began = here.since_now(), time.monotonic()
        assert wire.lookups.TopN(request, timeout=60).unchanged
        assert time.monotonic() - began < WAIT_SECONDS / 2
        assert here.table.scan().to_arrow().num_rows == ROWS
        here.table.upsert(scores(["new"], [1000]))
        assert {players(call.result(timeout=60))[0] for call in calls} == {"new"}
        wait_until(partial(_none_waits, wire), "all of them answered")


def _none_waits(wire: Wire) -> bool:
    return wire.server().waiting_calls == 0
