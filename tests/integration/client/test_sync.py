"""The blocking client: the same answers, from any thread, beside a running event loop, and for other libraries."""

from __future__ import annotations

import asyncio
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from aio_client import (
    ClientConfig,
    DataLoss,
    ScanSpec,
    Unavailable,
    UsageError,
    sync,
)
from aio_client._sync.stream import stream_once
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string())])
ROWS = 20_000


@pytest.fixture
def table(sync_client: sync.Client, name: str) -> sync.Table:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"], buckets=3, compression="none")
    table.upsert(pa.table({"k": range(ROWS), "name": [f"n{k}" for k in range(ROWS)]}))
    return table


# Fixtures of other tests may keep clients open until the end.
_others: Final = weakref.WeakSet[threading.Thread]()


@pytest.fixture(autouse=True)
def no_thread_leaks() -> Iterator[None]:
    _others.update(client_threads())
    yield
    assert no_client_thread_is_left()


def client_threads() -> list[threading.Thread]:
    """Returns the threads of clients that the running test has connected."""
    return [each for each in threading.enumerate() if each.name == "scankv-client" and each not in _others]


def no_client_thread_is_left() -> bool:
    for thread in client_threads():
        thread.join(5)
    return not client_threads()


def test_no_server_is_an_error_that_names_the_address() -> None:
    with sync.connect("127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match=r"no ScanKV server answers at 127\.0\.0\.1:1"):
            client.tables()
        with pytest.raises(Unavailable):
            next(iter(client.scan(ScanSpec("game.scores"))))


def test_a_scan_iterates_plainly(table: sync.Table) -> None:
    scan = table.scan()
    for stream in (iter(scan), scan.stream(), scan.stream_sync()):
        assert sum(rows.num_rows for rows in stream) == ROWS
        with pytest.raises(StopIteration):
            next(stream)
        assert stream.stats().rows_returned == ROWS
    assert sum(rows.num_rows for rows in scan) == ROWS


def test_a_scan_left_early_leaves_nothing_at_the_server(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = client.create_table("test.left", SCHEMA, primary_key=["k"])
        # More than fits between the server and a reader that does not read.
        table.upsert(pa.table({"k": range(ROWS), "name": ["x" * 500] * ROWS}))
        scan = table.scan().with_chunk(rows=10)
        for _ in scan:
            break
        _wait_for_no_scan(client)
        with scan.stream() as stream:
            next(stream)
            assert client.stats().live_scans == table.tablets
        _wait_for_no_scan(client)


def _wait_for_no_scan(client: sync.Client) -> None:
    wait_until(lambda: not client.stats().live_scans, "no scan left")


def test_duckdb_reads_a_scan(table: sync.Table) -> None:
    scan = table.scan()  # noqa: F841  # DuckDB finds it by its name
    total = duckdb.sql("select count(*), sum(k), min(name) from scan")
    assert total is not None
    assert total.fetchall() == [(ROWS, ROWS * (ROWS - 1) // 2, "n0")]
    assert duckdb.from_arrow(table.scan(limit=0)).fetchall() == []


def test_polars_and_pyarrow_read_a_scan(table: sync.Table) -> None:
    scan = table.scan()
    assert pl.DataFrame(scan).select(pl.col("k").sum()).item() == ROWS * (ROWS - 1) // 2
    assert pa.table(scan).num_rows == ROWS
    assert pa.RecordBatchReader.from_stream(scan).read_all().schema == table.schema
    assert pl.DataFrame(table.scan(limit=0)).columns == ["k", "name"]


def test_a_scan_is_written_into_another_table(sync_client: sync.Client, table: sync.Table, name: str) -> None:
    copy = sync_client.create_table(f"{name}_copy", table.schema, primary_key=["k"])
    assert copy.upsert(table.scan()).rows == ROWS
    assert copy.scan().to_arrow().sort_by("k").equals(table.scan().to_arrow().sort_by("k"))


def test_an_error_in_the_middle_reaches_the_reader_of_the_arrow_stream(table: sync.Table) -> None:
    stream = table.scan().with_chunk(rows=10).stream()
    with stream:
        next(stream)
        reader = pa.RecordBatchReader.from_batches(stream.schema, stream)
        stream.close()
        with pytest.raises((UsageError, DataLoss, pa.ArrowException), match="closed"):
            reader.read_all()


@pytest.mark.breadth
def test_many_threads_share_one_client(table: sync.Table) -> None:
    def work(number: int) -> int:
        table.upsert([{"k": ROWS + number, "name": "more"}])
        assert table.get(number) == {"k": number, "name": f"n{number}"}
        return sum(rows.num_rows for rows in table.scan().with_chunk(rows=1000))

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(work, range(40)))
    assert all(ROWS < count <= ROWS + 40 for count in counts)
    assert table.count() == ROWS + 40


@pytest.mark.breadth
def test_one_stream_has_one_reader_at_a_time(table: sync.Table) -> None:
    stream = table.scan().with_chunk(rows=10).stream()
    seen: list[int] = []

    def read() -> None:
        try:
            seen.extend(rows.num_rows for rows in stream)
        except UsageError:
            seen.append(0)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(seen) <= ROWS


class _Interrupt(BaseException):
    """Stands for Ctrl-C, without the risk of ending the test run."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise _Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.breadth
def test_an_interrupted_read_ends_the_stream_and_its_token_loses_no_rows(table: sync.Table, alarm: None) -> None:
    scan = table.scan(["k"]).with_chunk(rows=200)
    tokens_kept: list[bool] = []
    for attempt in range(24):  # Most interrupts arrive during a read, and some when its rows have just arrived.
        stream = scan.stream()
        batches: list[pa.RecordBatch] = []
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.002 * attempt)
            for rows in stream:
                batches.append(rows)  # noqa: PERF402  # those before the interrupt are wanted
            signal.setitimer(signal.ITIMER_REAL, 0)
        except _Interrupt:
            token = stream.resume_token
            rest = (scan if token is None else scan.resume_from(token)).to_arrow().num_rows
            assert sum(rows.num_rows for rows in batches) + rest == ROWS
            try:
                went_on = sum(rows.num_rows for rows in stream)
            except UsageError as error:
                tokens_kept.append(error.resume_token == token)
            else:
                assert went_on == rest, "it was between two reads"
    assert tokens_kept
    assert all(tokens_kept)


@pytest.mark.asyncio
async def test_it_works_beside_a_running_loop(shared_server: ServerProcess, name: str) -> None:
    assert asyncio.get_running_loop().is_running()
    with sync.connect(shared_server.url) as client:
        table = client.create_table(name, SCHEMA, primary_key=["k"])
        table.upsert([{"k": 1, "name": "x"}])
        assert [rows.num_rows for rows in table.scan()] == [1]


def test_closing_ends_the_thread_and_refuses_what_comes_after(shared_server: ServerProcess) -> None:
    client = sync.connect(shared_server.url)
    assert client.tables() is not None
    assert len(client_threads()) == 1
    client.close()
    client.close()
    assert client_threads() == []
    with pytest.raises(UsageError, match=f"the client of {shared_server.url} is closed"):
        client.tables()


def test_closing_ends_a_scan_of_another_thread(shared_server: ServerProcess, table: sync.Table) -> None:
    client = sync.connect(shared_server.url)
    stream = client.scan(table.scan().with_chunk(rows=1).spec).stream()
    next(stream)
    errors: list[UsageError] = []

    def read() -> None:
        try:
            for _ in stream:
                client.close()
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(10)
    assert [str(error) for error in errors] == [f"the client of {shared_server.url} is closed"]


def test_a_client_that_is_dropped_ends_its_thread(shared_server: ServerProcess) -> None:
    client = sync.connect(shared_server.url)
    tables = client.tables()
    del client
    assert len(client_threads()) == 1  # its tables still use it
    del tables
    assert no_client_thread_is_left()


def test_a_stream_of_its_own_ends_its_thread(shared_server: ServerProcess, table: sync.Table) -> None:
    others = len(client_threads())
    config = ClientConfig(url=shared_server.url)
    stream = stream_once(config, table.scan().spec)
    assert sum(rows.num_rows for rows in stream) == ROWS
    assert len(client_threads()) == others
    assert stream.stats().rows_returned == ROWS
    assert stream.schema == table.schema
    with stream_once(config, table.scan().spec) as stream:
        next(stream)
    assert len(client_threads()) == others
