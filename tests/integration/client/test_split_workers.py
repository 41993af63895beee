"""The parts of a snapshot are read at all worker processes of a server, and together are the table at the instant."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import connect, sync
from aio_client.testing import FaultProxy
from tests.support.pinned_table import ROWS, WORKERS, pinned
from tests.support.server_process import ServerProcess
from tests.support.workers import kill_worker, rows_of, sample_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aio_client import ScanSpec

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

PARTS = 4


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers, for all tests here; each uses names of its own."""
    with ServerProcess(tmp_path_factory.mktemp("parts") / "data", "--workers", str(WORKERS)) as server:
        yield server


def scanned(client: sync.Client) -> list[float]:
    """Returns how many rows each worker has read so far."""
    return [sample_of(client, "scankv_scan_rows_total", number) for number in range(WORKERS)]


def scanned_since(client: sync.Client, before: Sequence[float]) -> list[float]:
    return [now - then for now, then in zip(scanned(client), before, strict=True)]


def read_parts(url: str, specs: Sequence[ScanSpec]) -> list[dict[str, object]]:
    """Reads parts over a connection of its own, which knows only what is in them."""
    with sync.connect(url) as client:
        return [row for spec in specs for row in client.scan(spec).to_pylist()]


def by_player(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(row["player"]))


@pytest.mark.breadth
@pytest.mark.whole_tables  # The owners of the tablets read the rows.
def test_the_parts_of_a_snapshot_are_read_at_all_workers_and_are_the_table_at_its_instant(
    divided: ServerProcess,
) -> None:
    with pinned(divided, "parts") as (client, there):
        expected = by_player(there.table.scan().to_pylist())
        there.table.upsert(rows_of(100, "later"))
        parts = there.table.scan().as_of(there.snapshot).splits(PARTS)
        assert [part.spec.part for part in parts] == list(range(PARTS))
        before = scanned(client)
        rows = [part.to_pylist() for part in parts]
        assert by_player([row for each in rows for row in each]) == expected
        # The workers take turns, and each has read its parts and nothing else.
        assert scanned_since(client, before) == [len(rows[0]) + len(rows[2]), len(rows[1]) + len(rows[3])]
        assert min(map(len, rows)) > 0


@pytest.mark.asyncio
async def test_parts_can_be_read_at_once(divided: ServerProcess) -> None:
    with pinned(divided, "at_once") as (observer, there):
        async with connect(divided.url) as client:
            table = await client.table(there.table.name)
            parts = await table.scan().as_of(there.snapshot.id).splits(PARTS)
            before = await asyncio.to_thread(scanned, observer)
            tables = await asyncio.gather(*(part.to_arrow() for part in parts))
            assert sum(each.num_rows for each in tables) == ROWS
            assert len(set(pa.concat_tables(tables).column("player").to_pylist())) == ROWS
            assert 0 not in await asyncio.to_thread(scanned_since, observer, before)


@pytest.mark.asyncio
async def test_parts_are_complete_where_only_the_port_of_the_server_can_be_reached(divided: ServerProcess) -> None:
    """A proxy that only forwards the port of the server, as a firewall would leave it."""
    with pinned(divided, "closed") as (_, there):
        specs = [part.spec for part in there.table.scan().as_of(there.snapshot).splits(PARTS)]
        async with FaultProxy(divided.url) as proxy, connect(proxy.address) as client:
            rows = [row for spec in specs for row in await client.scan(spec).to_pylist()]
        assert len(rows) == ROWS
        assert len({row["player"] for row in rows}) == ROWS


def test_parts_of_a_server_that_is_one_process_are_read_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        ServerProcess(tmp_path_factory.mktemp("one") / "data", "--workers", "1") as server,
        sync.connect(server.url) as client,
    ):
        table = client.create_table("one.table", pa.schema([("k", pa.int64())]), primary_key=["k"])
        table.upsert([{"k": number} for number in range(100)])
        with table.snapshot() as snapshot:
            specs = [part.spec for part in table.scan().as_of(snapshot).splits(PARTS)]
            rows = read_parts(server.url, specs)
            assert len(rows) == 100
            assert {row["k"] for row in rows} == set(range(100))


@pytest.mark.breadth
def test_a_part_whose_worker_has_been_killed_is_read_at_another_one(divided: ServerProcess) -> None:
    """The first read finds the connection broken, and asks at the port of the server."""
    with pinned(divided, "killed") as (client, there):
        parts = there.table.scan().as_of(there.snapshot).splits(WORKERS)
        first = [part.to_pylist() for part in parts]
        for number in range(WORKERS):
            kill_worker(divided, number)
            assert [part.to_pylist() for part in parts] == first
            wait_for_worker(divided, number)
        assert client.table(there.table.name).count() == ROWS
