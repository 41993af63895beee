"""Few rows of several buckets, written in one thread: what one bucket refuses or lacks does not affect the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss, InvalidRequest
from scankv.model.tables.merge_functions import aggregate_of
from scankv.model.tables.merge_spec import MergeSpec
from streaming_server.engine.writes.writing import WritePreconditions
from streaming_server.storage.bucket.writer_states import WriteIdentity
from tests.support.snapshots import tables_in
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables

pytestmark = pytest.mark.asyncio

SUMS = pa.schema([pa.field("k", pa.int64(), nullable=False), ("total", pa.int8())])
KEYS = range(40)
BUCKETS = 4


async def sums(tables: Tables, buckets: int = BUCKETS) -> LiveTable:
    await tables.create(
        "test.sums",
        SUMS,
        primary_key=["k"],
        bucket_key=(),
        buckets=buckets,
        options={"merge_engine": "aggregate", "changelog": "full"},
        merging=MergeSpec(aggregates=(aggregate_of("total", "sum"),)),
    )
    return tables.table("test.sums")


async def add(table: LiveTable, totals: Mapping[int, int], sequence: int | None = None) -> dict[int, int]:
    rows = pa.RecordBatch.from_pydict({"k": list(totals), "total": list(totals.values())}, schema=SUMS)
    identity = None if sequence is None else WriteIdentity(writer="w", epoch=0, sequence=sequence, acked_below=0)
    conditions = WritePreconditions(identity=identity)
    return (await table.writes.upsert(ipc_stream(SUMS, rows), 0, conditions))[1]


async def totals_of(table: LiveTable) -> dict[int, int]:
    keys = ipc_stream(table.definition.key_schema, pa.record_batch({"k": pa.array(KEYS)}, table.definition.key_schema))
    rows, _, _ = await table.reads.lookup(keys, None)
    return dict(zip(rows["k"].to_pylist(), rows["total"].to_pylist(), strict=True))


def by_bucket(table: LiveTable) -> dict[int, set[int]]:
    keys = pa.record_batch({"k": pa.array(KEYS)}, table.definition.key_schema)
    _, buckets = table.state.codec.keys.encode(keys)
    found: dict[int, set[int]] = {}
    for key, bucket in zip(KEYS, buckets, strict=True):
        found.setdefault(int(bucket), set()).add(key)
    return found


async def test_a_refusal_in_one_bucket_leaves_that_bucket_as_it_was(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await sums(tables)
        await add(table, dict.fromkeys(KEYS, 1))
        await add(table, {7: 125})
        with pytest.raises(InvalidRequest, match=r'column "total", key \(7\): the sum does not fit int8'):
            await add(table, dict.fromkeys(KEYS, 10))
        (refused,) = (keys for keys in by_bucket(table).values() if 7 in keys)
        expected = {key: 1 if key in refused else 11 for key in KEYS}
        assert await totals_of(table) == expected | {7: 126}


async def test_a_damaged_row_in_one_bucket_does_not_keep_the_others_from_being_written(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await sums(tables)
        offsets = await add(table, dict.fromkeys(KEYS, 1))
        (damaged,) = (number for number, keys in by_bucket(table).items() if 7 in keys)
        bucket = await table.buckets[damaged].open()
        batch = bucket._store.batch()
        (key,) = table.state.codec.keys.encode(pa.record_batch({"k": pa.array([7])}, SUMS.remove(1)))[0].to_pylist()
        batch.put_rows([key], [b"no row"])
        bucket._store.write(batch)
        with pytest.raises(DataLoss):
            await add(table, dict.fromkeys(KEYS, 1))
        for live in table.buckets:
            more = live.number != damaged
            state = live.state
            assert state is not None
            assert (state.log_offset > offsets[live.number]) == more
            assert live.durable_offset == state.log_offset
        assert table.buckets[damaged].damage is not None


async def test_a_cancelled_request_is_applied_in_all_buckets_or_in_none(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await sums(tables)
        await add(table, dict.fromkeys(KEYS, 0))
        outcomes = set[int]()
        # On a busy machine, a request needs more turns of the event loop until it is applied.
        for turns in (*range(24), *(2**power for power in range(5, 18))):
            if turns > 24 and outcomes == {0, 1}:
                break
            before = await totals_of(table)
            task = asyncio.create_task(add(table, dict.fromkeys(KEYS, 1)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            changes = {total - before[key] for key, total in (await totals_of(table)).items()}
            assert changes in ({0}, {1})
            outcomes |= changes
            # The syncs continue without the caller.
            for live in table.buckets:
                assert live.state is not None
                await live.wait_durable(live.state.log_offset)
        assert outcomes == {0, 1}
