"""Stages the deletion of all rows of a table for a transaction; their keys never leave the server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.keys.key_range import KeyRange
from streaming_server.engine.transactions.staged_rows import request_check
from streaming_server.scan.read_plan import ReadPlan
from streaming_server.storage.transactions.staging import DELETE, PieceFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from streaming_server.engine.merging.preparing import WriteKind
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.transactions.staging import PartFile, StagedRequest

_STEP_ROWS: Final = 8192
_STEP_BYTES: Final = 1 << 20
_PIECE_ROWS: Final = 100_000
_PIECE_BYTES: Final = 8 << 20
"""The size of one request of the deletion; the last step may exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAll:
    """The deletion of all rows of a table.

    Attributes:
        table: The table.
        part: The part in which the deletion is staged.
        kind: How the rows are deleted.
        executor: Runs blocking work.
        check: Called before each piece with the total bytes of the pieces, including it. Raises if the deletion must
            stop.
    """

    table: LiveTable
    part: PartFile
    kind: WriteKind
    executor: StorageExecutor
    check: Callable[[int], None]

    async def stage(self, request: StagedRequest) -> StagedRequest:
        """Writes the deletes of all current rows to a file beside the part, and returns the request for them.

        The caller appends the request to the part. Memory: the keys of one piece.

        Args:
            request: The request without rows and buckets.

        Raises:
            InvalidRequest: The table refuses deletes.
            DataLoss: The table is damaged.
            ScanKvError: What `check` raises, or why the table was closed.
        """
        # A table without rows refuses the deletion, too, if it refuses deletes.
        await self._check_keys(self.table.definition.key_schema.empty_table())
        pieces = PieceFile(self.part, self.part.requests)
        try:
            await self.executor.run(pieces.discard)
            async with aclosing(self._keys()) as found:
                async for keys in found:
                    self.check(pieces.size + keys.nbytes)
                    data, rows, buckets, merges = await self._check_keys(keys)
                    piece = replace(request, rows=rows, buckets=buckets, merges=merges)
                    await self.executor.run(pieces.append, piece, data)
            return await self.executor.run(pieces.finish, request)
        except BaseException:
            await self.executor.run(pieces.discard)
            raise

    async def _check_keys(self, keys: pa.Table) -> tuple[bytes, int, dict[int, int], bool]:
        """Returns the keys as a client would send them, their number, their buckets, and whether they are merged."""
        data = await self.executor.run(_to_ipc, keys)
        rows, parts = await self.executor.run(request_check(self.table, DELETE, data, 0, self.kind))
        merges = any(part.merges for part in parts)
        return data, rows, dict.fromkeys((part.bucket for part in parts), 1), merges

    async def _keys(self) -> AsyncGenerator[pa.Table]:
        """Yields the keys of all rows as of one instant, a piece at a time; reads them in steps, as a scan does."""
        plan = ReadPlan(
            buckets=None,
            columns=self.table.definition.primary_key,
            where=None,
            where_message=b"",
            key_range=KeyRange(),
            reverse=False,
            limit=None,
            resume_token=b"",
        )
        gathered: list[pa.RecordBatch] = []
        rows = size = 0
        opened = await self.table.reads.open_view(plan)
        with closing(opened.source) as source:
            while True:
                # Give other tasks a turn after each step.
                await asyncio.sleep(0)
                if not source.prefetch(_STEP_ROWS, _STEP_BYTES):
                    continue
                if (chunk := source.next_chunk(_STEP_ROWS, _STEP_BYTES)) is None:
                    break
                gathered.append(chunk.batch)
                rows, size = rows + chunk.batch.num_rows, size + chunk.batch.nbytes
                if rows >= _PIECE_ROWS or size >= _PIECE_BYTES:
                    yield pa.Table.from_batches(gathered)
                    gathered, rows, size = [], 0, 0
        if rows:
            yield pa.Table.from_batches(gathered)


def _to_ipc(keys: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write(keys)
    data: bytes = sink.getvalue().to_pybytes()
    return data
