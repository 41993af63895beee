"""Builds new indexes over existing rows, and removes dropped ones, in the background.

Every write maintains the entries of all indexes of the table, ready or not, in the WriteBatch of its rows. So a build
passes over the rows only once, in key order, in steps under the bucket's mutex. The entries that it puts are current at
that moment, and later writes, before or after its position, maintain them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.errors import DataLoss, InvalidKey, RequestTooLarge, ScanKvError
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import MAX_KEY_BYTES
from streaming_server.scan.chunk_source import total_rows
from streaming_server.storage.bucket.index_build import IndexBuild

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scankv.model.tables.schema import Index
    from streaming_server.engine.bucket.live_bucket import LiveBucket, LiveBucketStats
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.files.disk_reserve import DiskReserve
    from streaming_server.storage.rows.table_codec import TableCodec

STEP_ROWS = 4096
RETRY_SECONDS = 5.0
"""The pause after a step that failed for a reason that may pass."""
_STEP_BYTES = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBuildProgress:
    """How far an index of a table is built.

    Attributes:
        index: The index.
        ready: Whether it is complete in every bucket.
        rows_done: About how many rows have an entry.
        rows: The number of rows. None: not known.
        failure: Why it cannot be built. Empty: it can.
    """

    index: Index
    ready: bool
    rows_done: int
    rows: int | None
    failure: str


class IndexBuilds:
    """Builds the indexes of one table, one bucket after another. Bound to the server's event loop.

    Args:
        codec: Returns the current codec of the table.
        reserve: The disk space that builds leave free.
    """

    def __init__(self, codec: Callable[[], TableCodec], reserve: DiskReserve) -> None:
        self._codec = codec
        self._reserve = reserve
        self._retries: set[asyncio.TimerHandle] = set()
        self._waiting: dict[int, LiveBucket] = {}
        self._failures: dict[tuple[int, int], str] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def wake(self, live: LiveBucket) -> None:
        """Schedules the removal of dropped indexes and the build of new ones in a bucket."""
        self._waiting[live.number] = live
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._run())

    def status(self, index: Index, buckets: Sequence[LiveBucketStats]) -> IndexBuildProgress:
        """Returns how far an index is built, from the statistics of all buckets."""
        ready, done, failures = True, 0, []
        rows: list[int | None] = []
        for figures in buckets:
            live, state = figures.live, figures.state
            is_ready = state is not None and index.id in state.ready_indexes
            bucket_rows = state.rows if state is not None else 0
            ready = ready and is_ready
            rows.append(bucket_rows)
            built = figures.built_rows.get(index.id, 0)
            done += built if bucket_rows is None else bucket_rows if is_ready else min(built, bucket_rows)
            failures.append((live.damage or "") if state is None else self._failures.get((live.number, index.id), ""))
        failure = "; ".join(dict.fromkeys(filter(None, failures)))
        return IndexBuildProgress(index=index, ready=ready, rows_done=done, rows=total_rows(rows), failure=failure)

    async def close(self) -> None:
        """Ends the running build after its step. No other build begins."""
        self._closed = True
        for timer in self._retries:
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                live = self._waiting.pop(next(iter(self._waiting)))
                try:
                    await self._keep(live)
                except DataLoss as error:
                    # Every use of the bucket reports the damage.
                    _log.warning("indexes of bucket %s of %s: %s", live.number, live.table, error.message)
                except ScanKvError as error:
                    # The disk is full or fails, or too many files are open; or the bucket was closed.
                    _log.warning("indexes of bucket %s of %s: %s", live.number, live.table, error.message)
                    self._retry(live)
                except Exception:
                    _log.exception("indexes of bucket %s of %s", live.number, live.table)
        finally:
            self._task = None

    def _retry(self, live: LiveBucket) -> None:
        """Continues with a bucket after some seconds."""
        if self._closed:
            return

        def retry() -> None:
            self._retries.discard(timer)
            self.wake(live)

        timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, retry)
        self._retries.add(timer)

    async def _keep(self, live: LiveBucket) -> None:
        async with live.mutex:
            bucket = await live.open()
            await live.run(bucket.set_indexes, list(self._codec().indexes))
        while await self._step(live):
            pass

    async def _step(self, live: LiveBucket) -> bool:
        """Runs one step of a build. Returns False when nothing is left to build.

        Releases the mutex after each step, so that waiting writers get it before the next step.

        Raises:
            ScanKvError: The step failed for a reason that may pass, such as a full disk.
        """
        async with live.mutex:
            bucket, codec = await live.open(), self._codec()
            left = [id_ for id_ in bucket.builds if id_ in codec.indexes and (live.number, id_) not in self._failures]
            if not left:
                return False
            self._reserve.check()
            try:
                await live.run(build_step, bucket, codec, left[0])
            except (RequestTooLarge, DataLoss) as error:
                self._failures[live.number, left[0]] = _why(error)
                _log.warning("index %s of bucket %s of %s: %s", left[0], live.number, live.table, error.message)
            return True


def build_step(bucket: Bucket, codec: TableCodec, index_id: int) -> None:
    """Puts the entries of the next rows in key order. Marks the index ready after the last row. Hold the mutex.

    Raises:
        RequestTooLarge: A row cannot have an entry.
        DataLoss: A row cannot be read.
    """
    index, build = codec.indexes[index_id], bucket.builds[index_id]
    rows = KeyRange() if build.key is None else KeyRange().after(build.key)
    cursor = bucket.cursor(codec.rows, codec.rows.decoder(index.covered), codec.key_codec, rows)
    try:
        batch, reached = cursor.next_batch(STEP_ROWS, _STEP_BYTES), cursor.last_key
    finally:
        cursor.close()
    if batch is None:
        bucket.finish_index_build(index_id)
        return
    assert reached is not None
    try:
        keys = codec.keys.encode_stored(batch)
    except InvalidKey as error:
        raise DataLoss(f"{bucket.location} is damaged: a row has an invalid key") from error
    entries = index.entries(batch, keys)
    bucket.put_index_entries(index_id, *entries, IndexBuild(reached, build.rows + batch.num_rows))


def _why(error: ScanKvError) -> str:
    if isinstance(error, RequestTooLarge):
        return (
            f"the indexed columns of a row take over {MAX_KEY_BYTES:,} bytes when encoded: shorten them or delete the "
            "row, then drop the index and add it again"
        )
    return error.message
