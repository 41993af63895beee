"""Splitting a view: the ranges cover every key once, in order, and have about equally many rows."""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss, SnapshotLost, TableNotFound
from scankv.model.expressions import col
from scankv.model.keys.key_range import KeyRange
from streaming_server.engine.snapshots import splits as splits_module
from streaming_server.engine.snapshots.splits import KeySample
from tests.support.examples import examples
from tests.support.snapshots import EVERY_KEY, new_table, tables_in, views_on_disk
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from pathlib import Path

    from scankv.model.expressions import Predicate
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables

Buckets = dict[int, list[bytes]]

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def sampled(buckets: Buckets, step: int) -> KeySample:
    """Returns the sample that contains the last of every `step` keys."""
    return KeySample(
        {bucket: len(keys) for bucket, keys in buckets.items()},
        {bucket: keys[step - 1 :: step] for bucket, keys in buckets.items()},
        {bucket: list(range(step, len(keys) + 1, step)) for bucket, keys in buckets.items()},
    )


def rows_in(buckets: Buckets, key_range: KeyRange) -> int:
    """Returns the number of keys in a range."""
    total = 0
    for keys in buckets.values():
        end = len(keys) if key_range.end is None else bisect_left(keys, key_range.end)
        total += max(end - bisect_left(keys, key_range.start or b""), 0)
    return total


def assert_covers(ranges: list[KeyRange], whole: KeyRange) -> None:
    assert (ranges[0].start, ranges[-1].end) == (whole.start, whole.end)
    for before, after in pairwise(ranges):
        assert before.end is not None
        assert before.end == after.start
        if before.start is not None and not whole.is_empty:
            assert before.start <= before.end


