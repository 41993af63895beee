"""Removes expired rows in the background. No view has them, so nothing but disk space depends on when that happens."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from scankv.model.errors import ScanKvError
from scankv.model.expressions import BoundPredicate
from scankv.model.keys.key_range import KeyRange
from streaming_server.engine.bucket.call_point import removable_at
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.engine.writes.bucket_steps import remove_expired
from streaming_server.scan.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.rows.table_codec import TableCodec

_SLICE_ROWS: Final = 2048
"""The most rows that writers of a bucket wait for: reading them takes about a millisecond."""
_SLICE_BYTES: Final = 1 << 20
_SLICE_STEPS: Final = 4
"""The most steps of a slice, where many deleted rows lie between the others."""
_COMMIT_SECONDS: Final = 0.001
"""The processor time that other threads need for a WriteBatch, about."""

_log: Final = logging.getLogger(__name__)


class _Slice(NamedTuple):
    """The next rows of a bucket.

    Attributes:
        expired: The expired rows, as they are stored, by key.
        scanned: The number of rows read.
        last_key: The key up to which the bucket was read. None: to its end.
        seconds: The processor time.
    """

    expired: dict[bytes, bytes]
    scanned: int
    last_key: bytes | None
    seconds: float


class ExpirySweep(Background):
    """Walks through the buckets of all tables whose rows expire, and removes the expired ones. Bound to the event loop.

    A pass reads a bucket in slices, and removes the expired rows of a slice with one WriteBatch under the same hold of
    the bucket's mutex. Nothing is remembered on disk: after a restart, the next pass begins again.

    Rule: after each slice, it pauses in proportion to the processor time of the slice, whatever comes next. So many
    small buckets take no greater share than a large one.

    Args:
        tables: Returns the tables.
        seconds: The pause between two checks of what is due.
        cpu_share: The most processor time, as a share of one core.
        clock: The server's clock.
        pause: Waits for some seconds.
    """

    def __init__(
        self,
        tables: Callable[[], Iterable[TableState]],
        *,
        seconds: float,
        cpu_share: float,
        clock: ServerClock,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._tables = tables
        self._cpu_share = cpu_share
        self._clock = clock
        self._pause = pause
        super().__init__(partial(repeat, seconds, self._look))

    async def _look(self) -> None:
        for table in list(self._tables()):
            expiry = table.definition.expiry
            if expiry is not None and table.sweep.is_due(self._clock.monotonic(), expiry.seconds):
                await self.sweep_table(table)

    async def sweep_table(self, table: TableState) -> None:
        """Makes one pass over a table."""
        table.sweep.begin_pass(self._clock.monotonic())
        for live in table.buckets:
            try:
                await self._sweep_bucket(table, live)
            except ScanKvError as error:
                # The disk is full, or the bucket is damaged, and its readers get an error.
                _log.warning("expired rows of bucket %s of %s: %s", live.number, live.table, error.message)
        if (expiry := table.definition.expiry) is not None:
            table.sweep.end_pass(self._clock.monotonic(), expiry.seconds)

    async def _sweep_bucket(self, table: TableState, live: LiveBucket) -> None:
        start: bytes | None = None
        while table.definition.expiry is not None:
            async with live.mutex:
                bucket = await live.open()
                codec = table.codec
                if bucket.state.rows == 0:
                    return
                stored = bucket.state.rows
                found: _Slice = await live.run(_read_slice, bucket, codec, removable_at(bucket.commit_time()), start)
                spent = [found.seconds]
                if found.expired:
                    await live.write(_remove, live, bucket, found.expired, codec, spent)
                    spent.append(_COMMIT_SECONDS)
            # A time in the key has only expired rows read. A bucket of an early version does not know its rows.
            if stored is None or start is None:
                table.sweep.add_rows(found.scanned if stored is None else stored)
            table.sweep.add_removed(len(found.expired))
            await self._pause(sum(spent) * (1 / self._cpu_share - 1))
            if found.last_key is None:
                return
            start = found.last_key + b"\0"


def _remove(
    live: LiveBucket, bucket: Bucket, rows: Mapping[bytes, bytes], codec: TableCodec, spent: list[float]
) -> None:
    began = time.thread_time()
    remove_expired(live, bucket, rows, codec)
    spent.append(time.thread_time() - began)


def _read_slice(bucket: Bucket, codec: TableCodec, now_micros: int, start: bytes | None) -> _Slice:
    """Reads the next rows of a bucket from a key on. Raises DataLoss."""
    began = time.thread_time()
    definition, expiry = codec.definition, codec.definition.expiry
    if expiry is None:
        return _Slice({}, 0, None, 0.0)
    where = BoundPredicate(expiry.expired(now_micros), (expiry.column.name,))
    key = definition.primary_key
    reader = RowReader.of(codec.rows, codec.key_codec, key, where, KeyRange(start, None), stored_rows=True)
    if not reader.ranges:
        return _Slice({}, 0, None, 0.0)
    expired: dict[bytes, bytes] = {}
    last_key: bytes | None = None
    cursor = reader.cursor(bucket, reader.ranges, reverse=False)
    try:
        for _ in range(_SLICE_STEPS):
            batch = cursor.next_batch(_SLICE_ROWS, _SLICE_BYTES)
            if batch is None:
                last_key = None
                break
            last_key = cursor.last_key
            # By position, because a key column may have the name of the additional column.
            keys = codec.keys.encode_stored(batch.select(range(len(key)))).to_pylist()
            expired.update(zip(keys, batch.column(len(key)).to_pylist(), strict=True))
            if cursor.rows_scanned >= _SLICE_ROWS:
                break
        return _Slice(expired, cursor.rows_scanned, last_key, time.thread_time() - began)
    finally:
        cursor.close()
