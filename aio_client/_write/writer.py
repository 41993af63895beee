"""`Writer`: collects rows, sends them in the background, and ensures that each is applied once."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from aio_client._input.arguments import principal_of
from aio_client._input.data import rows_of
from aio_client._input.requests import REQUEST_BYTES
from aio_client._transport.repeatable_calls import call_again
from aio_client._write.column_locks import ColumnLockOpener
from aio_client._write.divided_writes import write_rows
from aio_client._write.write_requests import WritePieces, WriteResult, add_offsets, require_same_table
from aio_client._write.writer_lanes import Lane, LaneChooser
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.counts import counted
from scankv.model.errors import InvalidRequest, ScanKvError, UsageError
from scankv.model.limits import WRITER_WINDOW
from scankv.model.names import check_writer_id
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from aio_client._input.data import Data
    from aio_client._table.handle import TableHandle
    from aio_client._write.merging import Names, WriteMode
    from aio_client._write.repeatable_writes import Request
    from aio_client._write.writer_lanes import LanePiece

_MAX_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How much a writer collects and sends at once. `Table.writer` describes the fields."""

    batch_bytes: int
    batch_delay: float
    max_buffered_bytes: int
    in_flight: int

    def __post_init__(self) -> None:
        """Raises UsageError, which names the field that is out of range."""
        for name, low, high in (
            ("batch_bytes", 1, REQUEST_BYTES),
            ("batch_delay", 0, _MAX_SECONDS),
            ("max_buffered_bytes", 1, 2**40),
            ("in_flight", 1, WRITER_WINDOW),
        ):
            value = getattr(self, name)
            number = isinstance(value, int | float) if name == "batch_delay" else isinstance(value, int)
            if isinstance(value, bool) or not number or not low <= value <= high:
                raise UsageError(f"{name} must be a number between {low:,} and {high:,}, not {value!r}", option=name)


