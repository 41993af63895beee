"""A stream with `StartFrom.lake` returns the rows of a published version, then every change since, each once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    ConsumerFenced,
    ConsumerNotFound,
    InvalidRequest,
    InvalidResumeToken,
    LakeDamaged,
    LakeVersionNotFound,
    PositionExpired,
    StartFrom,
    StopAt,
    TableRecreated,
    UsageError,
    connect,
)
from aio_client._scan.stream import ScanStream
from aio_client._transport.repeatable_calls import commit_position
from scankv.lake.formats import FORMATS, open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from scankv.lake.union import handover
from scankv.lake.union.changes_plan import plan_changes
from tests.support.server_process import ServerProcess
from tests.support.streams import read_between_cancellations
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Scan, Table
    from scankv.lake.union.changes_plan import ChangesPlan

SCHEMA = pa.schema([("id", pa.int64()), ("score", pa.uint64()), ("team", pa.string())])
pytestmark = pytest.mark.asyncio


def rows_of(ids: range, score: int = 1, team: str = "a") -> pa.Table:
    return pa.table({"id": ids, "score": [score] * len(ids), "team": [team] * len(ids)}, SCHEMA)


async def publish_to(client: Client, name: str, uri: str, format_: str = "delta", **options: Any) -> None:
    lake = open_lake_table(uri, format_, options.pop("keep_seconds", 3600))
    await publish(client, name, lake, PublishOptions(file_rows=options.pop("file_rows", 50), **options))


async def make(client: Client, name: str, uri: str, format_: str = "delta", **options: Any) -> Table:
    """Publishes 200 rows, of which some are masked if the format can do that, and changes some rows then."""
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=3, **options)
    await table.upsert(rows_of(range(210)))
    await publish_to(client, name, uri, format_)
    await table.delete(list(range(200, 210)))
    await publish_to(client, name, uri, format_, masks=format_ == "delta")
    await table.upsert(rows_of(range(10, 20), score=2))
    await table.delete([0, 199])
    await table.upsert(rows_of(range(500, 505), score=3, team="b"))
    return table


def apply(state: dict[int, dict[str, Any]], changes: pa.RecordBatch | pa.Table) -> None:
    """Applies changes to the rows that a reader has, and checks that they fit."""
    for change in changes.to_pylist():
        kind, key = change["_change_type"], change["id"]
        row = {name: value for name, value in change.items() if not name.startswith("_")}
        if kind == "+I":
            assert key not in state
        if kind in ("-U", "-D"):
            assert state[key] == row
        if kind == "-D":
            del state[key]
        elif kind != "-U":
            state[key] = row


async def live(scan: Scan) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in await scan.to_pylist()}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.represented_by("delta")
async def test_the_rows_of_files_and_the_changes_since_lead_to_the_live_table(
    client: Client, name: str, uri: str, format_: str
) -> None:
    table = await make(client, name, uri, format_)
    changes = await table.changes(StartFrom.lake(uri), StopAt.LATEST).to_arrow()
    assert changes.schema == (await table.changes(StartFrom.FULL, StopAt.LATEST).to_arrow()).schema
    of_files = changes.slice(0, 200)
    assert set(of_files["_change_type"].to_pylist()) == {"+I"}
    assert of_files["_log_offset"].null_count == of_files["_commit_timestamp"].null_count == 200
    rest = changes.slice(200)
    assert rest["_log_offset"].null_count == 0
    assert rest.num_rows == 20 + 2 + 5
    state: dict[int, dict[str, Any]] = {}
    apply(state, changes)
    assert state == await live(table.scan())


async def test_a_stream_says_in_which_phase_it_is(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    offsets = open_lake_table(uri).load_version(1).state.log_offsets
    async with table.changes(StartFrom.lake(uri), StopAt.LATEST).with_chunk(rows=20).stream() as stream:
        assert (stream.phase, stream.resume_token, stream.watermark) == ("rows", None, None)
        assert stream.log_offsets == stream.next_offsets == offsets
        assert stream.log_offsets.table_incarnation == table.incarnation
        phases = {stream.phase async for _ in stream}
        assert phases == {"rows", "changes"}
        assert stream.next_offsets == await table.log_offsets()
        assert stream.log_offsets == offsets
        assert stream.resumptions == ()
        assert stream.stats().rows_returned == 227


async def test_a_stream_without_an_end_continues_with_new_changes(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    state: dict[int, dict[str, Any]] = {}
    async with table.changes(StartFrom.lake(uri)).stream() as stream:
        await table.upsert(rows_of(range(900, 901)))
        async for changes in stream:
            apply(state, changes)
            if 900 in state and len(state) == 204:
                break
    assert state == await live(table.scan())


async def test_the_end_of_a_stream_is_that_of_its_start(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    expected = await live(table.scan())
    state: dict[int, dict[str, Any]] = {}
    async with table.changes(StartFrom.lake(uri), StopAt.LATEST).stream() as stream:
        await table.truncate()
        async for changes in stream:
            apply(state, changes)
    assert state == expected


async def test_columns_and_predicates_hold_for_files_and_changes(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    await table.upsert(rows_of(range(1), score=7))
    await table.upsert(rows_of(range(10, 12), score=1))
    state: dict[int, dict[str, Any]] = {}
    scan = table.changes(StartFrom.lake(uri), StopAt.LATEST, columns=["id", "team"], where="score = 1 and id < 100")
    apply(state, await scan.to_arrow())
    assert state == await live(table.scan(["id", "team"], where="score = 1 and id < 100"))
    assert 10 in state


async def test_files_have_the_columns_of_the_table_now(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    table = await client.alter_table(
        name,
        drop_columns=["team"],
        rename_columns={"score": "points"},
        add_columns=pa.schema([("team", pa.int64()), ("league", pa.string())]),
        column_defaults={"league": "new"},
    )
    await table.upsert([{"id": 1, "points": 5, "team": 3, "league": "x"}])
    state: dict[int, dict[str, Any]] = {}
    apply(state, await table.changes(StartFrom.lake(uri), StopAt.LATEST).to_arrow())
    assert state == await live(table.scan())


async def test_shards_divide_files_and_changes(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    state: dict[int, dict[str, Any]] = {}
    for index in range(5):
        changes = await table.changes(StartFrom.lake(uri), StopAt.LATEST, shard=(index, 5)).to_arrow()
        assert (changes.num_rows > 0) is (index < 3)
        apply(state, changes)
    assert state == await live(table.scan())


async def test_every_token_continues_exactly(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    scan = table.changes(StartFrom.lake(uri), StopAt.LATEST, where="id < 150 or id > 400").with_chunk(rows=40)
    async with scan.stream() as stream:
        batches = [(rows, stream.resume_token) async for rows in stream]
    everything = pa.Table.from_batches([rows for rows, _ in batches]).to_pylist()
    returned = 0
    for rows, token in batches:
        returned += rows.num_rows
        assert token is not None
        assert await scan.resume_from(token).to_pylist() == everything[returned:]
    # Later versions change nothing: a token names its own.
    await publish_to(client, name, uri)
    assert batches[0][1] is not None
    first = batches[0][0].num_rows
    assert await scan.resume_from(batches[0][1]).to_pylist() == everything[first:]


@pytest.mark.breadth
async def test_tokens_of_something_else_are_refused(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    scan = table.changes(StartFrom.lake(uri), StopAt.LATEST).with_chunk(rows=40)
    async with scan.stream() as stream:
        await anext(stream)
        token = stream.resume_token
    assert token is not None
    for refused in (scan.select("id"), scan.where("id = 1"), scan.with_buckets(0)):
        with pytest.raises(InvalidResumeToken, match="comes from another query"):
            await refused.resume_from(token).to_arrow()
    with pytest.raises(InvalidResumeToken, match="is damaged"):
        await scan.resume_from(token[:-1] + bytes([token[-1] ^ 1])).to_arrow()
    with pytest.raises(InvalidResumeToken):
        await table.changes(StartFrom.FULL, StopAt.LATEST).resume_from(token).to_arrow()
    lake = open_lake_table(uri, keep_seconds=0)
    await table.truncate()
    await publish_to(client, name, uri, keep_seconds=0)
    lake.expire(0)
    with pytest.raises(LakeVersionNotFound, match="has expired"):
        await scan.resume_from(token).to_arrow()


async def test_a_consumer_continues_after_what_it_has_committed(client: Client, name: str, uri: str) -> None:
    table = await make(client, name, uri)
    scan = table.changes(StartFrom.lake(uri), StopAt.LATEST, consumer_id="etl").with_chunk(rows=40)
    state: dict[int, dict[str, Any]] = {}
    async with scan.stream() as stream:
        assert await stream.commit() == stream.log_offsets  # before the first row
        first, second = [(await anext(stream), stream.resume_token) for _ in range(2)]
        apply(state, first[0])
        apply(state, second[0])
        # A position never goes back.
        await stream.commit(second[1])
        assert await stream.commit(first[1]) == stream.log_offsets
        begun = stream.log_offsets
    (consumer,) = await table.consumers()
    assert (consumer.phase, consumer.log_offsets, consumer.rows_position) == ("rows", begun, second[1])
    # What is published later changes nothing for a consumer that has begun.
    await publish_to(client, name, uri)
    async with scan.stream() as stream:
        assert stream.resume_token == second[1]
        async for changes in stream:
            apply(state, changes)
            await stream.commit()
    assert state == await live(table.scan())
    (consumer,) = await table.consumers()
    assert (consumer.phase, consumer.lag, consumer.rows_position) == ("changes", 0, None)
    await table.upsert(rows_of(range(3), score=9))
    async with scan.stream() as stream:
        async for changes in stream:
            assert stream.phase == "changes"
            apply(state, changes)
            await stream.commit()
    assert state == await live(table.scan())
    with pytest.raises(ConsumerNotFound):
        async with table.changes(StartFrom.lake(uri), consumer_id="other", must_exist=True).stream():
            pass


@pytest.mark.breadth
@pytest.mark.parametrize("most", [1, 1000], ids=["rows", "changes"])
async def test_what_the_reader_before_commits_during_a_take_over_comes_once(
    client: Client, name: str, uri: str, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    table = await make(client, name, uri)
    scan = table.changes(StartFrom.lake(uri), StopAt.LATEST, consumer_id="etl").with_chunk(rows=40)
    state: dict[int, dict[str, Any]] = {}
    async with scan.stream() as before:

        async def commit_after_plan(*args: Any) -> ChangesPlan:
            monkeypatch.undo()
            plan = await plan_changes(*args)
            for _ in range(most):
                batch = await anext(before, None)
                if batch is None:
                    break
                apply(state, batch)
            await before.commit()
            return plan

        monkeypatch.setattr(handover, "plan_changes", commit_after_plan)
        async with scan.stream() as after:
            async for batch in after:
                apply(state, batch)
            await after.commit()
            with pytest.raises(ConsumerFenced):
                await before.commit(after.resume_token)
    assert state == {row["id"]: row for row in await table.scan().to_pylist()}


@pytest.mark.breadth
async def test_a_consumer_that_has_not_committed_the_last_rows_begins_again(
    client: Client, name: str, uri: str
) -> None:
    table = await make(client, name, uri)
    scan = table.changes(StartFrom.lake(uri), StopAt.LATEST, consumer_id="etl")
    first = await scan.to_arrow()
    assert await scan.to_arrow() == first
    async with scan.stream() as stream, scan.stream() as later:
        with pytest.raises(ConsumerFenced):
            [rows async for rows in stream]
        assert pa.Table.from_batches([rows async for rows in later]) == first


@pytest.mark.breadth
async def test_a_consumer_survives_the_server_within_the_files(server: ServerProcess, uri: str) -> None:
    async with connect(server.url) as client:
        table = await make(client, "lake.consumer", uri)
        scan = table.changes(StartFrom.lake(uri), StopAt.LATEST, consumer_id="etl").with_chunk(rows=40)
        state: dict[int, dict[str, Any]] = {}
        for _ in range(3):
            async with scan.stream() as stream:
                apply(state, await anext(stream))
                await stream.commit()
                apply({}, await anext(stream))  # which is not committed
            server.kill()
            server.restart()
        async with scan.stream() as stream:
            async for changes in stream:
                apply(state, changes)
                await stream.commit()
        assert state == await live(table.scan())
        with pytest.raises(InvalidRequest, match="rows_elsewhere is set without consumer_id and offsets"):
            await of_raw_log(table, rows_elsewhere=True)


@pytest.mark.parametrize("consumer_id", [None, "etl"])
async def test_reads_that_are_cancelled_lose_no_change_and_return_none_twice(
    client: Client, name: str, uri: str, consumer_id: str | None
) -> None:
    table = await make(client, name, uri)
    scan = table.changes(StartFrom.lake(uri), StopAt.LATEST, consumer_id=consumer_id).with_chunk(rows=5)
    batches, cancelled = await read_between_cancellations(stream := scan.stream())
    assert cancelled > 50
    assert stream.resumptions == ()
    changes = pa.Table.from_batches(batches)
    assert changes.num_rows == 200 + 20 + 2 + 5
    state: dict[int, dict[str, Any]] = {}
    apply(state, changes)
    assert state == await live(table.scan())


async def test_a_consumer_within_the_files_of_an_expired_version_is_an_error(
    client: Client, name: str, uri: str
) -> None:
    table = await make(client, name, uri)
    scan = table.changes(StartFrom.lake(uri), StopAt.LATEST, consumer_id="etl").with_chunk(rows=40)
    async with scan.stream() as stream:
        await anext(stream)
        await stream.commit()
    with pytest.raises(InvalidResumeToken, match="comes from another query"):
        await scan.select("id").to_arrow()
    await table.truncate()
    await publish_to(client, name, uri, keep_seconds=0)
    open_lake_table(uri, keep_seconds=0).expire(0)
    with pytest.raises(LakeVersionNotFound, match="delete it, so that it begins again"):
        await scan.to_arrow()
    await table.delete_consumer("etl")
    assert await scan.to_pylist() == []
    transport = table.scan()._transport
    for arguments in ({"rows_position": b"x" * 1025}, {"rows_position": b"x", "token": b"y"}):
        with pytest.raises(InvalidRequest, match="rows_position must have at most 1,024 bytes"):
            await commit_position(transport, name, "etl", 1, **arguments)


async def of_raw_log(table: Table, **fields: Any) -> None:
    """Starts a stream of changes with fields that the builder does not set."""
    spec = table.changes(StartFrom.LATEST, StopAt.LATEST).spec
    assert spec.log is not None
    async with ScanStream(table.scan()._transport, replace(spec, log=replace(spec.log, **fields))):
        pass


async def test_rows_of_a_table_without_a_key_come_first(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=[])
    await table.append(rows_of(range(100)))
    await publish_to(client, name, uri)
    await table.append(rows_of(range(100, 120)))
    changes = await table.changes(StartFrom.lake(uri), StopAt.LATEST).to_arrow()
    assert sorted(changes["id"].to_pylist()) == list(range(120))
    assert changes["_log_offset"].null_count == 100


async def test_what_cannot_be_followed_is_an_error(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    table = await make(client, name, uri)
    with pytest.raises(LakeVersionNotFound, match="nothing was published in"):
        await table.changes(StartFrom.lake(str(tmp_path / "nothing")), StopAt.LATEST).to_arrow()
    with pytest.raises(UsageError, match="limit is not for StartFrom"):
        table.changes(StartFrom.lake(uri)).limit(1)
    with pytest.raises(UsageError, match="needs the location of the published table"):
        StartFrom.lake("")
    await table.changes(StartFrom.LATEST, StopAt.LATEST, consumer_id="etl").to_arrow()
    with pytest.raises(UsageError, match="the server cannot read files"):
        await table.reset_consumer("etl", StartFrom.lake(uri))
    other = await client.create_table(
        f"{name}2", SCHEMA, primary_key=["id"], changelog="input", merge_engine="aggregate"
    )
    with pytest.raises(LakeDamaged, match=f"was published from table {name}"):
        await other.changes(StartFrom.lake(uri), StopAt.LATEST).to_arrow()
    await other.upsert(rows_of(range(5)))
    await publish_to(client, f"{name}2", f"{uri}2")
    with pytest.raises(InvalidRequest, match='changelog="input"'):
        await other.changes(StartFrom.lake(f"{uri}2"), StopAt.LATEST).to_arrow()
    await client.drop_table(name)
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    with pytest.raises(TableRecreated):
        await table.changes(StartFrom.lake(uri), StopAt.LATEST).to_arrow()


@pytest.mark.breadth
async def test_a_version_that_is_older_than_the_changelog_is_an_error(tmp_path: Path) -> None:
    uri = str(tmp_path / "published")
    with ServerProcess(tmp_path / "data", "--set", "log_maintenance_seconds=0.05") as server:
        async with connect(server.url) as client:
            table = await make(client, "lake.trimmed", uri, log_retention_bytes=1000)
            scan = table.changes(StartFrom.lake(uri), StopAt.LATEST)
            message = "does not have the changes after version 1 in .* as of .*publish the table again"

            async def is_trimmed() -> bool:
                await table.upsert(rows_of(range(200), score=5))
                try:
                    async with scan.stream():
                        return False
                except PositionExpired as error:
                    return re.search(message, str(error)) is not None

            await await_until(is_trimmed, "the changes after the version are gone")
            await publish_to(client, table.name, uri)
            assert (await scan.to_arrow()).num_rows == await table.count()


@pytest.mark.breadth
async def test_a_killed_server_does_not_matter_for_files_and_is_waited_for_then(
    server: ServerProcess, uri: str
) -> None:
    async with connect(server.url) as client:
        table = await make(client, "lake.dies", uri)
        expected = await live(table.scan())
        scan = table.changes(StartFrom.lake(uri), StopAt.LATEST).with_chunk(rows=40)
        state: dict[int, dict[str, Any]] = {}
        async with scan.stream() as stream:
            server.kill()
            while len(state) < 200:
                apply(state, await anext(stream))
            server.restart()
            async for changes in stream:
                apply(state, changes)
        assert state == expected
