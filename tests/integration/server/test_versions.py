"""Polling without changes: versions, "unchanged" answers, shared computations, and no missed write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, SchemaMismatch, SnapshotLost, TableNotFound, col, connect
from scankv.v1 import lookup_pb2, scan_pb2
from streaming_server.config import ServerConfig
from streaming_server.scan.versions import version_of as view_version
from streaming_server.server import Server
from tests.support.tables import SCORES, scores
from tests.support.wire import refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aio_client import Client, ServerStats, Table
    from tests.support.server_process import ServerProcess
    from tests.support.wire import Wire

pytestmark = pytest.mark.asyncio

ROWS = 2_000
PLAYERS = [f"p{number:05}" for number in range(ROWS)]


async def new_table(client: Client, name: str, rows: int = ROWS) -> Table:
    table = await client.create_table(name, SCORES, primary_key=["player"], buckets=3)
    await table.upsert(scores(PLAYERS[:rows], list(range(rows))))
    return table


async def version_of(table: Table) -> bytes:
    counted = await table.count_if_changed(None)
    assert counted is not None
    return counted.version


def polls_of(table: Table, since: bytes | None) -> list[Callable[[], Awaitable[object]]]:
    """Returns every kind of query that has a version."""
    return [
        lambda: table.count_if_changed(since),
        lambda: table.count_if_changed(since, col("score") > 10),
        lambda: table.aggregate_if_changed(since, {"score": ["sum", "max"]}),
        lambda: table.aggregate_if_changed(since, {"score": "mean"}, "score > 3", group_by=["player"]),
        lambda: table.top_n_if_changed(since, 10, "score"),
        lambda: table.top_n_if_changed(since, 5, "score", "score < 100", columns=["player"], descending=False),
    ]


@pytest.mark.whole_tables  # It looks at the buckets of the table in this process.
async def test_the_version_from_memory_is_the_one_of_the_view(tmp_path: Path) -> None:
    async with Server(ServerConfig(data=tmp_path, port=0)) as server, connect(server.address) as client:
        table = await new_table(client, "game.scores", 10)
        seen = set()

        async def check() -> None:
            live = server._tables.table("game.scores")
            for buckets in (None, (1,), (0, 2), None):
                view = live.reads.view_in_memory(buckets)
                assert view is not None
                version = live.reads.version_in_memory(buckets)
                assert version == view_version(live.definition, view.log_offsets, view.micros)
                if buckets is None:
                    assert version == await version_of(table)
                    seen.add(version)

        await check()
        await check()
        assert len(seen) == 1
        await table.upsert(scores(["p00001"], [77]))
        await check()
        await client.alter_table("game.scores", add_columns=pa.schema([("more", pa.int64())]))
        await check()
        await client.drop_table("game.scores")
        table = await new_table(client, "game.scores", 10)
        await check()
        assert len(seen) == 4


def moved(before: ServerStats, after: ServerStats) -> dict[str, int]:
    names = ("rows_scanned", "scans_started", "unchanged_results", "cached_results", "computed_results")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


async def test_an_unchanged_table_is_told_from_memory(client: Client, name: str) -> None:
    table = await new_table(client, name)
    version = await version_of(table)
    before = await client.stats()
    for _ in range(3):
        assert [await poll() for poll in polls_of(table, version)] == [None] * 6
    assert moved(before, await client.stats()) == {
        "rows_scanned": 0,
        "scans_started": 0,
        "unchanged_results": 18,
        "cached_results": 0,
        "computed_results": 0,
    }


@pytest.mark.whole_tables  # A count of the rows of several tablets is cached.
async def test_an_answer_is_given_again_without_reading_until_something_changes(client: Client, name: str) -> None:
    table = await new_table(client, name)
    version = await version_of(table)
    first = [await poll() for poll in polls_of(table, None)]
    before = await client.stats()
    again = [await poll() for poll in polls_of(table, None)]
    told = moved(before, await client.stats())
    # A count of all rows costs nothing, and is not cached.
    assert (told["rows_scanned"], told["cached_results"], told["computed_results"]) == (0, 5, 1)
    assert again == first
    await table.upsert(scores(["new"], [5_000]))
    changed = [await poll() for poll in polls_of(table, version)]
    assert None not in changed
    assert await table.aggregate({"score": "max"}) == pa.table({"score_max": [5_000]})


async def test_a_top_n_that_was_computed_before_says_that_it_read_nothing(
    client: Client, wire: Wire, name: str
) -> None:
    await new_table(client, name)
    request = lookup_pb2.TopNRequest(table=name, by="score", n=3)
    first, again = wire.lookups.TopN(request), wire.lookups.TopN(request)
    assert (first.rows_scanned, again.rows_scanned) == (ROWS, 0)
    assert (again.rows, again.version) == (first.rows, first.version)
    request.if_changed_since = first.version
    assert wire.lookups.TopN(request) == lookup_pb2.TopNResponse(version=first.version, unchanged=True)


async def test_all_answers_about_one_state_have_one_version(client: Client, name: str) -> None:
    table = await new_table(client, name)
    found = {await version_of(table)}
    for poll in polls_of(table, None):
        found.add((await poll()).version)  # type: ignore[attr-defined]
    async with table.scan().stream() as stream:
        found.add(stream.version)
    async with table.snapshot() as snapshot, table.scan().as_of(snapshot).stream() as stream:
        found.add(stream.version)
    assert len(found) == 1


async def test_writes_that_change_nothing_leave_the_version_and_others_do_not(client: Client, name: str) -> None:
    table = await new_table(client, name, rows=3)
    seen = {await version_of(table)}
    await table.upsert(scores(PLAYERS[:3], [0, 1, 2]))
    await table.delete(["nobody"])
    assert await version_of(table) in seen
    for change in (
        lambda: table.upsert(scores(["p00000"], [7])),
        # The same rows as before, but another version: the state in between may have been read.
        lambda: table.upsert(scores(["p00000"], [0])),
        lambda: table.delete(["p00000"]),
        lambda: client.alter_table(name, add_columns=pa.schema([("extra", pa.int64())])),
    ):
        await change()
        version = await version_of(table)
        assert version not in seen
        assert await table.count_if_changed(version) is None
        seen.add(version)


async def test_a_table_created_anew_has_other_versions(client: Client, name: str) -> None:
    table = await new_table(client, name, rows=3)
    version = await version_of(table)
    answer = await table.top_n(3, "score")
    await client.drop_table(name)
    with pytest.raises(TableNotFound):
        await table.top_n_if_changed(version, 3, "score")
    again = await new_table(client, name, rows=3)
    assert await version_of(again) != version
    assert await again.top_n_if_changed(version, 3, "score") is not None
    assert await again.top_n(3, "score") == answer


@pytest.mark.parametrize("version", [b"x", b"\0" * 16, b"y" * 1024])
async def test_a_version_of_nobody_is_answered_as_none(client: Client, name: str, version: bytes) -> None:
    table = await new_table(client, name, rows=3)
    assert None not in [await poll() for poll in polls_of(table, version)]


async def test_a_wrong_question_is_refused_also_when_nothing_has_changed(client: Client, name: str) -> None:
    table = await new_table(client, name, rows=3)
    version = await version_of(table)
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match="scroe"):
            await table.top_n_if_changed(version, 3, "scroe")
        with pytest.raises(SchemaMismatch, match="scroe"):
            await table.top_n_if_changed(version, 3, "score", columns=["scroe"])
        with pytest.raises(SchemaMismatch, match="scroe"):
            await table.aggregate_if_changed(version, {"scroe": "sum"})
        with pytest.raises(SchemaMismatch, match="scroe"):
            await table.count_if_changed(version, col("scroe") > 1)
        with pytest.raises(InvalidRequest):
            await table.aggregate_if_changed(version, {})
        with pytest.raises(SchemaMismatch, match="scroe"):
            async with table.scan(["scroe"]).if_changed_since(version).stream():
                pass
        with pytest.raises(SchemaMismatch, match="scroe"):
            async with table.scan(where=col("scroe") > 1).if_changed_since(version).stream():
                pass
    await client.alter_table(name, add_columns=pa.schema([("scroe", pa.int64())]))
    assert await table.top_n_if_changed(version, 3, "scroe") is not None


async def test_a_field_of_a_newer_client_is_refused_also_in_a_question_that_is_known(
    client: Client, wire: Wire, name: str
) -> None:
    await new_table(client, name, rows=3)
    request = lookup_pb2.TopNRequest(table=name, by="score", n=3)
    wire.lookups.TopN(request)
    newer = lookup_pb2.TopNRequest.FromString(request.SerializeToString() + b"\xf8\x07\x01")
    assert refusal(wire.lookups.TopN, newer).reason == "UNKNOWN_FIELD"


async def test_some_buckets_have_a_version_of_their_own(client: Client, wire: Wire, name: str) -> None:
    table = await new_table(client, name)
    requests = [lookup_pb2.CountRequest(table=name, buckets=[bucket]) for bucket in range(3)]
    before = [wire.lookups.Count(request) for request in requests]
    assert len({answer.version for answer in before}) == 3
    await table.upsert(scores(["p00000"], [9]))
    for request, answer in zip(requests, before, strict=True):
        request.if_changed_since = answer.version
    assert sorted(wire.lookups.Count(request).unchanged for request in requests) == [False, True, True]
    for request in requests:
        request.buckets.append(7)
        assert refusal(wire.lookups.Count, request).reason == "INVALID_REQUEST"


async def test_many_who_ask_at_once_after_a_write_have_it_computed_once(client: Client, name: str) -> None:
    table = await new_table(client, name)
    version = await version_of(table)
    await table.upsert(scores(["p00000"], [9_999]))
    before = await client.stats()
    found = await asyncio.gather(*(table.top_n_if_changed(version, 10, "score") for _ in range(50)))
    told = moved(before, await client.stats())
    assert (told["computed_results"], told["cached_results"], told["rows_scanned"]) == (1, 49, ROWS)
    assert {answer.version if answer else None for answer in found} == {await version_of(table)}
    assert {answer.value["score"][0].as_py() for answer in found if answer} == {9_999}


async def test_who_gives_up_takes_the_answer_from_nobody(client: Client, name: str) -> None:
    table = await new_table(client, name)
    for number in range(10):
        await table.upsert(scores(["p00000"], [10_000 + number]))
        asked = [asyncio.ensure_future(table.top_n(1, "score")) for _ in range(10)]
        for _ in range(number):
            await asyncio.sleep(0)
        for task in asked[::2]:
            task.cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [top["score"].to_pylist() for top in found[1::2] if isinstance(top, pa.Table)] == [[10_000 + number]] * 5
    assert (await client.stats()).live_scans == 0


async def test_a_write_that_was_acknowledged_is_in_every_answer_asked_for_after_it(client: Client, name: str) -> None:
    # Enough rows that reading them takes longer than a write.
    table = await client.create_table(name, SCORES, primary_key=["player"], buckets=3)
    rows = 5_000
    await table.upsert(scores([f"p{number:05}" for number in range(rows)], list(range(rows))))
    versions: dict[bytes, int] = {}

    async def ask(floor: int, since: bytes | None) -> None:
        """Reads in two ways the highest score, which must be at least this one."""
        for poll in (
            table.top_n_if_changed(since, 1, "score", columns=["score"]),
            table.aggregate_if_changed(since, {"score": "max"}),
        ):
            answer = await poll
            if answer is None:
                assert since is not None
                assert versions[since] >= floor
            else:
                found = answer.value[0][0].as_py()
                assert found >= floor
                assert versions.setdefault(answer.version, found) == found

    async with asyncio.TaskGroup() as asking:
        for number in range(rows, rows + 40):
            await table.upsert(scores([f"p{number % 50:05}"], [number]))
            # In addition to earlier queries, some of which are being computed.
            asking.create_task(ask(number, next(reversed(versions), None)))
    stats = await client.stats()
    assert stats.live_scans == stats.open_cursors == 0
    assert len(versions) > 3


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_version_outlives_the_server(server: ServerProcess, end: str) -> None:
    async with connect(server.url) as client:
        table = await new_table(client, "game.scores")
        version = await version_of(table)
    server.kill() if end == "kill" else server.stop()
    server.restart()
    async with connect(server.url) as client:
        table = await client.table("game.scores")
        assert await table.top_n_if_changed(version, 10, "score") is None
        assert await table.count_if_changed(version, "score > 5") is None
        async with table.scan().if_changed_since(version).stream() as stream:
            assert stream.unchanged
        stats = await client.stats()
        assert (stats.rows_scanned, stats.unchanged_results) == (0, 3)
        await table.upsert(scores(["p00000"], [-1]))
        assert await table.count_if_changed(version) is not None


async def test_a_scan_of_which_nothing_has_changed_is_a_header_and_a_trailer(
    client: Client, wire: Wire, name: str
) -> None:
    table = await new_table(client, name)
    request = scan_pb2.ScanKvRequest(table=name, columns=scan_pb2.ColumnNames(names=["score"]), limit=5)
    header = next(iter(wire.scans.ScanKv(request))).header
    assert not header.unchanged
    request.if_changed_since = header.version
    before = await client.stats()
    messages = list(wire.scans.ScanKv(request))
    assert [message.WhichOneof("message") for message in messages] == ["header", "trailer"]
    told = moved(before, await client.stats())
    assert (told["rows_scanned"], told["scans_started"], told["unchanged_results"]) == (0, 0, 1)
    unchanged = messages[0].header
    assert unchanged.unchanged
    for field in ("scan_id", "view_micros", "unchanged"):
        unchanged.ClearField(field)
        header.ClearField(field)
    assert unchanged == header
    assert list(messages[1].trailer.buckets) == [0, 1, 2]
    await table.upsert(scores(["p00000"], [-5]))
    assert len(list(wire.scans.ScanKv(request))) > 2


async def test_scans_of_some_buckets_and_of_snapshots_have_versions_too(client: Client, name: str) -> None:
    table = await new_table(client, name)
    some = table.scan().with_buckets(0, 2)
    async with table.snapshot() as snapshot:
        pinned = table.scan().as_of(snapshot)
        for scan in (some, pinned, some.as_of(snapshot)):
            async with scan.stream() as stream:
                version = stream.version
            again = scan.if_changed_since(version)
            async with again.stream() as stream:
                assert stream.unchanged
                assert [rows async for rows in stream] == []
            assert stream.stats().rows_scanned == 0
        # A pin never changes.
        await table.upsert(scores(PLAYERS, [7] * ROWS))
        async with pinned.if_changed_since(version).stream() as stream:
            assert not stream.unchanged  # This is the version of two of its buckets.
        async with again.stream() as stream:
            assert stream.unchanged
    with pytest.raises(SnapshotLost):
        await again.to_arrow()


async def test_a_scan_that_goes_on_cannot_ask_what_has_changed(client: Client, wire: Wire, name: str) -> None:
    table = await new_table(client, name)
    async with table.scan().stream() as stream:
        await anext(stream)
        assert stream.resume_token is not None
        request = scan_pb2.ScanKvRequest(table=name, resume_token=stream.resume_token, if_changed_since=stream.version)
    found = refusal(wire.scans.ScanKv, request)
    assert found.reason == "INVALID_REQUEST"
    assert "resume_token" in found.message
