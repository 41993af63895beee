"""What `scankv bench` measures."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from aio_client import Client, ScanKvError, Table, TableNotFound, connect
from scankv.cli.connecting import PROFILE, check_listening
from scankv.cli.outcome import complain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

_DATABASE: Final = "scankv_bench"
_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("ts", pa.timestamp("us")),
    ]
)
_LOAD_ROWS: Final = 100_000
_FIRST_TS: Final = 1_700_000_000_000_000
_DROP_SECONDS: Final = 10.0
_BASE_SECONDS: Final = 60.0
"""For so long, a round waits for columnar bases, which are built within seconds on a server that is not busy."""
_CHECK_SECONDS: Final = 2.0
"""For so long, the server may give the reason that it found before the rows were loaded."""
_POLL_SECONDS: Final = 0.05
_WARM_UP_CALLS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchScale:
    """How much is measured.

    Attributes:
        rows: The rows of the table.
        calls: The calls of each kind in a round.
        in_flight: The number of concurrent callers.
        rounds: How often everything is measured.
        buckets: The buckets of the table. None: the default of new tables.
    """

    rows: int
    calls: int
    in_flight: int
    rounds: int
    buckets: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The rates of one kind of work.

    Attributes:
        name: What was measured.
        unit: What the rates count: `calls` or `rows`.
        rates: Calls or rows per second, by round.
        no_op_rates: Calls per second that do nothing, one after the other, by round.
        is_sequential: Whether one call was made after the other.
    """

    name: str
    unit: str
    rates: Sequence[float]
    no_op_rates: Sequence[float]
    is_sequential: bool

    @property
    def per_second(self) -> float:
        """The median rate."""
        return statistics.median(self.rates)

    @property
    def per_no_op_call(self) -> float:
        """The median over the rounds of the calls or rows in the time of a call that does nothing."""
        return statistics.median(rate / no_op for rate, no_op in zip(self.rates, self.no_op_rates, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseBuilds:
    """How soon scans of a table that is new read its columnar bases.

    Attributes:
        seconds: From the first scan until every bucket has a base, by round. None: not within a minute, or never.
        unused_reason: The human-readable reason why a round had too few. Empty: all rounds had all.
    """

    seconds: Sequence[float | None]
    unused_reason: str


async def measure(
    url: str | None, scale: BenchScale, report: Callable[[str], object] = lambda _: None
) -> tuple[list[Measurement], BaseBuilds]:
    """Measures a server with a new table, and drops the table.

    Args:
        url: The server; None as for `connect`.
        scale: How much to measure.
        report: Is called with what is measured next.
    """
    async with connect(url, profile=PROFILE.get()) as client:
        check_listening(client.config)
        # Fails at once if no server listens, before a table may have been created.
        await client.stats()
        for _ in range(_WARM_UP_CALLS):
            await client.wait_ready()
        rates: dict[str, list[float]] = {}
        waited: list[float | None] = []
        unused_reason = ""
        for number in range(scale.rounds):
            # A new table in each round, so that each load inserts rows, and so that rounds are alike.
            async with _new_table(client, scale.buckets) as table:
                current = _Round(client, table, scale, number)
                for name, measured in current.steps().items():
                    report(f"round {number + 1} of {scale.rounds}: {name}")
                    rates.setdefault(name, []).append(await measured())
                waited.append(current.base_seconds)
                unused_reason = current.unused_reason or unused_reason
    found = [
        Measurement(
            name=name,
            unit="rows" if name in _BULK else "calls",
            rates=by_round,
            no_op_rates=rates[_NO_OP],
            is_sequential=name in _SEQUENTIAL,
        )
        for name, by_round in rates.items()
    ]
    return found, BaseBuilds(seconds=waited, unused_reason=unused_reason)


_NO_OP: Final = "no-op call"
_LOAD: Final = "load"
FIRST_SCAN: Final = "first scan"
THIRD_SCAN: Final = "third scan"
_GET: Final = "get"
_UPSERT: Final = "durable one-row upsert"
_BULK: Final = (_LOAD, FIRST_SCAN, THIRD_SCAN)
_SEQUENTIAL: Final = (_NO_OP, _GET, _UPSERT)


class _Round:
    """Measures everything once.

    Attributes:
        base_seconds: From the first scan until every bucket had a columnar base. None: not all had one.
        unused_reason: The human-readable reason why one had none. Empty: all had one.
    """

    def __init__(self, client: Client, table: Table, scale: BenchScale, number: int) -> None:
        self._client = client
        self._table = table
        self._scale = scale
        self._random = np.random.default_rng(number)
        self.base_seconds: float | None = None
        self.unused_reason = ""

    def steps(self) -> dict[str, Callable[[], Awaitable[float]]]:
        """Returns the functions that measure, by name and in order. Each returns calls or rows per second."""
        concurrent = f"{self._scale.in_flight} in flight"
        return {
            _NO_OP: lambda: self._run(1, range(self._scale.calls), lambda _: self._client.wait_ready()),
            _LOAD: self._load,
            FIRST_SCAN: self._scan,
            THIRD_SCAN: self._scan_with_bases,
            _GET: lambda: self._run(1, self._ids(), self._get),
            f"{_GET}, {concurrent}": lambda: self._run(self._scale.in_flight, self._ids(), self._get),
            _UPSERT: lambda: self._run(1, self._updates(1), self._table.upsert),
            f"{_UPSERT}, {concurrent}": lambda: self._run(self._scale.in_flight, self._updates(2), self._table.upsert),
        }

    async def _run(self, callers: int, arguments: Sequence[Any], call: Callable[[Any], Awaitable[object]]) -> float:
        waiting = iter(arguments)

        async def call_each() -> None:
            for argument in waiting:
                await call(argument)

        started = time.perf_counter()
        tasks = [asyncio.create_task(call_each()) for _ in range(callers)]
        try:
            await asyncio.gather(*tasks)
            return len(arguments) / (time.perf_counter() - started)
        finally:
            # After an error of one caller, the others must not continue with a table that is being dropped.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self) -> float:
        seconds = 0.0
        for batch in _batches(self._scale.rows):
            started = time.perf_counter()
            await self._table.upsert(batch)
            seconds += time.perf_counter() - started
        return self._scale.rows / seconds

    async def _scan(self) -> float:
        started, rows = time.perf_counter(), 0
        async for batch in self._table.scan().stream():
            rows += batch.num_rows
        seconds = time.perf_counter() - started
        self._check(rows == self._scale.rows, f"the scan returned {rows:,} of {self._scale.rows:,} rows")
        return rows / seconds

    async def _scan_with_bases(self) -> float:
        """Scans twice as soon as every bucket has a columnar base, and measures the second time."""
        began = time.perf_counter()
        while True:
            bases = [bucket.base for bucket in await self._table.stats()]
            reasons = ["the table has columnar_base=off" if base is None else base.unused_reason for base in bases]
            seconds = time.perf_counter() - began
            self.unused_reason = next(filter(None, reasons), "")
            if not self.unused_reason:
                self.base_seconds = seconds
                break
            # A bucket with too few rows never has a base, and one that the server has not looked at has another reason.
            is_small = "base_min_rows" in self.unused_reason and seconds > _CHECK_SECONDS
            if None in bases or is_small or seconds > _BASE_SECONDS:
                break
            await asyncio.sleep(_POLL_SECONDS)
        await self._scan()
        return await self._scan()

    async def _get(self, key: int) -> None:
        self._check(await self._table.get(key) is not None, f"the row with the id {key} was not found")

    def _check(self, is_right: bool, problem: str) -> None:
        if not is_right:
            raise ScanKvError(f"{self._table.name}: {problem}, although only this command knows the table")

    def _ids(self) -> list[int]:
        found: list[int] = self._random.integers(0, self._scale.rows, self._scale.calls).tolist()
        return found

    def _updates(self, part: int) -> list[list[dict[str, Any]]]:
        """Returns single rows with amounts that no row has, since an update that changes nothing is not stored."""
        pairs = enumerate(self._ids())
        return [
            [_rows(key, 1).to_pylist()[0] | {"amount": -part - number / self._scale.calls}] for number, key in pairs
        ]


@asynccontextmanager
async def _new_table(client: Client, buckets: int | None) -> AsyncIterator[Table]:
    """Creates a table with a unique name, and drops it at the end, however the block ends."""
    name = f"{_DATABASE}.t_{secrets.token_hex(8)}"
    try:
        yield await client.create_table(name, _SCHEMA, primary_key=["id"], buckets=buckets)
    finally:
        try:
            async with asyncio.timeout(_DROP_SECONDS):
                await client.drop_table(name)
        except TableNotFound:
            # It was not created, or another client has dropped it.
            pass
        except (ScanKvError, TimeoutError) as error:
            complain(f"the table {name} may remain: {error or 'the server did not answer'}; run: scankv drop {name}")


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, _LOAD_ROWS):
        yield _rows(start, min(_LOAD_ROWS, rows - start))


def _rows(start: int, count: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count, dtype=np.int64)
    scattered = ids * 2_654_435_761 % 1_000_003
    names = pa.array([f"name-{number}" for number in scattered.tolist()])
    ts = pa.array(_FIRST_TS + 1000 * ids).cast(pa.timestamp("us"))
    return pa.RecordBatch.from_arrays([pa.array(ids), names, pa.array(scattered / 100), ts], schema=_SCHEMA)
