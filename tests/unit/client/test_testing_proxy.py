"""The fault proxy with plain sockets: exact bytes, every fault in both directions, and nothing left open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from typing import TYPE_CHECKING

import pytest

from aio_client import UsageError
from aio_client.testing import Direction, Fault, FaultProxy
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.asyncio

WINDOW = 8 << 20


class StreamKeeper:
    """Accepts connections, and keeps their streams for the test."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0, limit=2**16)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.streams.put_nowait((reader, writer))

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await self._server.wait_closed()


class ConnectionEnds:
    """The two ends of one connection through the proxy, named by the direction in which they receive."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.client, self.server = client, server
        self.writer = {"to_client": server[1], "to_server": client[1]}
        self.reader = {"to_client": client[0], "to_server": server[0]}


@pytest.fixture
def accepting() -> StreamKeeper:
    return StreamKeeper()


@contextlib.asynccontextmanager
async def connected(proxy: FaultProxy, accepting: StreamKeeper) -> AsyncIterator[ConnectionEnds]:
    host, port = proxy.address.split(":")
    client = await asyncio.open_connection(host, int(port))
    try:
        yield ConnectionEnds(client, await asyncio.wait_for(accepting.streams.get(), 60))
    finally:
        client[1].close()
        with contextlib.suppress(OSError):
            await client[1].wait_closed()


async def everything(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 60)


both_directions = pytest.mark.parametrize("direction", ["to_client", "to_server"])


async def test_bytes_pass_unchanged_both_ways_and_are_counted(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy, connected(proxy, accepting) as ends:
        data = os.urandom(1_000_000)
        for direction in ("to_client", "to_server"):
            received = asyncio.create_task(ends.reader[direction].readexactly(len(data)))
            ends.writer[direction].write(data)
            assert await asyncio.wait_for(received, 60) == data
        ends.client[1].write_eof()
        assert await everything(ends.server[0]) == b""
        ends.server[1].close()
        assert await everything(ends.client[0]) == b""
        assert (proxy.connections, proxy.bytes_to_client, proxy.bytes_to_server) == (1, len(data), len(data))
        assert proxy.faults == ()


@both_directions
@pytest.mark.parametrize("bytes_before", [0, 1, 100_000])
async def test_a_cut_comes_after_exactly_so_many_bytes(
    accepting: StreamKeeper, direction: Direction, bytes_before: int
) -> None:
    async with accepting as url, FaultProxy(url) as proxy:
        fault = Fault("cut", bytes_before, direction)
        proxy.on_next(fault)
        async with connected(proxy, accepting) as ends:
            ends.writer[direction].write(bytes(200_000))
            received = bytearray()
            with contextlib.suppress(ConnectionError):  # Data that was not read turns the close into a reset.
                while part := await asyncio.wait_for(ends.reader[direction].read(65536), 60):
                    received += part
            assert len(received) == bytes_before
            assert [(made.connection, made.fault, made.at_bytes) for made in proxy.faults] == [(1, fault, bytes_before)]
            other = ends.client[0] if direction == "to_server" else ends.server[0]
            with contextlib.suppress(ConnectionError):
                assert await everything(other) == b""
        async with connected(proxy, accepting) as ends:
            await echo(ends)


async def echo(ends: ConnectionEnds) -> None:
    """Checks that the connection works in both directions."""
    for direction in ("to_client", "to_server"):
        ends.writer[direction].write(b"hello")
        assert await asyncio.wait_for(ends.reader[direction].readexactly(5), 60) == b"hello"


async def test_an_open_connection_without_traffic_is_cut_at_once_and_in_order(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy, connected(proxy, accepting) as ends:
        await echo(ends)
        proxy.apply(Fault("cut"))
        assert await everything(ends.client[0]) == b""
        assert await everything(ends.server[0]) == b""
        await await_until(_async(lambda: proxy.open_connections == 0), "the connection is closed")


async def test_a_reset_reaches_both_ends(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy, connected(proxy, accepting) as ends:
        await echo(ends)
        proxy.apply(Fault("reset"))
        for reader in (ends.client[0], ends.server[0]):
            with pytest.raises(ConnectionResetError):
                await everything(reader)


async def test_a_reset_by_one_end_reaches_the_other(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy, connected(proxy, accepting) as ends:
        await echo(ends)
        ends.server[1].transport.abort()
        with contextlib.suppress(ConnectionResetError):
            assert await everything(ends.client[0]) == b""
        await await_until(_async(lambda: ends.client[0].at_eof() or ends.client[0].exception()), "the client knows")


@both_directions
async def test_a_stall_holds_one_direction_until_it_is_resumed(accepting: StreamKeeper, direction: Direction) -> None:
    async with accepting as url, FaultProxy(url) as proxy:
        proxy.on_next(Fault("stall", 10, direction))
        async with connected(proxy, accepting) as ends:
            ends.writer[direction].write(b"0123456789abc")
            assert await asyncio.wait_for(ends.reader[direction].readexactly(10), 60) == b"0123456789"
            other: Direction = "to_server" if direction == "to_client" else "to_client"
            for _ in range(3):
                ends.writer[other].write(b"hello")
                assert await asyncio.wait_for(ends.reader[other].readexactly(5), 60) == b"hello"
            assert sum((proxy.bytes_to_client, proxy.bytes_to_server)) == 10 + 15
            proxy.resume()
            assert await asyncio.wait_for(ends.reader[direction].readexactly(3), 60) == b"abc"


async def test_a_stalled_direction_keeps_the_end_to_itself(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy, connected(proxy, accepting) as ends:
        proxy.apply(Fault("stall"))
        ends.server[1].write_eof()
        ends.client[1].write(b"hello")
        assert await asyncio.wait_for(ends.server[0].readexactly(5), 60) == b"hello"
        assert not ends.client[0].at_eof()
        proxy.resume()
        assert await everything(ends.client[0]) == b""


async def test_a_stall_stops_the_sender(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy, connected(proxy, accepting) as ends:
        proxy.apply(Fault("stall"))
        sent = await _send_until_stuck(ends.server[1])
        assert 0 < sent < WINDOW
        proxy.resume()
        await asyncio.wait_for(ends.client[0].readexactly(sent), 60)


async def test_a_reader_that_stops_stops_the_sender(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy, connected(proxy, accepting) as ends:
        assert 0 < await _send_until_stuck(ends.server[1]) < WINDOW


async def _send_until_stuck(writer: asyncio.StreamWriter) -> int:
    """Sends until the other side stops reading; returns the bytes sent and the bytes still to arrive."""
    part, sent = bytes(65536), 0
    while sent < 2 * WINDOW:
        writer.write(part)
        sent += len(part)
        try:
            await asyncio.wait_for(writer.drain(), 0.3)
        except TimeoutError:
            return sent
    raise AssertionError(f"nothing stopped the sender in {sent:,} bytes")


@both_directions
async def test_a_half_close_ends_one_direction_only(accepting: StreamKeeper, direction: Direction) -> None:
    async with accepting as url, FaultProxy(url) as proxy, connected(proxy, accepting) as ends:
        await echo(ends)
        proxy.apply(Fault("half_close", 3, direction))
        ends.writer[direction].write(b"hello")
        assert await everything(ends.reader[direction]) == b"hel"
        other: Direction = "to_server" if direction == "to_client" else "to_client"
        ends.writer[other].write(b"hello")
        assert await asyncio.wait_for(ends.reader[other].readexactly(5), 60) == b"hello"


async def test_faults_of_one_connection_happen_in_the_order_of_their_bytes(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy:
        slow = Fault("slow", 5, bytes_per_second=1_000_000)
        proxy.on_next(Fault("cut", 20), slow)
        async with connected(proxy, accepting) as ends:
            ends.server[1].write(bytes(100))
            with contextlib.suppress(ConnectionError):
                await everything(ends.client[0])
        assert [(made.fault.kind, made.at_bytes) for made in proxy.faults] == [("slow", 5), ("cut", 20)]


async def test_faults_go_to_as_many_connections_as_were_named(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy:
        proxy.on_next()
        proxy.on_next(Fault("reset"), connections=2)
        for expected in (False, True, True, False):
            async with connected(proxy, accepting) as ends:
                if expected:
                    with pytest.raises(ConnectionResetError):
                        await everything(ends.client[0])
                else:
                    await echo(ends)
        assert [made.connection for made in proxy.faults] == [2, 3]


async def test_a_connection_is_reset_when_the_target_is_not_there(unused_port: int, accepting: StreamKeeper) -> None:
    async with FaultProxy(f"127.0.0.1:{unused_port}") as proxy:
        host, port = proxy.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with pytest.raises(ConnectionResetError):
            await everything(reader)
        writer.close()
        async with accepting as url:
            proxy.target = url
            async with connected(proxy, accepting) as ends:
                await echo(ends)


async def _run_with_seed(accepting: StreamKeeper, seed: int) -> list[str]:
    async with accepting as url, FaultProxy(url, seed=seed) as proxy:
        proxy.random_faults(after_bytes=(0, 300_000), directions=("to_client", "to_server"))
        for _ in range(6):
            async with connected(proxy, accepting) as ends:
                sending = [asyncio.create_task(_push(ends.writer[each])) for each in ("to_client", "to_server")]
                for reader in ends.reader.values():
                    with contextlib.suppress(ConnectionError):
                        await everything(reader)
                for task in sending:
                    task.cancel()
                await asyncio.gather(*sending, return_exceptions=True)
        return [str(made) for made in proxy.faults]


async def _push(writer: asyncio.StreamWriter) -> None:
    writer.write(bytes(300_000))
    with contextlib.suppress(OSError):
        await writer.drain()
        writer.write_eof()


async def test_the_same_seed_makes_the_same_faults_and_another_one_others() -> None:
    first = await _run_with_seed(StreamKeeper(), 11)
    assert len(first) == 6
    assert await _run_with_seed(StreamKeeper(), 11) == first
    assert await _run_with_seed(StreamKeeper(), 12) != first


async def test_calm_drops_every_fault_that_has_not_happened(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy:
        proxy.random_faults(after_bytes=(0, 0))
        proxy.on_next(Fault("stall"), Fault("cut", 5))
        proxy.on_next(Fault("cut"))
        async with connected(proxy, accepting) as ends:
            await await_until(_async(lambda: proxy.faults), "the stall happened")
            proxy.refuse()
            proxy.heal()
            ends.server[1].write(b"hello, hello")
            assert await asyncio.wait_for(ends.client[0].readexactly(12), 60) == b"hello, hello"
            for _ in range(2):
                async with connected(proxy, accepting) as others:
                    await echo(others)
        assert len(proxy.faults) == 1


async def test_nothing_is_left_when_the_block_ends(accepting: StreamKeeper) -> None:
    async with accepting as url:
        tasks, files = asyncio.all_tasks(), _open_files()
        async with FaultProxy(url) as proxy, contextlib.AsyncExitStack() as stack:
            for fault in (Fault("stall"), Fault("slow", bytes_per_second=1), Fault("half_close")):
                proxy.on_next(fault)
                ends = await stack.enter_async_context(connected(proxy, accepting))
                ends.server[1].write(bytes(1_000_000))
            host, port = proxy.address.split(":")
            unseen = socket.create_connection((host, int(port)))
            await proxy.__aexit__(None, None, None)
            unseen.close()
            assert proxy.open_connections == 0
        assert {task for task in asyncio.all_tasks() - tasks if "fault proxy" in task.get_name()} == set()
        while not accepting.streams.empty():
            accepting.streams.get_nowait()[1].close()
        for writer in accepting._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await await_until(_async(lambda: _open_files() <= files), "every socket is closed")
    gc.collect()  # A socket that was not closed warns, and warnings are errors here.


async def test_a_connection_that_came_at_the_last_moment_is_closed_with_the_others(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url) as proxy:
        host, port = proxy.address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as late:
            proxy._take()  # As the event loop does. The block ends before the loop continues with the connection.
            await proxy.__aexit__(None, None, None)
            assert late.recv(1) == b""
        assert proxy.connections == 1


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _async(condition: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def evaluate() -> object:
        return condition()

    return evaluate


async def test_a_proxy_says_what_happened(accepting: StreamKeeper) -> None:
    async with accepting as url, FaultProxy(url, seed=42) as proxy:
        proxy.on_next(Fault("cut", 5))
        async with connected(proxy, accepting) as ends:
            ends.server[1].write(b"hello")
            assert await everything(ends.client[0]) == b"hello"
        assert str(proxy) == (
            "fault proxy with seed 42: 1 connections, 5 bytes to the client, 0 to the server\n"
            "connection 1: cut to_client at 5 bytes"
        )


async def test_a_proxy_is_used_within_its_block_only(unused_port: int) -> None:
    proxy = FaultProxy(f"127.0.0.1:{unused_port}")
    with pytest.raises(UsageError, match="entered"):
        _ = proxy.address
    async with proxy:
        pass
    with pytest.raises(UsageError, match="once"):
        await proxy.__aenter__()
    with pytest.raises(UsageError, match="host:port"):
        FaultProxy("nowhere")
