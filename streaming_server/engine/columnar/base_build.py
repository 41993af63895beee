"""Builds one columnar base: from the previous base and its delta, or from the rows in RocksDB."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from scankv.model.errors import DataLoss
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.bucket_cursors import BucketCursors
from streaming_server.scan.chunk_source import View
from streaming_server.scan.columnar.base_cursor import BaseCursor
from streaming_server.scan.columnar.delta import Delta
from streaming_server.scan.rows.kv_source import KvSource
from streaming_server.storage.columnar.base_writer import BaseWriter
from streaming_server.storage.columnar.columnar_base import ColumnarBase, remove_bases
from streaming_server.storage.files.disk_space import disk_full, translate_disk_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.chunk_source import Cursor
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.rows.row_codec import RowCodec

T = TypeVar("T")

SPARED_BYTES: Final = 256 << 20
"""Disk space beyond the reserve that builds leave for writes. A bucket whose sync finds no space has to be reopened."""

_STEP_ROWS: Final = 8192
_STEP_BYTES: Final = 1 << 20
_log: Final = logging.getLogger(__name__)


class BaseNotBuiltError(Exception):
    """The build was given up, without an effect on writes. The message has the reason."""


class CpuShare:
    """Limits background work to a share of one core: `rest` waits long enough after each piece of work.

    Attributes:
        spent: The processor time of all pieces of work, in seconds.
    """

    def __init__(self, executor: StorageExecutor, share: float) -> None:
        self.spent = 0.0
        self._executor = executor
        self._share = share
        self._owed = 0.0

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs a blocking piece of work in a thread."""
        result: T
        result, seconds = await self._executor.run(_measure_cpu, function, *args)
        self._add_cost(seconds)
        return result

    def here(self, function: Callable[..., T], *args: object) -> T:
        """Runs a short piece of work on the event loop."""
        result, seconds = _measure_cpu(function, *args)
        self._add_cost(seconds)
        return result

    async def rest(self) -> None:
        """Waits until the work since the last call is within the share."""
        owed, self._owed = self._owed, 0.0
        await asyncio.sleep(owed)

    def _add_cost(self, seconds: float) -> None:
        self.spent += seconds
        self._owed += seconds * (1 / self._share - 1)


