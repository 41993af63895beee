"""Columnar bases kept near their tables in the background: built, built anew, and taken up again after a start."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from streaming_server.engine.base_replay import BaseReplay
from streaming_server.scan.base_cursor import BaseCursor
from streaming_server.scan.chunk_source import Cursor, View
from streaming_server.scan.kv_source import KvSource
from streaming_server.scan.overlay import Overlay
from streaming_server.storage.base_writer import BaseWriter
from streaming_server.storage.columnar_base import ColumnarBase, newest_base, remove_bases
from streaming_server.storage.offsets import count_of
from table_model.errors import DataLoss, ScanKvError
from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pyarrow as pa

    from streaming_server.engine.executor import StorageExecutor
    from streaming_server.engine.live_bucket import LiveBucket
    from streaming_server.engine.live_table import LiveTable
    from streaming_server.storage.bucket import Bucket
    from streaming_server.storage.row_codec import RowCodec

_log: Final = logging.getLogger(__name__)

_STEP_ROWS: Final = 8192
_STEP_BYTES: Final = 1 << 20
_PAUSE_SECONDS: Final = 60.0
"""After what could not be built."""
_SPARED_BYTES: Final = 256 << 20
"""Disk space that bases leave to writes: where a sync finds none, its bucket takes no more writes until a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseLimits:
    """When bases are built, and what they may cost.

    Attributes:
        min_rows: Rows of a bucket from which on it gets one with `columnar_base=auto`.
        changed_share: Changes since a base, as a share of its rows, beyond which it is built anew.
        overlay_bytes: Memory for what was written to one bucket since its base.
        cpu_share: How much of a core building takes at most.
    """

    min_rows: int
    changed_share: float
    overlay_bytes: int
    cpu_share: float


