"""Makes calls for one row or few rows, and measures what they cost client and server."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from aio_client import agg, connect
from benchmarks import t4
from benchmarks.proc import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NOTHING: Final = "a unary call that does nothing"
GET: Final = "get"
LOOKUP: Final = "lookup of 1,000 keys"
UPSERT: Final = "upsert of one row"
APPEND: Final = "append of one row"
AGGREGATE: Final = "aggregate upsert of 40 rows"
TRANSACTION: Final = "the same in a transaction"

_LOOKUP_KEYS: Final = 1000
_TABLE, _LOG_TABLE, _AGGREGATES_TABLE = "bench.few_rows", "bench.few_events", "bench.few_aggregates"
_AGGREGATE_BUCKETS: Final = 4
_AGGREGATE_ROWS: Final = 40
_AGGREGATE_KEYS: Final = 4000
_AGGREGATE_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("team", pa.string()),
        pa.field("total", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("most", pa.float64()),
    ]
)
_LOAD_ROWS: Final = 50_000


@dataclass(frozen=True, slots=True)
class CallCost:
    """What some calls of one kind have cost.

    Attributes:
        seconds: The seconds from the start of the first call to the end of the last.
        cpu_seconds: The processor time of client and server.
        latencies: The seconds of each call.
    """

    seconds: float
    cpu_seconds: float
    latencies: tuple[float, ...]

    @property
    def calls(self) -> int:
        """The number of calls."""
        return len(self.latencies)

    @property
    def rate(self) -> float:
        """The calls per second."""
        return self.calls / self.seconds

    @property
    def cpu_per_call(self) -> float:
        """The processor seconds of one call."""
        return self.cpu_seconds / self.calls

    @property
    def latency(self) -> float:
        """The median seconds of a call."""
        return statistics.median(self.latencies)


class FewRowsCaller:
    """A client that makes calls for one row or few rows over one connection.

    Args:
        url: The address of the server.
        server: The id of the server's process.
        rows: The number of rows of the table for `GET`, `LOOKUP` and `UPSERT`, which are rows of T4.
        token: The token of the client. None: it has none.
    """

    def __init__(self, url: str, server: int, rows: int, token: str | None = None) -> None:
        self._url = url
        self._token = token
        self._server = server
        self._rows = rows
        self._runner = asyncio.Runner()
        self._random = random.Random(17)
        self._template: dict[str, Any] = t4.rows(0, 1).to_pylist()[0]
        self._written = 0

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def measure(self, work: str, seconds: float, callers: int = 1) -> CallCost:
        """Makes calls of one kind for some time.

        Args:
            work: The kind, one of the constants of this module.
            seconds: For how long callers begin calls.
            callers: The number of concurrent callers, each of which makes its calls one after another.
        """
        return self._runner.run(self._measure(work, seconds, callers))

    async def _open(self) -> None:
        self._client = await connect(self._url, token=self._token)
        self._table = await self._client.create_table(_TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)
        for batch in t4.batches(self._rows, _LOAD_ROWS):
            await self._table.upsert(batch)
        self._events = await self._client.create_table(_LOG_TABLE, t4.SCHEMA, primary_key=[], buckets=t4.BUCKETS)
        self._aggregates = await self._client.create_table(
            _AGGREGATES_TABLE,
            _AGGREGATE_SCHEMA,
            primary_key=["id"],
            buckets=_AGGREGATE_BUCKETS,
            indexes=["team", "total"],
            merge_engine="aggregate",
            aggregators={"team": agg.last_value(), "total": agg.sum(), "rows": agg.count(), "most": agg.max()},
        )
        await self._aggregates.upsert([self._aggregate_row(key) for key in range(_AGGREGATE_KEYS)])
        self._calls: dict[str, Callable[[], Awaitable[object]]] = {
            NOTHING: self._client.wait_ready,
            GET: self._get,
            LOOKUP: self._lookup,
            UPSERT: self._upsert,
            APPEND: self._append,
            AGGREGATE: self._upsert_aggregates,
            TRANSACTION: self._write_transaction,
        }

    async def _measure(self, work: str, seconds: float, callers: int) -> CallCost:
        call = self._calls[work]
        latencies: list[float] = []

        async def make_calls() -> None:
            now = time.perf_counter()
            while now < started + seconds:
                began = now
                await call()
                now = time.perf_counter()
                latencies.append(now - began)

        # Not measured: after this call, the connection and the server are at rest.
        await self._client.wait_ready()
        server, client, started = cpu_seconds(self._server), cpu_seconds(os.getpid()), time.perf_counter()
        if callers == 1:
            await make_calls()
        else:
            await asyncio.gather(*(make_calls() for _ in range(callers)))
        elapsed = time.perf_counter() - started
        cpu = cpu_seconds(self._server) - server + cpu_seconds(os.getpid()) - client
        return CallCost(elapsed, cpu, tuple(latencies))

    async def _get(self) -> None:
        key = self._random.randrange(self._rows)
        row = await self._table.get(key)
        if row is None or row["id"] != key:
            raise RuntimeError(f"get({key}) must return the row of that key, not {row}")

    async def _lookup(self) -> None:
        keys = self._random.sample(range(self._rows), _LOOKUP_KEYS)
        found = await self._table.lookup(pa.array(keys))
        if found.num_rows != _LOOKUP_KEYS:
            raise RuntimeError(f"lookup must return {_LOOKUP_KEYS:,} rows, not {found.num_rows:,}")

    async def _upsert(self) -> None:
        await self._table.upsert([self._row()])

    async def _append(self) -> None:
        await self._events.append([self._row()])

    def _row(self) -> dict[str, Any]:
        self._written += 1
        # The amounts differ, since an update that changes nothing is not an update.
        return {**self._template, "id": self._random.randrange(self._rows), "amount": -float(self._written)}

    async def _upsert_aggregates(self) -> None:
        await self._aggregates.upsert(self._aggregate_rows())

    async def _write_transaction(self) -> None:
        async with await self._client.transaction() as begun:
            await begun.upsert(self._aggregates, self._aggregate_rows())

    def _aggregate_rows(self) -> list[dict[str, Any]]:
        self._written += 1
        return [self._aggregate_row(key) for key in self._random.sample(range(_AGGREGATE_KEYS), _AGGREGATE_ROWS)]

    def _aggregate_row(self, key: int) -> dict[str, Any]:
        team = f"team-{(key + self._written) % 100}"
        return {"id": key, "team": team, "total": 1 + key % 7, "rows": 1, "most": float(self._written)}
