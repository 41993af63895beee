"""Servers with several worker processes, and which worker owns what."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aio_client import ConnectionFailed, sync
from streaming_server.storage.tables.placement import Placement
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess


def names_of_workers(workers: int, database: str = "test", each: int = 1) -> list[list[str]]:
    """Returns names of tables, so many for each worker, that the worker owns."""
    owned: list[list[str]] = [[] for _ in range(workers)]
    number = 0
    while any(len(names) < each for names in owned):
        name = f"{database}.t{number}"
        names = owned[Placement(0, workers).owner_of(name)]
        if len(names) < each:
            names.append(name)
        number += 1
    return owned


def processes_of(server: ServerProcess) -> dict[int, int]:
    """Returns the process ids of the workers of a server that run now, by number."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = {}
    for child in map(int, children):
        number = _number_of(child)
        if number is not None:
            found[number] = child
    return found


def sockets_of(server: ServerProcess) -> Path:
    """Returns the directory of the sockets on which the workers of a server listen."""
    socket = _socket_of(next(iter(processes_of(server).values())))
    assert socket is not None
    return socket.parent


def _number_of(pid: int) -> int | None:
    """Returns the number of the worker that a process is, by the socket on which it listens. None: it is none."""
    socket = _socket_of(pid)
    return None if socket is None else int(socket.name)


def _socket_of(pid: int) -> Path | None:
    """Returns the socket on which a worker listens for the others. None: the process is no worker."""
    sockets = {line.split()[6]: line.split()[7] for line in _unix_sockets() if len(line.split()) > 7}
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            path = sockets.get(target.removeprefix("socket:[").removesuffix("]"), "")
            if "/scankv-" in path and path.rpartition("/")[2].isdigit():
                return Path(path)
    except OSError:
        return None
    return None


def _unix_sockets() -> list[str]:
    # Those that listen have the flag of accepting connections.
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[3] == "00010000"]


def is_running(pid: int) -> bool:
    """Whether a process has not ended, even if its parent has not waited for its end yet."""
    return _is_alive(_fields_of(pid))


@contextmanager
def freeze(pid: int) -> Iterator[None]:
    """Freezes a process for the length of the block, unless it is killed in it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGCONT)


def has_ended(group: int) -> bool:
    """Whether every process of a group has ended, even if its parent has not waited for its end yet."""
    stats = (_fields_of(int(pid)) for pid in os.listdir("/proc") if pid.isdigit())
    return not any(fields and int(fields[2]) == group and _is_alive(fields) for fields in stats)


def _is_alive(fields: list[str]) -> bool:
    # A zombie with threads keeps its files and ports until these have ended.
    return bool(fields) and (fields[0] != "Z" or int(fields[17]) > 1)


def _fields_of(pid: int) -> list[str]:
    """Returns the fields of a process after its name: proc_pid_stat(5). Empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def kill_worker(server: ServerProcess, number: int) -> None:
    """Kills a worker of a server, as `kill -9` does, and waits until it has ended."""
    pid = processes_of(server)[number]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: processes_of(server).get(number) != pid, "the worker ended")


def wait_for_worker(server: ServerProcess, number: int) -> None:
    """Waits until a worker runs, and all workers reach each other."""
    wait_until(lambda: number in processes_of(server), "the worker runs again")
    host, _, port = server.url.rpartition(":")
    for each in range(len(processes_of(server))):
        with sync.connect(f"{host}:{int(port) + 1 + each}", operation_timeout=5) as client:
            wait_until(partial(_answers, client), "the worker reaches all others")


def _answers(client: sync.Client) -> bool:
    """Whether the worker to which a client is connected can ask every worker."""
    try:
        return bool(client.stats())
    except ConnectionFailed:
        return False


def rows_of(count: int, value: str = "v") -> list[dict[str, Any]]:
    """Returns rows of `SCORES`, with different players."""
    return [{"player": f"{value} {number}", "score": number} for number in range(count)]


def sample_of(client: sync.Client, name: str, number: int, labels: str = "") -> float:
    """Returns the value of a metric of a worker; 0 if it has none.

    Args:
        client: A client of the server.
        name: The metric.
        number: The worker.
        labels: Its other labels, as in the text of the metrics.
    """
    sample = f'{name}{{worker="{number}"{"," if labels else ""}{labels}}} '
    found = [line for line in client.metrics().splitlines() if line.startswith(sample)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0