class Writer:
    """Writes rows of one table in the background, each once; used in `async with`.

    Made by `table.writer(...)`. Belongs to the event loop of its client. What several tasks write at the same time is
    applied in any order.

    Leaving the block flushes the writer. If an error leaves the block, rows that were not sent are dropped, and
    requests in flight are cancelled. The first failure ends the writer: it sends nothing afterwards, so nothing is
    applied out of order, and every later call raises the failure, which says what was lost.

    `max_buffered_bytes` of `Table.writer` bounds the memory.
    """

    def __init__(
        self,
        table: TableHandle,
        writer_id: str | None,
        settings: WriterSettings,
        columns: tuple[str, ...] | None,
        lock_ttl: float | None,
        principal: str | None,
    ) -> None:
        """Called by `Table.writer`.

        Args:
            table: The table to write.
            writer_id: The id. None: a random id, which the server need not know beforehand.
            settings: How much to collect and to send at once.
            columns: The columns outside the key to write. None: all.
            lock_ttl: The time to live in seconds of a lock on these columns. None: no lock.
            principal: The principal to whom a new writer and the lock belong. None: that of the token.
        """
        if writer_id is not None:
            _check_id(writer_id)
        self._table = table
        self._transport = table.transport
        self._columns = columns
        self._key = tuple(table.shape.key_schema.names)
        self._named = writer_id is not None
        self._id = writer_id or uuid.uuid4().hex
        self._settings = settings
        # A named writer takes over the locks that an earlier writer of its id left: entering fences that writer first.
        self._lock_opener = (
            None
            if lock_ttl is None
            else ColumnLockOpener(
                table.transport,
                table.name,
                columns or (),
                self._id,
                lock_ttl,
                take_over=self._named,
                principal=principal,
            )
        )
        self._principal = principal_of(principal)
        self._lock_ids: list[str] = []
        self._lane_chooser = LaneChooser(table.shape, settings.in_flight)
        self._lanes: list[Lane] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self._epoch = 0
        self._history = ""
        self._next_sequence = 0
        self._in_flight: dict[int, int] = {}
        self._failed: dict[int, int] = {}
        self._failure: Exception | None = None
        self._progress = asyncio.Event()
        self._rows = 0
        self._log_offsets = LogOffsets()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {self._table.name}>"

    @property
    def id(self) -> str:
        """The id given to `Table.writer`, or a random id."""
        return self._id

    @property
    def epoch(self) -> int:
        """How many writers of this id have been entered, including this one. 0 for a writer without an id."""
        return self._epoch

    @property
    def locks(self) -> tuple[str, ...]:
        """The ids of the writer's column locks, for `table.undo(..., locks=writer.locks)`. Empty without `lock`."""
        return tuple(self._lock_ids)

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next request. A named writer continues after the last request that was applied."""
        return self._next_sequence

    @property
    def buffered_bytes(self) -> int:
        """Bytes of Arrow data that wait or are in flight."""
        return sum(lane.nbytes for lane in self._lanes)

    async def __aenter__(self) -> Self:
        """Opens a named writer, which fences earlier writers of its id, and locks its columns.

        Raises:
            ColumnLocked: Another owner has locked one of the columns.
            UsageError: The writer was entered before.
            PermissionDenied: The writer belongs to another principal, or is to belong to one, and the token has no role
                admin for the table.
            TableNotFound, TooManyWriters: The table was dropped, or the server has as many writers as it allows.
        """
        if self._lanes:
            raise UsageError("this writer was entered before: call table.writer() again for another writer")
        if self._named:
            request = write_pb2.OpenWriterRequest(table=self._table.name, id=self._id, principal=self._principal)
            opened = await call_again(self._transport, lambda: self._transport.services.writes.OpenWriter, request)
            self._epoch, self._next_sequence, self._history = opened.epoch, opened.next_sequence, opened.history
        if self._lock_opener is not None:
            self._lock_ids = [(await self._stack.enter_async_context(self._lock_opener)).id]
        settings = self._settings
        self._lanes = [Lane(settings.batch_bytes, settings.batch_delay) for _ in range(self._lane_chooser.lanes)]
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
        self._failure = self._failure or UsageError(
            "the writer was closed: call table.writer() again for another writer"
        )
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._lock_ids = []
            await self._stack.aclose()

    async def upsert(
        self,
        data: Data,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        track_changes: bool = True,
    ) -> None:
        """Takes rows to upsert. Returns as soon as they fit into the buffer; `flush` waits until they are written.

        Rows in memory are all checked before the first is taken.

        Args:
            data: As for `Table.upsert`.
            columns: As for `Table.upsert`. Default: the columns of the writer.
            mode: As for `Table.upsert`.
            track_changes: As for `Table.upsert`.

        Raises:
            SchemaMismatch, InvalidKey, InvalidRequest, RequestTooLarge, UsageError: The data is invalid, or the table
                does not support the write. Nothing was taken, and the writer can still be used.
            ScanKvError: An earlier write has failed; `details` say what was lost.
        """
        await self._raise_failure()
        rows = await asyncio.to_thread(rows_of, data)
        names = self._with_key(columns)
        await self._take(
            await self._table.build_for_shape(
                lambda shape: WritePieces.of_rows(shape, rows, names, mode, track_changes=track_changes)
            )
        )

    async def append(self, data: Data) -> None:
        """Takes rows to append to a table without a primary key; see `Table.append`. Otherwise like `upsert`.

        Rows with one value of the table's bucket key are appended in the order of the calls. Without a bucket key, the
        rows of one call stay in their order within a bucket, and those of different calls may change places.

        Args:
            data: As for `Table.append`.

        Raises:
            ScanKvError: As for `upsert`.
        """
        await self._raise_failure()
        rows = await asyncio.to_thread(rows_of, data)
        await self._take(await self._table.build_for_shape(lambda shape: WritePieces.of_rows(shape, rows, append=True)))

    async def retract(self, data: Data, columns: Names | None = None) -> None:
        """Takes rows to retract; see `Table.retract`. Otherwise like `upsert`.

        Args:
            data: As for `Table.retract`.
            columns: As for `Table.retract`. Default: the columns of the writer.

        Raises:
            ScanKvError: As for `upsert`.
        """
        await self._raise_failure()
        rows = await asyncio.to_thread(rows_of, data)
        names = self._with_key(columns)
        await self._take(
            await self._table.build_for_shape(lambda shape: WritePieces.of_rows(shape, rows, names, retract=True))
        )

    async def delete(self, keys: object, columns: Names | None = None, *, mode: WriteMode = "merge") -> None:
        """Takes keys whose rows to delete, or of whose rows to set columns to null. Otherwise like `upsert`.

        Args:
            keys: As for `Table.delete`.
            columns: As for `Table.delete`. Default: the columns of the writer.
            mode: As for `Table.delete`.

        Raises:
            ScanKvError: As for `upsert`.
        """
        await self._raise_failure()
        names = self._columns if columns is None else columns
        await self._take(await self._table.build_for_shape(lambda shape: WritePieces.of_keys(shape, keys, names, mode)))

    def _with_key(self, columns: Names | None) -> Names | None:
        if columns is not None or self._columns is None:
            return columns
        return (*self._key, *self._columns)

    async def flush(self) -> WriteResult:
        """Waits until everything taken before is durable.

        Returns:
            The rows written since the last flush, and the log offsets after them.

        Raises:
            ScanKvError: A write has failed; `details` say what was lost.
        """
        await self._raise_failure()
        for lane in self._lanes:
            lane.seal()
        targets = [lane.sealed for lane in self._lanes]
        while any(lane.done < target for lane, target in zip(self._lanes, targets, strict=True)):
            await self._raise_failure()
            await self._wait_for_progress()
        await self._raise_failure()
        result = WriteResult(rows=self._rows, log_offsets=self._log_offsets)
        self._rows, self._log_offsets = 0, LogOffsets()
        return result

    async def _take(self, pieces: WritePieces) -> None:
        while (batch := await asyncio.to_thread(next, pieces.batches, None)) is not None:
            parts = await asyncio.to_thread(self._split, batch)
            while self.buffered_bytes and self.buffered_bytes + batch.nbytes > self._settings.max_buffered_bytes:
                for lane in self._lanes:
                    lane.seal()
                await self._raise_failure()
                await self._wait_for_progress()
            await self._raise_failure()
            for number, rows in parts:
                self._lanes[number].add(pieces.kind, rows)

    def _split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        return list(self._lane_chooser.split(batch))

    async def _send_all(self, lane: Lane) -> None:
        while self._failure is None:
            piece = await lane.next()
            try:
                await self._send(piece)
            finally:
                lane.end()
                self._progress.set()

    async def _send(self, piece: LanePiece) -> None:
        """Sends one piece. Records a failure instead of raising it."""
        while self._in_flight and self._next_sequence - min(self._in_flight) >= WRITER_WINDOW:
            await self._wait_for_progress()
        sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
        self._in_flight[sequence] = piece.batch.num_rows
        try:
            if self._failure is None:
                response = await write_rows(
                    self._transport, self._table.shape, piece.kind, piece.batch, partial(self._complete, sequence)
                )
                add_offsets(self._log_offsets, response, self._table.name)
                self._rows += response.rows
            else:
                self._failed[sequence] = piece.batch.num_rows
        except Exception as error:
            self._failed[sequence] = piece.batch.num_rows
            self._failure = self._failure or error
        finally:
            del self._in_flight[sequence]

    def _complete(self, sequence: int, request: Request) -> None:
        request.column_locks.extend(self._lock_ids)
        request.writer.id, request.writer.epoch, request.writer.sequence = self._id, self._epoch, sequence
        request.writer.acked_below = min(self._in_flight)
        request.writer.history = self._history
        require_same_table(request, self._table.shape, self._log_offsets)

    async def _raise_failure(self) -> None:
        """Raises the first failure, if there is one, as soon as no request is in flight."""
        if not self._lanes:
            raise UsageError("the writer is not open: enter it with `async with table.writer() as writer`")
        if self._failure is None:
            return
        while self._in_flight:
            await self._wait_for_progress()
        if not isinstance(self._failure, ScanKvError) or isinstance(self._failure, UsageError):
            raise copy(self._failure)
        raise self._with_losses(self._failure) from self._failure

    def _with_losses(self, cause: ScanKvError) -> ScanKvError:
        """Returns the failure with what was lost: the requests that failed, and the rows that were not sent."""
        rows = sum(self._failed.values()) + sum(lane.waiting_rows for lane in self._lanes)
        first, last = min(self._failed, default=0), max(self._failed, default=0)
        lost = type(cause)(
            f"{cause.message}; the writer {self._id} has ended, with {counted(rows, 'row')} not acknowledged: "
            f"those of requests {first} to {last} may have been written in part, and those not sent yet were not",
            retry_after=cause.retry_after,
        )
        lost.details.update(cause.details, first_sequence=str(first), last_sequence=str(last), rows=str(rows))
        return lost

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()


def _check_id(writer_id: str) -> None:
    try:
        check_writer_id(writer_id)
    except InvalidRequest as error:
        raise UsageError(error.message, option="id") from error
