"""The changes of a table as they happen: reads the changelogs of its buckets, and waits for what comes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Protocol

from streaming_server.scan.changes.log_token import LogPosition, NetPosition
from streaming_server.scan.chunk_source import WAITING, View, Waiting
from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.changes.already_applied import AlreadyAppliedFilter
    from streaming_server.scan.changes.change_rows import ChangeRows
    from streaming_server.scan.changes.net_changes import NetChanges, NetReader
    from streaming_server.scan.chunk_source import Chunk
    from streaming_server.storage.changelog.records import LogRecord


class LogTail(Protocol):
    """The changelog of one bucket, as far as it is durable."""

    @property
    def durable_offset(self) -> int:
        """Behind the last change that may be shown."""

    def read_log(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """The changes from an offset on and before another, as `ChangeLog.read`. Raises PositionExpired, DataLoss."""

    def retain_log(self, owner: str, offset: int) -> None:
        """Keeps changes from an offset on, until `release_log`."""

    def release_log(self, owner: str) -> None:
        """Ends that."""

    def is_quiet_at(self, offset: int) -> bool:
        """Whether there is no change from this offset on, durable or about to be."""

    def on_durable(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a listener called whenever more is durable, until the function returned is called."""


class LogStops(Protocol):
    """Where a stream of changes ends."""

    @property
    def offsets(self) -> Mapping[int, int] | None:
        """Before which offset of each bucket. None: it does not, as far as is known by now."""

    def seconds_left(self) -> float | None:
        """After how long `settle` will know. None: it will not."""

    async def settle(self) -> None:
        """Finds the offsets out, when it is time."""


class _Stretch:
    """Net changes that are being made."""

    def __init__(self, changes: NetChanges, more: Callable[[], None]) -> None:
        self.changes = changes
        self._task = asyncio.create_task(changes.run(more))
        self._task.add_done_callback(lambda _: more())

    def check(self) -> None:
        """Raises what has kept them from being made."""
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def cancel(self) -> None:
        self._task.cancel()


