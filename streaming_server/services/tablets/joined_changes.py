"""The changes of a table with tablets as one source, which joins the streams of the tablets as their messages come."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import google_crc32c
import grpc
import pyarrow as pa

from scankv.model.changes.change_columns import CHANGE_FIELDS, ChangeColumns
from scankv.model.errors import Unavailable
from scankv.model.keys.key_range import KeyRange
from scankv.model.tables.columns import ColumnDefinition
from scankv.model.types.default_values import values_from_ipc
from scankv.v1 import scan_pb2
from streaming_server.scan.changes.log_token import LogPosition, parse_log_token
from streaming_server.scan.changes.tablet_positions import join_positions
from streaming_server.scan.chunk_source import WAITING, BatchMessage, Chunk, View, Waiting, total_rows
from streaming_server.services.forwarding import RETRY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.errors import ScanKvError
    from streaming_server.scan.chunk_source import ScanPosition
    from streaming_server.services.tablets.tablet_calls import TabletCalls

SCAN: Final = "scankv.v1.ScanService/ScanKv"

_ANSWER_SECONDS: Final = 8.0
"""The longest time in which a tablet opens its stream, and the longest delay of a heartbeat beyond its interval."""

_REOPEN_TRIES: Final = 40
_REOPEN_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the header of a stream says about the columns of its chunks.

    Attributes:
        schema_id: The version of the schema of the table.
        header: The schema, the ids and the initial defaults of the columns, as they are sent.
    """

    schema_id: int
    header: tuple[bytes, tuple[int, ...], bytes]

    @classmethod
    def of(cls, header: scan_pb2.ScanHeader) -> _Shape:
        return cls(header.schema_id, (header.arrow_schema, tuple(header.column_ids), header.initial_defaults))

    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.header[0]))

    def columns(self) -> list[ColumnDefinition]:
        _, ids, defaults = self.header
        initial, fields = values_from_ipc(defaults), list(self.schema())[len(CHANGE_FIELDS) :]
        return [
            ColumnDefinition(number, field.name, field.type, field.nullable, initial.get(field.name))
            for number, field in zip(ids, fields, strict=True)
        ]


