"""Rows and then changes of a table whose rows expire: a reader gets each row before its deletion."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv import InvalidResumeToken, ScanSource, StartFrom, StopAt, UsageError, col
from tests.support.clocks import START, FakeClocks, serving

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import LogOffsets, Scan, Table

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())])
NOW = dt.datetime.fromtimestamp(START / 1e9, dt.UTC)
ROWS = [{"id": n, "at": NOW - dt.timedelta(seconds=n % 90), "value": n} for n in range(900)]


async def replayed(table: Table, scan: Scan, offsets: LogOffsets) -> dict[int, dict[str, Any]]:
    """Returns the rows of a strict reader of a scan and of the changes after it."""
    rows = {row["id"]: row for row in await scan.to_pylist()}
    async for changes in table.changes(StartFrom.offsets(offsets), StopAt.LATEST).stream():
        for change in changes.to_pylist():
            row = {name: change[name] for name in SCHEMA.names}
            if change["_change_type"] in ("-D", "-U"):
                assert rows.pop(row["id"]) == row
            else:
                assert rows.setdefault(row["id"], row) == row
    return rows


@pytest.mark.whole_tables  # It looks at the buckets of the table in this process.
@pytest.mark.parametrize(("column", "based"), [("at", False), (None, True)])
async def test_a_deletion_after_a_snapshot_finds_its_row(tmp_path: Path, column: str | None, *, based: bool) -> None:
    clocks = FakeClocks()
    options: dict[str, Any] = {"ttl_column": column} if column else {}
    async with serving(tmp_path, clocks, base_maintenance_seconds=0.02) as (server, client):
        table = await client.create_table(
            "t.events",
            SCHEMA,
            primary_key=["id"],
            buckets=2,
            indexes=[["value"]],
            ttl_seconds=60,
            **options,
            columnar_base="eager" if based else "off",
        )
        await table.upsert(ROWS)
        clocks.pass_time(30 if column else 60)
        while based and not all(each.base and not each.base.unused_reason for each in await table.stats()):
            await table.scan(columns=["id"]).to_arrow()
        snapshot = await table.snapshot()
        scan = table.scan().as_of(snapshot, changes_follow=True)
        assert len(await scan.to_pylist()) == 900
        assert len(await table.scan().as_of(snapshot).to_pylist()) == (300 if column else 0)
        assert [row["id"] for row in await scan.where(col("value") == 77).to_pylist()] == [77]
        parts = [row["id"] for part in await scan.splits(3) for row in await part.to_pylist()]
        assert sorted(parts) == list(range(900))
        clocks.pass_time(40)
        await table.upsert([{**row, "at": None} for row in ROWS[:50]])
        await server._tables._sweep.sweep_table(server._tables.table("t.events").state)
        assert await replayed(table, scan, snapshot.log_offsets) == {n: {**ROWS[n], "at": None} for n in range(50)}


async def test_a_scan_before_changes_resumes_only_by_its_own_tokens(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with serving(tmp_path, clocks) as (_, client):
        table = await client.create_table("t.events", SCHEMA, primary_key=["id"], ttl_seconds=60, ttl_column="at")
        await table.upsert(ROWS)
        snapshot = await table.snapshot()
        scan = table.scan(columns=["id"]).as_of(snapshot, changes_follow=True).with_chunk(rows=100)
        async with scan.stream() as stream:
            first = await anext(aiter(stream))
            token = stream.resume_token
        assert token is not None
        clocks.pass_time(100)
        rest = await scan.resume_from(token).to_arrow()
        assert sorted(first["id"].to_pylist() + rest["id"].to_pylist()) == list(range(900))
        with pytest.raises(InvalidResumeToken, match="another query"):
            await table.scan(columns=["id"]).as_of(snapshot).with_chunk(rows=100).resume_from(token).to_arrow()


async def test_changes_that_follow_are_not_for_the_changelog_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeClocks()) as (_, client):
        table = await client.create_table("t.events", SCHEMA, primary_key=["id"])
        scan = table.scan().as_of(await table.snapshot(), changes_follow=True)
        with pytest.raises(UsageError, match=r"changes_follow is not for a scan of the changelog.*StartFrom\.FULL"):
            scan.with_source(ScanSource.KV).with_source(ScanSource.LOG)
        with pytest.raises(UsageError, match="changes_follow must be True or False, not 1"):
            table.scan().as_of("x", changes_follow=1)  # type: ignore[arg-type]
