"""An interrupted bootstrap of a location continues where it stopped, unless its source or definition has changed."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog

from aio_client import BootstrapDiffers, BootstrapProgress, DuplicateKeys, TableExists, TableNotFound
from scankv.lake.sources.sources import open_source
from tests.integration.lake.test_bootstrap_sources import published
from tests.support.lake_readers import live_rows

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client

pytestmark = pytest.mark.asyncio

COUNT: Final = 250_000
"""Rows of three requests."""


class InterruptedCall(Exception):
    """Ends a bootstrap from its report of progress."""


def rows(first: int = 0, count: int = COUNT) -> pa.Table:
    numbers = range(first, first + count)
    texts = [None if number % 3 else f"text {number % 100}" for number in numbers]
    return pa.table({"id": pa.array(numbers), "text": texts, "flag": [number % 2 == 0 for number in numbers]})


async def interrupt(client: Client, name: str, source: object, **options: Any) -> int:
    """Begins a bootstrap, and ends the call once a request was answered. Returns the rows that the server has."""
    reports: list[BootstrapProgress] = []

    def stop(progress: BootstrapProgress) -> None:
        reports.append(progress)
        raise InterruptedCall

    with pytest.raises(InterruptedCall):
        await client.bootstrap(name, source, on_progress=stop, **{"primary_key": ["id"], **options})  # type: ignore[arg-type]
    return reports[0].rows


def write_source(path: Path, format_: str) -> str:
    """Writes rows as several files, and returns the location."""
    parts = [rows(first, 50_000) for first in range(0, COUNT, 50_000)]
    match format_:
        case "delta":
            for part in parts:
                deltalake.write_deltalake(path, part, mode="append")
        case "parquet":
            path.mkdir()
            for number, part in enumerate(parts):
                parquet.write_table(part, path / f"{number}.parquet")
        case "iceberg":
            properties = {"uri": f"sqlite:///{path}.db", "warehouse": str(path)}
            with closing(SqlCatalog("other", **properties)) as catalog:
                catalog.create_namespace("db")
                table = catalog.create_table("db.t", parts[0].schema)
                for part in parts:
                    table.append(part)
                location: str = table.metadata_location
                return location
    return str(path)


@pytest.mark.parametrize("format_", ["delta", "parquet", "iceberg"])
@pytest.mark.represented_by("delta")
async def test_only_the_rest_is_sent(client: Client, name: str, tmp_path: Path, format_: str) -> None:
    source = write_source(tmp_path / "source", format_)
    sent = await interrupt(client, name, source)
    assert 0 < sent < COUNT
    with pytest.raises(TableNotFound):
        await client.table(name)
    reports: list[BootstrapProgress] = []
    table = await client.bootstrap(name, source, primary_key=["id"], on_progress=reports.append)
    assert (reports[0].rows, reports[0].resumed_rows, reports[0].total_rows) == (sent, sent, COUNT)
    assert reports[0].bytes > 0
    assert reports[0].fraction == sent / (2 * COUNT)
    assert reports[0].remaining is None
    assert reports[-1].rows_in_table == COUNT
    assert (await table.scan().to_arrow()).sort_by("id").equals(rows().cast(table.schema))
    with pytest.raises(TableExists):
        await client.bootstrap(name, source, primary_key=["id"])


@pytest.mark.represented_by("delta")
@pytest.mark.parametrize("format_", ["delta", "parquet"])
async def test_a_source_that_has_changed_is_refused(client: Client, name: str, tmp_path: Path, format_: str) -> None:
    source = write_source(tmp_path / "source", format_)
    sent = await interrupt(client, name, source)
    if format_ == "delta":
        deltalake.write_deltalake(source, rows(COUNT, 10), mode="append")
    else:
        parquet.write_table(rows(COUNT, 10), tmp_path / "source" / "9.parquet")
    for _ in range(2):
        with pytest.raises(
            BootstrapDiffers, match=r"this one reads .*: resume it as it was, or begin it again from sc"
        ):
            await client.bootstrap(name, source, primary_key=["id"])
    reports: list[BootstrapProgress] = []
    table = await client.bootstrap(name, source, primary_key=["id"], from_scratch=True, on_progress=reports.append)
    assert sent > 0
    assert all(report.resumed_rows == 0 for report in reports)
    assert await table.count() == COUNT + 10


async def test_rows_that_differ_without_another_state_are_refused(client: Client, name: str, tmp_path: Path) -> None:
    file, numbers = tmp_path / "rows.parquet", rows().select(["id"])
    parquet.write_table(numbers, file, compression="none", use_dictionary=False)
    await interrupt(client, name, file)
    before = file.stat()
    swapped = numbers.take(pa.array([1, 0, *range(2, COUNT)]))
    parquet.write_table(swapped, file, compression="none", use_dictionary=False)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    for _ in range(2):
        with pytest.raises(BootstrapDiffers, match=r"no longer begins with what is staged, [\d,]+ rows;"):
            await client.bootstrap(name, file, primary_key=["id"])


async def test_another_definition_is_refused(client: Client, name: str, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", "parquet")
    await interrupt(client, name, source, buckets=2)
    changes: list[dict[str, Any]] = [
        {"buckets": 3},
        {"buckets": 2, "indexes": ["text"]},
        {"buckets": 2, "duplicates": "merge"},
        {"buckets": 2, "mode": "overwrite"},
    ]
    for changed in changes:
        with pytest.raises(BootstrapDiffers, match="this one has another"):
            await client.bootstrap(name, source, primary_key=["id"], **changed)
    table = await client.bootstrap(name, source, primary_key=["id"], buckets=2)
    assert await table.count() == COUNT


@pytest.mark.breadth
async def test_an_error_that_comes_again_ends_a_bootstrap(client: Client, name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    parquet.write_table(pa.concat_tables([rows(), rows(0, 1)]), file)
    with pytest.raises(DuplicateKeys):
        await client.bootstrap(name, file, primary_key=["id"])
    parquet.write_table(rows(), file)
    table = await client.bootstrap(name, file, primary_key=["id"])
    assert await table.count() == COUNT


async def test_data_in_memory_begin_again(client: Client, name: str) -> None:
    await interrupt(client, name, rows())
    reports: list[BootstrapProgress] = []
    await client.bootstrap(name, rows(1), primary_key=["id"], on_progress=reports.append)
    assert all(report.resumed_rows == 0 for report in reports)


@pytest.mark.parametrize(
    ("format_", "masks"), [("delta", True), ("delta", False), ("iceberg", False), ("parquet", False)]
)
@pytest.mark.represented_by("delta-True")
async def test_the_rows_of_a_published_table_come_in_the_same_order_each_time(
    client: Client, name: str, uri: str, format_: str, masks: bool
) -> None:
    table = await published(client, name, uri, format_, masks=masks)
    orders = [open_source(uri) for _ in range(5)]
    assert len({source.state for source in orders}) == 1
    tables = [source.reader.read_all() for source in orders]
    assert all(each.equals(tables[0]) for each in tables)
    assert sorted(tables[0]["id"].to_pylist()) == [row["id"] for row in await live_rows(table)]


async def test_a_delta_table_of_many_files_comes_in_the_same_order_each_time(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", "delta")
    deltalake.DeltaTable(source).delete("id % 1000 = 7")
    orders = [open_source(source).reader.read_all()["id"] for _ in range(10)]
    assert all(each.equals(orders[0]) for each in orders)
    assert len(orders[0]) == COUNT - COUNT // 1000
