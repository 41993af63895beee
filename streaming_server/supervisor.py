"""Runs a server as several worker processes behind one address.

The supervisor locks the data directory, and every worker inherits the lock: another server can use the directory only
once the supervisor and all workers have ended, however they end. It binds the ports without listening on them, which
reserves them for the workers. It owns no table and carries no call, and opens neither RocksDB nor gRPC, because the
workers are its forks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from scankv.model.errors import ScanKvError, UpgradeNotConfirmed
from streaming_server.access.forwarded_peers import ForwardedPeers
from streaming_server.access.request_principals import RequestPrincipals
from streaming_server.addresses import address_of
from streaming_server.config import RANGES, SHARES_OF_MEMORY
from streaming_server.engine.tables.tables import Tables
from streaming_server.engine.transactions.worker_logs import divide_log
from streaming_server.gateway_process import GatewaySupervisor, listen_for_gateway
from streaming_server.server import PortTaken, exit_code_of, run, start_log
from streaming_server.shared_times import create_times
from streaming_server.storage.tables.data_directory import WORKERS_FORMAT, DataDirectory
from streaming_server.storage.tables.placement import Placement
from streaming_server.worker_process import WorkerProcess, fork
from streaming_server.workers import CONNECTED, HEARTBEAT_SECONDS, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from streaming_server.config import ServerConfig

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 10.0
# A worker that ran for this long was able to start, so it is started again without a longer pause.
_LONG_LIFE_SECONDS: Final = 30.0
# How long workers may take to end, beyond the time for their drain.
_STOP_SECONDS: Final = 15.0
_READY: Final = b"scankv ready on "
_MOST_READ_BYTES: Final = 4096
_PR_SET_PDEATHSIG: Final = 1
# With port 0, until a free port is found that has free ports after it.
_PORT_TRIES: Final = 20

_log: Final = logging.getLogger(__name__)


class WorkerSupervisor:
    """The worker processes of a server, from `run` to its cancellation. Bound to the event loop.

    Args:
        config: The settings of the server.
        lock: The descriptor by which the data directory is locked.
        sockets: A directory for the sockets of the workers.
        ports: The port on which all workers listen, then the port of each of them.

    Attributes:
        peer_key: See `WorkerSettings`.
    """

    def __init__(self, config: ServerConfig, lock: int, sockets: Path, ports: Sequence[int]) -> None:
        self._config = _share_of(config, ports[0])
        self._ports = ports[1:]
        self._lock = lock
        self._times = create_times(config.workers)
        self._sockets = sockets
        self._key, self.peer_key = secrets.token_hex(32), secrets.token_hex(32)
        self._children: dict[int, WorkerProcess] = {}
        self._ready = [asyncio.Event() for _ in range(config.workers)]
        self._connected = [asyncio.Event() for _ in range(config.workers)]
        self._is_stopping = False
        # Workers answer on their own standard output, and write the audit log to that of the server.
        self._stdout = os.dup(1) if config.audit_output == "stdout" else None

    async def run(self) -> None:
        """Keeps all workers running until it is cancelled.

        Raises:
            ScanKvError: A worker could not start for the first time. The others are ended.
        """
        running = [asyncio.create_task(self._keep_running(number)) for number in range(self._config.workers)]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    async def wait_ready(self) -> None:
        """Waits until every worker has been ready once, and connected to the others."""
        for connected in self._connected:
            await connected.wait()

    async def stop(self) -> None:
        """Has all workers drain, and waits for them. Workers that do not end in time are killed."""
        self._is_stopping = True
        self._send_signal(signal.SIGTERM)
        # After its drain, the first worker archives the last writes, for as long again.
        drains = 2 if self._config.backup_location and self._config.archive_every_seconds else 1
        try:
            async with asyncio.timeout(drains * self._config.drain_seconds + _STOP_SECONDS):
                await asyncio.gather(*(child.wait() for child in self._children.values()))
        except TimeoutError:
            self.kill()
            await asyncio.gather(*(child.wait() for child in self._children.values()))

    def kill(self) -> None:
        """Kills all workers."""
        self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: int) -> None:
        for child in self._children.values():
            child.send_signal(number)

    async def _keep_running(self, number: int) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            started = time.monotonic()
            code = await self._run_child(number)
            # A signal to all processes of a terminal reaches a worker before it reaches the supervisor.
            await asyncio.sleep(pause)
            if self._is_stopping:
                return
            if not self._ready[number].is_set():
                raise WorkerFailed(f"worker {number} of the server did not start; its log has the reason", exit=code)
            if time.monotonic() - started >= _LONG_LIFE_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            _log.error("worker %d has ended with code %d, and is started again", number, code)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _run_child(self, number: int) -> int:
        (self._sockets / str(number)).unlink(missing_ok=True)
        settings = WorkerSettings(
            placement=Placement(number, self._config.workers),
            lock=self._lock,
            times=self._times,
            sockets=self._sockets,
            key=self._key,
            peer_key=self.peer_key,
            ports=tuple(self._ports),
            stdout=self._stdout or 1,
        )
        descriptors = {self._lock, self._times, settings.stdout}
        child = await WorkerProcess.start(partial(run, self._config, settings), descriptors)
        self._children[number] = child
        try:
            if (await child.output.readline()).startswith(_READY):
                _log.info("worker %d is ready, with process id %d", number, child.pid)
                self._ready[number].set()
                self._report_ready()
                await self._watch(number, child)
            return await child.wait()
        finally:
            child.close_input()
            child.send_signal(signal.SIGKILL)
            await child.wait()

    def _report_ready(self) -> None:
        """Notifies all workers if every worker has been ready once."""
        if all(ready.is_set() for ready in self._ready):
            for child in self._children.values():
                child.write(b"\n")

    async def _watch(self, number: int, child: WorkerProcess) -> None:
        """Returns once a worker has ended. Kills it if its event loop does not run for the worker timeout.

        The kernel gives new connections to the port of the server to all workers, even to one that is frozen. And
        nothing else may open the tables of a frozen worker.
        """
        missed = 0
        while missed * HEARTBEAT_SECONDS < self._config.worker_timeout_seconds:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    if not (reports := await child.output.read(_MOST_READ_BYTES)):
                        return
                if CONNECTED in reports:
                    self._connected[number].set()
                missed = 0
            except TimeoutError:
                # Counted, because a supervisor that was frozen together with its workers has waited for nothing.
                missed += not self._is_stopping
        _log.error("worker %d has not run for %g s, and is killed", number, self._config.worker_timeout_seconds)
        child.send_signal(signal.SIGKILL)


class WorkerFailed(ScanKvError):
    """A worker process could not start. `details` has its exit code."""

    code = "UNAVAILABLE"
    reason = "WORKER_FAILED"


def _share_of(config: ServerConfig, port: int) -> ServerConfig:
    """Returns the settings of each worker: with its share of the memory, and without what only the supervisor does."""
    shares = {name: max(int(RANGES[name][0]), getattr(config, name) // config.workers) for name in SHARES_OF_MEMORY}
    return dataclasses.replace(config, port=port, http_port=0, **shares)


def run_workers(config: ServerConfig) -> int:
    """Runs a server as worker processes until SIGTERM or SIGINT, then drains; as `streaming_server.server.run`.

    Returns:
        The exit code, as `run`.
    """
    os.umask(0o077)
    start_log(config)
    try:
        with contextlib.ExitStack() as resources:
            ports = _bind_all(config, resources)
            listener = resources.enter_context(listen_for_gateway(config)) if config.http_port else None
            if _has_other_workers(config) and (code := _divide_in_fork(config)):
                return code
            return asyncio.run(_supervise(config, ports, listener))
    except ScanKvError as error:
        return _report(error)


def _report(error: ScanKvError) -> int:
    sys.stderr.write(f"scankv: error: {error.message}\n")
    return exit_code_of(error)


async def _supervise(config: ServerConfig, ports: Sequence[int], listener: socket.socket | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as resources:
        directory = DataDirectory(config.data)
        resources.callback(directory.close)
        # Paths of sockets have at most 107 bytes, and the data directory may be on a file system without sockets.
        sockets = Path(tempfile.mkdtemp(prefix="scankv-"))
        resources.callback(shutil.rmtree, sockets, ignore_errors=True)
        workers = WorkerSupervisor(config, directory.lock, sockets, ports)

        def handle_signal(number: int) -> None:
            if stop.is_set():
                _log.warning("ending at once on a second signal")
                workers.kill()
                os._exit(128 + number)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, handle_signal, number)
        running = [asyncio.create_task(workers.run())]
        try:
            await _first_of(workers.wait_ready(), stop.wait(), running[0])
            address = address_of(config.host, ports[0])
            if listener is not None:
                # Only workers know who makes a request, so its line in the access log has no user.
                forwarded, principals = ForwardedPeers(workers.peer_key), RequestPrincipals()
                gateway = GatewaySupervisor(config, address, listener, forwarded, principals)
                running.append(asyncio.create_task(gateway.run()))
            if not stop.is_set():
                sys.stdout.write(f"scankv ready on {address}\n")
                sys.stdout.flush()
                _log.info("serving %s on %s with %d workers", config.data, address, config.workers)
            await _first_of(stop.wait(), *running)
        finally:
            await workers.stop()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    _log.info("stopped")
    return 0


async def _first_of(*waited: Awaitable[object]) -> None:
    """Waits for the first of some awaitables to end. Raises its error."""
    tasks = [asyncio.ensure_future(each) for each in waited]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        if not isinstance(waited[tasks.index(task)], asyncio.Task):
            task.cancel()
    for task in done:
        await task


def _has_other_workers(config: ServerConfig) -> bool:
    """Returns whether the data directory is divided for another number of workers.

    Raises:
        ScanKvError: The directory cannot be used.
    """
    directory = DataDirectory(config.data)
    try:
        if directory.format < WORKERS_FORMAT:
            raise UpgradeNotConfirmed(
                f"several workers need format {WORKERS_FORMAT} of the data directory, which has format "
                f"{directory.format}: confirm the upgrade with `scankv upgrade DIR --confirm`",
                format=directory.format,
            )
        return directory.workers != config.workers
    finally:
        directory.close()


def _divide_in_fork(config: ServerConfig) -> int:
    """Gives each worker its part of the data directory. Returns 0, or the exit code of what keeps the server from it.

    In a process of its own, because the threads of RocksDB would be missing in the workers if it had run in this one.
    """
    child = fork(partial(_divide, config))

    def end(number: int, _: object) -> NoReturn:
        os.kill(child, signal.SIGKILL)
        os._exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    _, status = os.waitpid(child, 0)
    for number, handler in before.items():
        signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _divide(config: ServerConfig) -> int:
    # If it outlived the supervisor, it would keep the next server from the directory for a while.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        asyncio.run(_divide_tables(config))
    except ScanKvError as error:
        return _report(error)
    return 0


async def _divide_tables(config: ServerConfig) -> None:
    """Gives each worker its part of the data directory.

    Raises:
        ScanKvError: A transaction that the last server decided cannot be applied.
    """
    tables = Tables(config)
    try:
        await tables.recover()
    finally:
        await tables.close()
    directory = DataDirectory(config.data)
    try:
        divide_log(directory, config.workers, tables.clock)
    finally:
        directory.close()


def _bind_all(config: ServerConfig, resources: contextlib.ExitStack) -> list[int]:
    """Keeps the ports of the server until the resources are closed: its own, and one after it for each worker.

    Raises:
        PortTaken: See `_bind`.
    """
    tries = 1 if config.port else _PORT_TRIES
    while True:
        tries -= 1
        with contextlib.ExitStack() as bound:
            try:
                first = bound.enter_context(_bind(config.host, config.port)).getsockname()[1]
                for number in range(config.workers):
                    bound.enter_context(_bind(config.host, first + 1 + number))
            except (PortTaken, OverflowError):
                if not tries:
                    raise
                continue
            resources.enter_context(bound.pop_all())
            return [first + number for number in range(1 + config.workers)]


def _bind(host: str, port: int) -> socket.socket:
    """Returns a socket that keeps a port for the workers, and does not listen.

    Raises:
        PortTaken: Another program uses the address, or it does not belong to this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        # Without SO_REUSEPORT, it fails if any process listens on the port, even another server with workers.
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        holder = socket.socket(family, kind, protocol)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(address)
    except OSError as error:
        where = address_of(host, port)
        raise PortTaken(
            f"cannot listen on {where}: {error.strerror}; give another --port (each worker has one of the ports after "
            "it)",
            address=where,
        ) from error
    return holder
