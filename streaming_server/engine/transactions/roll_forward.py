"""Applies a decided transaction, and skips what was applied before a crash.

Rule: buckets are independent. A bucket that cannot be written, because it or a staged request is damaged or the disk is
full, does not keep the others from getting all of the transaction.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from scankv.model.errors import InternalError, ScanKvError, Unavailable
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.transactions.net_rows import MergedTransactionRows
from streaming_server.engine.transactions.open_transaction import footprints_of
from streaming_server.engine.transactions.staged_ranges import apply_range, read_staged_ranges
from streaming_server.engine.transactions.staged_rows import find_repeated_keys, read_staged_rows
from streaming_server.engine.writes.bucket_steps import apply_change, apply_rows, origin_of, step_rows
from streaming_server.storage.bucket.writer_states import TRANSACTIONS, WriteIdentity, WriteStep
from streaming_server.storage.transactions.staging import TableFootprint, load_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scankv.model.keys.key_range import KeyRange
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.merging.expired_rows import UnexpiredRows
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.repeated_keys import RepeatedKeys
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.changelog.records import ChangeOrigin
    from streaming_server.storage.rows.row_codec import RowCodec
    from streaming_server.storage.transactions.decisions import Decision, Decisions
    from streaming_server.storage.transactions.staging import StagedRequest

_log: Final = logging.getLogger(__name__)


class _NetStep(NamedTuple):
    """The arguments of `apply_change` after the bucket, and the number of keys that are applied after it."""

    change: tuple[Callable[[], BucketChange], RowCodec, WriteStep, ChangeOrigin, int, UnexpiredRows]
    end_row: int


class RollForward:
    """Applies one transaction to its tables.

    Its changes in a bucket are net and have one commit time. To the bucket they are one request of the writer
    `TRANSACTIONS`: each WriteBatch records how many keys of the request are applied.

    Args:
        decision: The transaction.
        decisions: All decisions. They determine which earlier requests the buckets may forget.
        files: The file of each part, and how many of its requests are committed.
        tables: Its tables, by name. The caller keeps them from being altered.
        executor: Runs blocking work.

    Attributes:
        offsets: The offset after the transaction, by table and bucket, where all of it is applied and durable.
        failed: The buckets that lack rows of it, and why.
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
        # By bucket: how many keys were read, how many of the first keys are applied, and the offset after them.
        self._keys_seen: dict[LiveBucket, int] = {}
        self._applied: dict[LiveBucket, int] = {}
        self._end_offsets: dict[LiveBucket, int] = {}
        self._complete: set[LiveBucket] = set()
        # The buckets whose last step has no offset, because only progress or hidden columns changed.
        self._without_offset: set[LiveBucket] = set()

    async def run(
        self,
        touched: Mapping[str, TableFootprint],
        net: Mapping[LiveBucket, MergedTransactionRows],
        repeated: Mapping[LiveBucket, RepeatedKeys],
    ) -> None:
        """Applies the transaction to all of its buckets, before any of them has changes of it. Fills `failed`.

        Args:
            touched: What it does to each table.
            net: The merged rows of buckets of tables whose rows are merged.
            repeated: For other buckets, the keys that several requests write; see `find_repeated_keys`.
        """
        self._repeated = repeated
        await self._begin()
        try:
            await self._apply_rows(net, touched)
        except Exception as error:
            self.fail_rest(error)
        await self._end()

    async def run_again(self) -> None:
        """Applies the rest of the transaction after a crash or a failure. Fills `failed`."""
        await self._begin()
        if self._pending():
            try:
                # Read all parts first, so that nothing of a damaged transaction is applied.
                found = footprints_of(await self._executor.run(load_parts, self._files))
                # A tablet of which a replacement changes no row is a table of the decision, and has no request.
                touched = {name: TableFootprint(self._decision.tables[name]) for name in self._tables} | found
                self._repeated = await find_repeated_keys(self._files, self._tables, touched, self._executor)
                await self._apply_rows(await self._merge_all_again(touched), touched)
            except Exception as error:
                self.fail_rest(error)
        await self._end()

    def fail_rest(self, error: Exception) -> None:
        """Records why the buckets that still lack rows of the transaction cannot get them."""
        for live in self._pending():
            self._fail(live, error)

    @property
    def buckets(self) -> list[LiveBucket]:
        """The buckets that may lack rows of the transaction."""
        return [
            table.buckets[number]
            for name, table in self._tables.items()
            for number in self._decision.buckets.get(name, ())
            if self._decision.is_pending(name, self._decision.tables[name], number)
        ]

    def keys_applied_to(self, live: LiveBucket) -> int:
        """Returns how many of its first keys are known to be applied to a bucket."""
        return self._applied.get(live, 0)

    def _pending(self) -> list[LiveBucket]:
        return [live for live in self.buckets if live not in self.failed and live not in self._complete]

    async def _begin(self) -> None:
        """Loads how many keys of the transaction each bucket has."""
        await all_ended(map(self._load_progress, self.buckets))

    async def _load_progress(self, live: LiveBucket) -> None:
        try:
            earlier = self._decisions.pending_before(self._decision, live.table, live.number)
            if earlier is not None:
                # Transactions are applied to a bucket in order. Otherwise an old row would replace a newer one.
                raise Unavailable(f"{live.location} lacks an earlier transaction, {earlier.token}")
            async with live.mutex.bypass_barrier():
                bucket = await live.open()
                answer = await live.find_answer(bucket, self._identity)
            self._applied[live] = 0 if answer is None else answer.rows
            self._end_offsets[live] = bucket.state.log_offset if answer is None else answer.offset
            if answer is not None and answer.complete:
                self._complete.add(live)
                # Whether the answer itself is durable is unknown.
                self._without_offset.add(live)
        except Exception as error:
            self._fail(live, error)

    @property
    def _identity(self) -> WriteIdentity:
        number = self._decision.number
        # Earlier transactions are complete in each of these buckets, and the log has that durably: see `Decisions`.
        return WriteIdentity(writer=TRANSACTIONS, epoch=self._decisions.epoch, sequence=number, acked_below=number)

    async def _merge_all_again(self, touched: Mapping[str, TableFootprint]) -> dict[LiveBucket, MergedTransactionRows]:
        """Merges the rows of tables whose rows are merged, except for keys that a bucket has already."""
        tables = {name: table for name, table in self._tables.items() if touched[name].merges}
        net: dict[LiveBucket, MergedTransactionRows] = {}
        # The first pass collects the keys in order, which shows which of them are applied. The second merges the rest.
        for is_first in (True, False):
            async with read_staged_rows(self._files, tables, self._executor, _writes) as requests:
                async for rows in requests:
                    for part in rows.parts:
                        live = rows.table.buckets[part.bucket]
                        if live in self._pending():
                            await self._merge_again(rows.table, live, part, net, is_first=is_first)
            if is_first:
                for live, merged in net.items():
                    merged.skip_applied(self._applied[live])
        return net

    async def _merge_again(
        self,
        table: LiveTable,
        live: LiveBucket,
        part: BucketRows,
        net: dict[LiveBucket, MergedTransactionRows],
        *,
        is_first: bool,
    ) -> None:
        try:
            async with live.mutex.bypass_barrier():
                rows = MergedTransactionRows(await live.open(), table.state.codec, self._decision.micros)
                merged = net.setdefault(live, rows)
                if is_first:
                    merged.add_keys(part)
                else:
                    await live.run(merged.merge, part, table.writes.merger)
        except Exception as error:
            self._fail(live, error)

    async def _apply_rows(
        self, net: Mapping[LiveBucket, MergedTransactionRows], touched: Mapping[str, TableFootprint]
    ) -> None:
        """Applies the remaining rows, merged rows first."""
        await self._apply_few({live: merged for live, merged in net.items() if merged.is_few})
        await all_ended(self._apply_net(live, merged) for live, merged in net.items() if live not in self.failed)
        ranges = {name: table for name, table in self._tables.items() if touched[name].ranges}
        for name, keys in (await self._executor.run(read_staged_ranges, self._files, ranges)).items():
            pending = [live for live in self._tables[name].buckets if live in self._pending()]
            await all_ended(self._apply_range(self._tables[name], live, keys) for live in pending)
        plain = {name: table for name, table in self._tables.items() if not touched[name].merges and name not in ranges}
        if not plain:
            return
        async with read_staged_rows(self._files, plain, self._executor, _writes, self._net_part) as requests:
            async for rows in requests:
                await all_ended(self._apply(rows.table, part) for part in rows.parts)

    async def _apply_range(self, table: LiveTable, live: LiveBucket, keys: KeyRange) -> None:
        def step(rows: int, *, complete: bool) -> WriteStep:
            return WriteStep(identity=self._identity, rows=rows, complete=complete)

        try:
            async with live.mutex.bypass_barrier():
                bucket = await live.open()
                origin = origin_of(self._decision.writer or None, None, table.state.codec.rows)
                rows = await apply_range(
                    live, bucket, keys, table.state.codec, step, origin, self._decision.micros, self._applied[live]
                )
                self._record_step(live, rows, bucket.state.log_offset)
            self._complete.add(live)
        except Exception as error:
            self._fail(live, error)

    def _net_part(self, request: int, table: LiveTable, part: BucketRows) -> BucketRows:
        """Returns the rows of a request that no later request replaces, in key order, which is fastest to write."""
        repeated = self._repeated.get(table.buckets[part.bucket])
        mask = None if repeated is None else repeated.last(request, part.key_array)
        return (part if mask is None else part.where(mask)).by_key()

    async def _apply_few(self, net: Mapping[LiveBucket, MergedTransactionRows]) -> None:
        """Applies the first step in each bucket, all in one thread: a change of threads takes as long as few rows."""
        steps: list[tuple[LiveBucket, Bucket, _NetStep]] = []
        done: list[tuple[LiveBucket, int, int]] = []
        errors: dict[LiveBucket, Exception] = {}

        def apply() -> None:
            for live, bucket, step in steps:
                try:
                    apply_change(live, bucket, *step.change)
                except Exception as error:
                    errors[live] = error
                else:
                    done.append((live, step.end_row, bucket.state.log_offset))

        async with AsyncExitStack() as mutexes:
            # In the order in which all tasks lock buckets.
            for live in sorted(net, key=lambda live: (live.table, live.number)):
                await mutexes.enter_async_context(live.mutex.bypass_barrier())
                try:
                    steps += [(live, await live.open(), step) for step in islice(self._net_steps(live, net[live]), 1)]
                except Exception as error:
                    errors[live] = error
            if steps:
                await self._executor.run(apply)
        for step_done in done:
            self._record_step(*step_done)
            step_done[0].notify_applied()
        for live, failure in errors.items():
            self._fail(live, live.record_error(failure) if isinstance(failure, ScanKvError) else failure)

    async def _apply_net(self, live: LiveBucket, net: MergedTransactionRows) -> None:
        try:
            for step in self._net_steps(live, net):
                async with live.mutex.bypass_barrier():
                    bucket = await live.open()
                    await live.write(apply_change, live, bucket, *step.change)
                    self._record_step(live, step.end_row, bucket.state.log_offset)
            self._complete.add(live)
        except Exception as error:
            self._fail(live, error)

    def _net_steps(self, live: LiveBucket, net: MergedTransactionRows) -> Iterator[_NetStep]:
        """Yields what is left to apply to a bucket, a WriteBatch at a time."""
        codec = self._tables[live.table].state.codec
        end_row = self._applied[live]
        for columns, keys in net.steps(end_row, len(codec.indexes)):
            end_row += len(keys)
            stored = net.stored(codec, self._decision.micros)
            change = (
                partial(net.change, keys, live.number, stored),
                codec.rows,
                WriteStep(identity=self._identity, rows=end_row, complete=end_row == len(net)),
                origin_of(self._decision.writer or None, columns, codec.rows),
                self._decision.micros,
                stored,
            )
            yield _NetStep(change, end_row)

    def _record_step(self, live: LiveBucket, applied: int, offset: int) -> None:
        if offset == self._end_offsets[live]:
            self._without_offset.add(live)
        else:
            self._without_offset.discard(live)
        self._applied[live], self._end_offsets[live] = applied, offset

    async def _apply(self, table: LiveTable, part: BucketRows) -> None:
        live = table.buckets[part.bucket]
        start = self._keys_seen.get(live, 0)
        end = self._keys_seen[live] = start + len(part.keys)
        try:
            while live in self._pending() and self._applied[live] < end:
                await self._step(table, live, part, start)
        except Exception as error:
            self._fail(live, error)

    async def _step(self, table: LiveTable, live: LiveBucket, part: BucketRows, start: int) -> None:
        """Applies the next rows of a part with one WriteBatch."""
        async with live.mutex.bypass_barrier():
            bucket = await live.open()
            applied, end = self._applied[live], start + len(part.keys)
            merger = table.writes.merger
            end_row = min(applied + step_rows(bucket.state, len(merger.codec.indexes)), end)
            rows = part.slice(applied - start, end_row - applied)
            repeated = self._repeated.get(live)
            total = end if repeated is None else repeated.keys
            step = WriteStep(identity=self._identity, rows=end_row, complete=end_row == total)
            await live.write(
                apply_rows,
                *(live, bucket, rows, merger, step),
                *(self._decision.writer or None, self._decision.micros),
            )
            self._record_step(live, end_row, bucket.state.log_offset)
            if end_row == total:
                self._complete.add(live)

    async def _end(self) -> None:
        """Makes the applied rows durable."""
        self.fail_rest(InternalError("not all staged rows of the transaction were found"))
        await all_ended(self._sync(live) for live in self._complete if live not in self.failed)
        for live in self._complete:
            if live not in self.failed:
                self.offsets.setdefault(live.table, {})[live.number] = self._end_offsets[live]

    async def _sync(self, live: LiveBucket) -> None:
        try:
            # An offset is durable after everything that was written before it.
            if live in self._without_offset:
                await live.wait_written()
            else:
                await live.wait_durable(self._end_offsets[live])
        except Exception as error:
            self._fail(live, error)

    def _fail(self, live: LiveBucket, error: Exception) -> None:
        trace = None if isinstance(error, ScanKvError) else error
        _log.error(
            "%s lacks rows of the transaction %s: %s",
            live.location,
            self._decision.token,
            error,
            exc_info=trace,
        )
        self.failed[live] = error


def _writes(request: StagedRequest) -> bool:
    return request.has_rows