class BaseBuild:
    """Builds one base of a bucket, which scans read from then on.

    Args:
        table: The table.
        live: The bucket.
        directory: The directory of the bucket's bases.
        share: Runs the work within a share of a core.
    """

    def __init__(self, table: TableState, live: LiveBucket, directory: Path, share: CpuShare) -> None:
        self._table = table
        self._live = live
        self._directory = directory
        self._share = share
        self._spent_before = share.spent

    async def run(self) -> None:
        """Builds the base. Scans read the previous base until the new one is ready.

        If the build fails, scans continue to read the previous base, unless that base is damaged.

        Raises:
            BaseNotBuiltError: The bucket lost its delta during the build, for lack of memory or disk space.
            DataLoss: The bucket is damaged.
            DiskFull: The disk is full, or almost full.
            OSError: The files cannot be written for another reason.
        """
        table, live = self._table, self._live
        async with live.mutex:
            bucket = live.open_bucket
            if bucket is None:
                return
            # Read with the mutex held: the previous holder may have written rows of a newer schema.
            codec, state, offset = table.codec.rows, bucket.state, bucket.state.log_offset
            changed, live.columnar.record.wanted = live.columnar.record.changed_bytes, False
            cursor, delta = self._begin_cursor(bucket, codec, offset)
            current = live.columnar.delta
            assert current is not None
            since = current.view()
            view = View({live.number: offset}, table.clock.commit_micros(), None)
            cursors = BucketCursors(lambda _: cursor)
            cursors.create(live.number)
            source = KvSource(
                codec.schema, codec.definition.schema.id, view, [live.number], cursors, None, lambda _, error: error
            )
            table.abort_on_close(source)
        try:
            with closing(source):
                # In a thread: otherwise the first step would merge the delta on the event loop.
                await self._share.run(since.merge)
                await live.wait_durable(offset)
                if codec.write_time is not None:
                    # The base may have times that were set without a change, and so without an offset.
                    await live.wait_written()
                with translate_disk_errors(self._directory):
                    base = await self._write_base(codec, source, state, lambda: live.columnar.delta is current)
                async with live.mutex:
                    written_since = delta.view()
                # Scans read the new base at once, so little may be left for them to merge.
                await self._share.run(written_since.merge)
                async with live.mutex:
                    # Not if a write could not be added to the delta, or the previous base was found damaged.
                    if live.columnar.delta is current:
                        live.columnar.record.adopt(base.info.disk_bytes, base.info.cut_millis)
                        live.columnar.record.changed_bytes -= changed
                        await self._share.run(live.columnar.install, base, delta, current)
        except BaseException as error:
            if live.columnar.delta is delta or isinstance(error, DataLoss):
                live.columnar.drop("the last build failed")
            current.end_fork()
            self._record_cost(0)
            if isinstance(error, DataLoss) and current is not delta:
                # Either the previous base or the bucket is damaged. The next build, from the rows, will show which.
                _log.error("a columnar base is no longer read, and is built again: %s", error.message)
                live.columnar.record.lost = "it was damaged"
                return
            raise
        self._record_cost(base.info.disk_bytes)
        await self._share.run(_remove, self._directory, base.info.name)
        await self._share.rest()

    def _begin_cursor(self, bucket: Bucket, codec: RowCodec, offset: int) -> tuple[Cursor, Delta]:
        """Returns a cursor over all rows as of now, and the new base's delta, which gets all writes from now on."""
        live, columns = self._live, codec.timed_columns
        if live.columnar.base is not None and live.columnar.delta is not None:
            net = live.columnar.delta.view().merge
            old = BaseCursor(
                live.columnar.base, net, codec, columns, None, KeyRange(), reverse=False, location=live.location
            )
            return old, live.columnar.delta.fork(offset)
        cursor = bucket.cursor(codec, codec.decoder(columns), self._table.codec.key_codec, KeyRange())
        live.columnar.base, live.columnar.delta = None, Delta(offset)
        return cursor, live.columnar.delta

    async def _write_base(
        self, codec: RowCodec, source: KvSource, state: BucketState, is_wanted: Callable[[], bool]
    ) -> ColumnarBase:
        share, live = self._share, self._live
        writer = await share.run(
            partial(BaseWriter, self._directory, codec.definition, live.number, now_micros=source.view.micros)
        )
        try:
            while (chunk := share.here(source.next_chunk, _STEP_ROWS, _STEP_BYTES)) is not None:
                await share.run(_write, writer, chunk.batch, self._table, self._table.reserve.bytes)
                await share.rest()
                if not is_wanted():
                    raise BaseNotBuiltError("it was dropped during the build")
            path = await share.run(writer.finish, state.log_offset, state.time_restarts)
        except BaseException:
            await share.run(writer.discard)
            raise
        base = await share.run(ColumnarBase.open, path, live.location)
        await share.rest()
        return base

    def _record_cost(self, written: int) -> None:
        record, spent = self._live.columnar.record, self._share.spent - self._spent_before
        record.cpu_seconds += spent
        if written:
            record.builds += 1
            record.written_bytes += written
            record.last_cpu_seconds, record.last_written_bytes = spent, written


def _measure_cpu(function: Callable[..., T], *args: object) -> tuple[T, float]:
    began = time.thread_time()
    result = function(*args)
    return result, time.thread_time() - began


def _write(writer: BaseWriter, rows: pa.RecordBatch, table: TableState, reserve_bytes: int) -> None:
    """Writes rows to the base. Raises DiskFull if the disk is almost full."""
    if shutil.disk_usage(table.path).free < SPARED_BYTES + reserve_bytes:
        raise disk_full(table.path, "the remaining space is reserved for writes; free some space")
    if rows.num_rows:
        writer.write(rows, table.codec.keys.encode_stored(rows))


def _remove(directory: Path, but: str | None) -> None:
    remove_bases(directory, but=but)
