"""Apache Fluss through pyfluss."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks import t4
from benchmarks.field.clients.field_client import (
    LOAD_ROWS,
    FieldClient,
    check_found,
    import_library,
    time_awaited,
    time_callers,
)
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    import pyarrow as pa

_NO_SCAN: Final = "the full scan (FIP-17) needs Fluss 1.0, which is not released: not measured"
_MOST_GETS: Final = 20
_POLL_MILLIS: Final = 10_000
_BATCHING_MILLIS: Final = 1
_FETCH_MILLIS: Final = 10
_DATABASE: Final = "bench"


class FlussClient(FieldClient):
    """Writes wait 1 ms for others to share a request, and readers of changes ask every 10 ms.

    The defaults are 100 and 500 ms. Lookups also wait 100 ms, which pyfluss has no setting for; the client in Java has.
    """

    CANNOT: ClassVar[Mapping[str, str]] = {
        "scan": _NO_SCAN,
        "project": _NO_SCAN,
        "select": _NO_SCAN,
        "count": _NO_SCAN,
        "call_nothing": "has no such call",
        "top_n": "has no order by",
    }

    def open(self) -> None:
        self.fluss = import_library("fluss")
        self.path = self.fluss.TablePath(_DATABASE, "t4")
        self.runner = self.stack.enter_context(asyncio.Runner())
        self.connection: Any = None
        self.stack.callback(lambda: self.runner.run(self._close()))

    def load(self) -> Timing:
        # A connection numbers its batches. After the table was dropped, the server refuses the next number at first.
        self.runner.run(self._close())
        self.runner.run(self._create())
        timing = self.load_batches(t4.batches(self.rows, LOAD_ROWS), lambda batch: self.runner.run(self._load(batch)))
        # A lookup of the last row shows that its bucket serves what was acknowledged.
        self.runner.run(self._new_get()(self.rows - 1))
        return timing

    def get(self, calls: int, seed: int) -> Timing:
        get = self._new_get()
        return self.runner.run(time_awaited(self.ids(min(calls, _MOST_GETS), seed), get))

    def get_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        ids = self.ids(min(calls, _MOST_GETS * callers), seed)
        return self.runner.run(time_callers(ids, [self._new_get() for _ in range(callers)]))

    def write(self, calls: int, seed: int) -> Timing:
        return self.runner.run(time_awaited(self.updates(calls, seed), self._write))

    def write_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        return self.runner.run(time_callers(self.updates(calls, seed), [self._write] * callers))

    def index(self) -> None:
        """Builds none: Fluss has no indexes."""

    def change(self, calls: int, seed: int) -> Timing:
        return self.runner.run(self._change(self.updates(calls, seed)))

    async def _close(self) -> None:
        if self.connection is not None:
            await self.connection.close()
            self.connection = None

    async def _create(self) -> None:
        config = self.fluss.Config({"bootstrap.servers": self.address})
        config.writer_acks = "all"
        config.writer_batch_timeout_ms = _BATCHING_MILLIS
        config.scanner_log_fetch_wait_max_time_ms = _FETCH_MILLIS
        self.connection = await self.fluss.FlussConnection.create(config)
        admin = self.connection.get_admin()
        await admin.create_database(_DATABASE, ignore_if_exists=True)
        await admin.drop_table(self.path, ignore_if_not_exists=True)
        schema = self.fluss.Schema(t4.SCHEMA, primary_keys=list(t4.PRIMARY_KEY))
        await admin.create_table(self.path, self.fluss.TableDescriptor(schema, bucket_count=self.buckets))
        self.table = await self.connection.get_table(self.path)
        self.writer = self.table.new_upsert().create_writer()

    async def _load(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self.writer.upsert(row)
        await self.writer.flush()

    def _new_get(self) -> Callable[[int], Coroutine[Any, Any, None]]:
        """Returns a function that reads a row. A lookuper runs one lookup at a time, so each caller has its own."""
        lookuper = self.table.new_lookup().create_lookuper()

        async def get(key: int) -> None:
            check_found(await lookuper.lookup({"id": key}), key)

        return get

    async def _write(self, row: dict[str, Any]) -> None:
        await self.writer.upsert(row).wait()

    async def _change(self, rows: list[dict[str, Any]]) -> Timing:
        buckets = list(range(self.buckets))
        offsets = await self.connection.get_admin().list_offsets(self.path, buckets, self.fluss.OffsetSpec.latest())
        scanner = await self.table.new_scan().create_log_scanner()
        scanner.subscribe_buckets(offsets)
        # Not measured: its change shows that the scanner has begun.
        await self._change_one(scanner, rows[0] | {"amount": rows[0]["amount"] - 1})
        seconds = 0.0
        for row in rows:
            started = time.perf_counter()
            await self._change_one(scanner, row)
            seconds += time.perf_counter() - started
        return Timing(len(rows), seconds)

    async def _change_one(self, scanner: Any, row: dict[str, Any]) -> None:  # noqa: ANN401
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write(row))
            while True:
                records = await scanner.poll(_POLL_MILLIS)
                if any(record.row["amount"] == row["amount"] for record in records):
                    return
