"""A TCP proxy that fails on demand: at bytes that a test names, or at bytes that a seed draws."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self, TypeVar

from anyio.from_thread import start_blocking_portal

from aio_client._transport.config import ClientConfig
from aio_client.testing._fault_connection import LINGER_ZERO, FaultConnection
from aio_client.testing._faults import Direction, Fault, FaultKind, InjectedFault, RandomFaults
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

_Result = TypeVar("_Result")

# The kernel's buffer of each socket. Small, because it hides a stalled reader from the sender.
_SOCKET_BUFFER_BYTES: Final = 64 * 1024
_BACKLOG: Final = 128


class FaultProxy:
    """Forwards TCP connections from a free port of loopback to a server, and makes them fail.

        async with FaultProxy(server.url) as proxy, connect(proxy.address) as client:
            proxy.on_next(Fault("cut", after_bytes=100_000))
            with pytest.raises(ScanInterrupted):
                await client.scan(spec).to_arrow()
            assert proxy.faults, proxy

    A direction buffers up to 64 KiB and what the kernel holds for two sockets, and reads more only when these were
    taken: a reader that stops, or a `stall`, stops the sender. Bytes are TCP payload, including the framing of HTTP/2.
    A connection whose server cannot be reached is reset.

    Belongs to the event loop it was entered in; its methods may be called from any thread. Leaving the block closes
    everything that the proxy has opened or started.

    Attributes:
        target: The server as `host:port`. A change applies to later connections.
        seed: The seed of `random_faults`.
    """

    def __init__(self, target: str, *, seed: int = 0) -> None:
        """Opens nothing.

        Args:
            target: The server as `host:port` or `scankv://host:port`. It need not run yet.
            seed: For `random_faults`; print it, or the proxy, when a test fails.

        Raises:
            UsageError: The target cannot be parsed.
        """
        self.target: str = ClientConfig(url=target).address
        self.seed = seed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._port_keeper: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[int, FaultConnection] = {}
        self._connections = 0
        self._closed_bytes: dict[Direction, int] = {"to_client": 0, "to_server": 0}
        self._made: list[InjectedFault] = []
        self._next: deque[tuple[Fault, ...]] = deque()
        self._random: RandomFaults | None = None

    @classmethod
    @contextmanager
    def in_thread(cls, target: str, *, seed: int = 0) -> Iterator[Self]:
        """Runs a proxy in its own thread, for blocking code: `with FaultProxy.in_thread(server.url) as proxy`."""
        proxy = cls(target, seed=seed)
        with start_blocking_portal(name="scankv-fault-proxy") as portal, portal.wrap_async_context_manager(proxy):
            yield proxy

    async def __aenter__(self) -> Self:
        """Starts to listen. A proxy can be entered once."""
        if self._loop is not None:
            raise UsageError("a fault proxy is entered once; make another one")
        self._loop = asyncio.get_running_loop()
        # Bound, but not listening: the port stays ours while connections are refused.
        self._port_keeper = _bind(0)
        self._address = f"127.0.0.1:{self._port_keeper.getsockname()[1]}"
        self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes every socket.

        Raises:
            BaseExceptionGroup: The proxy itself failed, rather than a connection.
        """
        self._refuse()
        if self._port_keeper is not None:
            self._port_keeper.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [each for each in ended if each and not isinstance(each, asyncio.CancelledError)]
        if failures and error is None:
            raise BaseExceptionGroup("the fault proxy failed", failures)

    def __str__(self) -> str:
        """Returns the faults that have happened, for the message of a failed test."""
        lines = [
            f"fault proxy with seed {self.seed}: {self.connections} connections, "
            f"{self.bytes_to_client:,} bytes to the client, {self.bytes_to_server:,} to the server",
            *map(str, self.faults),
        ]
        return "\n".join(lines)

    @property
    def address(self) -> str:
        """The address to connect to, as `127.0.0.1:PORT`. Known in the block; stays while connections are refused."""
        if not self._address:
            raise UsageError("the address of a fault proxy is known once it was entered")
        return self._address

    @property
    def connections(self) -> int:
        """The number of connections taken so far."""
        return self._connections

    @property
    def open_connections(self) -> int:
        """The number of connections that are open now."""
        return len(self._open)

    @property
    def bytes_to_client(self) -> int:
        """Bytes forwarded from the server to the client, over all connections."""
        return self._bytes("to_client")

    @property
    def bytes_to_server(self) -> int:
        """Bytes forwarded from the client to the server, over all connections."""
        return self._bytes("to_server")

    @property
    def faults(self) -> tuple[InjectedFault, ...]:
        """The faults that have happened, in order."""
        return tuple(self._made)

    def apply(self, *faults: Fault) -> None:
        """Adds the faults to each open connection, counted from now.

        Faults after 0 bytes have happened when this returns. Example: `proxy.apply(Fault("stall"))`.

        Args:
            *faults: The faults. Each connection gets all of them.
        """

        def change() -> None:
            for each in self._open.values():
                for fault in faults:
                    each.add(fault)

        self._in_loop(change)

    def on_next(self, *faults: Fault, connections: int = 1) -> None:
        """Adds the faults to the next connection for which none are planned.

        Args:
            *faults: The faults; none leaves a connection alone.
            connections: How many connections get these faults. Each gets all of them.
        """
        self._in_loop(lambda: self._next.extend([faults] * connections))

    def random_faults(
        self,
        *,
        after_bytes: tuple[int, int] = (0, 1_000_000),
        kinds: Sequence[FaultKind] = ("cut", "reset", "half_close"),
        directions: Sequence[Direction] = ("to_client",),
    ) -> None:
        """Gives each further connection a fault drawn from the seed, unless `on_next` has planned its faults.

        The draw depends only on the seed and the number of the connection: the same seed and the same bytes give the
        same faults.

        Args:
            after_bytes: The least and the most bytes before the fault.
            kinds: The kinds to draw from; not `slow`.
            directions: The directions to draw from.

        Raises:
            UsageError: Nothing can be drawn from these.
        """
        drawn = RandomFaults(self.seed, tuple(kinds), tuple(directions), after_bytes)
        self._in_loop(lambda: setattr(self, "_random", drawn))

    def resume(self) -> None:
        """Ends the stalls and slowness of open connections."""

        def change() -> None:
            for each in self._open.values():
                each.resume()

        self._in_loop(change)

    def refuse(self) -> None:
        """Refuses new connections, as if no server listened. Open connections continue."""
        self._in_loop(self._refuse)

    def accept(self) -> None:
        """Accepts new connections again, on the same port."""
        self._in_loop(self._listen)

    def heal(self) -> None:
        """Stops all faults: drops those that have not happened, accepts connections, and resumes open ones."""

        def change() -> None:
            self._random = None
            self._next.clear()
            for each in self._open.values():
                each.forget_faults()
                each.resume()
            self._listen()

        self._in_loop(change)

    def _in_loop(self, change: Callable[[], _Result]) -> _Result:
        """Makes a change in the proxy's event loop, between its tasks, and waits for it."""
        if self._loop is None or _running_loop() is self._loop:  # Not entered yet, or there already.
            return change()
        if self._loop.is_closed():
            raise UsageError("the fault proxy is closed")

        async def changed() -> _Result:
            return change()

        return asyncio.run_coroutine_threadsafe(changed(), self._loop).result()

    def _listen(self) -> None:
        if self._loop is None or self._listener is not None:
            return
        assert self._port_keeper is not None
        self._listener = _bind(self._port_keeper.getsockname()[1])
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener, self._take)

    def _refuse(self) -> None:
        if self._loop is None or self._listener is None:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._listener = None

    def _take(self) -> None:
        """Accepts one connection. Its faults are chosen here, so that they do not depend on the order of tasks."""
        assert self._loop is not None
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except OSError:  # It has gone again.
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections += 1
        number = self._connections
        if self._next:
            faults = self._next.popleft()
        else:
            faults = (self._random.of(number),) if self._random is not None else ()
        task = self._loop.create_task(self._forward(number, client, faults), name=f"fault proxy {number}")
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._forget(ended, client))

    def _forget(self, task: asyncio.Task[None], client: socket.socket) -> None:
        """Closes the socket, also of a task that was cancelled before it began. Keeps only tasks that failed."""
        client.close()
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)

    async def _forward(self, number: int, client: socket.socket, faults: tuple[Fault, ...]) -> None:
        try:
            server = await _open_connection(self.target)
        except BaseException as error:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
            client.close()
            if isinstance(error, OSError):
                return
            raise
        connection = FaultConnection(
            client, server, lambda fault, at: self._made.append(InjectedFault(number, fault, at))
        )
        self._open[number] = connection
        try:
            for fault in faults:
                connection.add(fault)
            await connection.run()
        finally:
            del self._open[number]
            for direction in self._closed_bytes:
                self._closed_bytes[direction] += connection.forwarded(direction)

    def _bytes(self, direction: Direction) -> int:
        return self._closed_bytes[direction] + sum(each.forwarded(direction) for each in list(self._open.values()))


def _bind(port: int) -> socket.socket:
    """Returns a socket on loopback whose port the listener and its keeper share."""
    bound = socket.socket()
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _limit_buffers(bound)  # Those that it accepts inherit them.
        bound.bind(("127.0.0.1", port))
    except BaseException:
        bound.close()
        raise
    return bound


async def _open_connection(target: str) -> socket.socket:
    """Opens a connection to the first address of the target that accepts one."""
    loop = asyncio.get_running_loop()
    host, port = target.rsplit(":", 1)
    failure = OSError(f"{target} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM
    ):
        server = socket.socket(family, kind, protocol)
        try:
            server.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _limit_buffers(server)
            await loop.sock_connect(server, address)
        except OSError as error:
            server.close()
            failure = error
        except BaseException:
            server.close()
            raise
        else:
            return server
    raise failure


def _limit_buffers(each: socket.socket) -> None:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        each.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
