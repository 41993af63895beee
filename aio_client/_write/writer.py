"""A writer: collects rows, sends them in the background, and applies each once."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from aio_client._input.data import rows_of
from aio_client._input.requests import REQUEST_BYTES
from aio_client._transport.repeatable_calls import call_again
from aio_client._write.column_locks import Locking
from aio_client._write.repeatable_writes import write_until_answered
from aio_client._write.write_requests import WritePieces, WriteResult
from aio_client._write.writer_lanes import Lane, LaneOfKeys
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import InvalidRequest, ScanKvError, UsageError
from scankv.model.limits import WRITER_WINDOW
from scankv.model.names import check_writer_id
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    import pyarrow as pa

    from aio_client._input.data import Data
    from aio_client._transport.transport import Transport
    from aio_client._write.merging import Names, WriteMode
    from aio_client._write.write_requests import TableShape
    from aio_client._write.writer_lanes import Piece

_MAX_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How much a writer collects and sends at once. See `Table.writer` for the fields."""

    batch_bytes: int
    batch_seconds: float
    max_buffered_bytes: int
    in_flight: int

    def __post_init__(self) -> None:
        """Raises UsageError naming the field that is out of its range."""
        for name, low, high in (
            ("batch_bytes", 1, REQUEST_BYTES),
            ("batch_seconds", 0, _MAX_SECONDS),
            ("max_buffered_bytes", 1, 2**40),
            ("in_flight", 1, WRITER_WINDOW),
        ):
            value = getattr(self, name)
            number = isinstance(value, int | float) if name == "batch_seconds" else isinstance(value, int)
            if isinstance(value, bool) or not number or not low <= value <= high:
                raise UsageError(f"{name} is a number from {low:,} to {high:,}, not {value!r}", option=name)


