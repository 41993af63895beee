"""ScanKV through its asyncio client."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from aio_client import StartFrom, connect
from benchmarks import t4
from benchmarks.field.clients.field_client import (
    BELOW,
    LOAD_ROWS,
    PROJECTED,
    TOP,
    FieldClient,
    check_found,
    time_awaited,
    time_callers,
)
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from aio_client import Client, Scan, Table

_BASE_SECONDS: Final = 600.0
# A bucket of a hashed table may have somewhat fewer rows than the mean, and needs 100,000.
_ROWS_WITH_BASE: Final = 120_000
_POLL_SECONDS: Final = 0.05


class ScanKvClient(FieldClient):
    """A table with the default options. If it is large enough for columnar bases, its reads wait until it has them."""

    COLUMNAR_BASE: ClassVar[str] = "auto"

    def open(self) -> None:
        self.runner = self.stack.enter_context(asyncio.Runner())
        self.client = self.runner.run(self._connect())
        self.stack.callback(lambda: self.runner.run(self.client.aclose()))
        self.table: Table | None = None

    def run(self, work: Coroutine[Any, Any, Timing]) -> Timing:
        return self.runner.run(work)

    def load(self) -> Timing:
        if self.table is not None:
            self.runner.run(self.client.drop_table(t4.TABLE))
        self.table = self.runner.run(
            self.client.create_table(
                t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=self.buckets, columnar_base=self.COLUMNAR_BASE
            )
        )
        upsert = self.table.upsert
        return self.load_batches(t4.batches(self.rows, LOAD_ROWS), lambda batch: self.runner.run(upsert(batch)))

    def settle(self) -> None:
        if self.rows >= _ROWS_WITH_BASE * self.buckets:
            self.runner.run(self._wait_for_bases())

    def scan(self) -> Timing:
        return self.run(self._scan(self._loaded.scan())).check_rows(self.rows)

    def project(self) -> Timing:
        return self.run(self._scan(self._loaded.scan(PROJECTED))).check_rows(self.rows)

    def select(self) -> Timing:
        found = self.run(self._scan(self._loaded.scan(where=f"amount < {BELOW}")))
        return Timing(self.rows, found.check_rows(self.expected_selected()).seconds)

    def count(self, seed: int) -> Timing:
        return self.time_count(seed, lambda below: self.runner.run(self._loaded.count(f"amount < {below}")))

    def call_nothing(self, calls: int) -> Timing:
        return self.run(time_awaited(range(calls), lambda _: self.client.wait_ready()))

    def get(self, calls: int, seed: int) -> Timing:
        return self.run(time_awaited(self.ids(calls, seed), self._get))

    def get_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        return self.run(time_callers(self.ids(calls, seed), [self._get] * callers))

    def write(self, calls: int, seed: int) -> Timing:
        return self.run(time_awaited([[row] for row in self.updates(calls, seed)], self._loaded.upsert))

    def write_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        rows = [[row] for row in self.updates(calls, seed)]
        return self.run(time_callers(rows, [self._loaded.upsert] * callers))

    def index(self) -> None:
        self.runner.run(self.client.alter_table(t4.TABLE, add_indexes=["amount"]))
        self.table = self.runner.run(self.client.table(t4.TABLE))

    def top_n(self, calls: int) -> Timing:
        return self.run(time_awaited(range(calls), lambda _: self._loaded.top_n(TOP, order_by="amount")))

    def change(self, calls: int, seed: int) -> Timing:
        return self.run(self._change(self.updates(calls, seed)))

    @property
    def _loaded(self) -> Table:
        assert self.table is not None
        return self.table

    async def _connect(self) -> Client:
        return await connect(self.address)

    async def _get(self, key: int) -> None:
        check_found(await self._loaded.get(key), key)

    async def _scan(self, scan: Scan) -> Timing:
        started, rows = time.perf_counter(), 0
        async for batch in scan.stream():
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)

    async def _change(self, rows: list[dict[str, Any]]) -> Timing:
        seconds = 0.0
        async with self._loaded.changes(StartFrom.LATEST).stream() as stream:
            # Not measured: its change shows that the stream has begun.
            await self._change_one(stream, rows[0] | {"amount": rows[0]["amount"] - 1})
            for row in rows:
                seconds += await self._change_one(stream, row)
        return Timing(len(rows), seconds)

    async def _change_one(self, stream: Any, row: dict[str, Any]) -> float:  # noqa: ANN401
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._loaded.upsert([row]))
            while True:
                batch = await anext(stream)
                if row["amount"] in batch.column("amount").to_pylist():
                    return time.perf_counter() - started

    async def _wait_for_bases(self) -> None:
        # The server builds bases only for tables that are scanned.
        async with self._loaded.scan().stream() as stream:
            await anext(stream)
        deadline = time.monotonic() + _BASE_SECONDS
        while any(bucket.base is None or bucket.base.unused_reason for bucket in await self._loaded.stats()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server has built no bases within {_BASE_SECONDS:g} s")
            await asyncio.sleep(_POLL_SECONDS)


class FirstScanClient(ScanKvClient):
    """A table without columnar bases. It is read from RocksDB, as the first scans of every table are."""

    COLUMNAR_BASE = "off"
    CANNOT: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("call_nothing", "get", "get_concurrently", "write", "write_concurrently", "top_n", "change"), "as ScanKV"
    )

    def settle(self) -> None:
        """Waits for nothing: the server builds no bases."""
