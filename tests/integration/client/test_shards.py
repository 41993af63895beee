"""Shards together read every row and change once, in every phase; shards beyond the last bucket are empty."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import ScanSource, StartFrom, StopAt, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client, Scan, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
BUCKETS = 5
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    return await client.create_table(name, SCHEMA, primary_key=["k"], buckets=BUCKETS)


async def changed(table: Table, rng: random.Random) -> None:
    """Changes rows at random."""
    for _ in range(6):
        keys = [rng.randrange(200) for _ in range(40)]
        await table.upsert([{"k": key, "v": rng.randrange(1000)} for key in keys])
        await table.delete(rng.sample(keys, 6))


async def read(scan: Scan) -> list[dict[str, Any]]:
    return await asyncio.wait_for(scan.to_pylist(), 60)


def by_bucket(found: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Returns the changes of each bucket, in order."""
    buckets = defaultdict(list)
    for change in found:
        buckets[change["_bucket"]].append(change)
    return dict(buckets)


@pytest.mark.parametrize("count", [1, 2, 3, BUCKETS, BUCKETS + 3])
@pytest.mark.parametrize("start", [StartFrom.FULL, StartFrom.EARLIEST, StartFrom.timestamp(LONG_AGO)], ids=repr)
@pytest.mark.represented_by("StartFrom.FULL-1", "StartFrom.timestamp(2001-01-01T00:00:00+00:00)-8")
async def test_all_shards_together_are_the_unsharded_stream_each_change_once_in_order(
    table: Table, count: int, start: StartFrom
) -> None:
    await changed(table, random.Random(f"{count} {start}"))
    whole = by_bucket(await read(table.changes(start, StopAt.LATEST)))
    together: dict[int, list[dict[str, Any]]] = {}
    for index in range(count):
        shard = by_bucket(await read(table.changes(start, StopAt.LATEST, shard=(index, count))))
        assert not together.keys() & shard.keys()
        assert all(bucket % count == index for bucket in shard)
        together |= shard
    assert together == whole


async def test_shards_hold_for_rows_as_well(table: Table) -> None:
    await changed(table, random.Random(1))
    whole = await read(table.scan())
    for count in (2, BUCKETS + 2):
        parts = [await read(table.scan().with_shard(index, count)) for index in range(count)]
        assert sorted((row for part in parts for row in part), key=lambda row: row["k"]) == sorted(
            whole, key=lambda row: row["k"]
        )
        assert (
            await table.scan().with_shard(1, 2).ordered().limit(3).to_pylist()
            == sorted(await read(table.scan().with_shard(1, 2)), key=lambda row: row["k"])[:3]
        )


@pytest.mark.parametrize(
    "refine",
    [
        lambda table: table.scan(),
        lambda table: table.scan().ordered().limit(7),
        lambda table: table.changes(StartFrom.FULL, StopAt.LATEST),
        lambda table: table.changes(StartFrom.LATEST, StopAt.LATEST),
        lambda table: table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="c"),
        lambda table: table.changes(StartFrom.offsets({3: 10**9}), StopAt.offsets({3: 5})),
    ],
)
async def test_a_bounded_stream_of_no_bucket_has_its_schema_is_empty_and_ends_at_once(
    table: Table, refine: Callable[[Table], Scan]
) -> None:
    await changed(table, random.Random(2))
    scan = refine(table)
    async with scan.with_shard(BUCKETS + 1, BUCKETS + 2).stream() as stream:
        log = scan.spec.log
        of_changes = log is not None
        assert stream.schema.names[4 * of_changes :] == ["k", "v"]
        assert stream.log_offsets == {}
        assert [rows async for rows in stream] == []
        assert (stream.log_offsets, stream.next_offsets) == ({}, {})
        assert (stream.resume_token is not None) is of_changes
        assert (stream.resumptions, stream.stats().rows_returned) == ((), 0)
        if log is not None and log.consumer_id:
            assert await stream.commit() == {}
    assert [each.id for each in await table.consumers()] == (["c"] if log is not None and log.consumer_id else [])
    if not of_changes:
        assert (await scan.with_shard(BUCKETS + 1, BUCKETS + 2).explain()).buckets == ()


async def test_buckets_are_chosen_by_all_that_was_asked(table: Table) -> None:
    scan = table.scan().with_source(ScanSource.LOG)
    assert scan.with_shard(1, 2).spec.buckets == (1, 3)
    assert scan.with_bucket_filter(lambda bucket: bucket > 1).spec.buckets == (2, 3, 4)
    for one in (
        scan.with_shard(1, 2).with_buckets(3, 4, 0),
        scan.with_buckets(3, 4, 0).with_shard(1, 2),
        scan.with_shard(1, 2).with_bucket_filter(lambda bucket: bucket in (0, 3)),
        scan.with_bucket_filter({3: True}.get).with_shard(3, 4).with_buckets([3]),
    ):
        assert one.spec.buckets == (3,)
    assert scan.with_buckets(0).with_shard(1, 2).spec.buckets == ()
    assert scan.with_shard(7, 8).with_shard(0, 1).with_buckets(2).spec.buckets == ()


async def test_what_is_no_shard_is_refused_when_it_is_given(table: Table, client: Client) -> None:
    scan = table.scan()
    attempts: list[Callable[[], object]] = [
        lambda: scan.with_shard(2, 2),
        lambda: scan.with_shard(-1, 2),
        lambda: scan.with_shard(0, 0),
        lambda: scan.with_shard(0, True),
        lambda: scan.with_shard(0.0, 2),  # type: ignore[arg-type]
        lambda: scan.with_shard(0, 2).with_buckets(BUCKETS),
        lambda: scan.with_bucket_filter(3),  # type: ignore[arg-type]
        lambda: table.changes(shard=3),  # type: ignore[arg-type]
        lambda: table.changes(shard=(0, 1, 2)),  # type: ignore[arg-type]
    ]
    for attempt in attempts:
        with pytest.raises(UsageError):
            attempt()
    alone = client.scan(scan.spec)
    unknown: list[Callable[[], object]] = [lambda: alone.with_shard(0, 2), lambda: alone.with_bucket_filter(bool)]
    for attempt in unknown:
        with pytest.raises(UsageError, match=r"use table\.scan\(\), or set the buckets of the spec"):
            attempt()
    assert client.scan(scan.with_shard(0, 2).spec).with_buckets(2, 3).spec.buckets == (2,)


async def test_consumers_of_all_shards_read_everything_once_while_it_is_written(table: Table) -> None:
    """Each shard has its own consumer, which continues in other streams; a key stays in its shard."""
    rng = random.Random(3)
    await changed(table, rng)
    state: list[dict[int, int]] = [{} for _ in range(3)]

    async def consume(index: int) -> None:
        scan = table.changes(stop=StopAt.LATEST, consumer_id=f"shard-{index}", shard=(index, 3))
        async with scan.with_chunk(rows=50).stream() as stream:
            async for batch in stream:
                for change in batch.to_pylist():
                    if change["_change_type"] in ("+I", "+U"):
                        state[index][change["k"]] = change["v"]
                    else:
                        assert state[index].pop(change["k"]) == change["v"]
                await stream.commit()

    for _ in range(4):
        await asyncio.gather(changed(table, rng), *(consume(index) for index in range(3)))
    await asyncio.gather(*(consume(index) for index in range(3)))
    rows = {row["k"]: row["v"] for row in await table.scan().to_pylist()}
    assert sum(map(len, state)) == len(rows)
    assert {key: value for part in state for key, value in part.items()} == rows
