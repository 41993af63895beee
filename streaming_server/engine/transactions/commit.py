"""Commits a transaction: raises its commit barrier, verifies, decides, rolls forward, and lifts the barrier.

If several worker processes have a share of it, they agree before the decision; see `two_phase`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, InvalidRequest, ScanKvError, TableNotFound, TransactionLost, Unavailable
from scankv.model.names import lock_order, table_of, tablet_number
from streaming_server.engine.bucket.commit_barrier import raise_barrier
from streaming_server.engine.merging.preparing import WriteKind, current_kind
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.transactions.give_up import check_hopeless, find_losses
from streaming_server.engine.transactions.open_transaction import footprints_of
from streaming_server.engine.transactions.roll_forward import RollForward
from streaming_server.engine.transactions.staged_rows import find_repeated_keys
from streaming_server.engine.transactions.stuck import (
    OUTCOME_UNKNOWN,
    in_doubt,
    retried_error,
    retried_in_the_meantime,
    retried_kind,
    why_blocked,
    why_stuck,
    why_unacknowledged,
    why_undecidable,
)
from streaming_server.engine.transactions.two_phase import CommitOutcome, ask_for_outcome
from streaming_server.engine.transactions.verify import Verification
from streaming_server.storage.transactions.decisions import Decision
from streaming_server.storage.transactions.staging import StagingDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from streaming_server.activity import Activity
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.give_up import BucketLoss
    from streaming_server.engine.transactions.open_transaction import OpenTransaction
    from streaming_server.engine.transactions.repeated_keys import RepeatedKeys
    from streaming_server.engine.transactions.table_usage_lock import TableUsageLock
    from streaming_server.engine.transactions.two_phase import Agreement, Peers
    from streaming_server.storage.transactions.decisions import CommittedTransaction, Decisions, Share
    from streaming_server.storage.transactions.staging import PartFile, TableFootprint

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class CommitStats:
    """The stats of the commits of a server since its start.

    Attributes:
        commits: The number of commits.
        rows: The rows and keys in them.
        closed_commit_barriers: How many commits have raised their barrier, or wait to raise it, now.
        longest_micros: The longest time that a barrier was raised, in microseconds.
    """

    commits: int = 0
    rows: int = 0
    closed_commit_barriers: int = 0
    longest_micros: int = 0


@dataclass(frozen=True, slots=True)
class _Acknowledgements:
    """What other workers have answered to the notification of a decision.

    Attributes:
        shares: The applied shares, by worker.
        failures: Why other shares are not applied, by worker.
    """

    shares: dict[int, Share] = field(default_factory=dict)
    failures: dict[int, ScanKvError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rolled:
    """What an attempt to apply the rest of a decision has come to.

    Attributes:
        committed: The commit. None: it still cannot be applied everywhere, or another task has finished it.
        rolling: What is applied here.
        tables: The tables that can be used.
        unreadable: The tables that cannot be used, and why.
    """

    committed: CommittedTransaction | None
    rolling: RollForward
    tables: Mapping[str, LiveTable]
    unreadable: Mapping[str, ScanKvError]


class CommitCoordinator:
    """Commits transactions; those without a common bucket run concurrently. Bound to the event loop.

    Args:
        root: The directory of the transactions.
        decisions: The transaction log; its methods run in threads, one at a time.
        executor: Runs blocking work.
        table: Returns the table of a name, or raises TableNotFound.
        uses: Keeps tables from being altered during a commit.
        clock: The server's clock.
        end: Ends a transaction that is applied everywhere. Called at the instant at which it is recorded, so that no
            call finds it neither decided nor committed.
        activity: Counts the rows of each table.

    Attributes:
        stats: The stats of its commits.
        stuck: By token, why a committed transaction could not be applied to all of its buckets.
    """

    def __init__(
        self,
        root: Path,
        decisions: Decisions,
        executor: StorageExecutor,
        table: Callable[[str], LiveTable],
        uses: TableUsageLock,
        clock: ServerClock,
        end: Callable[[CommittedTransaction], None],
        activity: Activity,
    ) -> None:
        self._activity = activity
        self._clock = clock
        self._end = end
        self.stats = CommitStats()
        self._root = root
        self._decisions = decisions
        self._executor = executor
        self._table = table
        self._uses = uses
        self.stuck: dict[str, ScanKvError] = {}
        self._log = asyncio.Lock()
        # The decisions whose outcome is unknown, because the log could not be synced.
        self._uncertain: dict[str, tuple[Decision, Sequence[LiveBucket]]] = {}
        # Held while a stuck transaction is retried or given up.
        self._trying = asyncio.Lock()
        # The tokens of applied transactions whose rows are still staged.
        self._finished: set[str] = set()
        self._peers: Peers | None = None
        # The tokens of decisions that are applied here, and not at all other workers.
        self._applied_here: set[str] = set()

    def set_peers(self, peers: Peers) -> None:
        """Sets the other workers of the server. Call it before the first commit."""
        self._peers = peers

    async def commit(self, transaction: OpenTransaction, sizes: Sequence[tuple[str, int]]) -> CommittedTransaction:
        """Commits a transaction. When this returns, it is durable and visible to all readers.

        The caller stages no further requests.

        Args:
            transaction: The transaction.
            sizes: The parts to commit, and the number of requests of each. Empty: all parts.

        Raises:
            InvalidRequest: A part has another number of requests; or a deletion of a range is not the only write to its
                table.
            TableNotFound: A table was dropped.
            ColumnLocked: Another writer has locked columns that the transaction writes.
            TransactionConflict, InvalidRequest, PositionExpired, PositionOutOfRange, RequestTooLarge, DataLoss: As
                `Verification`; nothing was written.
            DiskFull: The disk has no space for its rows, or the decision cannot be logged; nothing was written.
            DataLoss, DiskFull, Unavailable: The transaction is committed, but cannot be applied everywhere now: see
                `stuck`.
        """
        parts = transaction.select_parts(sizes, is_share=transaction.agreement is not None)
        touched = footprints_of(parts)
        for name, footprint in touched.items():
            if footprint.ranges and footprint.writes > 1:
                raise InvalidRequest(
                    f"the transaction deletes a key range of table {name} without tracking of changes, and writes to "
                    "the table in another way, too: commit them one after another",
                    table=name,
                )
        if transaction.options.job_table:
            self._same_table(transaction.options.job_table, transaction.options.job_incarnation)
        used = {name: each for name, each in touched.items() if not each.is_of_summaries}
        # Without tables that have only summaries: their alteration waits until the commit has left the tablets.
        async with self._uses.using(used):
            known = {
                name: self._same_table(name, touched[name].incarnation) for name in sorted(touched, key=lock_order)
            }
            tables = {name: table for name, table in known.items() if name in used}
            for table in tables.values():
                # A transaction that is decided but not applied would keep its buckets from being read.
                table.state.reserve.check_fits(sum(part.size for part in parts))
            await self._executor.run(_sync, transaction.directory, parts)
            repeated = await find_repeated_keys(_files(parts), tables, used, self._executor)
            with ExitStack() as admissions:
                for name, table in known.items():
                    for schema_id, columns, locks in touched[name].access:
                        # Columns may have been renamed since.
                        current = current_kind(table.definition, schema_id, WriteKind(columns=columns)).columns
                        admissions.enter_context(table.writes.locks.admit(current or None, locks))
                return await self._commit_behind_barrier(transaction, parts, tables, used, repeated)

    async def _commit_behind_barrier(
        self,
        transaction: OpenTransaction,
        parts: Sequence[PartFile],
        tables: Mapping[str, LiveTable],
        touched: Mapping[str, TableFootprint],
        repeated: Mapping[LiveBucket, RepeatedKeys],
    ) -> CommittedTransaction:
        buckets = [tables[name].buckets[number] for name in tables for number in sorted(touched[name].buckets)]
        files = _files(parts)
        agreement = transaction.agreement
        notifying: asyncio.Task[_Acknowledgements] | None = None
        self.stats.closed_commit_barriers += 1
        try:
            async with raise_barrier(buckets, delays_lookups=agreement is not None):
                started = self._clock.monotonic()
                checks = Verification(files=files, tables=tables, touched=touched, since=transaction.since)
                net = await checks.run(self._executor)
                decision = Decision(
                    number=self._decisions.next_number(),
                    token=transaction.token,
                    id=transaction.options.id,
                    micros=self._commit_time(buckets),
                    served_micros=self._clock.service_micros(),
                    rows=sum(part.rows for part in parts),
                    tables=_job_table(transaction) | {name: touched[name].incarnation for name in tables},
                    files=tuple((part.number, part.requests) for part in parts),
                    buckets={name: tuple(sorted(touched[name].buckets)) for name in tables},
                    writer=transaction.options.writer,
                    principal=transaction.principal,
                )
                decision = await self._agree_and_decide(decision, agreement, parts, buckets)
                if decision.unacknowledged:
                    notifying = asyncio.create_task(self._notify(decision))
                rolling = self._new_roll_forward(decision, files, tables)
                try:
                    await rolling.run(touched, net, repeated)
                except BaseException as error:
                    self._block_all(decision, buckets, error)
                    raise
                committed = self._record_progress(decision, rolling)
            micros = int((self._clock.monotonic() - started) * 1_000_000)
        finally:
            self.stats.closed_commit_barriers -= 1
            answers = None if notifying is None else await notifying
        if answers is not None:
            committed = self._record_acknowledgements(transaction.token, answers)
        # Each transaction counts once, at its coordinator.
        self.stats.commits += decision.coordinator is None
        self.stats.rows += decision.rows
        for name, footprint in touched.items():
            self._activity.count_written_rows(table_of(name), footprint.rows)
        self.stats.longest_micros = max(self.stats.longest_micros, micros)
        if committed is None:
            raise copy(self.stuck.get(decision.token) or retried_in_the_meantime())
        return committed

    async def _agree_and_decide(
        self,
        decision: Decision,
        agreement: Agreement | None,
        parts: Sequence[PartFile],
        buckets: Sequence[LiveBucket],
    ) -> Decision:
        """Takes the decision, after other workers have agreed. Returns it as it was taken.

        If it may be taken although this fails, the buckets are blocked.
        """
        try:
            if agreement is not None:
                decision = await agreement.agree(decision, parts)
            await self._log_first(self._decisions.decide, decision, buckets)
        except BaseException as error:
            if self.is_decided(decision.token):
                self._block_all(decision, buckets, error)
                if isinstance(error, Exception):
                    raise copy(self.stuck[decision.token]) from error
            elif agreement is not None:
                await agreement.undo()
            raise
        return decision

    async def promise(self, decision: Decision) -> None:
        """Stores durably that a share is prepared. Its barrier is raised."""
        tables, _ = self._tables_of(decision)
        await self._log_first(self._decisions.prepare, decision, _buckets_of(decision, tables))

    def forget_promise(self, token: str) -> None:
        """Forgets a prepared share, because its coordinator does not commit it."""
        self._decisions.undo(token)

    async def _notify(self, decision: Decision) -> _Acknowledgements:
        """Notifies other workers of a decision, and waits until they have applied it."""
        assert self._peers is not None
        answers = _Acknowledgements()
        await all_ended(self._notify_one(self._peers, decision, share, answers) for share in decision.unacknowledged)
        return answers

    async def _notify_one(self, peers: Peers, decision: Decision, share: Share, answers: _Acknowledgements) -> None:
        try:
            offsets = await peers.conclude(share.worker, decision.token, decision.attempt, decision.micros)
        except ScanKvError as error:
            _log.warning("worker %s has yet to apply the transaction %s: %s", share.worker, decision.token, error)
            answers.failures[share.worker] = error
        else:
            answers.shares[share.worker] = replace(share, log_offsets=offsets)

    def _record_acknowledgements(self, token: str, answers: _Acknowledgements) -> CommittedTransaction | None:
        """Records which workers have applied their shares.

        Returns the commit, or None if the transaction is stuck, or if another task has finished it.
        """
        decision = self._decisions.unfinished.get(token)
        if decision is None:
            return None
        decision = replace(decision, shares=tuple(answers.shares.get(each.worker, each) for each in decision.shares))
        if decision.unacknowledged or token not in self._applied_here:
            self._decisions.record_applied(decision)
            if token in self._applied_here:
                self.stuck[token] = why_unacknowledged(answers.failures)
            return None
        committed = decision.to_committed(decision.applied)
        self._applied_here.discard(token)
        self._record_done(committed)
        return committed

    def _record_done(self, committed: CommittedTransaction) -> None:
        """Records that a transaction is applied everywhere."""
        self._decisions.record_done(committed)
        self.stuck.pop(committed.token, None)
        self._end(committed)

    @property
    def applied_here(self) -> list[CommittedTransaction]:
        """The commits that all buckets of this worker have, and that some other worker has not confirmed yet."""
        decisions = [self._decisions.unfinished[token] for token in self._applied_here]
        return [each.to_committed(each.applied) for each in decisions]

    def _commit_time(self, buckets: Sequence[LiveBucket]) -> int:
        """Returns the one commit time of all changes of a transaction.

        Call it while the barrier is raised and the buckets are open.

        Rule: the time is not before an earlier commit in any bucket, and no stream has reported that it has read past
        it. So a stream that starts or stops at a time reads all of a transaction, or nothing of it.
        """
        opened = [live.open_bucket for live in buckets]
        return max((each.commit_time() for each in opened if each is not None), default=self._clock.commit_micros())

    async def _log_first(
        self, write: Callable[[Decision], None], decision: Decision, buckets: Sequence[LiveBucket]
    ) -> None:
        """Writes a record on which the commit depends. If it may be in the log after a failure, it is uncertain."""
        async with self._log:
            was_uncertain = self.is_uncertain
            try:
                await self._executor.run(write, decision)
            except BaseException:
                # A share that is prepared stays prepared.
                if self.is_uncertain and not was_uncertain and decision.token not in self._decisions.prepared:
                    self._uncertain[decision.token] = decision, buckets
                raise

    @property
    def is_uncertain(self) -> bool:
        """Whether a decision is uncertain, because the log could not be synced: see `settle`."""
        return self._decisions.is_uncertain

    async def settle(self, remembered: Iterable[CommittedTransaction]) -> list[str]:
        """Rewrites the log, which settles uncertain decisions, and returns the tokens of the undecided transactions.

        Rule: a decision whose sync failed is undone only once a log without it is durable.

        Raises:
            DiskFull, OSError: The decisions are still uncertain.
        """
        await self.rewrite_log(remembered)
        undecided, self._uncertain = self._uncertain, {}
        for token, (decision, buckets) in undecided.items():
            _log.info("the transaction %s is not committed, because the transaction log could not be synced", token)
            self.stuck.pop(token)
            self._unblock(decision, buckets)
        return list(undecided)

    def _block_all(self, decision: Decision, buckets: Sequence[LiveBucket], error: BaseException) -> None:
        """Blocks the buckets of a decision that is uncertain, or whose progress is unknown."""
        trace = None if isinstance(error, ScanKvError) else error
        _log.error("the transaction %s may be committed, and is not applied: %s", decision.token, error, exc_info=trace)
        self.stuck[decision.token] = retried_error(retried_kind(error), OUTCOME_UNKNOWN, error)
        for live in buckets:
            live.block(retried_error(Unavailable, f"{live.location}: {OUTCOME_UNKNOWN}", error))

    def is_decided(self, token: str) -> bool:
        """Whether a transaction is committed but not fully applied, or whether its outcome is unknown."""
        return token in self._decisions.unfinished or token in self._decisions.prepared or token in self._uncertain

    @property
    def has_more_to_do(self) -> bool:
        """Whether `retry` may make progress."""
        again = any(not isinstance(self.stuck.get(token), DataLoss) for token in self._decisions.unfinished)
        # A coordinator may get back what it has lost.
        again = again or bool(self._decisions.prepared)
        return (again and bool(self.stuck)) or bool(self._finished) or self.is_uncertain

    @property
    def waits_for_peers(self) -> bool:
        """Whether a share is in doubt, or another worker has yet to apply a decision."""
        decisions = (*self._decisions.prepared.values(), *self._decisions.unfinished.values())
        return any(
            each.token in self.stuck and (each.coordinator is not None or each.unacknowledged) for each in decisions
        )

    async def roll_forward(self, decision: Decision) -> CommittedTransaction | None:
        """Applies the rest of a decision after a crash or a failure. Returns None if a part still cannot be applied.

        Buckets that still lack rows of it are blocked, see `LiveBucket.block`. All others can be used.
        """
        return (await self._roll_and_notify(decision)).committed

    async def _roll_and_notify(self, decision: Decision) -> _Rolled:
        """Applies the rest of a decision, here and at other workers."""
        tables, unreadable = self._tables_of(decision)
        rolling = self._new_roll_forward(decision, self._files_of(decision), tables)
        await rolling.run_again()
        committed = self._record_progress(decision, rolling, unreadable)
        if decision.unacknowledged:
            committed = self._record_acknowledgements(decision.token, await self._notify(decision))
        return _Rolled(committed, rolling, tables, unreadable)

    async def sync_log(self) -> Exception | None:
        """Makes the log durable that a start has found. Returns why that failed, until `settle`.

        Rule: a crash may have kept the last decision from becoming durable. No bucket and no other worker may have its
        changes before it is.
        """
        try:
            async with self._log:
                await self._executor.run(self._decisions.flush)
        except (ScanKvError, OSError) as error:
            return error
        return None

    def block(self, decision: Decision, error: Exception) -> None:
        """Blocks the buckets of a decision or a share that a start has found, and that cannot be applied yet."""
        tables, _ = self._tables_of(decision)
        self._block_all(decision, _buckets_of(decision, tables), error)

    async def ask_in_doubt(self) -> list[str]:
        """Asks for the outcomes of shares in doubt, and returns the tokens of those that are undone.

        Those that are committed are decided from now on: `retry` applies them.
        """
        undone = []
        for decision in list(self._decisions.prepared.values()):
            if decision.token in self.stuck and self._peers is not None and decision.coordinator is not None:
                try:
                    found = await ask_for_outcome(self._peers, decision.coordinator, decision.token, decision.attempt)
                except DataLoss as error:
                    self._block_undecidable(decision, error)
                    continue
                if found is CommitOutcome.UNDECIDED:
                    continue
                if await self.end_doubt(decision.token, found if isinstance(found, int) else None):
                    undone.append(decision.token)
        return undone

    def _block_undecidable(self, decision: Decision, error: DataLoss) -> None:
        """Says why a share stays in doubt, and what an operator can do."""
        if decision.token not in self._decisions.prepared or isinstance(self.stuck.get(decision.token), DataLoss):
            return
        reason = self.stuck[decision.token] = why_undecidable(decision, error)
        _log.error("the transaction %s is in doubt: %s", decision.token, reason.message)
        tables, _ = self._tables_of(decision)
        for live in _buckets_of(decision, tables):
            live.block(DataLoss(f"{live.location}: {reason.message}", table=live.table, bucket=live.number))

    async def end_doubt(self, token: str, micros: int | None) -> bool:
        """Ends the doubt about a share, with the time of the commit, or None if it is undone.

        Returns whether it was undone now.

        Raises:
            DiskFull, OSError, Unavailable: The decision cannot be logged, so the share stays in doubt.
        """
        async with self._trying:
            decision = self._decisions.prepared.get(token)
            if decision is None:
                return False
            if micros is None:
                self._decisions.undo(token)
                self.stuck.pop(token, None)
                tables, _ = self._tables_of(decision)
                self._unblock(decision, _buckets_of(decision, tables))
                return True
            async with self._log:
                await self._executor.run(self._decisions.decide, replace(decision, micros=micros))
            return False

    def _tables_of(self, decision: Decision) -> tuple[dict[str, LiveTable], dict[str, ScanKvError]]:
        """Returns the usable tables of a decision, and why others are not usable. Dropped tables are in neither."""
        tables: dict[str, LiveTable] = {}
        unreadable: dict[str, ScanKvError] = {}
        for name, incarnation in sorted(decision.tables.items()):
            try:
                tables[name] = self._same_table(name, incarnation)
            except TableNotFound:
                pass
            except ScanKvError as error:
                unreadable[name] = error
        return tables, unreadable

    def _files_of(self, decision: Decision) -> list[tuple[Path, int]]:
        directory = StagingDirectory(self._root, decision.token)
        return [(directory.part_path(number), requests) for number, requests in decision.files]

    async def give_up(self, token: str) -> tuple[CommittedTransaction, list[BucketLoss]]:
        """Ends a committed transaction that cannot be applied everywhere, so that all of its buckets are served again.

        All that can be applied is applied first. A share in doubt is lost completely, if its coordinator cannot read
        its log: it counts as committed here, whatever the coordinator says if it gets its log back. The caller then
        calls `finish`.

        Returns:
            The commit, and what is lost: nothing if all could be applied.

        Raises:
            TransactionLost: No such transaction is stuck.
            TransactionCommitted: The transaction may still be applied. Nothing has changed.
            DiskFull, OSError, Unavailable: The end cannot be logged. Nothing has changed.
        """
        async with self._trying:
            decision = self._stuck_decision(token)
            if decision is None or token not in self.stuck:
                raise TransactionLost(f"no committed transaction {token[:64]!r} is stuck: see `transactions`")
            async with self._uses.using(decision.tables):
                is_prepared = token in self._decisions.prepared
                rolled = await (self._fail_in_doubt(decision) if is_prepared else self._roll_and_notify(decision))
                if rolled.committed is not None:
                    return rolled.committed, []
                decision = self._stuck_decision(token)
                if decision is None:
                    raise retried_in_the_meantime()
                rolling, unreadable, files = rolled.rolling, rolled.unreadable, self._files_of(decision)
                check_hopeless(decision, rolling, unreadable)
                lost = await find_losses(decision, rolling, unreadable, files, rolled.tables, self._executor)
                committed = decision.to_committed(decision.applied)
                # Before a new write can replace the missing rows. Otherwise a later start might apply them over it.
                async with self._log:
                    await self._executor.run(self._decisions.end, committed)
                for each in lost:
                    _log.warning("the transaction %s (id %r) is given up; lost: %s", token, decision.id, each)
                self.stuck.pop(token)
                self._end(committed)
                self._unblock(decision, rolling.buckets)
        return committed, lost

    def _stuck_decision(self, token: str) -> Decision | None:
        """Returns a decision that is not applied everywhere, or the one that a share in doubt waits for."""
        return self._decisions.unfinished.get(token) or self._decisions.prepared.get(token)

    async def _fail_in_doubt(self, decision: Decision) -> _Rolled:
        """Returns what keeps a share in doubt from being applied: an error of its coordinator."""
        assert self._peers is not None
        assert decision.coordinator is not None
        tables, unreadable = self._tables_of(decision)
        rolling = self._new_roll_forward(decision, self._files_of(decision), tables)
        try:
            await ask_for_outcome(self._peers, decision.coordinator, decision.token, decision.attempt)
        except DataLoss as error:
            rolling.fail_rest(why_undecidable(decision, error))
        else:
            rolling.fail_rest(in_doubt(decision))
        return _Rolled(None, rolling, tables, unreadable)

    def _record_progress(
        self, decision: Decision, rolling: RollForward, unreadable: Mapping[str, ScanKvError] | None = None
    ) -> CommittedTransaction | None:
        """Records how far a decision is applied. Returns the commit, or None if the transaction is stuck.

        Args:
            decision: The decision.
            rolling: The roll-forward that has applied what it could.
            unreadable: The tables that cannot be used, and why.
        """
        is_applied = not rolling.failed and not unreadable
        if is_applied and not decision.unacknowledged:
            committed = decision.to_committed(rolling.offsets)
            self._record_done(committed)
        else:
            committed = None
            decision = replace(decision, applied=rolling.offsets)
            self._decisions.record_applied(decision)
            if is_applied:
                self._applied_here.add(decision.token)
            else:
                self.stuck[decision.token] = why_stuck(decision.token, rolling.failed, unreadable or {})
        for live, error in rolling.failed.items():
            live.block(why_blocked(live, error, decision.token))
        self._unblock(decision, rolling.buckets)
        return committed

    def _unblock(self, decision: Decision, buckets: Sequence[LiveBucket]) -> None:
        """Unblocks the buckets of a decision that no longer lack rows of any decision."""
        for live in buckets:
            incarnation = decision.tables[live.table]
            pending = (*self._decisions.unfinished.values(), *self._decisions.prepared.values())
            left = (each.is_pending(live.table, incarnation, live.number) for each in pending)
            if live.mutex.failure is not None and not any(left):
                live.unblock()

    async def finish(self, committed: CommittedTransaction) -> None:
        """Makes the end of an applied transaction durable, and removes its staged rows.

        Raises:
            DiskFull, OSError, Unavailable: The end is not durable. The next decision, or `retry`, tries again.
        """
        self._finished.add(committed.token)
        await self.tidy_up()

    async def tidy_up(self) -> None:
        """Makes the end of all applied transactions durable, and removes their staged rows. Raises as `finish` does."""
        async with self._log:
            await self._executor.run(self._decisions.flush)
        while self._finished:
            await self._executor.run(StagingDirectory(self._root, self._finished.pop()).remove)

    async def retry(self, dropped: str | None = None) -> list[CommittedTransaction]:
        """Retries stuck transactions. Returns those that are now applied; the caller calls `finish` for each.

        Args:
            dropped: A table that was dropped, so that it lacks nothing any more. Transactions that are stuck because of
                damaged data are retried only if they wrote to this table.
        """
        done = []
        for token in list(self.stuck):
            async with self._trying:
                decision, error = self._decisions.unfinished.get(token), self.stuck.get(token)
                if decision is None or (
                    isinstance(error, DataLoss) and dropped not in {*map(table_of, decision.tables)}
                ):
                    continue
                async with self._uses.using(decision.tables):
                    committed = await self.roll_forward(decision)
            if committed is not None:
                _log.info("the transaction %s is now applied everywhere", token)
                done.append(committed)
        return done

    async def rewrite_log(self, remembered: Iterable[CommittedTransaction]) -> None:
        """Shortens the log to what it must keep. Raises DiskFull, OSError, and leaves the log as it was."""
        async with self._log:
            await self._executor.run(self._decisions.rewrite, list(remembered))

    def _new_roll_forward(
        self, decision: Decision, files: Sequence[tuple[Path, int]], tables: Mapping[str, LiveTable]
    ) -> RollForward:
        return RollForward(decision, self._decisions, files, tables, self._executor)

    def _same_table(self, name: str, incarnation: str) -> LiveTable:
        try:
            table = self._table(name)
        except TableNotFound:
            if tablet_number(name) is None:
                raise
            # Perhaps its table has other tablets now.
            name = table_of(name)
            message = f"table {name} was dropped since the transaction wrote to it: begin another one"
            raise TableNotFound(message, table=name) from None
        if table.definition.incarnation != incarnation:
            raise TableNotFound(
                f"table {name} was dropped and created again since the transaction wrote to it: begin another one",
                table=name,
            )
        return table


def _job_table(transaction: OpenTransaction) -> dict[str, str]:
    """Returns the incarnation of the table of the transaction's job, whose commit counts even if it writes nothing."""
    options = transaction.options
    return {options.job_table: options.job_incarnation} if options.job_table else {}


def _buckets_of(decision: Decision, tables: Mapping[str, LiveTable]) -> list[LiveBucket]:
    return [tables[name].buckets[number] for name in tables for number in decision.buckets.get(name, ())]


def _files(parts: Sequence[PartFile]) -> list[tuple[Path, int]]:
    return [(part.path, part.requests) for part in parts]


def _sync(directory: StagingDirectory, parts: Sequence[PartFile]) -> None:
    for part in parts:
        part.sync()
    directory.sync()