class Writer:
    """Writes rows of one table in the background, each once; to be entered with `async with`.

    Made by `table.writer(...)`. Belongs to the event loop of its client; what several tasks write at the same time is
    applied in any order.

    Leaving the block flushes; when it is left by an error, what was not sent is dropped, and what is under way is given
    up. The first failure ends the writer: nothing is sent after it, so nothing is applied out of order, and each call
    from then on raises it, with what was lost.

    Memory: see `max_buffered_bytes`.
    """

    def __init__(
        self,
        transport: Transport,
        shape: TableShape,
        pieces: Callable[[Callable[[TableShape], WritePieces]], Awaitable[WritePieces]],
        writer_id: str | None,
        settings: WriterSettings,
        columns: tuple[str, ...] | None,
        lock_ttl: float | None,
    ) -> None:
        """Called by `Table.writer`.

        Args:
            transport: The client's connection.
            shape: The table.
            pieces: Makes what is written, for the table as it is.
            writer_id: The id. None: a random one, which need not be opened.
            settings: How much is collected and sent at once.
            columns: The columns beside the key that it writes. None: all.
            lock_ttl: Seconds that a lock on them lives. None: they are not locked.
        """
        if writer_id is not None:
            _check_id(writer_id)
        self._transport = transport
        self._table = shape.name
        self._pieces = pieces
        self._columns = columns
        self._key = tuple(shape.key_schema.names)
        self._named = writer_id is not None
        self._id = writer_id or uuid.uuid4().hex
        self._settings = settings
        # Those that an instance of this id has left are taken over: it is fenced by then.
        self._locking = (
            None
            if lock_ttl is None
            else Locking(transport, shape.name, columns or (), self._id, lock_ttl, take_over=self._named)
        )
        self._lock_ids: list[str] = []
        self._lanes_of = LaneOfKeys(shape, settings.in_flight)
        self._lanes: list[Lane] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self._epoch = 0
        self._next_sequence = 0
        self._in_flight: dict[int, int] = {}
        self._failed: dict[int, int] = {}
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._rows = 0
        self._log_offsets = LogOffsets()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {self._table}>"

    @property
    def id(self) -> str:
        """The id that it was given, or a random one."""
        return self._id

    @property
    def epoch(self) -> int:
        """How many writers of this id have been entered, this one included; 0 for one without an id."""
        return self._epoch

    @property
    def locks(self) -> tuple[str, ...]:
        """The ids of the column locks that it has, for `table.undo(..., locks=writer.locks)`; empty without `lock`."""
        return tuple(self._lock_ids)

    @property
    def next_sequence(self) -> int:
        """The number that its next request gets. A named writer goes on behind the last one that was applied."""
        return self._next_sequence

    @property
    def buffered_bytes(self) -> int:
        """Bytes of Arrow data that wait or are under way."""
        return sum(lane.nbytes for lane in self._lanes)

    async def __aenter__(self) -> Self:
        """Opens a named writer, which fences those of this id that were entered before, and locks its columns.

        Raises:
            ColumnLocked: Somebody else has locked one of them.
            TableNotFound, TooManyWriters, ...: What the server said.
        """
        if self._lanes:
            raise UsageError("this writer is in use, or was; call table.writer() again for another one")
        if self._named:
            request = write_pb2.OpenWriterRequest(table=self._table, id=self._id)
            opened = await call_again(self._transport, lambda: self._transport.services.writes.OpenWriter, request)
            self._epoch, self._next_sequence = opened.epoch, opened.next_sequence
        if self._locking is not None:
            self._lock_ids = [(await self._stack.enter_async_context(self._locking)).id]
        settings = self._settings
        self._lanes = [Lane(settings.batch_bytes, settings.batch_seconds) for _ in range(self._lanes_of.lanes)]
        self._tasks = [asyncio.create_task(self._send_all(lane), name=f"lane of {self!r}") for lane in self._lanes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self._close()

    async def _close(self) -> None:
        self._failure = self._failure or UsageError("the writer was left; call table.writer() again for another one")
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._lock_ids = []
            await self._stack.aclose()

    async def upsert(self, data: Data, columns: Names | None = None, *, mode: WriteMode = "merge") -> None:
        """Has rows written; returns as soon as there is room for them. See `Table.upsert` for the arguments.

        Rows in memory are checked whole before the first of them is taken. Default of `columns`: those of the writer.

        Raises:
            SchemaMismatch, InvalidKey, InvalidRequest, RequestTooLarge, UsageError: The data is wrong, or the table
                takes no such write; the writer goes on.
            ScanKvError: An earlier write has failed; `details` say what was lost.
        """
        await self._check()
        rows = await asyncio.to_thread(rows_of, data)
        names = self._of_rows(columns)
        await self._take(await self._pieces(lambda shape: WritePieces.of_rows(shape, rows, names, mode)))

    async def retract(self, data: Data, columns: Names | None = None) -> None:
        """Has rows taken back; otherwise as `upsert`. See `Table.retract`."""
        await self._check()
        rows = await asyncio.to_thread(rows_of, data)
        names = self._of_rows(columns)
        await self._take(await self._pieces(lambda shape: WritePieces.of_rows(shape, rows, names, retract=True)))

    async def delete(self, keys: object, columns: Names | None = None, *, mode: WriteMode = "merge") -> None:
        """Has the rows with these keys, or columns of them, deleted; otherwise as `upsert`. See `Table.delete`."""
        await self._check()
        names = self._columns if columns is None else columns
        await self._take(await self._pieces(lambda shape: WritePieces.of_keys(shape, keys, names, mode)))

    def _of_rows(self, columns: Names | None) -> Names | None:
        """The columns of an upsert, the key among them."""
        if columns is not None or self._columns is None:
            return columns
        return (*self._key, *self._columns)

    async def flush(self) -> WriteResult:
        """Returns when all that was taken before is written, durably: that, since the last flush.

        Raises:
            ScanKvError: A write has failed; `details` say what was lost.
        """
        await self._check()
        for lane in self._lanes:
            lane.seal()
        targets = [lane.sealed for lane in self._lanes]
        while any(lane.done < target for lane, target in zip(self._lanes, targets, strict=True)):
            await self._check()
            await self._next_news()
        await self._check()
        result = WriteResult(rows=self._rows, log_offsets=self._log_offsets)
        self._rows, self._log_offsets = 0, LogOffsets()
        return result

    async def _take(self, pieces: WritePieces) -> None:
        while (batch := await asyncio.to_thread(next, pieces.batches, None)) is not None:
            parts = await asyncio.to_thread(self._split, batch)
            while self.buffered_bytes and self.buffered_bytes + batch.nbytes > self._settings.max_buffered_bytes:
                for lane in self._lanes:
                    lane.seal()
                await self._check()
                await self._next_news()
            await self._check()
            for number, rows in parts:
                self._lanes[number].add(pieces.kind, rows)

    def _split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        return list(self._lanes_of.split(batch))

    async def _send_all(self, lane: Lane) -> None:
        while self._failure is None:
            piece = await lane.next()
            try:
                await self._send(piece)
            finally:
                lane.end()
                self._news.set()

    async def _send(self, piece: Piece) -> None:
        """Sends one piece. A failure is noted."""
        while self._in_flight and self._next_sequence - min(self._in_flight) >= WRITER_WINDOW:
            await self._next_news()
        sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
        self._in_flight[sequence] = piece.batch.num_rows
        try:
            request = await asyncio.to_thread(piece.kind.request, piece.batch)
            request.column_locks.extend(self._lock_ids)
            request.writer.id, request.writer.epoch, request.writer.sequence = self._id, self._epoch, sequence
            request.writer.acked_below = min(self._in_flight)
            if self._failure is None:
                response = await write_until_answered(self._transport, request)
                self._rows += response.rows
                self._log_offsets.advance(response.log_offsets, response.table_incarnation)
            else:
                self._failed[sequence] = piece.batch.num_rows
        except Exception as error:
            self._failed[sequence] = piece.batch.num_rows
            self._failure = self._failure or error
        finally:
            del self._in_flight[sequence]

    async def _check(self) -> None:
        """Raises the first failure, once nothing is under way any more."""
        if not self._lanes:
            raise UsageError("the writer is entered first: async with table.writer() as writer")
        if self._failure is None:
            return
        while self._in_flight:
            await self._next_news()
        if not isinstance(self._failure, ScanKvError) or isinstance(self._failure, UsageError):
            raise copy(self._failure)
        raise self._lost(self._failure) from self._failure

    def _lost(self, cause: ScanKvError) -> ScanKvError:
        """The failure, with what was lost: requests that failed, and rows that were not sent after it."""
        rows = sum(self._failed.values()) + sum(lane.waiting_rows for lane in self._lanes)
        first, last = min(self._failed, default=0), max(self._failed, default=0)
        lost = type(cause)(
            f"{cause.message}; the writer {self._id} has ended: {rows:,} rows were not acknowledged, those of requests "
            f"{first} to {last} may have been written in part, and those not sent yet were not",
            retry_after=cause.retry_after,
        )
        lost.details.update(cause.details, first_sequence=str(first), last_sequence=str(last), rows=str(rows))
        return lost

    async def _next_news(self) -> None:
        self._news.clear()
        await self._news.wait()


def _check_id(writer_id: str) -> None:
    try:
        check_writer_id(writer_id)
    except InvalidRequest as error:
        raise UsageError(error.message, option="id") from error