def assert_balanced(sizes: list[int]) -> None:
    mean = sum(sizes) / len(sizes)
    assert max(sizes) <= max(1.5 * mean, -(-sum(sizes) // len(sizes))), sizes


def encoded(numbers: np.ndarray) -> list[bytes]:
    return [struct.pack(">Q", number) for number in sorted({int(number) for number in numbers})]


@st.composite
def key_sets(draw: st.DrawFn) -> Buckets:
    """Generates keys of some buckets: even, clustered, of very different sizes, or each bucket in its own range."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.sampled_from([0, 1, 2, 3, 10, 100, 1000, 9000, 30_000]))
    shape = draw(st.sampled_from(["even", "clustered", "apart", "one bucket", "tiny and huge"]))
    buckets = draw(st.sampled_from([1, 2, 3, 7, 16, 64]))
    if shape == "clustered":
        numbers = (rng.pareto(0.5, count) * 1000).clip(max=2**60).astype(np.uint64)
    else:
        numbers = rng.integers(0, 2**60, count, dtype=np.uint64)
    unique = np.unique(numbers)
    if shape == "apart":
        place = np.arange(len(unique)) * buckets // max(len(unique), 1)
    elif shape == "one bucket":
        place = np.zeros(len(unique), np.int64)
    elif shape == "tiny and huge":
        place = np.minimum(rng.geometric(0.6, len(unique)) - 1, buckets - 1)
    else:
        place = rng.integers(0, buckets, len(unique))
    return {bucket: encoded(unique[place == bucket]) for bucket in range(buckets)}


def step_for(buckets: Buckets) -> int:
    wanted = min(max(256 * len(buckets), 4096), 16_384)
    return min(max(sum(map(len, buckets.values())) // wanted, 1), 8192)


@examples(8)
@given(key_sets(), st.integers(1, 64))
def test_the_ranges_of_a_whole_view_are_balanced_and_give_each_row_once(buckets: Buckets, splits: int) -> None:
    ranges = sampled(buckets, step_for(buckets)).split(splits, EVERY_KEY, list(buckets))
    assert len(ranges) == splits
    assert_covers(ranges, EVERY_KEY)
    sizes = [rows_in(buckets, each) for each in ranges]
    assert sum(sizes) == sum(map(len, buckets.values()))
    assert_balanced(sizes)


@examples(8)
@given(key_sets(), st.integers(1, 64), st.binary(max_size=9), st.binary(max_size=9), st.data())
def test_the_ranges_of_a_part_cover_exactly_that_part(
    buckets: Buckets, splits: int, start: bytes, end: bytes, data: st.DataObject
) -> None:
    whole = KeyRange(data.draw(st.sampled_from([start, None])), data.draw(st.sampled_from([end, None])))
    chosen = data.draw(st.lists(st.sampled_from(list(buckets)), unique=True, min_size=1))
    ranges = sampled(buckets, step_for(buckets)).split(splits, whole, sorted(chosen))
    assert len(ranges) == splits
    assert_covers(ranges, whole)
    part = {bucket: buckets[bucket] for bucket in chosen}
    assert sum(rows_in(part, each) for each in ranges) == rows_in(part, whole)


@examples(8)
@given(key_sets(), st.integers(1, 64))
def test_a_sample_read_back_splits_alike(buckets: Buckets, splits: int) -> None:
    sample = sampled(buckets, 3)
    again = KeySample.from_json(sample.to_json())
    assert again.split(splits, EVERY_KEY, list(buckets)) == sample.split(splits, EVERY_KEY, list(buckets))


def test_a_sample_of_each_key_splits_as_evenly_as_can_be() -> None:
    buckets = {0: encoded(np.arange(0, 100, 2)), 1: encoded(np.arange(1, 100, 2))}
    for splits in range(1, 101):
        sizes = [rows_in(buckets, each) for each in sampled(buckets, 1).split(splits, EVERY_KEY, [0, 1])]
        assert max(sizes) - min(sizes) <= 1


async def filled(tables: Tables, rows: int, *, buckets: int, is_compacted: bool = False) -> LiveTable:
    """Makes a table with this number of rows."""
    rng = np.random.default_rng(7)
    table = await new_table(tables, buckets=buckets, schema=SCHEMA)
    for part in np.array_split(np.arange(rows), max(rows // 20_000, 1)):
        keys = rng.permutation(part)
        batch = pa.record_batch({"k": keys, "v": [f"value {key}" for key in keys.tolist()]}, schema=SCHEMA)
        await table.writes.upsert(ipc_stream(SCHEMA, batch), 0)
        if is_compacted:
            for live in table.buckets:
                await live.run((await live.open()).flush)
    return table


@pytest.mark.asyncio
async def test_the_keys_are_read_once_for_a_view_also_over_a_restart(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await filled(tables, 5_000, buckets=3)
        pinned = await tables.snapshots.pin(table.pinning)
        many = await asyncio.gather(
            *(tables.snapshots.split(pinned.snapshot_id, 5, EVERY_KEY) for _ in range(5)),
        )
        assert all(ranges == many[0] for ranges in many)
        (file,) = (view / "splits.json" for view in views_on_disk(tmp_path))
        written = file.stat()
    async with tables_in(tmp_path) as tables:
        assert await tables.snapshots.split(pinned.snapshot_id, 5, EVERY_KEY) == many[0]
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
        text = file.read_text()
        file.write_text(text.replace('"rows": 1', '"rows": 2', 1))
        with pytest.raises(DataLoss, match=r"splits\.json is damaged"):
            await tables.snapshots.split(pinned.snapshot_id, 5, EVERY_KEY)


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_first_split_that_is_cancelled_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await filled(tables, 40_000, buckets=3)
        pinned = await tables.snapshots.pin(table.pinning)
        steps = cancelled = 0
        while True:
            steps += 1 + steps // 8
            splitting = asyncio.create_task(tables.snapshots.split(pinned.snapshot_id, 5, EVERY_KEY))
            for _ in range(steps):
                await asyncio.sleep(0)
            if splitting.done():
                break
            splitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await splitting
            cancelled += 1
        assert cancelled > 5
        assert len(splitting.result()) == 5
        (view,) = views_on_disk(tmp_path)
        assert {path.name for path in view.iterdir()} == {"manifest.json", "splits.json", "buckets", "leases"}


@pytest.mark.asyncio
async def test_a_split_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await filled(tables, 60_000, buckets=3)
        pinned = await tables.snapshots.pin(table.pinning)
        splitting = asyncio.create_task(tables.snapshots.split(pinned.snapshot_id, 5, EVERY_KEY))
        turns = 0
        while not splitting.done():
            turns += 1
            await asyncio.sleep(0)
        # Reading 60,000 rows takes about 10 ms, in slices of one.
        assert turns > 8


@pytest.mark.asyncio
async def test_a_split_of_a_table_that_is_dropped_meanwhile_ends(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await filled(tables, 60_000, buckets=3)
        pinned = await tables.snapshots.pin(table.pinning)
        splitting = asyncio.create_task(tables.snapshots.split(pinned.snapshot_id, 5, EVERY_KEY))
        # The read uses only a few turns of the loop.
        while not any(view.open_checkpoints for view in tables.snapshots._views):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await tables.snapshots.drop(table.definition.name, TableNotFound("it was dropped"))
        await tables.drop(table.definition.name)
        with pytest.raises(TableNotFound):
            await splitting
        with pytest.raises(SnapshotLost):
            await tables.snapshots.split(pinned.snapshot_id, 5, EVERY_KEY)
        assert views_on_disk(tmp_path) == []


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_sample_of_long_keys_is_thinned_out_evenly(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.string())])
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, schema=schema, buckets=2)
        for part in range(4):
            keys = [f"{number:05}" + "x" * 10_000 for number in range(part, 2000, 4)]
            await table.writes.upsert(ipc_stream(schema, pa.record_batch({"k": keys, "v": keys}, schema=schema)), 0)
        pinned = await tables.snapshots.pin(table.pinning)
        ranges = await tables.snapshots.split(pinned.snapshot_id, 16, EVERY_KEY)
        keys = sorted(f"{number:05}" for number in range(2000))
        stored: Buckets = {0: [key.encode() for key in keys]}
        assert_balanced([rows_in(stored, each) for each in ranges])
        (file,) = (view / "splits.json" for view in views_on_disk(tmp_path))
        assert 1 << 20 < file.stat().st_size < splits_module.MAX_SAMPLE_BYTES * 1.5


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("buckets", [1, 3])
async def test_a_view_of_many_keys_is_cut_by_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    monkeypatch.setattr(splits_module, "MAX_KEYS_READ", 1000)
    monkeypatch.setattr(splits_module, "MAX_PROBES", 128)
    async with tables_in(tmp_path) as tables:
        pinned = await tables.snapshots.pin((await filled(tables, 40_000, buckets=buckets, is_compacted=True)).pinning)
        for key_range in (EVERY_KEY, KeyRange(encoded_key(5_000), encoded_key(25_000))):
            for splits in (1, 4, 16):
                ranges = await tables.snapshots.split(pinned.snapshot_id, splits, key_range)
                assert len(ranges) == splits
                assert_covers(ranges, key_range)
                stored: Buckets = {0: [encoded_key(number) for number in range(40_000)]}
                assert_balanced([rows_in(stored, each) for each in ranges])
                assert ranges == await tables.snapshots.split(pinned.snapshot_id, splits, key_range)


@pytest.mark.asyncio
async def test_ranges_have_the_rows_that_are_asked_for_within_what_a_predicate_leaves(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        pinned = await tables.snapshots.pin((await filled(tables, 20_000, buckets=3, is_compacted=True)).pinning)

        async def cut(where: Predicate | None, rows: int | None, key_range: KeyRange = EVERY_KEY) -> list[KeyRange]:
            return await tables.snapshots.split(pinned.snapshot_id, 50, key_range, where=where, rows_per_split=rows)

        assert len(await cut(None, None)) == 50
        assert len(await cut(None, 1000)) == 20
        assert len(await cut(None, 10**9)) == 1
        assert len(await cut(col("k").between(1000, 1099), 1000)) == 1
        either = col("k").between(1000, 2999) | col("k").between(9000, 10_999)
        ranges = await cut(either, 1000)
        assert len(ranges) == 4
        assert_covers(ranges, EVERY_KEY)
        inside: Buckets = {0: [encoded_key(n) for n in (*range(1000, 3000), *range(9000, 11_000))]}
        assert_balanced([rows_in(inside, each) for each in ranges])
        part = KeyRange(encoded_key(0), encoded_key(3000))
        assert len(await cut(None, 1000, part)) == 3
        assert len(await cut(col("k") == 7, 1)) == 1
        assert len(await cut((col("k") > 7) & (col("k") < 7), 1)) == 1


def encoded_key(number: int) -> bytes:
    return (number + 2**63).to_bytes(8)
