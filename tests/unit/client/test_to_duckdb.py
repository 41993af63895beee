"""The table and connection of DuckDB if the scan of `to_duckdb` fails before its end."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import duckdb
import grpc
import pytest

from aio_client import ScanInterrupted, ScanKvError, ScanSpec, UsageError, connect, sync
from tests.support.waiting import await_until
from tests.unit.client.misbehaving import EndsWith, KeepsItsContract, SendsNoTrailer, StallsAfterFirstChunk, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = ScanSpec("game.scores")
CUTS = [EndsWith(grpc.StatusCode.UNAVAILABLE, after=2), SendsNoTrailer()]


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        yield con


def assert_usable_and_empty(con: duckdb.DuckDBPyConnection) -> None:
    assert con.execute("SHOW TABLES").fetchall() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("server", CUTS, ids=lambda server: type(server).__name__)
async def test_a_scan_that_is_cut_raises_its_own_error_and_leaves_no_table(
    server: KeepsItsContract, con: duckdb.DuckDBPyConnection
) -> None:
    async with serving(server) as url, connect(url, operation_timeout=5) as client:
        with pytest.raises(ScanKvError) as raised:
            await client.scan(SPEC).to_duckdb(con, "rows")
    assert raised.value.resume_token is not None or not isinstance(raised.value, ScanInterrupted)
    assert isinstance(raised.value.__cause__, duckdb.Error)
    assert_usable_and_empty(con)


@pytest.mark.asyncio
async def test_a_blocking_scan_that_is_cut_raises_its_own_error(con: duckdb.DuckDBPyConnection) -> None:
    def fill(url: str) -> None:
        with sync.connect(url) as client:
            client.scan(SPEC).to_duckdb(con, "rows")

    async with serving(SendsNoTrailer()) as url:
        with pytest.raises(ScanKvError):
            await asyncio.to_thread(fill, url)
    assert_usable_and_empty(con)


@pytest.mark.asyncio
async def test_cancelling_gives_the_connection_back_and_ends_the_scan(con: duckdb.DuckDBPyConnection) -> None:
    async with serving(server := StallsAfterFirstChunk()) as url, connect(url) as client:
        filling = asyncio.create_task(client.scan(SPEC).to_duckdb(con, "rows"))
        await await_until(lambda: _is(server.sent == 2), "the first chunk sent")
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling
        assert_usable_and_empty(con)
        await asyncio.wait_for(server.ended.wait(), 60)


async def _is(condition: bool) -> bool:
    return condition


@pytest.mark.asyncio
async def test_a_missing_duckdb_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, con: duckdb.DuckDBPyConnection
) -> None:
    async with serving(server := KeepsItsContract()) as url, connect(url) as client:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        with pytest.raises(UsageError, match="needs duckdb, which is not installed: pip install duckdb"):
            await client.scan(SPEC).to_duckdb(con, "rows")
        assert server.sent == 0