class BaseUpkeep:
    """Keeps the bases of the tables in use, one bucket after another. Bound to the event loop.

    A base is of one offset of its bucket, durable before the base is; RocksDB and the changelog stay the truth, so that
    a base that is lost or damaged costs the time to build it. It is built of the one before and what was written since,
    or else of the rows in RocksDB, in steps as short as those of a scan. Writers wait for neither.

    Args:
        tables: The tables in use, at any time.
        executor: Runs what blocks.
        limits: When, and what it may cost.
        seconds: How often each table is looked at.
    """

    def __init__(
        self,
        tables: Callable[[], Iterable[LiveTable]],
        executor: StorageExecutor,
        limits: BaseLimits,
        *,
        seconds: float,
    ) -> None:
        self._tables = tables
        self._executor = executor
        self._limits = limits
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._not_before: WeakKeyDictionary[LiveBucket, float] = WeakKeyDictionary()

    def start(self) -> None:
        """Starts looking."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops, after the step that is under way; a base that is half built is removed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            for table in list(self._tables()):
                if table.definition.options.columnar_base == "off":
                    continue
                for live in table.buckets:
                    if self._not_before.get(live, 0.0) > time.monotonic():
                        continue
                    try:
                        await self.look_after(table, live)
                    except (ScanKvError, OSError) as error:
                        if live.open_bucket is None:
                            continue  # It was closed meanwhile.
                        # The bucket is damaged, which whoever reads it is told, or the disk is full.
                        _log.warning("columnar base of bucket %s of %s: %s", live.number, live.table, error)
                        self._not_before[live] = time.monotonic() + _PAUSE_SECONDS
                    except Exception:
                        _log.exception("columnar base of bucket %s of %s", live.number, live.table)
                        self._not_before[live] = time.monotonic() + _PAUSE_SECONDS

    async def look_after(self, table: LiveTable, live: LiveBucket) -> None:
        """Does what is due for one bucket of a table, if it is open. Raises DataLoss; OSError when a disk is full."""
        bucket = live.open_bucket
        if bucket is None:
            return
        if live.base is None and not live.base_looked_for:
            live.base_looked_for = True
            await self._take_up(table, live)
        if self._is_due(table, live, bucket):
            await self._build(table, live)

    def _is_due(self, table: LiveTable, live: LiveBucket, bucket: Bucket) -> bool:
        if live.base is None or live.overlay is None or live.overlay.is_full:
            rows = bucket.state.rows
            eager = table.definition.options.columnar_base == "eager"
            # Where their number is not known, that of the changes is: there are at most so many.
            return (bucket.state.count if rows is None else rows) >= (1 if eager else self._limits.min_rows)
        changes = bucket.state.count - count_of(live.base.info.log_offset)
        return (
            changes > self._limits.changed_share * live.base.info.rows
            or live.overlay.nbytes > self._limits.overlay_bytes // 2
        )

    async def _take_up(self, table: LiveTable, live: LiveBucket) -> None:
        """Finds the base that an earlier server has left, and what was written since, in the changelog."""
        directory = _directory(table, live)
        base = await self._executor.run(newest_base, directory, live.place)
        if base is None:
            return
        info, definition = base.info, table.definition
        if (info.incarnation, info.bucket) == (definition.incarnation, live.number):
            replay = BaseReplay(table, live, base, Overlay(info.log_offset, self._limits.overlay_bytes))
            if await replay.run():
                return
        await self._executor.run(_remove, directory, None)

    async def _build(self, table: LiveTable, live: LiveBucket) -> None:
        directory = _directory(table, live)
        async with live.mutex:
            bucket = live.open_bucket
            if bucket is None:
                return
            # Of now: who had the mutex before may have written rows of a newer schema.
            codec, offset = table.codec, bucket.state.log_offset
            cursor, overlay = self._begun(table, live, bucket, codec, offset)
            current = live.overlay
            assert current is not None
            since = current.view()
            view = View({live.number: offset}, time.time_ns() // 1000, None)
            source = KvSource(
                codec.schema, codec.definition.schema.id, view, {live.number: cursor}, None, lambda _, error: error
            )
            table.opens(source)
        try:
            with closing(source):
                # Else the first step would sort them on the event loop.
                await self._executor.run(since.net)
                await live.wait_durable(offset)
                base = await self._written(table, live, codec, source, directory, offset)
        except BaseException as error:
            if live.overlay is overlay or isinstance(error, DataLoss):
                live.forget_base()
            current.end_fork()
            if isinstance(error, DataLoss) and current is not overlay:
                # The base that it was to be made of is damaged, if not the bucket: building of its rows will tell.
                _log.error("a columnar base is read no more, and built again: %s", error.message)
                return
            raise
        async with live.mutex:
            # Else a write could not be noted, or the base that this one is made of was found damaged.
            if live.overlay is current and not overlay.is_full:
                live.base, live.overlay = base, overlay
        await self._executor.run(_remove, directory, base.info.name)

    def _begun(
        self, table: LiveTable, live: LiveBucket, bucket: Bucket, codec: RowCodec, offset: int
    ) -> tuple[Cursor, Overlay]:
        """A cursor over all rows as of now, and where from now on what is written is kept for the new base."""
        if live.base is not None and live.overlay is not None and not live.overlay.is_full:
            net = live.overlay.view().net
            old = BaseCursor(live.base, net, codec, None, None, KeyRange(), reverse=False, place=live.place)
            return old, live.overlay.fork(offset)
        cursor = bucket.cursor(codec, codec.decoder(), table.keys.codec, KeyRange())
        live.base, live.overlay = None, Overlay(offset, self._limits.overlay_bytes)
        return cursor, live.overlay

    async def _written(
        self, table: LiveTable, live: LiveBucket, codec: RowCodec, source: KvSource, directory: Path, offset: int
    ) -> ColumnarBase:
        run = self._executor.run
        writer = await run(BaseWriter, directory, codec.definition, live.number)
        try:
            while True:
                began = time.thread_time()
                chunk = source.next_chunk(_STEP_ROWS, _STEP_BYTES)
                if chunk is None:
                    break
                spent = time.thread_time() - began + await run(_write, writer, chunk.batch, table)
                await asyncio.sleep(spent * (1 / self._limits.cpu_share - 1))
            path = await run(writer.finish, offset)
        except BaseException:
            await run(writer.discard)
            raise
        return await run(ColumnarBase.open, path, live.place)


def _write(writer: BaseWriter, rows: pa.RecordBatch, table: LiveTable) -> float:
    """Writes rows; how many seconds of a core that took. Raises OSError where the disk is almost full."""
    began = time.thread_time()
    if shutil.disk_usage(table.path).free < _SPARED_BYTES:
        raise OSError(errno.ENOSPC, "what is left of the disk is for writes: free some of it", str(table.path))
    if rows.num_rows:
        writer.write(rows, table.keys.encoded(rows))
    return time.thread_time() - began


def _directory(table: LiveTable, live: LiveBucket) -> Path:
    return table.path / "bases" / f"{live.number:04}"


def _remove(directory: Path, but: str | None) -> None:
    remove_bases(directory, but=but)
