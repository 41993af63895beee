"""Tracebacks of errors show the caller's line, and little of the client."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ScanKvError, SnapshotLost, connect, sync
from scankv.model.short_tracebacks import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aio_client import Client, Table

NOBODY = "localhost:1"
# The header, two frames of this file, and at most three of the client with three lines each; the message may have five.
MOST_LINES = 21


def lines_of(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def check(error: BaseException) -> None:
    lines = lines_of(error)
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert "direct cause" not in "\n".join(lines)
    assert "another exception" not in "\n".join(lines)


@pytest.fixture
def table(sync_client: sync.Client, name: str) -> sync.Table:
    return sync_client.create_table(
        name, pa.schema([("player", pa.string()), ("score", pa.int64())]), primary_key="player"
    )


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "value": lambda table: table.upsert([{"player": "ann", "score": "many"}]),
    "column": lambda table: table.upsert([{"player": "ann", "points": 1}]),
    "predicate": lambda table: table.scan(where="points > 1").to_arrow(),
    "syntax": lambda table: table.scan(where="score >> 1").to_arrow(),
    "quote": lambda table: table.scan(where="player = 'ann").to_arrow(),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_blocking_program_has_a_short_traceback(table: sync.Table, mistake: str) -> None:
    with pytest.raises(ScanKvError) as caught:
        MISTAKES[mistake](table)
    check(caught.value)


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.asyncio
async def test_a_mistake_in_an_asynchronous_program_has_a_short_traceback(
    client: Client, table: sync.Table, mistake: str
) -> None:
    found: Table = await client.table(table.name)
    with pytest.raises(ScanKvError) as caught:
        await MISTAKES[mistake](found)
    check(caught.value)


def test_a_server_that_is_down_is_a_short_traceback_of_a_blocking_program() -> None:
    with sync.connect(NOBODY) as client, pytest.raises(ScanKvError, match="start a server there") as caught:
        client.table("game.scores")
    check(caught.value)


@pytest.mark.asyncio
async def test_a_server_that_is_down_is_a_short_traceback_of_an_asynchronous_program() -> None:
    async with connect(NOBODY) as client:
        with pytest.raises(ScanKvError, match="start a server there") as caught:
            await client.table("game.scores")
    check(caught.value)


@pytest.mark.asyncio
async def test_a_stream_that_fails_has_a_short_traceback(client: Client, table: sync.Table) -> None:
    found = await client.table(table.name)
    table.upsert([{"player": "ann", "score": 1}])
    sync_scan, scan = table.scan(), found.scan()
    await client.drop_table(table.name)
    with pytest.raises(ScanKvError) as caught:
        await scan.to_arrow()
    check(caught.value)
    with pytest.raises(ScanKvError) as caught:
        sync_scan.to_arrow()
    check(caught.value)


def batches_that_fail(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([{"player": "ann", "score": 1}], schema)
    raise SnapshotLost("the snapshot of these rows has expired")


def rows_that_fail(table: sync.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(table.schema, batches_that_fail(table.schema))


def test_the_frames_of_rows_that_a_blocking_program_makes_are_kept(table: sync.Table) -> None:
    with pytest.raises(SnapshotLost) as caught:
        table.upsert(rows_that_fail(table))
    assert "in batches_that_fail" in lines_of(caught.value)[-3]


@pytest.mark.asyncio
async def test_the_frames_of_rows_that_an_asynchronous_program_makes_are_kept(
    client: Client, table: sync.Table
) -> None:
    found = await client.table(table.name)
    with pytest.raises(SnapshotLost) as caught:
        await found.upsert(rows_that_fail(table))
    assert "in batches_that_fail" in lines_of(caught.value)[-3]


def test_complete_tracebacks_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "full")
    with sync.connect(NOBODY) as client, pytest.raises(ScanKvError) as caught:
        client.table("game.scores")
    assert "with_retries" in "\n".join(lines_of(caught.value))
