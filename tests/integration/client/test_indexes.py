"""Indexes as a client creates, watches and drops them, and the check of a table."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    BucketCheck,
    Client,
    IndexStatus,
    InvalidRequest,
    SchemaMismatch,
    TableNotFound,
    UsageError,
    col,
    connect,
)

if TYPE_CHECKING:
    from aio_client import Table
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema(
    [("player", pa.string()), ("league", pa.string()), ("score", pa.int64()), ("tags", pa.list_(pa.string()))]
)
ROWS = 50_000


async def scores(client: Client, name: str, *, indexes: Any = ()) -> Table:
    """Makes a table of `ROWS` rows in four buckets."""
    table = await client.create_table(name, SCHEMA, primary_key=["player"], indexes=indexes)
    numbers = range(ROWS)
    await table.upsert(
        pa.table(
            {
                "player": [f"p{number}" for number in numbers],
                "league": [f"l{number % 7}" for number in numbers],
                "score": [number * 7919 % ROWS for number in numbers],
                "tags": pa.nulls(ROWS, pa.list_(pa.string())),
            }
        )
    )
    return table


def ready(*columns: str, rows: int = ROWS) -> IndexStatus:
    return IndexStatus(columns=columns, ready=True, rows_done=rows, rows=rows, failure=None)


def agreeing(checks: list[BucketCheck], *indexes: tuple[str, ...], rows: int = ROWS) -> bool:
    """Returns whether a check found this number of rows, as many entries in each index, and no problem."""
    return (
        [check.bucket for check in checks] == [0, 1, 2, 3]
        and sum(check.rows for check in checks) == rows
        and all(check.is_consistent for check in checks)
        and all(tuple(index.columns for index in check.indexes) == indexes for check in checks)
        and all(index.ready and index.entries == check.rows for check in checks for index in check.indexes)
    )


@pytest.mark.asyncio
async def test_indexes_of_a_new_table_are_ready_and_stay_whole(client: Client, name: str) -> None:
    created = await client.create_table(name, SCHEMA, primary_key=["player"], indexes=["score", ("league", "score")])
    assert created.indexes == (("score",), ("league", "score"))
    assert await created.index_status() == [ready("score", rows=0), ready("league", "score", rows=0)]
    await created.upsert([{"player": "ann", "league": "a", "score": 3}, {"player": "bob"}])
    await created.delete("ann")
    assert await created.index_status() == [ready("score", rows=1), ready("league", "score", rows=1)]
    assert agreeing(await client.check_table(name), ("score",), ("league", "score"), rows=1)
    assert (await client.table(name)).indexes == created.indexes


@pytest.mark.asyncio
async def test_one_name_is_the_index_on_that_column(client: Client, name: str) -> None:
    assert (await client.create_table(name, SCHEMA, primary_key="player", indexes="score")).indexes == (("score",),)
    assert (await client.alter_table(name, drop_indexes="score")).indexes == ()


@pytest.mark.asyncio
async def test_altering_without_waiting_leaves_the_building_to_the_server(client: Client, name: str) -> None:
    table = await scores(client, name)
    seen: list[list[IndexStatus]] = []
    await client.alter_table(name, add_indexes=["league"], wait=False, on_progress=seen.append)
    assert seen == []
    (status,) = await table.index_status()
    assert status.columns == ("league",)
    assert status.failure is None
    assert status.rows == ROWS
    assert 0 <= status.rows_done <= ROWS
    # Waits for its own index only, and notices that it was dropped.
    altered = await client.alter_table(name, add_columns=pa.schema([("team", pa.string())]), add_indexes=["team"])
    assert altered.schema.names[-1] == "team"
    assert altered.indexes == (("league",), ("team",))
    assert [status.ready for status in await altered.index_status() if status.columns == ("team",)] == [True]


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_waiting_for_an_index_outlives_the_server(server: ServerProcess) -> None:
    seen: list[list[IndexStatus]] = []
    restarts: list[asyncio.Task[None]] = []

    def note(states: list[IndexStatus]) -> None:
        seen.append(states)
        if len(seen) == 1:
            server.kill()
            restarts.append(asyncio.create_task(asyncio.to_thread(server.restart)))

    async with connect(server.url) as client:
        await scores(client, "test.restarted")
        altered = await client.alter_table("test.restarted", add_indexes=["score"], on_progress=note)
        await restarts[0]
        assert await altered.index_status() == [ready("score")]
        assert agreeing(await client.check_table("test.restarted"), ("score",))


@pytest.mark.asyncio
async def test_an_index_that_cannot_be_built_says_why_and_that_it_is_to_be_dropped(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["player"])
    await table.upsert([{"player": "ann", "league": "x" * 20_000, "score": 1}])
    with pytest.raises(
        InvalidRequest, match=r"\(league\) .* cannot be built: .*drop_indexes=\[\('league',\)\]"
    ) as raised:
        await client.alter_table(name, add_indexes=["league"])
    assert "xxxx" not in raised.value.message
    (status,) = await table.index_status()
    assert (status.ready, status.failure is None) == (False, False)
    # A failure of one index does not stop the other.
    assert (await client.alter_table(name, add_indexes=["score"])).indexes == (("league",), ("score",))
    assert (await client.alter_table(name, drop_indexes=["league"])).indexes == (("score",),)
    assert await table.get("ann") is not None


@pytest.mark.parametrize(
    "alteration",
    [
        {"add_indexes": 7},
        {"add_indexes": {"score": 1}},
        {"add_indexes": [7]},
        {"add_indexes": [["score", 7]]},
        {"add_indexes": [None]},
        {"add_indexes": [b"score"]},
        {"drop_indexes": [["score", None]]},
        {"add_columns": {"a": 1}},
        {},
    ],
)
@pytest.mark.asyncio
async def test_what_is_no_alteration_is_not_sent(client: Client, name: str, alteration: dict[str, Any]) -> None:
    # The table does not exist: a request would be refused with TableNotFound.
    with pytest.raises(UsageError) as raised:
        await client.alter_table(name, **alteration)
    assert raised.value.details.get("option") == next(iter(alteration), None)


@pytest.mark.asyncio
async def test_impossible_indexes_are_refused_and_change_nothing(client: Client, name: str) -> None:
    with pytest.raises(UsageError, match="indexes"):
        await client.create_table(name, SCHEMA, primary_key=["player"], indexes=[1])  # type: ignore[list-item]
    with pytest.raises(SchemaMismatch, match="did you mean"):
        await client.create_table(name, SCHEMA, primary_key=["player"], indexes=["scroe"])
    table = await client.create_table(name, SCHEMA, primary_key=["player"], indexes=["score"])
    for refused, said in (
        ({"add_indexes": ["score"]}, "already"),
        ({"add_indexes": [[]]}, "between 1 and 8 columns, not 0"),
        ({"add_indexes": [["league", "league"]]}, "twice"),
        ({"drop_indexes": ["league"]}, r"no index on \(league\); its indexes: \(score\)"),
        ({"add_indexes": ["league", "tags"]}, '"tags"'),
    ):
        with pytest.raises(InvalidRequest, match=said):
            await client.alter_table(name, **refused)
    assert (await client.table(name)).indexes == table.indexes
    with pytest.raises(TableNotFound):
        await client.alter_table(name + "x", add_indexes=["score"])
    with pytest.raises(TableNotFound):
        await client.check_table(name + "x")


@pytest.mark.asyncio
async def test_a_check_tells_of_each_bucket_as_it_is_done(client: Client, name: str) -> None:
    await scores(client, name, indexes=["score"])
    told: list[BucketCheck] = []
    assert await client.check_table(name, on_bucket=told.append) == told
    assert agreeing(told, ("score",))
    assert (await client.stats()).live_scans == 0


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_more_rows_than_an_index_tells_are_all_found(client: Client, name: str) -> None:
    """Around 10,000 rows, the limit for a top-N from an index. A third of the rows is found by a scan."""
    sizes = {1: 9_999, 2: 10_000, 3: 10_001}
    scores = [score for score, size in sizes.items() for _ in range(size)]
    Random(1).shuffle(scores)
    schema = pa.schema([("id", pa.int32()), ("score", pa.int32())])
    table = await client.create_table(name, schema, primary_key=["id"], buckets=3, indexes=["score"])
    await table.upsert(pa.table({"id": range(len(scores)), "score": scores}, schema=schema))
    for score in sizes:
        expected = [number for number, each in enumerate(scores) if each == score]
        scan = table.scan(["id"], where=col("score") == score)
        assert (await scan.explain()).index == ()
        assert sorted((await scan.to_arrow())["id"].to_pylist()) == expected
        assert (await scan.ordered().limit(7).to_arrow())["id"].to_pylist() == expected[:7]
        assert await table.count(col("score") == score) == len(expected)
    by_score = sorted(range(len(scores)), key=lambda number: -scores[number])
    for n in (9_999, 10_000, 10_001, len(scores), len(scores) + 1):
        assert (await table.top_n(n, "score", columns=["id"]))["id"].to_pylist() == by_score[:n]
    tied = await table.top_n(1, "score", columns=["id"], ties="all")
    assert tied["id"].to_pylist() == by_score[: sizes[3]]
