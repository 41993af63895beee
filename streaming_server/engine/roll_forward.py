"""Applying a transaction that is decided: whatever was applied before a crash is left as it is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from streaming_server.engine.bucket_steps import apply_rows, step_rows
from streaming_server.engine.executor import all_ended
from streaming_server.engine.staged_rows import staged_rows
from streaming_server.storage.staging import READ
from streaming_server.storage.writer_states import WriteStep
from table_model.errors import DataLoss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from streaming_server.engine.executor import StorageExecutor
    from streaming_server.engine.live_bucket import LiveBucket
    from streaming_server.engine.live_table import LiveTable
    from streaming_server.engine.prepare import PreparedRows
    from streaming_server.storage.writer_states import WriteIdentity

_log: Final = logging.getLogger(__name__)


class RollForward:
    """One transaction on its way into its tables.

    All its rows in a bucket are one request to it, of the writer that transactions are: with each WriteBatch the bucket
    notes how many of them are in.

    Args:
        identity: Names the transaction to the buckets.
        files: The file of each part, and how many of its requests count.
        tables: Its tables, by name. They are not altered meanwhile.
        executor: Runs what blocks.
        writer: The id of the writer that the changelog says has made the changes. None: nobody.
        beside_damage: Whether to go on where a bucket is damaged, and leave it out.

    Attributes:
        damaged: The buckets that were left out.
    """

    def __init__(
        self,
        identity: WriteIdentity,
        files: Sequence[tuple[Path, int]],
        tables: Mapping[str, LiveTable],
        executor: StorageExecutor,
        *,
        writer: str | None = None,
        beside_damage: bool = False,
    ) -> None:
        self.damaged: set[LiveBucket] = set()
        self._identity = identity
        self._files = files
        self._tables = tables
        self._executor = executor
        self._writer = writer
        self._beside_damage = beside_damage
        # By bucket: how many rows came by, how many of the first are in, and the offset behind them.
        self._passed: dict[LiveBucket, int] = {}
        self._applied: dict[LiveBucket, int] = {}
        self._offsets: dict[LiveBucket, int] = {}

    async def run(self) -> dict[str, dict[int, int]]:
        """Applies what is missing; durable when it returns: by table and bucket, the offset behind the transaction.

        Raises:
            DataLoss: What was staged, or a bucket, is damaged.
            ScanKvError: A bucket cannot be written.
        """
        async with staged_rows(
            self._files, self._tables, self._executor, lambda request: request.action != READ, by_key=True
        ) as requests:
            async for rows in requests:
                await all_ended(self._apply(rows.table, part) for part in rows.parts)
        await all_ended(self._sync(live) for live in self._offsets)
        offsets: dict[str, dict[int, int]] = {name: {} for name in self._tables}
        for live, offset in self._offsets.items():
            offsets[live.table][live.number] = offset
        return offsets

    async def _apply(self, table: LiveTable, part: PreparedRows) -> None:
        live = table.buckets[part.bucket]
        start = self._passed.get(live, 0)
        end = self._passed[live] = start + len(part.keys)
        try:
            while live not in self.damaged and await self._step(table, live, part, start) < end:
                pass
        except DataLoss as error:
            self._note_damage(live, error)

    async def _step(self, table: LiveTable, live: LiveBucket, part: PreparedRows, start: int) -> int:
        """Applies the next rows of a part with one WriteBatch; how many of the bucket's are in then."""
        async with live.mutex.beside_gate():
            bucket = await live.opened()
            if live not in self._applied:
                answer = await live.run(bucket.answer_of, self._identity)
                self._applied[live] = 0 if answer is None else answer.rows
                self._offsets[live] = bucket.state.log_offset if answer is None else answer.offset
            applied, end = self._applied[live], start + len(part.keys)
            if applied >= end:
                return applied
            indexes = list(table.index_codecs.values())
            behind = min(applied + step_rows(bucket.state, len(indexes)), end)
            rows = part.slice(applied - start, behind - applied)
            step = WriteStep(identity=self._identity, rows=behind, whole=False)
            await live.run(apply_rows, live, bucket, rows, table.codec, indexes, table.engines, step, self._writer)
            self._applied[live], self._offsets[live] = behind, bucket.state.log_offset
            return behind

    async def _sync(self, live: LiveBucket) -> None:
        try:
            await live.wait_written()
        except DataLoss as error:
            self._note_damage(live, error)

    def _note_damage(self, live: LiveBucket, error: DataLoss) -> None:
        if not self._beside_damage:
            raise error
        _log.error("%s is damaged, and lacks what a transaction has written: %s", live.place, error.message)
        self.damaged.add(live)
