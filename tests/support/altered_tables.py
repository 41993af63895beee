"""Stories of tables with tablets that are altered, or dropped and created again, while many calls are made."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import scankv
from scankv.model.errors import (
    ConnectionFailed,
    ScanInterrupted,
    ScanKvError,
    ServerBusy,
    SnapshotLost,
    SnapshotNotTaken,
    TableNotFound,
    TableRecreated,
    TransactionLost,
    Unavailable,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import freeze, kill_worker, processes_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    Read = Callable[[scankv.Table], Awaitable[object]]

WORKERS: Final = 2
TABLETS: Final = 8
FEW_TABLETS: Final = 4
LONG: Final = pytest.param(120.0, id="long", marks=pytest.mark.soak)
LENGTHS: Final = [pytest.param(4.0, id="short"), LONG]
NO_SWEEPS: Final = ("--set", "sweep_seconds=3600")
_SKEWED: Final = Path(__file__).parent / "skewed_clocks"

OF_FAULTS: Final = (
    Unavailable,
    ConnectionFailed,
    ScanInterrupted,
    SnapshotLost,
    SnapshotNotTaken,
    TransactionLost,
    TimeoutError,
)
"""What a client may see when a process of the server ends or hangs. A transaction begins only at those that run."""


@contextmanager
def skewed_server(data: Path, workers: int) -> Iterator[ServerProcess]:
    """Runs a server whose processes have different wall clocks."""
    starts = data.parent / "starts"
    wrapper = ("env", f"PYTHONPATH={_SKEWED}", f"STARTS={starts}")
    with ServerProcess(data, "--workers", str(workers), *NO_SWEEPS, wrapper=wrapper) as server:
        assert len([*starts.iterdir()]) >= workers
        yield server


class Story:
    """Reads a table again and again while it is altered, and keeps what no single instant explains.

    Args:
        server: The server.
        name: The table.
        seconds: For how long.
        fails: Whether workers are killed and stopped in the meantime.
        expected: Errors that reads may end with. A server that is busy may always refuse them.

    Attributes:
        reads: How often each kind of read was answered.
        wrong: The wrong answers of each kind of read.
        errors: How often each kind of read has ended with which error.
    """

    def __init__(
        self,
        server: ServerProcess,
        name: str,
        seconds: float,
        *,
        fails: bool = False,
        expected: tuple[type[ScanKvError], ...] = (),
    ) -> None:
        self._server = server
        self._url = server.url
        self._fails = fails
        self._expected = (ServerBusy, *expected, *(OF_FAULTS if fails else ()))
        self._name = name
        self._seconds = seconds
        self.reads: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.wrong: dict[str, list[object]] = {}

    async def run(
        self,
        change: Callable[[scankv.Client, int], Awaitable[None]],
        reads: Mapping[str, Read],
        is_right: Callable[[object], bool],
    ) -> int:
        """Makes changes, and reads at the same time. Returns how many changes were made."""
        ends = time.monotonic() + self._seconds
        changes = 0

        def has_read(number: int) -> bool:
            return self.reads.total() >= number or is_over()

        async def fail() -> None:
            """Kills and stops workers, one after the other."""
            numbers = itertools.cycle(range(WORKERS))
            while not is_over():
                await asyncio.to_thread(wait_until, partial(has_read, self.reads.total() + 40), "reads are answered")
                number = next(numbers)
                with freeze(processes_of(self._server)[number]):
                    await asyncio.sleep(0.5)
                await asyncio.to_thread(kill_worker, self._server, number)
                await asyncio.to_thread(wait_for_worker, self._server, number)

        def is_over() -> bool:
            return time.monotonic() > ends

        async def alter() -> None:
            nonlocal changes
            async with scankv.connect(self._url) as client:
                while not is_over():
                    try:
                        await change(client, changes)
                    except ConnectionFailed:
                        # A machine that is busy may have been too slow for it.
                        pass
                    except ScanKvError:
                        if not self._fails:
                            raise
                    changes += 1
                    await asyncio.sleep(0.005)

        async def repeat(kind: str, read: Read) -> None:
            async with scankv.connect(self._url) as client:
                table = None
                while not is_over():
                    try:
                        table = table or await client.table(self._name)
                        answer = await read(table)
                    except TableRecreated:
                        table = None
                    except TableNotFound:
                        await asyncio.sleep(0.01)
                    except ScanKvError as error:
                        if not isinstance(error, self._expected):
                            self.errors[kind, f"{type(error).__name__}: {error}"[:120]] += 1
                        await asyncio.sleep(0.01)
                    else:
                        self.reads[kind] += 1
                        if not is_right(answer):
                            self.wrong.setdefault(kind, []).append(answer)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(alter())
            if self._fails:
                tasks.create_task(fail())
            for kind, read in reads.items():
                tasks.create_task(repeat(kind, read))
        return changes

    def check(self, kinds: Mapping[str, Read]) -> None:
        """Checks that reads were answered, in a long story of every kind, and always rightly."""
        assert not self.wrong, {kind: answers[:5] for kind, answers in self.wrong.items()}
        assert not self.errors, self.errors
        # A machine that is busy may not get to every kind of read in a short story.
        is_short = self._fails or self._seconds < 10
        assert self.reads if is_short else set(self.reads) >= set(kinds), self.reads
