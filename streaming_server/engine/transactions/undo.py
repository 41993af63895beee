"""Undo: reverts the changes of a writer after some offsets, from the changelog."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.changes.log_offsets import LogOffsets, check_incarnation
from scankv.model.errors import InvalidRequest, RangeNotTracked, UndoConflict, WriteConflict
from scankv.model.keys.buckets import bucket_of
from scankv.model.tables.schema import shown_name
from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.transactions.undo_plan import (
    ColumnsOfWriter,
    UndoChanges,
    UndoOutcome,
    UndoPlan,
    undo_id,
)
from streaming_server.engine.writes.writing import WritePreconditions
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import rows_of
from streaming_server.storage.changelog.retention_holds import UNDO_OWNER
from streaming_server.storage.rows.conversion import convert

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from scankv.model.tables.columns import Schema
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.storage.changelog.records import LogRecord

_PASS_CHANGES: Final = 500_000
"""The most changes in one plan. A longer range of changes is read several times, each time for some of the keys."""

_STEP_CHANGES: Final = 65_536
_STEP_BYTES: Final = 16 << 20
_WRITE_ROWS: Final = 10_000
_TRIES: Final = 5


@dataclass(slots=True)
class UndoResult:
    """The counts of an undo: see `UndoResponse` in write.proto."""

    restored: int = 0
    deleted: int = 0
    conflicts: int = 0


class UndoOperation:
    """Reverts the changes of one writer, where no other writer has written over them. Memory: 500,000 changes.

    Args:
        table: The table.
        writer: The id of the writer.
        column_locks: The ids of the column locks that the caller holds.

    Attributes:
        result: What it has reverted so far.
    """

    def __init__(self, table: LiveTable, writer: str, column_locks: frozenset[str]) -> None:
        self.result = UndoResult()
        self._table = table
        self._writer = writer
        self._column_locks = column_locks
        self._owner = f"{UNDO_OWNER}{uuid.uuid4().hex}"

    async def run(self, offsets: LogOffsets) -> dict[int, int]:
        """Reverts buckets to their offsets, one by one, durably. Returns the offset after the undo of each bucket.

        All offsets are checked, and all changes that cannot be undone exactly are found, before the first write.

        Raises:
            NoPrimaryKey: The table has no primary key.
            InvalidRequest: The changelog has no before-images, or a bucket does not exist; or the writer has written a
                column whose function keeps state that the changelog does not have.
            TableRecreated: The offsets are of another table of the same name.
            PositionExpired, PositionOutOfRange: The changelog does not reach back to the offset, or never had it.
            RangeNotTracked: Rows were written or deleted without tracking of changes after an offset, or the option
                `changelog` has changed since.
            UndoConflict: Other writers changed the same keys during each attempt.
            ColumnLocked: Another writer has locked a column that is to be reverted.
            LockLost: A lock of the caller has ended.
            DataLoss: A bucket is damaged.
        """
        async with self._checked(offsets) as starts:
            await self._check_exact(starts)
            return {live.number: await self._undo(live, start) for live, start in starts.items()}

    async def check(self, offsets: LogOffsets) -> list[str]:
        """Checks as `run` before its first write, and returns the names of the columns that the writer has written."""
        schema = self._table.definition.schema
        async with self._checked(offsets) as starts:
            written = await self._check_exact(starts) or await self._columns(starts)
        return [column.name for column in schema.columns if written.has(column.id)]

    @asynccontextmanager
    async def _checked(self, offsets: LogOffsets) -> AsyncIterator[dict[LiveBucket, int]]:
        """Checks offsets, and retains the changes from them on for the length of the block. Yields them resolved."""
        self._check(offsets)
        buckets = [self._table.buckets[number] for number in sorted(offsets)]
        try:
            yield {live: await self._hold(live, offsets[live.number]) for live in buckets}
        finally:
            for live in buckets:
                live.release_log(self._owner)

    async def _columns(self, starts: Mapping[LiveBucket, int]) -> ColumnsOfWriter:
        written = ColumnsOfWriter(self._writer)
        for live, start in starts.items():
            await self._read(live, start, await self._end(live), written)
        return written

    def _check(self, offsets: LogOffsets) -> None:
        definition = self._table.definition
        definition.require_key("its rows are only appended, so nothing can be undone")
        check_incarnation(offsets.table_incarnation, definition.name, definition.incarnation)
        if definition.options.changelog != "full":
            raise InvalidRequest(
                f"table {definition.name} has no changelog with before-images, so nothing can be undone: set "
                'changelog="full", and later writes can be undone'
            )
        for number in offsets:
            _ = self._table.buckets[number]

    async def _hold(self, live: LiveBucket, start: int) -> int:
        """Retains the changes of a bucket from an offset on until the undo ends. Returns the resolved offset."""
        async with live.mutex:
            bucket = await live.open()
            start = bucket.log.span.resolve(start, location=live.location)
            if not bucket.state.is_recorded_as_now(start):
                raise RangeNotTracked(
                    f'{live.location}: the table option "changelog" was changed after offset {start}, and changes '
                    "before that lack what was there before; nothing was undone: undo only to offsets after the change",
                    table=live.table,
                    bucket=live.number,
                )
            if bucket.state.has_markers_since(start):
                raise RangeNotTracked(
                    f"{live.location}: rows were written or deleted with track_changes=False after offset {start}, or "
                    "partitions were dropped, so what was there before is unknown; nothing was undone: undo only to "
                    "offsets after that",
                    table=live.table,
                    bucket=live.number,
                )
            live.retain_log(self._owner, start)
        return start

    async def _check_exact(self, starts: Mapping[LiveBucket, int]) -> ColumnsOfWriter | None:
        """Refuses to undo writes to columns whose functions keep hidden state, which the changelog lacks.

        Returns the columns that the writer has written, if it had to find them out.

        Rule: undo restores all that a later merge depends on, or nothing. A mean without its sum and count would
        continue from a wrong mean.
        """
        definition = self._table.definition
        hidden = {shown_name(column.name) for column in definition.hidden_columns(definition.schema)}
        if not hidden:
            return None
        written = await self._columns(starts)
        names = [each.name for each in definition.schema.columns if each.name in hidden and written.has(each.id)]
        if names:
            function = definition.merging.by_column[names[0]].function
            raise InvalidRequest(
                f'the writer "{self._writer}" has written column "{names[0]}" of table {definition.name}, whose '
                f"function {function} keeps state that the changelog lacks, so an undo is not exact; nothing was "
                "changed: write such columns with transactions, or with a writer of its own",
                column=names[0],
            )
        return written

    async def _end(self, live: LiveBucket) -> int:
        """Returns the end offset of a bucket's changelog, once all changes before it are durable."""
        async with live.mutex:
            end = (await live.open()).state.log_offset
        await live.wait_durable(end)
        return end

    async def _read(self, live: LiveBucket, start: int, end: int, reader: _RecordSink) -> None:
        """Passes the changes of a range to a reader, in bounded steps."""
        definition = self._table.definition
        while count_of(start) < count_of(end):
            async with live.maintenance:
                start = await live.run(_read_step, live, reader, start, end, definition)

    async def _undo(self, live: LiveBucket, start: int) -> int:
        passes = 1 + (count_of(await self._end(live)) - count_of(start)) // _PASS_CHANGES
        for number in range(passes):
            await self._undo_pass(live, start, number, passes)
        return await self._end(live)

    async def _undo_pass(self, live: LiveBucket, start: int, number: int, passes: int) -> None:
        """Reverts the keys of one of several passes."""
        for _ in range(_TRIES):
            end = await self._end(live)
            made_for = self._table.definition.schema
            plan = await self._plan(live, start, end, number, passes)
            try:
                await self._write(live, end, plan, made_for)
            except WriteConflict:
                continue  # the next plan sees what was reverted so far
            self.result.conflicts += plan.conflicts
            return
        raise UndoConflict(
            f"{live.location}: other writers changed its keys during all {_TRIES} attempts: repeat the undo",
            table=live.table,
            bucket=live.number,
        )

    async def _plan(self, live: LiveBucket, start: int, end: int, number: int, passes: int) -> UndoPlan:
        definition, keys = self._table.definition, self._table.state.codec.keys
        schema = definition.change_schema_at(definition.schema.id)
        buckets = definition.buckets
        changes = UndoChanges(
            self._writer,
            schema,
            keys.encode_stored,
            lambda record: rows_of(record, definition, definition.schema.id),
            None if passes == 1 else lambda each: pc.equal(_pass_of(each, passes, buckets), number),
        )
        await self._read(live, start, end, changes)
        return await self._table.state.executor.run(changes.plan)

    async def _write(self, live: LiveBucket, end: int, plan: UndoPlan, made_for: Schema) -> None:
        """Writes a plan that was made as of an offset and for a schema. Raises WriteConflict if keys changed since."""
        table, schema = self._table, self._table.definition.schema
        terms = WritePreconditions(
            unchanged_since=LogOffsets.of({live.number: end}, table.definition.incarnation),
            undo_as=undo_id(self._writer),
            column_locks=self._column_locks,
        )
        names = [column.name for column in schema.columns if column.id in plan.columns]
        if plan.columns and not names:
            return  # All columns that the writer has written were dropped.
        key = list(table.definition.primary_key)
        written = [*key, *(name for name in names if name not in key)] if names else schema.names
        kind = WriteKind(columns=tuple(written) if names else (), overwrite=True)
        # Columns may have been changed since the plan was made.
        restore = convert(plan.restore, made_for, schema)
        for rows in _pieces(restore.select(written)):
            _, offsets = await table.writes.upsert(_to_ipc(rows, schema.select(written)), schema.id, terms, kind)
            self.result.restored += rows.num_rows
            end = offsets[live.number]
        kind = WriteKind(columns=tuple(names), overwrite=True)
        for rows in _pieces(plan.delete.select(key)):
            keys = _to_ipc(rows, table.definition.key_schema)
            _, offsets = await table.writes.delete(keys, terms, kind, schema.id)
            if names:
                # Only some columns are deleted. A row with other columns that other writers have written stays.
                outcome = UndoOutcome(self._writer)
                await self._read(live, end, offsets[live.number], outcome)
                self.result.deleted += outcome.deleted
                self.result.restored += outcome.updated
                end = offsets[live.number]
            else:
                self.result.deleted += rows.num_rows


class _RecordSink(Protocol):
    """Consumes the records of a range of the changelog."""

    def add(self, record: LogRecord) -> None:
        """Adds the next record."""


def _read_step(live: LiveBucket, reader: _RecordSink, start: int, end: int, definition: TableDefinition) -> int:
    for record in live.read_log(start, end, definition, max_changes=_STEP_CHANGES, max_bytes=_STEP_BYTES):
        reader.add(record)
        start = record.offset + len(record.changes)
    return start


def _pass_of(keys: pa.Array, passes: int, buckets: int) -> pa.Array:
    # The hashes of the keys of one bucket are equal modulo the number of buckets.
    return pa.array(bucket_of(keys, passes * buckets) // buckets)


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Splits rows into pieces of one request each."""
    step = max(1, min(_WRITE_ROWS, _STEP_BYTES * rows.num_rows // max(rows.nbytes, 1)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _to_ipc(rows: pa.RecordBatch, schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(rows.columns, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data
