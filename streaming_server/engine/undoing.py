"""Undo: takes back what a writer has done behind some offsets, by the changelog, where nobody has written over it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.prepare import widen
from streaming_server.engine.undo_plan import UndoChanges, UndoPlan, undo_id
from streaming_server.engine.writing import WriteTerms
from streaming_server.storage.offsets import count_of
from table_model.buckets import bucket_of
from table_model.errors import InvalidRequest, UndoConflict, WriteConflict
from table_model.log_offsets import LogOffsets, check_incarnation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.engine.executor import StorageExecutor
    from streaming_server.engine.live_bucket import LiveBucket
    from streaming_server.engine.live_table import LiveTable
    from table_model.schema import TableDefinition

_PASS_CHANGES: Final = 500_000
"""So many changes are planned for at once; where there are more, they are read several times, each for some keys."""

_STEP_CHANGES: Final = 65_536
_STEP_BYTES: Final = 16 << 20
_WRITE_ROWS: Final = 10_000
_TRIES: Final = 5


@dataclass(slots=True)
class Undone:
    """What an undo has done: see `UndoResponse` in write.proto."""

    restored: int = 0
    deleted: int = 0
    skipped: int = 0


class Undoing:
    """One undo. Memory: 500,000 changes.

    Args:
        table: The table.
        writer: The id of the writer.
        executor: Runs what blocks.
    """

    def __init__(self, table: LiveTable, writer: str, executor: StorageExecutor) -> None:
        self.undone = Undone()
        self._table = table
        self._writer = writer
        self._executor = executor
        self._owner = f"undo-{uuid.uuid4().hex}"

    async def run(self, offsets: LogOffsets) -> dict[int, int]:
        """Goes back to the offsets of some buckets, one bucket after another; durable: the offset behind it of each.

        Raises:
            InvalidRequest: There are no rows before changes in the changelog, or no such bucket.
            TableRecreated: The offsets are of another table of the same name.
            PositionExpired, PositionOutOfRange: The changelog does not reach back to the offset, or never had it.
            UndoConflict: Others write the same keys all the time.
            ColumnLocked: Somebody has locked a column that is to be put back.
            DataLoss: A bucket is damaged.
        """
        definition = self._table.definition
        check_incarnation(offsets.table_incarnation, definition.name, definition.incarnation)
        if definition.options.changelog != "full":
            raise InvalidRequest(
                f"table {definition.name} has no changelog with the rows before changes, so nothing can be undone: "
                'create it with changelog="full"'
            )
        for number in offsets:
            if not 0 <= number < len(self._table.buckets):
                raise InvalidRequest(f"table {definition.name} has no bucket {number}", bucket=number)
        return {number: await self._undo(self._table.buckets[number], offsets[number]) for number in sorted(offsets)}

    async def _undo(self, live: LiveBucket, start: int) -> int:
        async with live.mutex:
            bucket = await live.opened()
            start, end = bucket.log.span.checked(start, place=live.place), bucket.state.log_offset
            live.hold_log(self._owner, start)
        try:
            passes = 1 + (count_of(end) - count_of(start)) // _PASS_CHANGES
            for number in range(passes):
                await self._undo_some(live, start, number, passes)
        finally:
            live.release_log(self._owner)
        async with live.mutex:
            end = (await live.opened()).state.log_offset
        await live.wait_durable(end)
        return end

    async def _undo_some(self, live: LiveBucket, start: int, number: int, passes: int) -> None:
        """Goes back in those keys that fall to one of several passes."""
        for _ in range(_TRIES):
            async with live.mutex:
                end = (await live.opened()).state.log_offset
            await live.wait_durable(end)
            plan = await self._planned(live, start, end, number, passes)
            try:
                await self._write(live.number, end, plan)
            except WriteConflict:
                continue  # what was put back until then is known again
            self.undone.skipped += plan.skipped
            return
        raise UndoConflict(
            f"{live.place}: others have written keys of the undo each time that it was tried; repeat it",
            table=live.table,
            bucket=live.number,
        )

    async def _planned(self, live: LiveBucket, start: int, end: int, number: int, passes: int) -> UndoPlan:
        definition, keys = self._table.definition, self._table.keys
        schema = definition.change_schema_at(definition.schema.id)
        buckets = len(self._table.buckets)
        changes = UndoChanges(
            self._writer,
            schema,
            keys.encoded,
            lambda rows: widen(rows, schema),
            None if passes == 1 else lambda each: pc.equal(_pass_of(each, passes, buckets), number),
        )
        while count_of(start) < count_of(end):
            async with live.upkeep:
                start = await live.run(_add_changes, live, changes, start, end, definition)
        return await self._executor.run(changes.plan)

    async def _write(self, number: int, end: int, plan: UndoPlan) -> None:
        """Puts back what was planned as of an offset. Raises WriteConflict when keys have changed since."""
        table, schema = self._table, self._table.definition.schema
        terms = WriteTerms(unchanged_since=LogOffsets({number: end}), undo_as=undo_id(self._writer))
        names = [column.name for column in schema.columns if column.id in plan.columns]
        key = list(table.definition.primary_key)
        written = [*key, *(name for name in names if name not in key)] if names else schema.names
        kind = WriteKind(columns=tuple(written) if names else (), overwrite=True)
        # Columns may have been added since it was planned.
        restore = widen(plan.restore, table.definition.change_schema_at(schema.id))
        for rows in _pieces(restore.select(written)):
            await table.upsert(_to_ipc(rows, schema.select(written)), schema.id, terms, kind)
            self.undone.restored += rows.num_rows
        kind = WriteKind(columns=tuple(names), overwrite=True)
        for rows in _pieces(plan.delete.select(key)):
            await table.delete(_to_ipc(rows, table.definition.key_schema), terms, kind)
            self.undone.deleted += rows.num_rows


def _add_changes(live: LiveBucket, changes: UndoChanges, start: int, end: int, definition: TableDefinition) -> int:
    for record in live.read_log(start, end, definition, max_changes=_STEP_CHANGES, max_bytes=_STEP_BYTES):
        changes.add(record)
        start = record.offset + len(record.changes)
    return start


def _pass_of(keys: pa.Array, passes: int, buckets: int) -> pa.Array:
    # Keys of one bucket are equal modulo the number of buckets.
    return pa.array(bucket_of(keys, passes * buckets) // buckets)


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cuts rows so that each piece is one request."""
    step = max(1, min(_WRITE_ROWS, _STEP_BYTES * rows.num_rows // max(rows.nbytes, 1)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _to_ipc(rows: pa.RecordBatch, schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(rows.columns, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data
