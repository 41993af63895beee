"""Reading ahead for a blocking caller: bounded, closed in every possible way, and errors come after earlier items."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import SnapshotLost, UsageError, sync
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from aio_client import Client
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("text", pa.string())])
ROWS = 40_000


class NumberGenerator:
    """A generator of numbers, which records how many it has made, and whether it was closed."""

    def __init__(self, most: int = 1_000_000, error: Exception | None = None) -> None:
        self.made = 0
        self.closed = threading.Event()
        self._most = most
        self._error = error

    async def __call__(self, client: Client) -> AsyncGenerator[int, None]:
        try:
            while self.made < self._most:
                self.made += 1
                yield self.made
            if self._error is not None:
                raise self._error
        finally:
            self.closed.set()


def test_items_are_made_ahead_and_never_more_of_them_than_asked_for(sync_client: sync.Client) -> None:
    numbers = NumberGenerator()
    with sync_client.read_ahead(numbers, 4) as items:
        for expected in (1, 2, 3):
            assert next(items) == expected
            # One more than the limit: the item that waits for a place.
            wait_until(lambda: numbers.made == expected + 4, "as many as there are places")  # noqa: B023
    assert numbers.closed.is_set()
    assert numbers.made == 7
    assert list(items) == []


def test_all_items_come_and_then_the_end_again_and_again(sync_client: sync.Client) -> None:
    with sync_client.read_ahead(NumberGenerator(1000)) as items:
        assert list(items) == list(range(1, 1001))
        assert list(items) == []
    assert list(items) == []


def test_an_error_comes_behind_the_items_before_it_and_stays(sync_client: sync.Client) -> None:
    found: list[int] = []
    with sync_client.read_ahead(NumberGenerator(10, SnapshotLost("gone"))) as items:
        for _ in range(2):
            with pytest.raises(SnapshotLost, match="gone"):
                found.extend(items)
    assert found == list(range(1, 11))


def test_dropping_it_closes_the_generator(sync_client: sync.Client) -> None:
    numbers = NumberGenerator()
    items = sync_client.read_ahead(numbers)
    assert next(items) == 1
    del items
    gc.collect()
    assert numbers.closed.wait(60)


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_a_client_that_is_closed_ends_it(shared_server: ServerProcess, asked: int) -> None:
    numbers = NumberGenerator()
    client = sync.connect(shared_server.url)
    with client.read_ahead(numbers) as items:
        for _ in range(asked):
            next(items)
        client.close()
        assert numbers.closed.is_set()
        with pytest.raises(UsageError, match="client was closed"):
            list(items)
    with pytest.raises(UsageError):
        next(client.read_ahead(numbers))


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5])
def test_what_cannot_be_read_ahead_is_refused(sync_client: sync.Client, wrong: int) -> None:
    with pytest.raises(UsageError, match="ahead"):
        sync_client.read_ahead(NumberGenerator(), wrong)


@pytest.fixture
def table(sync_client: sync.Client, name: str) -> sync.Table:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    for start in range(0, ROWS, 10_000):
        keys = range(start, start + 10_000)
        table.upsert(pa.table({"k": keys, "text": ["x" * 200] * 10_000}, schema=SCHEMA))
    return table


@pytest.mark.parametrize(
    ("bounds", "large"),
    [
        ({"rows": 15_000}, lambda batch: batch.num_rows >= 15_000),
        ({"bytes": 3_000_000}, lambda batch: batch.nbytes >= 3_000_000),
    ],
)
def test_the_batches_of_a_scan_are_large_and_have_each_row_once(
    table: sync.Table, bounds: dict[str, int], large: Callable[[pa.RecordBatch], bool]
) -> None:
    with table.scan().batches(**bounds) as batches:
        found = list(batches)
    assert sorted(key for batch in found for key in batch.column("k").to_pylist()) == list(range(ROWS))
    assert 3 <= len(found) <= 6
    assert all(map(large, found[1:-1]))
    assert found[0].num_rows < 10_000


def test_a_reader_of_batches_that_stops_ends_the_scan(sync_client: sync.Client, table: sync.Table) -> None:
    with table.scan().batches(rows=1, ahead=1) as batches:
        next(batches)
        assert [each.table for each in sync_client.live_scans() if each.table == table.name] == [table.name]
    wait_until(lambda: all(each.table != table.name for each in sync_client.live_scans()), "no live scan")
    with pytest.raises(UsageError, match="rows"):
        table.scan().batches(rows=0)
