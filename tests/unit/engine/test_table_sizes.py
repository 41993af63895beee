"""Which tables are measured, and whose directories are read for that."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.v1 import table_pb2
from streaming_server.access.callers import CallerIdentity
from streaming_server.access.grants import Grants
from streaming_server.access.owners import CALLER
from streaming_server.config import ServerConfig
from streaming_server.engine.tables import table_sizes
from streaming_server.engine.tables.tables import Tables
from streaming_server.services.table import TableService
from streaming_server.storage.files.disk_use import measure_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.storage.files.disk_use import TableFiles

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])


@asynccontextmanager
async def open_tables(path: Path, *names: str) -> AsyncIterator[Tables]:
    tables = Tables(ServerConfig(data=path, block_cache_bytes=1 << 20, storage_threads=2))
    try:
        for name in names:
            await tables.create(name, SCHEMA, primary_key=("k",), bucket_key=(), options={}, buckets=2)
        yield tables
    finally:
        await tables.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories of tables that were read, by the names of the tables."""
    found = list[str]()

    def record(path: Path) -> TableFiles:
        found.append(f"{path.parent.name}.{path.name}")
        return measure_table(path)

    monkeypatch.setattr(table_sizes, "measure_table", record)
    return found


@pytest.mark.asyncio
async def test_a_directory_is_read_once_however_many_ask(tmp_path: Path, read: list[str]) -> None:
    async with open_tables(tmp_path, "a.t", "a.u") as tables:
        first, *others = await asyncio.gather(*(tables.sizes.measure(["a.t", "a.u"]) for _ in range(8)))
        assert list(first) == ["a.t", "a.u"]
        assert all(each == first for each in others)
        assert read == ["a.t", "a.u"]


@pytest.mark.asyncio
async def test_no_directory_is_read_of_a_table_whose_buckets_are_open(tmp_path: Path, read: list[str]) -> None:
    async with open_tables(tmp_path, "a.t") as tables:
        await tables.table("a.t").statistics()
        assert (await tables.sizes.measure(["a.t"]))["a.t"].rows == 0
        assert read == []


@pytest.mark.asyncio
async def test_a_table_is_left_out_if_the_time_ends_before_its_directory_is_read(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_tables(tmp_path, "a.open", "a.unopened") as tables:
        await tables.table("a.open").statistics()
        with monkeypatch.context() as late:
            late.setattr(table_sizes, "_READING_SECONDS", -1.0)
            assert list(await tables.sizes.measure(["a.open", "a.unopened"])) == ["a.open"]
        assert list(await tables.sizes.measure(["a.open", "a.unopened"])) == ["a.open", "a.unopened"]


@pytest.mark.asyncio
async def test_a_table_that_the_caller_may_not_read_is_not_measured(tmp_path: Path, read: list[str]) -> None:
    async with open_tables(tmp_path, "a.mine", "b.hidden") as tables:
        caller = CALLER.set(CallerIdentity("ann", Grants(["read:a.*"])))
        try:
            request = table_pb2.ListTableSizesRequest(names=["a.mine", "b.hidden", "b.missing"])
            found = await TableService(tables).ListTableSizes(request, None)  # type: ignore[arg-type]
        finally:
            CALLER.reset(caller)
        assert [each.name for each in found.sizes] == ["a.mine"]
        assert read == ["a.mine"]
