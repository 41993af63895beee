"""A blocking scan is an Arrow stream for every library that reads one, and an interrupted scan is an error there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from aio_client import ScanSpec, sync
from tests.unit.client.misbehaving import KeepsItsContract, SendsNoTrailer, SendsWrongChecksum, serving

if TYPE_CHECKING:
    from collections.abc import Callable


def duckdb_rows(scan: sync.Scan) -> int:
    with duckdb.connect() as con:
        return len(con.sql("SELECT * FROM scan").fetchall())


class OnlySpeaksTheProtocol:
    """Exposes only the capsule of a scan, as a consumer in C would use it."""

    def __init__(self, source: Any) -> None:
        self._capsule = source.__arrow_c_stream__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._capsule


READERS: dict[str, Callable[[sync.Scan], int]] = {
    "duckdb": duckdb_rows,
    "pandas": lambda scan: len(pd.DataFrame.from_arrow(scan)),
    "polars": lambda scan: pl.DataFrame(scan).height,
    "pyarrow": lambda scan: pa.table(scan).num_rows,
    "capsule": lambda scan: pa.table(OnlySpeaksTheProtocol(scan)).num_rows,
}


async def read(server: KeepsItsContract, reader: Callable[[sync.Scan], int]) -> int:
    def in_thread(url: str) -> int:
        with sync.connect(url, operation_timeout=5) as client:
            return reader(client.scan(ScanSpec("game.scores")))

    async with serving(server) as url:
        return await asyncio.to_thread(in_thread, url)


@pytest.mark.asyncio
@pytest.mark.parametrize("reader", READERS)
async def test_every_reader_has_all_rows(reader: str) -> None:
    rows = await read(KeepsItsContract(), lambda scan: scan.to_arrow().num_rows)
    assert await read(KeepsItsContract(), READERS[reader]) == rows > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("server", [SendsNoTrailer, SendsWrongChecksum])
async def test_no_reader_takes_a_part_for_the_whole(server: type[KeepsItsContract], reader: str) -> None:
    with pytest.raises(Exception, match=r"trailer|checksum|broke off"):
        await read(server(), READERS[reader])
