"""Stages the deletion of the rows that a plan selects for a transaction; their keys never leave the server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import InvalidRequest
from scankv.model.expressions import plan_keys
from scankv.model.expressions.binding import columns_of
from scankv.model.keys.key_range import NO_KEYS, KeyRange
from streaming_server.engine.bucket.holds import CURRENT_HOLD
from streaming_server.engine.transactions.staged_rows import request_check
from streaming_server.scan.read_plan import ReadPath, ReadPlan
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.transactions.staging import DELETE, DELETE_RANGE, PieceFile, encode_range

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from streaming_server.engine.merging.preparing import WriteKind
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.storage.transactions.staging import PartFile, StagedRequest

_STEP_ROWS: Final = 8192
_STEP_BYTES: Final = 1 << 20
_PIECE_ROWS: Final = 100_000
_PIECE_BYTES: Final = 8 << 20
"""The size of one request of the deletion; the last step may exceed it."""


ALL_ROWS: Final = ReadPlan(
    buckets=None,
    columns=None,
    where=None,
    where_message=b"",
    key_range=KeyRange(),
    reverse=False,
    limit=None,
    resume_token=b"",
)
"""Selects all rows of a table."""


def depends_on_rows(plan: ReadPlan, table: LiveTable) -> bool:
    """Whether a row can cease to match a plan, because its predicate is not on the key alone."""
    if plan.where is None:
        return False
    return not set(columns_of(plan.where, table.definition.schema.arrow)) <= set(table.definition.primary_key)


def range_of(plan: ReadPlan, table: LiveTable) -> KeyRange | None:
    """Returns the one range of keys that a plan selects; None if it selects anything else. Blocks for long predicates.

    Raises:
        SchemaMismatch: The predicate does not fit the table.
    """
    codec = table.state.codec
    # Expired rows of the range are deleted, too.
    bound = replace(plan, keeps_expired=True).bound_to(codec.rows)
    if bound is None:
        return plan.key_range
    planned = plan_keys(bound, codec.key_codec)
    if planned.residual is not None or len(planned.ranges) > 1:
        return None
    return planned.ranges.span & plan.key_range if planned.ranges else NO_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAll:
    """The deletion of the rows of a table that a plan selects.

    Attributes:
        table: The table.
        part: The part in which the deletion is staged.
        kind: How the rows are deleted.
        plan: Selects the rows.
        keys: The range that is deleted without tracking of changes. None: the rows are deleted by their keys.
        executor: Runs blocking work.
        check: Called before each piece with the total bytes of the pieces, including it. Raises if the deletion must
            stop.
        held: The view in which the rows are selected, if it is open already. None: they are selected now.
    """

    table: LiveTable
    part: PartFile
    kind: WriteKind
    executor: StorageExecutor
    check: Callable[[int], None]
    plan: ReadPlan = field(default=ALL_ROWS)
    keys: KeyRange | None = None
    held: OpenedScan | None = None

    async def stage(self, request: StagedRequest) -> tuple[StagedRequest, bytes]:
        """Writes the deletes of all selected rows to a file beside the part; returns their request, and its data.

        The caller appends both to the part. Memory: the keys of one piece.

        Args:
            request: The request without rows and buckets.

        Raises:
            InvalidRequest: The table refuses deletes.
            DataLoss: The table is damaged.
            ScanKvError: What `check` raises, or why the table was closed.
        """
        # A table without rows refuses the deletion, too, if it refuses deletes.
        await self._check_keys(self.table.definition.key_schema.empty_table())
        if self.keys is not None:
            return await self._stage_range(request, self.keys)
        pieces, visible = PieceFile(self.part, self.part.requests), 0
        try:
            await self.executor.run(pieces.discard)
            async with aclosing(self._keys()) as found:
                async for keys, unexpired in found:
                    self.check(pieces.size + keys.nbytes)
                    data, rows, buckets, merges = await self._check_keys(keys)
                    piece = replace(request, rows=rows, buckets=buckets, merges=merges)
                    await self.executor.run(pieces.append, piece, data)
                    visible += min(rows, unexpired)
            # The number is for the caller, for whom expired rows do not exist.
            return replace(await self.executor.run(pieces.finish, request), rows=visible), b""
        except BaseException:
            await self.executor.run(pieces.discard)
            raise

    async def _stage_range(self, request: StagedRequest, keys: KeyRange) -> tuple[StagedRequest, bytes]:
        if self.table.definition.options.deletes == "ignore" and not self.kind.overwrite:
            return replace(request, pieces=0), b""
        is_all = not keys.start and keys.end is None
        rows = (await self.table.reads.count(None))[0] if is_all else None
        if rows is None:
            rows = 0
            opened = await _open(replace(self.plan, columns=()), self.table)
            async with aclosing(self._chunks(opened)) as chunks:
                async for chunk in chunks:
                    self.check(0)
                    rows += chunk.num_rows
        buckets = {} if keys.is_empty else dict.fromkeys(self.table.buckets.numbers, 1)
        return replace(request, action=DELETE_RANGE, rows=rows, buckets=buckets), encode_range(keys)

    async def _check_keys(self, keys: pa.Table) -> tuple[bytes, int, dict[int, int], bool]:
        """Returns the keys as a client would send them, how many are deleted, where, and whether they are merged."""
        data = await self.executor.run(_to_ipc, keys)
        _, parts = await self.executor.run(request_check(self.table, DELETE, data, 0, self.kind))
        merges = any(part.merges for part in parts)
        rows = sum(len(part.keys) for part in parts)
        return data, rows, dict.fromkeys((part.bucket for part in parts), 1), merges

    async def _keys(self) -> AsyncGenerator[tuple[pa.Table, int]]:
        """Yields the keys of all selected rows as of one instant, a piece at a time.

        Each piece comes with the number of its rows that have not expired.
        """
        gathered: list[pa.RecordBatch] = []
        rows = size = visible = 0
        opened = self.held or await _open(_keys_in(self.plan, self.table), self.table)
        split = _SelectedKeys(opened)
        chunks = self._chunks(opened)
        async with aclosing(chunks):
            async for batch in chunks:
                keys, unexpired = split(batch)
                gathered.append(keys)
                rows, size, visible = rows + keys.num_rows, size + keys.nbytes, visible + unexpired
                if rows >= _PIECE_ROWS or size >= _PIECE_BYTES:
                    yield pa.Table.from_batches(gathered), visible
                    gathered, rows, size, visible = [], 0, 0, 0
        if rows:
            yield pa.Table.from_batches(gathered), visible

    async def _chunks(self, opened: OpenedScan) -> AsyncGenerator[pa.RecordBatch]:
        """Yields the rows of a view, and closes it; reads them in steps, as a scan does."""
        room = opened.room(_STEP_ROWS, _STEP_BYTES)
        with closing(opened.source) as source:
            while True:
                # Give other tasks a turn after each step.
                await asyncio.sleep(0)
                if not source.prefetch(*room):
                    continue
                if (chunk := source.next_chunk(*room)) is None:
                    break
                yield chunk.batch


async def open_held(plan: ReadPlan, table: LiveTable) -> OpenedScan | None:
    """Opens the view of the rows that a plan selects under the hold of the current call. None: it has no hold."""
    if CURRENT_HOLD.get() is None:
        return None
    return await _open(_keys_in(plan, table), table)


async def _open(plan: ReadPlan, table: LiveTable) -> OpenedScan:
    return await table.reads.open_view(plan.bind(table.definition.schema))


def _keys_in(plan: ReadPlan, table: LiveTable) -> ReadPlan:
    """Returns the plan that selects the keys of the same rows, and of matching rows that have expired.

    Otherwise expired rows would be visible again if the TTL was changed before they are removed.
    """
    keys = replace(plan, columns=table.definition.primary_key, keeps_expired=True)
    if table.definition.expiry is None:
        return keys
    # Columnar bases have no stored rows, in which `_SelectedKeys` finds what has expired.
    return replace(keys, stored_rows=True, read_path=ReadPath.ROCKSDB)


class _SelectedKeys:
    """Takes the keys from the rows of an open view, and counts the rows that have not expired at its time."""

    def __init__(self, opened: OpenedScan) -> None:
        expiry = opened.definition.expiry
        self._slot = None if expiry is None else RowCodec(opened.definition).expiry_slot
        self._bound = 0 if expiry is None else expiry.bound_at(opened.source.view.micros)
        self._columns = list(range(len(opened.definition.primary_key)))

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        keys = batch.select(self._columns)
        # If the table got its TTL after the plan was made, the plan asks for no stored rows.
        if self._slot is None or batch.num_columns == keys.num_columns:
            return keys, keys.num_rows
        alive = self._slot.unexpired(batch.column(len(self._columns)), self._bound)
        return keys, keys.num_rows if alive is None else int(alive.sum())


def check_is_range(keys: KeyRange | None, table: LiveTable) -> None:
    """Raises InvalidRequest unless rows that are deleted without tracking of changes are one range of keys."""
    if keys is None:
        raise InvalidRequest(
            f"rows of table {table.definition.name} can be deleted without tracking of changes only if they are "
            f"exactly one range of keys ({', '.join(table.definition.primary_key)}): give no predicate, or equalities "
            "of the first key columns and at most one range of the next one; or track the changes",
            table=table.definition.name,
        )


def _to_ipc(keys: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write(keys)
    data: bytes = sink.getvalue().to_pybytes()
    return data
