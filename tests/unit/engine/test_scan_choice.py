"""Scans use an index while that costs less, and `explain` names what they do."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from scankv.model.expressions import col
from streaming_server.scan.read_plan import ReadPath
from tests.support.plans import plan_of
from tests.support.snapshots import tables_in
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.execution.open_scan import OpenedScan

pytestmark = pytest.mark.asyncio

ROWS = 8000
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("amount", pa.int64()), ("text", pa.string())])


@pytest_asyncio.fixture
async def tables(tmp_path: Path) -> AsyncIterator[Tables]:
    async with tables_in(tmp_path, base_maintenance_seconds=3600.0, base_cpu_share=1.0) as tables:
        options, indexes = {"columnar_base": "eager"}, [["amount"]]
        await tables.create(
            "g.t", SCHEMA, primary_key=["k"], bucket_key=(), buckets=1, options=options, indexes=indexes
        )
        columns = [range(ROWS), [k * 7919 % ROWS for k in range(ROWS)], ["x" * 20] * ROWS]
        rows = pa.record_batch(list(map(pa.array, columns)), schema=SCHEMA)
        await tables.table("g.t").writes.upsert(ipc_stream(SCHEMA, rows), 1)
        yield tables


def read(scan: OpenedScan) -> tuple[list[int], int]:
    """Returns the amounts of a scan in ascending order, and how many rows it has read for them."""
    amounts: list[int] = []
    with closing(scan.source) as source:
        while (chunk := source.next_chunk(8192, 1 << 20)) is not None:
            amounts += chunk.batch["amount"].to_pylist()
    return sorted(amounts), source.rows_scanned


@pytest.mark.parametrize("read_path", [ReadPath.ROCKSDB, ReadPath.AUTO], ids=["rows", "base"])
async def test_explain_names_the_plan_that_runs_whatever_the_number_of_matching_rows(
    tables: Tables, read_path: ReadPath
) -> None:
    table = tables.table("g.t")
    await tables._bases.maintain_bucket(table.state, table.buckets[0])
    pinned = await tables.snapshots.pin(table.pinning)
    used: set[bool] = set()
    async with tables.snapshots.reading(pinned.snapshot_id, "g.t", None) as snapshot:
        for matching in (0, 1, 60, 70, 500, 1023, 1024, 1025, 1100, 1200, 1400, 2000, 6000):
            plan = plan_of(col("amount") < matching, read_path=read_path)
            live = await table.reads.explain(plan), await table.reads.open_view(plan)
            for explained, scan in (live, (await snapshot.explain(plan), await snapshot.open_scan(plan))):
                used.add(bool(explained.index))
                assert read(scan) == (list(range(matching)), matching if explained.index else ROWS)
                why = (
                    "single keys are looked up"
                    if explained.index
                    else "too many rows match for the index on (amount); "
                )
                assert explained.read_path_reason.startswith(why)
    assert used == {True, False}
