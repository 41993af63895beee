"""A client connects to the worker process that owns a table, and to nothing else that has the worker's port."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from aio_client import Unavailable, connect, sync
from aio_client._transport import owners
from aio_client.testing import FaultProxy
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import await_until
from tests.support.workers import freeze, names_of_workers, processes_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client.sync import Table

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]  # several processes start again and again

ELSEWHERE = "127.0.0.2"
"""The address of the server. The client has only a port of 127.0.0.1 that is forwarded to the server's."""


@pytest.fixture(scope="module")
def forwarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Table]]:
    """A server with two workers on another address, and a table of it."""
    data = tmp_path_factory.mktemp("owners") / "data"
    with ServerProcess(data, "--workers", "2", "--host", ELSEWHERE) as server, sync.connect(server.url) as client:
        yield server, client.create_table(names_of_workers(2, "owners")[1][0], SCORES, primary_key=["player"])


async def test_a_client_writes_nothing_to_another_server_at_the_port_of_a_worker(
    forwarded: tuple[ServerProcess, Table], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The ports of two containers may be forwarded from one host, and have tables of the same name."""
    server, owned = forwarded
    data = tmp_path_factory.mktemp("another") / "data"
    with ServerProcess(data, "--workers", "1", "--port", str(owned.owner_port)) as another:
        with sync.connect(another.url) as client:
            others = client.create_table(owned.name, SCORES, primary_key=["player"])
            async with FaultProxy(server.url) as proxy, connect(proxy.address) as through:
                table = await through.table(owned.name)
                await table.upsert(rows_of(5))
                assert (await table.scan().to_arrow()).num_rows == 5
            assert others.count() == 0
    assert owned.count() == 5


@pytest.mark.breadth
async def test_a_client_that_is_closed_while_it_connects_to_a_worker_leaves_no_connection(
    forwarded: tuple[ServerProcess, Table],
) -> None:
    server, owned = forwarded
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", owned.owner_port)) as silent:
        silent.setblocking(False)
        async with FaultProxy(server.url) as proxy, connect(proxy.address) as client:
            opening = asyncio.create_task(client.table(owned.name))
            connection, _ = await loop.sock_accept(silent)
        with connection:
            await asyncio.wait_for(_read_all(connection), 60)
        assert (await opening).name == owned.name
        await await_until(_is_alone, "no task is left")


async def _is_alone() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def _read_all(connection: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(connection, 4096):
        pass


@pytest.mark.breadth
async def test_a_worker_that_did_not_answer_at_first_is_found_later(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is frozen when its table is opened. The table goes directly to it once it has been found."""
    monkeypatch.setattr(owners, "_AGAIN_SECONDS", 0.01)
    with ServerProcess(tmp_path_factory.mktemp("later") / "data", "--workers", "2") as server:
        (name,) = names_of_workers(2, "later")[1]
        async with connect(server.url) as client:
            description = (await client.create_table(name, SCORES, primary_key=["player"]))._handle.shape.description
        first, owner = (f"127.0.0.1:{port}" for port in description.worker_ports)
        # The port of the server might be that of the frozen worker.
        async with connect(first) as client, connect(first) as closed:
            with freeze(processes_of(server)[1]):
                tables = await asyncio.gather(client._open(description), closed._open(description))
                assert [table._handle.transport.address for table in tables] == [first, first]
                # While it looks for the worker again, if its timer has fired by now.
                await closed.aclose()
            table = tables[0]

            async def is_direct() -> bool:
                return table._handle.transport.address == owner

            await await_until(is_direct, "the worker is found")
            await table.upsert(rows_of(5))
            assert await (await client.table(name)).count() == 5
        await await_until(_is_alone, "no task is left")


@pytest.mark.breadth
async def test_a_server_that_is_gone_is_noticed_at_once_and_used_again_when_it_is_back(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A call that finds the port of a worker closed tries that of the server, and no more."""
    with ServerProcess(tmp_path_factory.mktemp("gone") / "data", "--workers", "2") as server:
        async with connect(server.url, operation_timeout=200) as client:
            tables = [
                await client.create_table(name, SCORES, primary_key=["player"])
                for (name,) in names_of_workers(2, "gone")
            ]
            for table in tables:
                await table.upsert(rows_of(5))
            await asyncio.to_thread(server.kill)
            async with asyncio.timeout(100):
                for table in tables:
                    for _ in range(3):
                        with pytest.raises(Unavailable):
                            await table.count()
            await asyncio.to_thread(server.restart)
            for table in tables:
                assert await table.count() == 5
