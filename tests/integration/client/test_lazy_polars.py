"""`to_polars(lazy=True)`: the answer that Polars has over all rows; the server reads and sends what it takes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from aio_client import SchemaMismatch, TableNotFound, UsageError, connect, sync
from aio_client._integrations import polars_frames as lazy_polars
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.server_process import ServerProcess

ROWS = 20_000
DATA = pa.table(
    {
        "k": range(ROWS),
        "name": [None if number % 7 == 0 else f"n{number % 100}" for number in range(ROWS)],
        "x": pa.array([float("nan") if number % 11 == 0 else number / 3 for number in range(ROWS)], from_pandas=False),
        "active": [None if number % 13 == 0 else number % 2 == 0 for number in range(ROWS)],
    }
)
ALL: pl.DataFrame = pl.DataFrame(DATA)


@pytest.fixture
def table(sync_client: sync.Client, name: str) -> Iterator[sync.Table]:
    table = sync_client.create_table(name, DATA.schema, primary_key=["k"], buckets=3)
    table.upsert(DATA)
    yield table
    sync_client.drop_table(name)


QUERIES: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "all": lambda frame: frame,
    "columns": lambda frame: frame.select("x", "k"),
    "key": lambda frame: frame.filter(pl.col("k") == 77),
    "range": lambda frame: frame.filter(pl.col("k").is_between(10, 20) & pl.col("name").is_not_null()),
    "nan": lambda frame: frame.filter(pl.col("x") > 6000).select("k", "x"),
    "not": lambda frame: frame.filter(~(pl.col("x") <= 6000) | ~pl.col("active")),
    "text": lambda frame: frame.filter(pl.col("name").str.starts_with("n1")),
    "arithmetic": lambda frame: frame.filter((pl.col("k") % 10 == 3) & pl.col("name").is_in(["n3", "n13"])),
    "groups": lambda frame: frame.group_by("name").agg(pl.len(), pl.col("k").sum()),
    "count": lambda frame: frame.select(pl.len()),
    "nothing": lambda frame: frame.filter(pl.col("k") < 0),
    "join": lambda frame: frame.filter(pl.col("k") < 50).join(frame.filter(pl.col("k") > 45), on="k"),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.breadth
def test_a_lazy_frame_has_the_answer_of_an_eager_one(table: sync.Table, query: str) -> None:
    found = QUERIES[query](table.scan().to_polars(lazy=True)).collect()
    expected = QUERIES[query](ALL.lazy()).collect()
    assert sorted(map(repr, found.rows())) == sorted(map(repr, expected.rows()))
    assert found.schema == expected.schema


@pytest.mark.parametrize("query", ["all", "nan", "groups"])
def test_the_streaming_engine_has_the_same_answer(table: sync.Table, query: str) -> None:
    found = QUERIES[query](table.scan().to_polars(lazy=True)).collect(engine="streaming")
    assert sorted(map(repr, found.rows())) == sorted(map(repr, QUERIES[query](ALL.lazy()).collect().rows()))


class Streams:
    """Starts the scans of a lazy frame, and keeps them to inspect their statistics."""

    def __init__(self, scan: sync.Scan, client: sync.Client) -> None:
        self.started: list[sync.ScanStream] = []

        def start(spec: Any) -> sync.ScanStream:
            self.started.append(client.scan(spec).stream())
            return self.started[-1]

        self.frame = lazy_polars.lazy_frame(scan, DATA.schema, start)

    @property
    def rows_scanned(self) -> int:
        (stream,) = self.started
        return stream.stats().rows_scanned

    @property
    def rows_returned(self) -> int:
        (stream,) = self.started
        return stream.stats().rows_returned


def test_the_server_reads_and_sends_what_the_query_needs(sync_client: sync.Client, table: sync.Table) -> None:
    streams = Streams(table.scan(), sync_client)
    assert streams.frame.filter(pl.col("k") == 78).select("name").collect().rows() == [("n78",)]
    assert (streams.rows_scanned, streams.rows_returned) == (1, 1)
    assert sorted(streams.started[0].schema.names) == ["k", "name"]

    streams = Streams(table.scan(), sync_client)
    assert streams.frame.head(5).collect().height == 5
    assert streams.rows_scanned <= 5 + table.buckets

    streams = Streams(table.scan(), sync_client)
    kept = streams.frame.filter((pl.col("name") == "n1") & (pl.col("k") % 3 == 0)).collect().height
    assert kept < streams.rows_returned == ALL.filter(pl.col("name") == "n1").height


def test_a_filter_behind_a_limit_is_about_the_rows_within_it(table: sync.Table) -> None:
    first = table.scan().ordered().limit(10).to_polars(lazy=True)
    assert first.filter(pl.col("k") >= 8).collect()["k"].to_list() == [8, 9]
    rows = table.scan().ordered().to_polars(lazy=True)
    assert rows.head(10).filter(pl.col("k") >= 8).collect()["k"].to_list() == [8, 9]
    assert rows.filter(pl.col("k") >= 8).head(2).collect()["k"].to_list() == [8, 9]
    assert first.head(3).collect().height == 3
    assert first.head(30).collect().height == 10


def test_what_the_scan_asks_for_holds_for_its_lazy_frame(table: sync.Table) -> None:
    frame = table.scan(["k", "x"], where="name = 'n1'").to_polars(lazy=True)
    assert frame.collect_schema().names() == ["k", "x"]
    expected = ALL.filter((pl.col("name") == "n1") & (pl.col("k") > 5000)).select("k", "x").sort("k")
    assert frame.filter(pl.col("k") > 5000).sort("k").collect().equals(expected)


@pytest.mark.breadth
def test_a_scan_with_a_resume_token_is_read_from_it(table: sync.Table) -> None:
    scan = table.scan().ordered().with_chunk(rows=100)
    with scan.stream() as stream:
        received = next(stream).num_rows
    assert stream.resume_token is not None
    frame = scan.resume_from(stream.resume_token).to_polars(lazy=True)
    assert frame.filter(pl.col("k") < 102).select("x", "k").collect()["k"].to_list() == [*range(received, 102)]
    assert frame.head(1).collect()["k"].to_list() == [received]


def test_every_collect_reads_the_rows_of_then(table: sync.Table) -> None:
    count = table.scan().to_polars(lazy=True).select(pl.len())
    assert count.collect().item() == ROWS
    table.delete([0])
    assert count.collect().item() == ROWS - 1


def test_a_scan_that_is_asked_for_changes_alone_is_no_frame(table: sync.Table) -> None:
    with table.scan().stream() as stream:
        version = stream.version
    scan = table.scan().if_changed_since(version)
    with pytest.raises(UsageError, match=r"to_polars could not tell an unchanged table from an empty one"):
        scan.to_polars(lazy=True)
    with duckdb.connect() as con, pytest.raises(UsageError, match=r"to_duckdb could not tell"):
        scan.to_duckdb(con, "rows")


def test_an_unknown_column_is_refused_before_anything_is_collected(table: sync.Table) -> None:
    with pytest.raises(SchemaMismatch, match="nme"):
        table.scan(["nme"]).to_polars(lazy=True)


def test_a_scan_that_fails_fails_the_collect_with_its_own_error(sync_client: sync.Client, table: sync.Table) -> None:
    frame = table.scan().to_polars(lazy=True)
    copy = sync_client.create_table(f"{table.name}_gone", DATA.schema, primary_key=["k"])
    gone = copy.scan().to_polars(lazy=True)
    sync_client.drop_table(copy.name)
    with pytest.raises(TableNotFound, match="_gone"):
        gone.collect()
    assert frame.select(pl.len()).collect().item() == ROWS


@pytest.mark.asyncio
async def test_the_lazy_frame_of_an_asynchronous_scan_has_a_connection_of_its_own(
    shared_server: ServerProcess, table: sync.Table
) -> None:
    async with connect(shared_server.url) as client:
        frame = await (await client.table(table.name)).scan().to_polars(lazy=True)
        query = frame.filter(pl.col("k") < 3).sort("k").select("k")
        assert (await asyncio.to_thread(query.collect))["k"].to_list() == [0, 1, 2]
        assert query.collect()["k"].to_list() == [0, 1, 2]  # blocks the event loop, but does not hang


def test_a_query_that_needs_no_more_ends_its_scan(server: ServerProcess) -> None:
    with sync.connect(server.url, read_ahead_bytes=64 * 1024) as client:
        table = client.create_table("test.left", DATA.schema, primary_key=["k"])
        table.upsert(DATA)
        frame = table.scan().with_chunk(rows=10).to_polars(lazy=True)
        few = frame.filter(pl.col("x") > 1.0).head(3).collect(engine="streaming")
        assert few.height == 3
        # Polars releases a source when it is used next.
        wait_until(lambda: pl.select(1).height and client.stats().live_scans == 0, "the scan ended")
