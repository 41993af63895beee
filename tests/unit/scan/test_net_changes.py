"""Computing net changes: cancellation cleans up, and nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pytest

from streaming_server.engine.tasks.executor import StorageExecutor
from streaming_server.scan.changes.log_token import NetPosition
from streaming_server.scan.changes.net_changes import NetChanges
from streaming_server.storage.changelog.records import Changes, LogRecord
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")

pytestmark = pytest.mark.asyncio


class BlockedBacklogReader:
    """A backlog reader whose work in threads starts, then blocks until `resume` is set."""

    def __init__(self, records: Sequence[LogRecord]) -> None:
        self.executor = StorageExecutor(1)
        self.records = records
        self.started = threading.Event()
        self.resume = threading.Event()
        self.ended = threading.Event()

    async def read(self, start: int, end: int) -> Sequence[LogRecord]:
        return self.records

    async def run(self, function: Callable[..., T], *args: object) -> T:
        def blocked() -> T:
            self.started.set()
            assert self.resume.wait(60)
            result = function(*args)
            self.ended.set()
            return result

        return await self.executor.run(blocked)


async def test_a_cancelled_catch_up_waits_for_its_thread_before_it_removes_its_files(tmp_path: Path) -> None:
    rows = pa.record_batch({"k": pa.array(range(10))})
    record = LogRecord(0, 0, 1, np.zeros(10, np.int64), Changes(np.zeros(10, np.uint8), rows))
    reader = BlockedBacklogReader([record])
    net = NetChanges(
        reader,
        0,
        NetPosition(10),
        keys_of=lambda rows: rows.column("k").cast(pa.string()).cast(pa.binary()),
        rows_of=lambda record: record.changes.rows,
        encode=lambda rows: rows.column("k").cast(pa.string()).cast(pa.binary()),
        directory=tmp_path / "net",
        memory_bytes=1 << 20,
    )
    task = asyncio.create_task(net.run(lambda: None))

    async def has_begun() -> bool:
        return reader.started.is_set()

    await await_until(has_begun, "the work has started")
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    assert list((tmp_path / "net").iterdir()), "the thread may still write there"
    reader.resume.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reader.ended.is_set()
    assert not list((tmp_path / "net").iterdir())
    reader.executor.close()
