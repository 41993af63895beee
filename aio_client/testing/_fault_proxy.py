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

# What the kernel may hold for each socket: small, because it hides a stalled reader from the sender.
_SOCKET_BUFFER_BYTES: Final = 64 * 1024
_BACKLOG: Final = 128


class FaultProxy:
    """Forwards TCP connections from a free port of loopback to a server, and lets them fail.

        async with FaultProxy(server.url) as proxy, connect(proxy.address) as client:
            proxy.on_next(Fault("cut", after_bytes=100_000))
            with pytest.raises(ScanInterrupted):
                await client.scan(spec).to_arrow()
            assert proxy.faults, proxy

    A direction buffers up to 64 KiB and what the kernel holds for two sockets, and reads on only when that was taken: a
    reader that stops, or a `stall`, stops the sender. Counts are of TCP payload, so they contain the framing of HTTP/2.
    A connection whose server cannot be reached is reset.

    Belongs to the event loop it was entered in; its methods may be called from any thread. Everything it has opened or
    started is gone when the block is left.

    Attributes:
        target: The server as `host:port`; may be changed, for the connections that come then.
        seed: What `random_faults` draws from.
    """

    def __init__(self, target: str, *, seed: int = 0) -> None:
        """Opens nothing.

        Args:
            target: The server as `host:port` or `scankv://host:port`. It need not be there yet.
            seed: For `random_faults`; print it (or the proxy) when a test fails.

        Raises:
            UsageError: The target cannot be read.
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
        """The same for code that blocks: `with FaultProxy.in_thread(server.url) as proxy`, in a thread of its own."""
        proxy = cls(target, seed=seed)
        with start_blocking_portal(name="scankv-fault-proxy") as portal, portal.wrap_async_context_manager(proxy):
            yield proxy

    async def __aenter__(self) -> Self:
        """Listens. A proxy is entered once."""
        if self._loop is not None:
            raise UsageError("a fault proxy is entered once; make another one")
        self._loop = asyncio.get_running_loop()
        # Bound, but not listening: the port stays ours while connections are refused.
        self._port_keeper = _bound(0)
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
        """What happened, for the message of a test that failed."""
        lines = [
            f"fault proxy with seed {self.seed}: {self.connections} connections, "
            f"{self.bytes_to_client:,} bytes to the client, {self.bytes_to_server:,} to the server",
            *map(str, self.faults),
        ]
        return "\n".join(lines)

    @property
    def address(self) -> str:
        """What to connect to, as `127.0.0.1:PORT`; known in the block, and stays when connections are refused."""
        if not self._address:
            raise UsageError("the address of a fault proxy is known once it was entered")
        return self._address

    @property
    def connections(self) -> int:
        """Connections taken so far."""
        return self._connections

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
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
        """The faults that have happened, in their order."""
        return tuple(self._made)

    def apply(self, *faults: Fault) -> None:
        """Gives the faults to each connection that is open, counted from now.

        Those of 0 bytes have happened when this returns. Example: `proxy.apply(Fault("stall"))`.
        """

        def change() -> None:
            for each in self._open.values():
                for fault in faults:
                    each.add(fault)

        self._in_loop(change)

    def on_next(self, *faults: Fault, connections: int = 1) -> None:
        """Gives the faults to the next connection, behind those that have got some already.

        Args:
            *faults: The faults; none leaves a connection alone.
            connections: To how many connections, each.
        """
        self._in_loop(lambda: self._next.extend([faults] * connections))

    def random_faults(
        self,
        *,
        after_bytes: tuple[int, int] = (0, 1_000_000),
        kinds: Sequence[FaultKind] = ("cut", "reset", "half_close"),
        directions: Sequence[Direction] = ("to_client",),
    ) -> None:
        """Gives each further connection a fault drawn from the seed, unless `on_next` had planned for it.

        The draw depends on the seed and the number of the connection only: the same seed and the same bytes give the
        same faults.

        Args:
            after_bytes: The least and the most bytes before the fault.
            kinds: What to draw from; not `slow`.
            directions: What to draw from.

        Raises:
            UsageError: Nothing can be drawn from these.
        """
        drawn = RandomFaults(self.seed, tuple(kinds), tuple(directions), after_bytes)
        self._in_loop(lambda: setattr(self, "_random", drawn))

    def resume(self) -> None:
        """Ends stalls and slowness of the connections that are open."""

        def change() -> None:
            for each in self._open.values():
                each.resume()

        self._in_loop(change)

    def refuse(self) -> None:
        """Refuses new connections, as when no server listens; those that are open go on."""
        self._in_loop(self._refuse)

    def accept(self) -> None:
        """Takes new connections again, on the same port."""
        self._in_loop(self._listen)

    def heal(self) -> None:
        """Ends all faults: drops those that have not happened yet, accepts connections, and resumes the open ones."""

        def change() -> None:
            self._random = None
            self._next.clear()
            for each in self._open.values():
                each.forget_faults()
                each.resume()
            self._listen()

        self._in_loop(change)

    def _in_loop(self, change: Callable[[], _Result]) -> _Result:
        """Makes a change where no task of the proxy is running meanwhile, and waits for it."""
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
        self._listener = _bound(self._port_keeper.getsockname()[1])
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener, self._take)

    def _refuse(self) -> None:
        if self._loop is None or self._listener is None:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._listener = None

    def _take(self) -> None:
        """Accepts one connection; what will happen to it is decided here, so that it does not depend on the tasks."""
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
        """Keeps the tasks of bugs only; also of one that was cancelled before it began, the socket is closed."""
        client.close()
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)

    async def _forward(self, number: int, client: socket.socket, faults: tuple[Fault, ...]) -> None:
        try:
            server = await _connected(self.target)
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


def _bound(port: int) -> socket.socket:
    """A socket on loopback that others of this user may share the port with: the one that listens, and its keeper."""
    bound = socket.socket()
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bound_buffers(bound)  # Those that it accepts inherit them.
        bound.bind(("127.0.0.1", port))
    except BaseException:
        bound.close()
        raise
    return bound


async def _connected(target: str) -> socket.socket:
    """A connection to the first address of the target that takes one."""
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
            _bound_buffers(server)
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


def _bound_buffers(each: socket.socket) -> None:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        each.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