class LogSource:
    """A `ChunkSource` over the changelogs of some buckets, from given offsets on.

    Buckets that have something to read take turns. A source that has nothing to read is woken by the commit that gives
    it something; it holds no iterator and no file between its steps, and keeps the changes that it has not read.

    Args:
        owner: Names its hold on the changes.
        rows: Makes the rows of a chunk; knows the definition of the table that it was given last.
        tails: The changelogs, by bucket.
        view: Has the offsets where each is read on.
        stops: Where it ends.
        latest: The table's definition of now.
        seen: Tells the changes that were sent as rows already. None: none were.
        net: Makes the net changes of buckets that are far behind. None: every change is read.
        begun: The stretches of net changes that were begun before, with their `net`.
        now_micros: The commit time of now: all that is committed later has no earlier time.
    """

    def __init__(
        self,
        owner: str,
        rows: ChangeRows,
        tails: Mapping[int, LogTail],
        view: View,
        stops: LogStops,
        latest: Callable[[], TableDefinition],
        applied: AlreadyAppliedFilter | None = None,
        net: NetReader | None = None,
        begun: Mapping[int, NetPosition] | None = None,
        *,
        now_micros: Callable[[], int],
    ) -> None:
        self._now_micros = now_micros
        self._applied = applied
        self.view = view
        self.rows_scanned = 0
        self._owner = owner
        self._rows = rows
        self._tails = dict(tails)
        self._offsets = dict(view.log_offsets)
        self._stops = stops
        self._latest = latest
        self._turn = sorted(tails)
        self._more = asyncio.Event()
        self._aborted: ScanKvError | None = None
        self._net_reader = net
        self._net: dict[int, _Stretch] = {}
        self._closers = [tail.on_durable(self._more.set) for tail in self._tails.values()]
        for bucket, offset in self._offsets.items():
            self._tails[bucket].retain_log(owner, offset)
        for bucket, position in (begun or {}).items():
            self._catch_up(bucket, position)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the chunks from now on."""
        return self._rows.schema

    @property
    def schema_id(self) -> int:
        """The version of the table's schema that they have."""
        return self._rows.schema_id

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | Waiting | None:
        """The next changes of one bucket; WAITING when there are none yet.

        Raises:
            PositionExpired, DataLoss: They are not there.
            ScanKvError: What `abort` was given.
        """
        if self._aborted is not None:
            raise copy(self._aborted)
        self._more.clear()
        if self._stops.seconds_left() == 0:  # what there is may be behind the stop
            return WAITING
        for turn, bucket in enumerate(self._turn):
            end = self._end_of(bucket)
            if count_of(self._offsets[bucket]) < count_of(end):
                chunk = self._next_of(bucket, end, max_rows, max_bytes)
                if chunk is not None:
                    self._turn = [*self._turn[turn + 1 :], *self._turn[: turn + 1]]
                    return chunk
        stops = self._stops.offsets
        if stops is not None and all(count_of(self._offsets[b]) >= count_of(stop) for b, stop in stops.items()):
            return None
        return WAITING

    def _end_of(self, bucket: int) -> int:
        durable, stops = self._tails[bucket].durable_offset, self._stops.offsets
        return durable if stops is None else min(durable, stops[bucket], key=count_of)

    def _next_of(self, bucket: int, end: int, max_rows: int, max_bytes: int) -> Chunk | None:
        """The next changes of a bucket that has some; None while its net changes are being made."""
        net, start = self._net_reader, self._offsets[bucket]
        if net is None or self._applied is not None:
            return self._read(bucket, end, max_rows, max_bytes)
        if bucket not in self._net:
            if count_of(end) - count_of(start) <= net.changes:
                return self._read(bucket, end, max_rows, max_bytes)
            self._catch_up(bucket, NetPosition(end))
        stretch = self._net[bucket]
        stretch.check()
        if stretch.changes.is_done:
            self._go_to(bucket, stretch.changes.position.end)
            self.rows_scanned += stretch.changes.changes_read
            del self._net[bucket]
            return self._rows.nothing(bucket)
        if not stretch.changes.is_ready:
            return None
        return self._rows.of_net(stretch.changes.take(max_rows), bucket, net.definition)

    def _catch_up(self, bucket: int, position: NetPosition) -> None:
        assert self._net_reader is not None
        changes = self._net_reader.net_changes(bucket, self._offsets[bucket], position)
        self._net[bucket] = _Stretch(changes, self._more.set)

    def _go_to(self, bucket: int, offset: int) -> None:
        self._offsets[bucket] = offset
        if self._applied is not None and self._applied.is_exhausted(self._offsets):
            self._applied = None  # also in tokens
        self._tails[bucket].retain_log(self._owner, offset)

    def _read(self, bucket: int, end: int, max_rows: int, max_bytes: int) -> Chunk:
        definition, tail, start = self._latest(), self._tails[bucket], self._offsets[bucket]
        # Two at least: a row before and the row after it come together.
        records = tail.read_log(start, end, definition, max_changes=max(max_rows, 2), max_bytes=max_bytes)
        last = records[-1]
        chunk = self._rows.of(records, bucket, definition, self._applied)
        self.rows_scanned += count_of(last.offset) + len(last.changes) - count_of(start)
        self._go_to(bucket, last.offset + len(last.changes))
        return chunk

    async def wait(self, seconds: float) -> None:
        """Returns when there may be more, or after so many seconds."""
        due = self._stops.seconds_left()
        if due == 0:
            await self._stops.settle()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds if due is None else min(seconds, due)):
                await self._more.wait()

    @property
    def scanning(self) -> bool:
        """Never: these are changes."""
        return False

    def watermark(self) -> int | None:
        """Before which time, in microseconds since 1970, all that was committed was read; None where changes wait."""
        # First, so that what is committed afterwards is not before it.
        now = self._now_micros()
        return now if all(self._tails[b].is_quiet_at(offset) for b, offset in self._offsets.items()) else None

    def give_back(self, bucket: int, last: int | None) -> None:
        """Takes back what of the last chunk, of a bucket, came behind this offset."""
        assert last is not None
        if bucket not in self._net:  # net changes are counted, and a stream with a limit ends here
            self._offsets[bucket] = last + 1

    def position(self) -> LogPosition:
        """How far each bucket was read."""
        net = {bucket: stretch.changes.position for bucket, stretch in self._net.items()}
        return LogPosition(self._offsets, views=() if self._applied is None else self._applied.views, net=net)

    @property
    def offsets(self) -> Mapping[int, int]:
        """For each bucket the offset of the next change."""
        return self._offsets

    def abort(self, error: ScanKvError) -> None:
        """Lets go of everything now; whoever asks for the next chunk gets the error."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Lets go of the changes. Closing twice is allowed."""
        self._more.set()
        while self._closers:
            self._closers.pop()()
        for stretch in self._net.values():
            stretch.cancel()
        for tail in self._tails.values():
            tail.release_log(self._owner)