class TabletStream:
    """The stream of changes of one tablet. Reads one message ahead. Bound to the event loop.

    Args:
        calls: The calls about the table.
        tablet: The number of the tablet.
        request: The request for the tablet.

    Attributes:
        shape: The columns of the next chunk.
        view: The view with which the stream begins.
        position: The position after the last message that was returned.
        before: The position before the last chunk.
        offsets: For each bucket the offset of the next change.
        watermark: The last watermark that the tablet has sent. 0: it has sent no watermark.
        is_over: Whether the stream has come to its end.
    """

    def __init__(self, calls: TabletCalls, tablet: int, request: scan_pb2.ScanKvRequest) -> None:
        self._calls = calls
        self._tablet = tablet
        self._request = request
        self._stack = ExitStack()
        self._reading: asyncio.Task[object] | None = None
        self._scanned_earlier = self._scanned = 0
        self._token = b""
        self.wakeup = asyncio.Event()
        self.watermark = 0
        self.is_over = False

    @property
    def rows_scanned(self) -> int:
        """Rows and changes that the tablet has read so far."""
        return self._scanned_earlier + self._scanned

    @property
    def has_message(self) -> bool:
        """Whether `take` returns at once."""
        return self._reading is not None and self._reading.done()

    def begin(self, hold_id: str) -> None:
        """Makes the call, under a hold unless its id is empty."""
        self._call = self._stack.enter_context(self._calls.open(SCAN, self._tablet, self._request, hold_id))
        self._read()

    async def open(self, place: LogPosition | None) -> None:
        """Takes the header, which comes once the view is open.

        Args:
            place: The position at which the request asks the stream to begin. None: at the start of the request.

        Raises:
            Unavailable: The tablet does not answer.
        """
        assert self._reading is not None
        await asyncio.wait({self._reading}, timeout=_ANSWER_SECONDS)
        if not self.has_message:
            raise self._silence()
        header = self._take().header
        self.shape = _Shape.of(header)
        self.view = View(
            dict(header.log_offsets),
            header.view_micros,
            header.row_estimate if header.HasField("row_estimate") else None,
        )
        self.offsets = dict(header.log_offsets)
        if header.resume_token:
            self._move(header.resume_token)
        else:
            begin = LogPosition({}) if place is None else place
            self.position = replace(begin, offsets=dict(header.log_offsets), scanning=True)
        self.before = self.position

    def check_heard(self, seconds: float) -> None:
        """Raises Unavailable if the tablet has sent nothing for more than `seconds`, not even a heartbeat."""
        is_waiting = self._reading is not None and not self._reading.done() and not self.is_over
        if is_waiting and asyncio.get_running_loop().time() - self._waiting_since > seconds:
            raise self._silence()

    def _silence(self) -> Unavailable:
        return Unavailable(
            f"worker {self._calls.owner_of(self._tablet)} of the server, which owns tablet {self._tablet} of "
            f"{self._calls.definition.name}, does not answer: try again",
            retry_after=RETRY_SECONDS,
        )

    def _read(self) -> None:
        self._waiting_since = asyncio.get_running_loop().time()
        self._reading = asyncio.create_task(self._call.read())
        self._reading.add_done_callback(lambda _: self.wakeup.set())

    def _take(self) -> scan_pb2.ScanKvResponse:
        """Returns the message that has come, and reads the next one. Raises the error of the stream."""
        assert self._reading is not None
        try:
            data = self._reading.result()
        except grpc.aio.AioRpcError as error:
            raise self._calls.error_of(self._tablet, error) from error
        if not isinstance(data, bytes):
            raise Unavailable("the stream of a tablet has ended early: try again", retry_after=RETRY_SECONDS)
        self._read()
        return scan_pb2.ScanKvResponse.FromString(data)

    def _move(self, token: bytes) -> None:
        self._token, self.position = token, parse_log_token(token).position

    def take(self, shown: _Shape) -> scan_pb2.ScanChunk | scan_pb2.ScanHeartbeat | None:
        """Returns the message that has come, and moves the stream to the position of that message.

        Returns None for a message that the reader does not need. Call it only if `has_message` is true, and call
        `reopen` afterwards if `is_closed` is true.

        Args:
            shown: The columns of the chunks that were returned last, of any tablet.
        """
        message = self._take()
        kind = message.WhichOneof("message")
        if kind == "header":
            self.shape = _Shape.of(message.header)
        elif kind == "trailer":
            self.is_over = True
            self._scanned = message.trailer.rows_scanned
        elif kind == "chunk" and self._is_behind(shown):
            self._close_call()
        elif kind == "chunk":
            self.before = self.position
            self._move(message.chunk.resume_token)
            self._scanned = message.chunk.rows_scanned
            self.offsets[message.chunk.bucket] = message.chunk.next_offset
            return message.chunk
        else:
            self._move(message.heartbeat.resume_token)
            self._scanned = message.heartbeat.rows_scanned
            self.offsets.update(message.heartbeat.next_offsets)
            self.watermark = max(self.watermark, message.heartbeat.watermark_micros)
            return message.heartbeat
        return None

    def _is_behind(self, shown: _Shape) -> bool:
        """Whether the chunks of the stream have older columns than the chunk that was returned last."""
        return self.shape.header != shown.header and self.shape.schema_id < shown.schema_id

    @property
    def is_closed(self) -> bool:
        """Whether the stream must be opened again before it can be read."""
        return self._reading is None and not self.is_over

    async def reopen(self, shown: _Shape) -> None:
        """Opens the stream again, with columns that are as new as the columns that were returned last.

        Raises:
            Unavailable: The tablet does not learn of the new columns in time.
        """
        self._scanned_earlier += self._scanned
        self._scanned = 0
        self._request.resume_token = self._token
        for _ in range(_REOPEN_TRIES):
            view = self.view
            self.begin("")
            await self.open(None)
            self.view = view
            if not self._is_behind(shown):
                return
            self._close_call()
            await asyncio.sleep(_REOPEN_SECONDS)
        raise Unavailable("the table is being altered: try again", retry_after=RETRY_SECONDS)

    def give_back(self, bucket: int, last: int | None, *, of_rows: bool) -> None:
        """Gives back the changes of the last chunk after the offset `last` of a bucket, or all rows of the chunk."""
        if of_rows or last is None:
            self.position = self.before
        elif bucket not in self.position.net:
            self.position = replace(self.position, offsets={**self.position.offsets, bucket: last + 1})
            self.offsets[bucket] = last + 1

    def _close_call(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            # Its result, possibly an error, is of no interest.
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            reading.cancel()
        self._stack.close()

    def close(self) -> None:
        """Ends the call. Closing twice is allowed."""
        self._close_call()


class JoinedChanges:
    """The changes of several tablets. See `ChangeSource`.

    Rows of the table are read from one tablet after another, then the changes of all tablets as they come. At most one
    message of each tablet waits here.

    Args:
        streams: The streams of the tablets, open, in their order.
        scanned: How far earlier streams have read the rows of the table. None: not at all.
        heartbeat_seconds: The interval of the heartbeats of the tablets.
    """

    def __init__(self, streams: Sequence[TabletStream], scanned: ScanPosition | None, heartbeat_seconds: float) -> None:
        self._patience = _ANSWER_SECONDS + heartbeat_seconds
        self._streams = list(streams)
        self._turn = list(streams)
        self._scanned = self._scanned_before = scanned
        self._last: tuple[TabletStream, bool] | None = None
        self._wakeup = asyncio.Event()
        self._aborted: ScanKvError | None = None
        for each in streams:
            each.wakeup = self._wakeup
        views = [each.view for each in streams]
        self.view = View(
            {bucket: at for view in views for bucket, at in sorted(view.log_offsets.items())},
            max(view.micros for view in views),
            total_rows(view.rows for view in views),
        )
        self._show(max((each.shape for each in streams), key=lambda shape: shape.schema_id))

    def _show(self, shape: _Shape) -> None:
        self._shown = shape
        self.schema, self.schema_id, self.columns = shape.schema(), shape.schema_id, shape.columns()
        self._of_rows = pa.schema(list(self.schema)[len(CHANGE_FIELDS) :])

    @property
    def rows_scanned(self) -> int:
        """The number of rows and changes that the tablets have read so far."""
        return sum(each.rows_scanned for each in self._streams)

    @property
    def offsets(self) -> Mapping[int, int]:
        """For each bucket the offset of the next change."""
        return {bucket: at for each in self._streams for bucket, at in sorted(each.offsets.items())}

    @property
    def scanning(self) -> bool:
        """Whether rows of the table are still to come."""
        return any(each.position.scanning for each in self._streams)

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Returns True: the tablets have done the work."""
        return True

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | Waiting | None:
        """Returns the next changes of one bucket; WAITING if no change has come yet; None once all tablets have ended.

        The bounds are those of the requests to the tablets.

        Raises:
            ScanKvError: The error of the stream of a tablet, or the one given to `abort`.
        """
        if self._aborted is not None:
            raise copy(self._aborted)
        self._wakeup.clear()
        if self.scanning:
            return self._next_rows(next(each for each in self._streams if each.position.scanning))
        for number, stream in enumerate(self._turn):
            while stream.has_message and not stream.is_over:
                chunk = self._next_of(stream)
                if chunk is not None:
                    self._turn = [*self._turn[number + 1 :], *self._turn[: number + 1]]
                    return chunk
        return None if all(each.is_over for each in self._streams) else WAITING

    def _next_rows(self, stream: TabletStream) -> Chunk | Waiting:
        """Returns the next rows of the table, of one tablet; WAITING also once after its last row."""
        while stream.has_message and stream.position.scanning:
            chunk = self._next_of(stream)
            if chunk is not None:
                return chunk
        if not stream.position.scanning and self.scanning:
            # The next tablet may have sent something long ago.
            self._wakeup.set()
        return WAITING

    def _next_of(self, stream: TabletStream) -> Chunk | None:
        message = stream.take(self._shown)
        if isinstance(message, scan_pb2.ScanChunk):
            return self._chunk(stream, message)
        if message is not None and message.cleared:
            empty = pa.RecordBatch.from_pylist([], self._of_rows)
            ranges = tuple((_key_range(each.keys), each.offset) for each in message.cleared)
            return Chunk(message.cleared[0].bucket, empty, cleared=ranges)
        return None

    def _chunk(self, stream: TabletStream, message: scan_pb2.ScanChunk) -> Chunk:
        if stream.shape.header != self._shown.header:
            self._show(stream.shape)
        rows, changes = pa.py_buffer(message.record_batch), ChangeColumns.from_bytes(message.changes, message.row_count)
        self._scanned_before, self._scanned = self._scanned, stream.position.scanned or self._scanned
        # Rows that are read again for a marker all have its offset.
        is_rescan = (
            changes.offsets is not None and len(changes.offsets) > 1 and changes.offsets[0] == changes.offsets[-1]
        )
        self._last = stream, changes.offsets is None or bool(is_rescan)
        batch = pa.ipc.read_record_batch(rows, self._of_rows)
        return Chunk(message.bucket, batch, BatchMessage(rows, google_crc32c.value(rows)), changes=changes)

    async def wait(self, seconds: float) -> None:
        """Returns when something has come, or after `seconds`. Raises Unavailable if a tablet does not answer."""
        for each in self._streams:
            each.check_heard(self._patience)
            if each.is_closed and self._aborted is None:
                await each.reopen(self._shown)
                return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()

    def watermark(self) -> int | None:
        """Returns the time before which every change was returned, from the latest heartbeats. None: unknown."""
        marks = [each.watermark for each in self._streams]
        return min(marks) if all(marks) and not self.scanning else None

    def give_back(self, bucket: int, last: int | None) -> None:
        """Gives back the changes of the last chunk after the offset `last` of a bucket."""
        assert self._last is not None
        stream, of_rows = self._last
        if last is None:
            self._scanned = self._scanned_before
        stream.give_back(bucket, last, of_rows=of_rows)

    def position(self) -> LogPosition:
        """Returns how far the chunks returned so far reach."""
        return join_positions([each.position for each in self._streams], self._scanned)

    def abort(self, error: ScanKvError) -> None:
        """Releases everything now. The next call of `next_chunk` raises `error`."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Ends the calls to the tablets. Closing twice is allowed."""
        self._wakeup.set()
        for each in self._streams:
            each.close()


def _key_range(keys: scan_pb2.KeyRange) -> KeyRange:
    start = keys.start if keys.HasField("start") else None
    return KeyRange(start, keys.end if keys.HasField("end") else None)
