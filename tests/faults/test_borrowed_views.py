"""A worker that reads a snapshot of another one's table ends with all rows or a typed error, whatever is killed."""

from __future__ import annotations

import asyncio
import os
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from aio_client import connect
from tests.support.pinned_table import ROWS, WIDE, WORKERS, PinnedTable, batches_of, pinned
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until, wait_until
from tests.support.wire import Refusal, refusal, refusal_of
from tests.support.workers import freeze, kill_worker, processes_of, sample_of, sockets_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client import Client, ScanSpec, ScanStream

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

OWNER, READER = range(WORKERS)
LOANS = 'method="SnapshotService/UseSnapshot"'


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers, for all tests here; each uses names of its own."""
    with ServerProcess(tmp_path_factory.mktemp("borrowed") / "data", "--workers", str(WORKERS)) as server:
        yield server
        assert server.stop() == 0
        for trouble in ("DATA_LOSS", "incident", "Traceback"):
            assert trouble not in server.log


def view_of(server: ServerProcess, there: PinnedTable) -> Path:
    """Returns the directory of the view of a snapshot."""
    database, table = there.table.name.split(".")
    return server.data_dir / "tables" / database / table / "snapshots" / there.snapshot.view_id


def begin(there: PinnedTable, **fields: Any) -> Any:
    """Starts a scan at the worker that does not own the table."""
    messages = there.scan(READER, **fields)
    assert next(messages).HasField("header")
    return messages


def error_of(messages: Any) -> Refusal:
    """Reads a stream that must not be complete, and returns its error."""
    received: list[Any] = []
    with pytest.raises(grpc.RpcError) as ended:
        received.extend(messages)
    assert not any(message.HasField("trailer") for message in received)
    return refusal_of(ended.value)


def open_files(server: ServerProcess, number: int, view_id: str) -> list[str]:
    """Returns the files of a view that a worker has open."""
    pid = processes_of(server)[number]
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
    return [path for path in found if view_id in path]


@pytest.mark.breadth
def test_a_killed_owner_ends_the_scans_that_others_serve_with_a_typed_error(divided: ServerProcess) -> None:
    with pinned(divided, "owner_killed", WIDE) as (_, there):
        messages = begin(there)
        kill_worker(divided, OWNER)
        # Until the reader knows, it sends what is read, and that could be all.
        ended = f"of the snapshot view {there.snapshot.view_id}"
        wait_until(lambda: ended in divided.log, "the reader has ended the scan")
        error = error_of(messages)
        assert (error.code, error.reason) == ("UNAVAILABLE", "UNAVAILABLE")
        assert error.retry_after
        wait_for_worker(divided, OWNER)
        # The lease has survived, and so have all rows.
        assert batches_of(there.scan(READER)) == batches_of(there.scan(OWNER))


async def read_half(client: Client, spec: ScanSpec) -> tuple[ScanStream, int]:
    """Starts a scan, and returns it with the number of rows that it has returned so far."""
    stream = client.scan(spec).stream()
    rows = 0
    while rows < ROWS // 3:
        rows += (await anext(stream)).num_rows
    return stream, rows


@pytest.mark.asyncio
@pytest.mark.parametrize("killed", range(WORKERS))
@pytest.mark.represented_by("0")
async def test_a_client_gets_every_row_once_if_the_owner_or_the_reader_is_killed(
    divided: ServerProcess, killed: int
) -> None:
    with pinned(divided, f"resumed_{killed}", WIDE) as (_, there):
        address = f"127.0.0.1:{there.table.owner_port + READER}"
        async with connect(address, read_ahead_bytes=64 << 10) as client:
            spec = there.table.scan(["k"]).as_of(there.snapshot).with_chunk(rows=50).spec
            stream, rows = await read_half(client, spec)
            await asyncio.to_thread(there.table.upsert, [{"k": -1, "v": "later"}])
            await asyncio.to_thread(kill_worker, divided, killed)
            async for batch in stream:
                rows += batch.num_rows
            assert rows == ROWS
        await asyncio.to_thread(wait_for_worker, divided, killed)


def test_a_killed_reader_keeps_no_view(divided: ServerProcess) -> None:
    with pinned(divided, "reader_killed", WIDE) as (_, there):
        messages, view = begin(there), view_of(divided, there)
        there.snapshot.release()
        assert view.exists()
        kill_worker(divided, READER)
        wait_until(lambda: not view.exists(), "the owner removed the view")
        assert error_of(messages).code == "UNAVAILABLE"
        wait_for_worker(divided, READER)
        assert refusal(there.wires[READER].scans.ScanKv, there.request()).reason == "SNAPSHOT_LOST"


def test_a_reader_that_stood_still_while_the_owner_started_again_reports_no_damage(divided: ServerProcess) -> None:
    """The next owner removes the view, which has no lease any more, and the reader cannot have noticed it."""
    with pinned(divided, "frozen", WIDE) as (_, there):
        messages, view = begin(there), view_of(divided, there)
        there.snapshot.release()
        with freeze(processes_of(divided)[READER]):
            kill_worker(divided, OWNER)
            wait_until(lambda: not view.exists(), "the next owner removed the view")
        assert error_of(messages).reason == "UNAVAILABLE"
        wait_for_worker(divided, OWNER)
        assert refusal(there.wires[READER].scans.ScanKv, there.request()).reason == "SNAPSHOT_LOST"
    assert "DATA_LOSS" not in divided.log


@pytest.mark.breadth
def test_a_frozen_owner_delays_new_scans_for_a_bounded_time_and_running_ones_not_at_all(
    divided: ServerProcess,
) -> None:
    with pinned(divided, "delayed", WIDE) as (_, there):
        messages = begin(there)
        with freeze(processes_of(divided)[OWNER]):
            assert batches_of(messages)
            error = refusal(there.wires[READER].scans.ScanKv, there.request())
            assert (error.code, error.reason) == ("UNAVAILABLE", "UNAVAILABLE")
            assert "worker 0" in error.message
            assert error.retry_after
        assert batches_of(there.scan(READER))


@pytest.mark.breadth
def test_a_reader_closes_the_files_of_a_view_that_it_no_longer_reads(divided: ServerProcess) -> None:
    """Otherwise they would take disk space after the view is removed."""
    with pinned(divided, "closed") as (client, there):
        view_id = there.snapshot.view_id
        assert batches_of(there.scan(READER))
        assert open_files(divided, READER, view_id)
        assert not open_files(divided, OWNER, view_id)
        wait_until(lambda: sample_of(client, "scankv_calls_running", OWNER, LOANS) == 0, "the loan ended")
        there.snapshot.release()
        wait_until(lambda: not open_files(divided, READER, view_id), "the files were closed")
        assert not view_of(divided, there).exists()


def test_the_links_of_a_killed_reader_are_removed_when_it_starts_again(divided: ServerProcess) -> None:
    with pinned(divided, "links") as (_, there):
        assert batches_of(there.scan(READER))
        links = sockets_of(divided) / f"aliases-{READER}"
        assert list(links.iterdir())
        kill_worker(divided, READER)
        wait_for_worker(divided, READER)
        assert list(links.iterdir()) == []


@pytest.mark.breadth
def test_a_view_stays_until_the_last_of_several_workers_has_read_it(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--workers", "3") as server,
        pinned(server, "three", WIDE, workers=3) as (_, there),
    ):
        view = view_of(server, there)
        streams = {number: there.scan(number) for number in range(3)}
        for messages in streams.values():
            assert next(messages).HasField("header")
        there.snapshot.release()
        expected = batches_of(streams[OWNER])
        kill_worker(server, READER)
        assert error_of(streams[READER]).code == "UNAVAILABLE"
        assert view.exists()
        assert batches_of(streams[2]) == expected
        wait_until(lambda: not view.exists(), "the view was removed")


class KeepsReading:
    """Reads a pinned snapshot in parts, again and again, and counts the complete reads.

    Attributes:
        reads: How many times all parts were read.
    """

    def __init__(self, address: str, specs: list[ScanSpec]) -> None:
        self._address = address
        self._specs = specs
        self.reads = 0

    async def read_until(self, stop: asyncio.Event) -> None:
        """Reads until the event is set. Each read must have every row once, as of the pin."""
        async with connect(self._address, operation_timeout=100, read_ahead_bytes=64 << 10) as client:
            while not stop.is_set():
                tables = await asyncio.gather(*(client.scan(spec).to_arrow() for spec in self._specs))
                found = [row for table in tables for row in table.to_pylist()]
                assert len(found) == ROWS
                assert {row["k"]: row["v"][-1] for row in found} == {key: f"{key:x}"[-1] for key in range(ROWS)}
                self.reads += 1


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.soak)])
async def test_parts_are_the_table_at_the_instant_of_the_pin_whatever_is_killed(
    divided: ServerProcess, kills: int
) -> None:
    rng = random.Random(seed := random.randrange(2**32))
    with pinned(divided, f"kills_{kills}", WIDE) as (_, there):
        scan = there.table.scan().as_of(there.snapshot).with_chunk(rows=50)
        specs = [part.spec for part in await asyncio.to_thread(scan.splits, 4)]
        reader, stop = KeepsReading(divided.url, specs), asyncio.Event()
        reading = asyncio.create_task(reader.read_until(stop))
        try:
            for number in range(kills):
                before = reader.reads
                rows = [{"k": key, "v": "later"} for key in range(number * 10, number * 10 + 1000)]
                await asyncio.to_thread(there.table.upsert, rows)
                victim = rng.choice([OWNER, READER])
                await asyncio.to_thread(kill_worker, divided, victim)
                await asyncio.to_thread(wait_for_worker, divided, victim)
                await await_until(partial(has_read_since, reader, before + 1, reading), "the parts were read again")
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            stop.set()
            await reading


async def has_read_since(reader: KeepsReading, reads: int, reading: asyncio.Task[None]) -> bool:
    """Whether so many reads are complete, or a read has failed."""
    return reader.reads > reads or reading.done()
