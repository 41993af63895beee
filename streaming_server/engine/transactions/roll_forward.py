"""Applying a transaction that is decided: whatever was applied before a crash is left as it is.

Rule: each bucket is on its own. One that cannot be written, because it or what was staged is damaged, or because the
disk is full, keeps none of the others from having all of the transaction.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InternalError, ScanKvError, Unavailable
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.transactions.net_rows import NetRows
from streaming_server.engine.transactions.open_transaction import footprints_of
from streaming_server.engine.transactions.staged_rows import repeated_keys, staged_rows
from streaming_server.engine.writes.bucket_steps import apply_change, apply_rows, origin_of, step_rows
from streaming_server.storage.bucket.writer_states import TRANSACTIONS, WriteIdentity, WriteStep
from streaming_server.storage.transactions.staging import READ, load_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.net_rows import Columns
    from streaming_server.engine.transactions.repeated_keys import RepeatedKeys
    from streaming_server.storage.transactions.decisions import Decision, Decisions
    from streaming_server.storage.transactions.staging import StagedRequest, TableFootprint

_log: Final = logging.getLogger(__name__)


class RollForward:
    """One transaction on its way into its tables.

    Its changes in a bucket are net, and all of one time: those of one request of the writer that transactions are. With
    each WriteBatch the bucket notes how many of its keys are in.

    Args:
        decision: The transaction.
        decisions: All that there are, which say what the buckets may forget.
        files: The file of each part, and how many of its requests count.
        tables: Its tables, by name. They are not altered meanwhile.
        executor: Runs what blocks.

    Attributes:
        offsets: By table and bucket, where all of it is in and durable: the offset behind it.
        failed: Where it is not, and why.
    """

    def __init__(
        self,
        decision: Decision,
        decisions: Decisions,
        files: Sequence[tuple[Path, int]],
        tables: Mapping[str, LiveTable],
        executor: StorageExecutor,
    ) -> None:
        self.failed: dict[LiveBucket, Exception] = {}
        self.offsets: dict[str, dict[int, int]] = {
            name: dict(offsets) for name, offsets in decision.applied.items() if name in tables
        }
        self._decision = decision
        self._decisions = decisions
        self._files = files
        self._tables = tables
        self._executor = executor
        self._repeated: Mapping[LiveBucket, RepeatedKeys] = {}
        # By bucket: how many keys came by, how many of the first are in, and the offset behind them.
        self._passed: dict[LiveBucket, int] = {}
        self._applied: dict[LiveBucket, int] = {}
        self._behind: dict[LiveBucket, int] = {}
        self._whole: set[LiveBucket] = set()

    async def run(
        self,
        touched: Mapping[str, TableFootprint],
        net: Mapping[LiveBucket, NetRows],
        repeated: Mapping[LiveBucket, RepeatedKeys],
    ) -> None:
        """Applies it to all of its buckets, which have nothing of it; what fails is in `failed`.

        Args:
            touched: What it does to each table.
            net: What becomes of the rows of those whose rows are merged.
            repeated: Which keys of the others are in several requests; see `repeated_keys`.
        """
        self._repeated = repeated
        await self._begin()
        try:
            await self._rows(net, touched)
        except Exception as error:
            self._fail_rest(error)
        await self._end()

    async def run_again(self) -> None:
        """Applies what is missing, after a crash or a failure; what fails is in `failed`."""
        await self._begin()
        if self._left():
            try:
                # All of it is read first, so that nothing is applied of what is damaged.
                touched = footprints_of(await self._executor.run(load_parts, self._files))
                self._repeated = await repeated_keys(self._files, self._tables, touched, self._executor)
                await self._rows(await self._merged_again(touched), touched)
            except Exception as error:
                self._fail_rest(error)
        await self._end()

    def _fail_rest(self, error: Exception) -> None:
        for live in self._left():
            self._fail(live, error)

    @property
    def buckets(self) -> list[LiveBucket]:
        """Those that may lack a part of it."""
        return [
            table.buckets[number]
            for name, table in self._tables.items()
            for number in self._decision.buckets.get(name, ())
            if self._decision.is_pending(name, self._decision.tables[name], number)
        ]

    def applied_to(self, live: LiveBucket) -> int:
        """How many of its keys in a bucket, of the first ones, are applied as far as is known."""
        return self._applied.get(live, 0)

    def _left(self) -> list[LiveBucket]:
        return [live for live in self.buckets if live not in self.failed and live not in self._whole]

    async def _begin(self) -> None:
        """Finds out how much of it each bucket has."""
        await all_ended(map(self._ask, self.buckets))

    async def _ask(self, live: LiveBucket) -> None:
        try:
            earlier = self._decisions.pending_before(self._decision, live.table, live.number)
            if earlier is not None:
                # Each bucket takes transactions in their order, or an old row would replace a newer one.
                raise Unavailable(f"{live.location} lacks an earlier transaction, {earlier.token}")
            async with live.mutex.bypass_barrier():
                bucket = await live.open()
                answer = await live.run(bucket.find_answer, self._identity)
            self._applied[live] = 0 if answer is None else answer.rows
            self._behind[live] = bucket.state.log_offset if answer is None else answer.offset
            if answer is not None and answer.complete:
                self._whole.add(live)
        except Exception as error:
            self._fail(live, error)

    @property
    def _identity(self) -> WriteIdentity:
        number = self._decision.number
        # Whatever came before is done in each of its buckets, and the log says so durably: see `Decisions`.
        return WriteIdentity(writer=TRANSACTIONS, epoch=self._decisions.epoch, sequence=number, acked_below=number)

    async def _merged_again(self, touched: Mapping[str, TableFootprint]) -> dict[LiveBucket, NetRows]:
        """What becomes of the rows of tables whose rows are merged; not of those that a bucket has already."""
        tables = {name: table for name, table in self._tables.items() if touched[name].merges}
        net: dict[LiveBucket, NetRows] = {}
        # First which keys there are, in which order: only then it shows which of them are in.
        for is_first in (True, False):
            async with staged_rows(self._files, tables, self._executor, _writes) as requests:
                async for rows in requests:
                    for part in rows.parts:
                        live = rows.table.buckets[part.bucket]
                        if live in self._left():
                            await self._merge_again(rows.table, live, part, net, is_first=is_first)
            if is_first:
                for live, merged in net.items():
                    merged.leave_out(self._applied[live])
        return net

    async def _merge_again(
        self, table: LiveTable, live: LiveBucket, part: PreparedRows, net: dict[LiveBucket, NetRows], *, is_first: bool
    ) -> None:
        try:
            async with live.mutex.bypass_barrier():
                merged = net.setdefault(live, NetRows(await live.open()))
                if is_first:
                    merged.note(part)
                else:
                    await live.run(merged.merge, part, table.writes.merger)
        except Exception as error:
            self._fail(live, error)

    async def _rows(self, net: Mapping[LiveBucket, NetRows], touched: Mapping[str, TableFootprint]) -> None:
        """Applies what is left, of merged rows first."""
        await all_ended(self._apply_net(live, merged) for live, merged in net.items())
        plain = {name: table for name, table in self._tables.items() if not touched[name].merges}
        async with staged_rows(self._files, plain, self._executor, _writes, self._net) as requests:
            async for rows in requests:
                await all_ended(self._apply(rows.table, part) for part in rows.parts)

    def _net(self, request: int, table: LiveTable, part: PreparedRows) -> PreparedRows:
        """The rows of a request that no later one replaces, in the order in which a bucket takes them best."""
        repeated = self._repeated.get(table.buckets[part.bucket])
        mask = None if repeated is None else repeated.last(request, part.keys)
        return (part if mask is None else part.where(mask)).by_key()

    async def _apply_net(self, live: LiveBucket, net: NetRows) -> None:
        table = self._tables[live.table]
        indexes = table.state.codec.indexes
        try:
            for columns, keys in net.steps(self._applied[live], len(indexes)):
                async with live.mutex.bypass_barrier():
                    await self._apply_step(table, live, net, columns, keys)
            self._whole.add(live)
        except Exception as error:
            self._fail(live, error)

    async def _apply_step(
        self, table: LiveTable, live: LiveBucket, net: NetRows, columns: Columns, keys: list[bytes]
    ) -> None:
        bucket, codec = await live.open(), table.state.codec
        behind = self._applied[live] + len(keys)
        await live.run(
            apply_change,
            live,
            bucket,
            lambda: net.change(keys, live.number, codec),
            codec.rows,
            WriteStep(identity=self._identity, rows=behind, complete=behind == len(net)),
            origin_of(self._decision.writer or None, columns, codec.rows),
            self._decision.micros,
        )
        self._applied[live], self._behind[live] = behind, bucket.state.log_offset

    async def _apply(self, table: LiveTable, part: PreparedRows) -> None:
        live = table.buckets[part.bucket]
        start = self._passed.get(live, 0)
        end = self._passed[live] = start + len(part.keys)
        try:
            while live in self._left() and self._applied[live] < end:
                await self._step(table, live, part, start)
        except Exception as error:
            self._fail(live, error)

    async def _step(self, table: LiveTable, live: LiveBucket, part: PreparedRows, start: int) -> None:
        """Applies the next rows of a part with one WriteBatch."""
        async with live.mutex.bypass_barrier():
            bucket = await live.open()
            applied, end = self._applied[live], start + len(part.keys)
            merger = table.writes.merger
            behind = min(applied + step_rows(bucket.state, len(merger.codec.indexes)), end)
            rows = part.slice(applied - start, behind - applied)
            repeated = self._repeated.get(live)
            total = end if repeated is None else repeated.keys
            step = WriteStep(identity=self._identity, rows=behind, complete=behind == total)
            await live.run(
                apply_rows,
                *(live, bucket, rows, merger, step),
                *(self._decision.writer or None, self._decision.micros),
            )
            self._applied[live], self._behind[live] = behind, bucket.state.log_offset
            if behind == total:
                self._whole.add(live)

    async def _end(self) -> None:
        """Makes what is applied durable."""
        self._fail_rest(InternalError("not all of its rows were found"))
        await all_ended(self._sync(live) for live in self._whole if live not in self.failed)
        for live in self._whole:
            if live not in self.failed:
                self.offsets.setdefault(live.table, {})[live.number] = self._behind[live]

    async def _sync(self, live: LiveBucket) -> None:
        try:
            await live.wait_written()
        except Exception as error:
            self._fail(live, error)

    def _fail(self, live: LiveBucket, error: Exception) -> None:
        trace = None if isinstance(error, ScanKvError) else error
        _log.error(
            "%s lacks what the transaction %s has written: %s",
            live.location,
            self._decision.token,
            error,
            exc_info=trace,
        )
        self.failed[live] = error


def _writes(request: StagedRequest) -> bool:
    return request.action != READ
