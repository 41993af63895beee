"""What the comparison asks of every system."""

from __future__ import annotations

import asyncio
import importlib
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np

from benchmarks import t4
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

PROJECTED: Final = ("name", "amount")
"""The columns of the projection."""

BELOW: Final = 100.0
"""The predicate is `amount < 100`. Amounts are scattered evenly over 0 to 10,000, so it keeps 1 %."""

TOP: Final = 10
"""The number of rows of the top-N, by `amount`, greatest first."""

LOAD_ROWS: Final = 100_000
"""The rows of one call of a load, for systems that take Arrow data."""


class FieldClient:
    """A client in its own process. A system that lacks an operation lists it in `CANNOT` and does not implement it.

    Every measured method returns the number of rows or calls, and the seconds that they took. It fails if a result is
    not complete.

    Args:
        address: Where the system's server listens, or the directory of a system without a server.
        rows: The number of rows of T4.
        buckets: The number of buckets, for systems that have them.
    """

    CANNOT: ClassVar[Mapping[str, str]] = {}

    def __init__(self, address: str, rows: int, buckets: int) -> None:
        self.address = address
        self.rows = rows
        self.buckets = buckets
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def open(self) -> None:
        """Connects. `self.stack` closes at the end what this method enters."""
        raise NotImplementedError

    def load(self) -> Timing:
        """Creates the table, dropping an existing one, and writes all rows. Only writing is timed."""
        raise NotImplementedError

    def settle(self) -> None:
        """Waits until the system has done what it does by itself with rows that were loaded. Not timed."""

    def scan(self) -> Timing:
        """Reads all rows."""
        raise NotImplementedError

    def project(self) -> Timing:
        """Reads two of the four columns of all rows."""
        raise NotImplementedError

    def select(self) -> Timing:
        """Reads the rows that match the predicate. Counts all rows, since each must be considered."""
        raise NotImplementedError

    def count(self, seed: int) -> Timing:
        """Counts the rows that match a predicate. Counts all rows as considered, as `select` does.

        Args:
            seed: A number that no other call has, so that no system can answer with the result of an earlier call.
        """
        raise NotImplementedError

    def call_nothing(self, calls: int) -> Timing:
        """Makes calls that do nothing, one after the other."""
        raise NotImplementedError

    def get(self, calls: int, seed: int) -> Timing:
        """Reads random rows by key, one after the other."""
        raise NotImplementedError

    def get_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        """Reads random rows by key with so many concurrent callers."""
        raise NotImplementedError

    def write(self, calls: int, seed: int) -> Timing:
        """Updates random rows durably, one after the other."""
        raise NotImplementedError

    def write_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        """Updates random rows durably with so many concurrent callers."""
        raise NotImplementedError

    def index(self) -> None:
        """Builds an index on `amount`."""
        raise NotImplementedError

    def top_n(self, calls: int) -> Timing:
        """Polls the top-N; nothing changes between the calls."""
        raise NotImplementedError

    def change(self, calls: int, seed: int) -> Timing:
        """Updates rows, each after the change before has reached a listener. Times from the write to the listener."""
        raise NotImplementedError

    def load_batches(self, batches: Iterable[pa.RecordBatch], write: Callable[[pa.RecordBatch], object]) -> Timing:
        """Writes batches with `write`. Making the rows is not timed."""
        seconds, rows = 0.0, 0
        for batch in batches:
            started = time.perf_counter()
            write(batch)
            seconds += time.perf_counter() - started
            rows += batch.num_rows
        return Timing(rows, seconds).check_rows(self.rows)

    def ids(self, count: int, seed: int) -> list[int]:
        """Returns random keys of existing rows."""
        found: list[int] = np.random.default_rng(seed).integers(0, self.rows, count).tolist()
        return found

    def updates(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Returns random rows with amounts that no earlier call has written.

        The new amounts are negative, so that they change no top-N, and differ by seed, since some systems ignore an
        update that changes nothing.
        """
        rows = [t4.rows(each, 1).to_pylist()[0] for each in self.ids(count, seed)]
        return [row | {"amount": -(seed + number / count)} for number, row in enumerate(rows)]

    def time_count(self, seed: int, count: Callable[[float], int]) -> Timing:
        """Times one count of the rows with an amount below a bound, which `count` takes. Checks what it returns."""
        below = BELOW + seed / 1000
        started = time.perf_counter()
        counted = count(below)
        timing = Timing(counted, time.perf_counter() - started).check_rows(self.expected_selected(below))
        return Timing(self.rows, timing.seconds)

    def expected_selected(self, below: float = BELOW) -> int:
        """Returns how many of the loaded rows match the predicate."""
        return sum(
            int(np.count_nonzero(batch.column("amount").to_numpy() < below))
            for batch in t4.batches(self.rows, LOAD_ROWS)
        )


def check_found(found: object, key: int) -> None:
    """Raises RuntimeError if a read by key has not found its row."""
    if not found:
        raise RuntimeError(f"the row with the key {key} was not found")


def time_calls(arguments: Sequence[Any], call: Callable[[Any], object]) -> Timing:
    """Times one call for each argument."""
    started = time.perf_counter()
    for argument in arguments:
        call(argument)
    return Timing(len(arguments), time.perf_counter() - started)


async def time_awaited(arguments: Sequence[Any], call: Callable[[Any], Awaitable[object]]) -> Timing:
    """Times one awaited call for each argument."""
    started = time.perf_counter()
    for argument in arguments:
        await call(argument)
    return Timing(len(arguments), time.perf_counter() - started)


async def time_callers(arguments: Sequence[Any], calls: Sequence[Callable[[Any], Awaitable[object]]]) -> Timing:
    """Times concurrent callers. Each makes its next call when its last one has returned, until no argument is left."""
    waiting = iter(arguments)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(_call_each(waiting, call))
    return Timing(len(arguments), time.perf_counter() - started)


async def _call_each(waiting: Iterator[Any], call: Callable[[Any], Awaitable[object]]) -> None:
    for argument in waiting:
        await call(argument)


def import_library(name: str) -> Any:  # noqa: ANN401  # from a package that may be missing
    """Imports a library that may not be installed, so that type checks do not depend on it."""
    return importlib.import_module(name)
