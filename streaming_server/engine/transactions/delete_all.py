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
from streaming_server.scan.read_plan import ReadPlan
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
        pieces = PieceFile(self.part, self.part.requests)
        try:
            await self.executor.run(pieces.discard)
            async with aclosing(self._keys()) as found:
                async for keys in found:
                    self.check(pieces.size + keys.nbytes)
                    data, rows, buckets, merges = await self._check_keys(keys)
                    piece = replace(request, rows=rows, buckets=buckets, merges=merges)
                    await self.executor.run(pieces.append, piece, data)
            return await self.executor.run(pieces.finish, request), b""
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
            async with aclosing(self._chunks(replace(self.plan, columns=()))) as chunks:
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

    async def _keys(self) -> AsyncGenerator[pa.Table]:
        """Yields the keys of all selected rows as of one instant, a piece at a time."""
        gathered: list[pa.RecordBatch] = []
        rows = size = 0
        chunks = self._chunks(_keys_in(self.plan, self.table))
        async with aclosing(chunks):
            async for batch in chunks:
                gathered.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= _PIECE_ROWS or size >= _PIECE_BYTES:
                    yield pa.Table.from_batches(gathered)
                    gathered, rows, size = [], 0, 0
        if rows:
            yield pa.Table.from_batches(gathered)

    async def _chunks(self, plan: ReadPlan) -> AsyncGenerator[pa.RecordBatch]:
        """Yields the rows that a plan selects as of one instant; reads them in steps, as a scan does."""
        opened = self.held or await self.table.reads.open_view(plan.bind(self.table.definition.schema))
        with closing(opened.source) as source:
            while True:
                # Give other tasks a turn after each step.
                await asyncio.sleep(0)
                if not source.prefetch(_STEP_ROWS, _STEP_BYTES):
                    continue
                if (chunk := source.next_chunk(_STEP_ROWS, _STEP_BYTES)) is None:
                    break
                yield chunk.batch


async def open_held(plan: ReadPlan, table: LiveTable) -> OpenedScan | None:
    """Opens the view of the rows that a plan selects under the hold of the current call. None: it has no hold."""
    if CURRENT_HOLD.get() is None:
        return None
    return await table.reads.open_view(_keys_in(plan, table).bind(table.definition.schema))


def _keys_in(plan: ReadPlan, table: LiveTable) -> ReadPlan:
    """Returns the plan that selects the keys of the same rows."""
    return replace(plan, columns=table.definition.primary_key)


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
