"""Committing a transaction: its gate closed, verified, decided, rolled forward, and the gate opened."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, ScanKvError, TableNotFound, TransactionLost, Unavailable
from streaming_server.engine.bucket.commit_barrier import raise_barrier
from streaming_server.engine.transactions.give_up import check_hopeless, find_lost
from streaming_server.engine.transactions.open_transaction import footprints_of
from streaming_server.engine.transactions.roll_forward import RollForward
from streaming_server.engine.transactions.staged_rows import repeated_keys
from streaming_server.engine.transactions.stuck import UNTOLD, kind_of, not_yet, why_blocked, why_stuck
from streaming_server.engine.transactions.verify import Verification
from streaming_server.storage.transactions.decisions import Decision
from streaming_server.storage.transactions.staging import StagingDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.give_up import LostWrites
    from streaming_server.engine.transactions.open_transaction import OpenTransaction
    from streaming_server.engine.transactions.repeated_keys import RepeatedKeys
    from streaming_server.engine.transactions.table_usage_lock import TableUsageLock
    from streaming_server.storage.transactions.decisions import CommittedTransaction, Decisions
    from streaming_server.storage.transactions.staging import PartFile, TableFootprint

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class CommitStats:
    """What there is to say of the commits of a server.

    Attributes:
        commits: How many there were since the start.
        rows: Rows and keys in them.
        closed_commit_barriers: How many are being applied now.
        longest_micros: For how long the gate of one of them was closed at most, in microseconds.
    """

    commits: int = 0
    rows: int = 0
    closed_commit_barriers: int = 0
    longest_micros: int = 0


class CommitCoordinator:
    """Commits transactions, several at a time where their buckets are others. Bound to the event loop.

    Args:
        root: Where the transactions lie.
        decisions: What was decided; its methods run in threads, one at a time.
        executor: Runs what blocks.
        table: Gives a table by its name; raises TableNotFound.
        uses: Keeps tables from being altered meanwhile.
        clock: The server's.

    Attributes:
        figures: What there is to say of it.
        stuck: By token, why a transaction is committed and could not be applied to all of its buckets.
    """

    def __init__(
        self,
        root: Path,
        decisions: Decisions,
        executor: StorageExecutor,
        table: Callable[[str], LiveTable],
        uses: TableUsageLock,
        clock: ServerClock,
    ) -> None:
        self._clock = clock
        self.figures = CommitStats()
        self._root = root
        self._decisions = decisions
        self._executor = executor
        self._table = table
        self._uses = uses
        self.stuck: dict[str, ScanKvError] = {}
        self._log = asyncio.Lock()
        # What was to be decided when the log could not be synced.
        self._uncertain: dict[str, tuple[Decision, Sequence[LiveBucket]]] = {}
        # Held while what could not be applied is tried again.
        self._trying = asyncio.Lock()
        # The decisions that are carried out, and whose rows are still staged.
        self._finished: set[str] = set()

    async def commit(self, transaction: OpenTransaction, sizes: Sequence[tuple[str, int]]) -> CommittedTransaction:
        """Commits a transaction to which nothing is added any more: durable, and seen by all, when it returns.

        Args:
            transaction: The transaction.
            sizes: The parts that count, and how many requests each has. Empty: all that there are.

        Raises:
            InvalidRequest: A part has other requests.
            TableNotFound: A table was dropped.
            ColumnLocked: Somebody has locked columns that it writes.
            TransactionConflict, InvalidRequest, PositionExpired, PositionOutOfRange, RequestTooLarge, DataLoss: As
                `Verification`; nothing was written.
            DiskFull: It cannot be written down that it is committed; nothing was written.
            DataLoss, DiskFull, Unavailable: It is committed, and cannot be applied everywhere now: see `stuck`.
        """
        parts = transaction.counted(sizes)
        touched = footprints_of(parts)
        async with self._uses.using(touched):
            tables = {name: self._same_table(name, touched[name].incarnation) for name in sorted(touched)}
            await self._executor.run(_sync, transaction.directory, parts)
            repeated = await repeated_keys(_files(parts), tables, touched, self._executor)
            with ExitStack() as admitted:
                for name, table in tables.items():
                    for columns, locks in touched[name].access:
                        admitted.enter_context(table.writes.locks.admitted(columns or None, locks))
                return await self._closed(transaction, parts, tables, touched, repeated)

    async def _closed(
        self,
        transaction: OpenTransaction,
        parts: Sequence[PartFile],
        tables: Mapping[str, LiveTable],
        touched: Mapping[str, TableFootprint],
        repeated: Mapping[LiveBucket, RepeatedKeys],
    ) -> CommittedTransaction:
        buckets = [tables[name].buckets[number] for name in tables for number in sorted(touched[name].buckets)]
        files = _files(parts)
        self.figures.closed_commit_barriers += 1
        try:
            async with raise_barrier(buckets):
                started = self._clock.monotonic()
                checks = Verification(files=files, tables=tables, touched=touched, since=transaction.since)
                net = await checks.run(self._executor)
                decision = Decision(
                    number=self._decisions.next_number(),
                    token=transaction.token,
                    id=transaction.terms.id,
                    micros=self._commit_time(buckets),
                    served_micros=self._clock.service_micros(),
                    rows=sum(part.rows for part in parts),
                    tables={name: touched[name].incarnation for name in tables},
                    files=tuple((part.number, part.requests) for part in parts),
                    buckets={name: tuple(sorted(touched[name].buckets)) for name in tables},
                    writer=transaction.terms.writer,
                )
                await self._decide(decision, buckets)
                rolling = self._rolling(decision, files, tables)
                try:
                    await rolling.run(touched, net, repeated)
                except BaseException as error:
                    self._block_all(decision, buckets, error)
                    raise
                committed = self._concluded(decision, rolling)
            self.figures.commits += 1
            self.figures.rows += decision.rows
            micros = int((self._clock.monotonic() - started) * 1_000_000)
            self.figures.longest_micros = max(self.figures.longest_micros, micros)
        finally:
            self.figures.closed_commit_barriers -= 1
        if committed is None:
            raise copy(self.stuck[decision.token])
        return committed

    def _commit_time(self, buckets: Sequence[LiveBucket]) -> int:
        """The time of a transaction: one for all changes in all of its buckets, which are open with the gate closed.

        Rule: in no bucket it is before an earlier commit, and no stream has said that it has read beyond it. So a start
        or a stop at a time has all of a transaction behind it, or nothing.
        """
        opened = [live.open_bucket for live in buckets]
        return max((each.commit_time() for each in opened if each is not None), default=self._clock.commit_micros())

    async def _decide(self, decision: Decision, buckets: Sequence[LiveBucket]) -> None:
        try:
            async with self._log:
                await self._executor.run(self._decisions.decide, decision)
        except BaseException as error:
            if self.is_decided(decision.token):
                self._block_all(decision, buckets, error)
                if decision.token not in self._decisions.unfinished:
                    self._uncertain[decision.token] = decision, buckets
                if isinstance(error, Exception):
                    raise copy(self.stuck[decision.token]) from error
            raise

    @property
    def is_uncertain(self) -> bool:
        """Whether nobody can tell what is decided, since the log could not be synced: see `settle`."""
        return self._decisions.is_uncertain

    async def settle(self, remembered: Iterable[CommittedTransaction]) -> list[str]:
        """Writes the log again, after which it is certain what is decided; the tokens of those that are not.

        Rule: what was to be decided when a sync failed is not, once a log without it is durable; not before.

        Raises:
            DiskFull, OSError: It is as uncertain as before.
        """
        await self.rewrite_log(remembered)
        undecided, self._uncertain = self._uncertain, {}
        for token, (decision, buckets) in undecided.items():
            _log.info("the transaction %s is not committed, because the log could not be synced", token)
            self.stuck.pop(token)
            self._unblock(decision, buckets)
        return list(undecided)

    def _block_all(self, decision: Decision, buckets: Sequence[LiveBucket], error: BaseException) -> None:
        """Lets nobody see the buckets of a decision of which nobody knows whether it was made, or how far it is."""
        _log.error("the transaction %s may be decided, and is not applied", decision.token, exc_info=error)
        self.stuck[decision.token] = not_yet(kind_of(error), UNTOLD, error)
        for live in buckets:
            live.block(not_yet(Unavailable, f"{live.location}: {UNTOLD}", error))

    def is_decided(self, token: str) -> bool:
        """Whether a transaction is committed and not yet done, or that cannot be told."""
        return token in self._decisions.unfinished or self._decisions.is_uncertain

    @property
    def has_more_to_do(self) -> bool:
        """Whether `retry` may have an effect."""
        again = any(not isinstance(self.stuck.get(token), DataLoss) for token in self._decisions.unfinished)
        return (again and bool(self.stuck)) or bool(self._finished) or self.is_uncertain

    async def roll_forward(self, decision: Decision) -> CommittedTransaction | None:
        """Applies what is missing of a decision, after a crash or a failure. None where it still cannot be done.

        The buckets that lack it then are blocked, see `LiveBucket.block`; all others can be used.
        """
        tables, unreadable = self._tables_of(decision)
        rolling = self._rolling(decision, self._files_of(decision), tables)
        await rolling.run_again()
        return self._concluded(decision, rolling, unreadable)

    def _tables_of(self, decision: Decision) -> tuple[dict[str, LiveTable], dict[str, ScanKvError]]:
        """The tables of a decision that can be used, and why others cannot be. Those that were dropped lack nothing."""
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

    async def give_up(self, token: str) -> tuple[CommittedTransaction, list[LostWrites]]:
        """Ends a transaction that is committed and cannot be applied everywhere, so that all of its buckets are served.

        All that can be applied is applied first. From then on it counts as committed, and is yet to be finished.

        Returns:
            Its end, and what is lost; nothing is lost when all could be applied.

        Raises:
            TransactionLost: There is no such transaction.
            TransactionCommitted: It may be applied yet. Nothing has changed.
            DiskFull, OSError, Unavailable: That cannot be written down. Nothing has changed.
        """
        async with self._trying:
            decision = self._decisions.unfinished.get(token)
            if decision is None or token not in self.stuck:
                raise TransactionLost(
                    f"no committed transaction {token[:64]!r} waits to be applied: `transactions` lists those that do"
                )
            async with self._uses.using(decision.tables):
                tables, unreadable = self._tables_of(decision)
                rolling = self._rolling(decision, self._files_of(decision), tables)
                await rolling.run_again()
                committed = self._concluded(decision, rolling, unreadable)
                if committed is not None:
                    return committed, []
                check_hopeless(rolling, unreadable)
                decision = self._decisions.unfinished[token]
                files = self._files_of(decision)
                lost = await find_lost(decision, rolling, unreadable, files, tables, self._executor)
                committed = decision.to_committed(decision.applied)
                # Before anything can be written over what is missing: or a later start might apply it on top of that.
                async with self._log:
                    await self._executor.run(self._decisions.end, committed)
                for each in lost:
                    _log.warning("the transaction %s (id %r) is given up: lost is %s", token, decision.id, each)
                self.stuck.pop(token)
                self._unblock(decision, rolling.buckets)
        return committed, lost

    def _concluded(
        self, decision: Decision, rolling: RollForward, unreadable: Mapping[str, ScanKvError] | None = None
    ) -> CommittedTransaction | None:
        """Takes notice of how far a decision was carried out; `unreadable` says why tables of it cannot be used."""
        if not rolling.failed and not unreadable:
            committed = decision.to_committed(rolling.offsets)
            self._decisions.record_done(committed)
            self.stuck.pop(decision.token, None)
        else:
            committed = None
            decision = replace(decision, applied=rolling.offsets)
            self._decisions.record_applied(decision)
            self.stuck[decision.token] = why_stuck(decision.token, rolling.failed, unreadable or {})
        for live, error in rolling.failed.items():
            live.block(why_blocked(live, error, decision.token))
        self._unblock(decision, rolling.buckets)
        return committed

    def _unblock(self, decision: Decision, buckets: Sequence[LiveBucket]) -> None:
        """Serves those buckets of a decision that lack nothing any more."""
        for live in buckets:
            incarnation = decision.tables[live.table]
            left = (
                each.is_pending(live.table, incarnation, live.number) for each in self._decisions.unfinished.values()
            )
            if live.mutex.failure is not None and not any(left):
                live.unblock()

    async def finish(self, committed: CommittedTransaction) -> None:
        """Makes durable that a decision is carried out, and removes what was staged.

        Raises:
            DiskFull, OSError, Unavailable: It is done with the next decision, or by `retry`.
        """
        self._finished.add(committed.token)
        await self.tidy_up()

    async def tidy_up(self) -> None:
        """Does so for all decisions that are carried out. Raises as `finish`."""
        async with self._log:
            await self._executor.run(self._decisions.flush)
        while self._finished:
            await self._executor.run(StagingDirectory(self._root, self._finished.pop()).remove)

    async def retry(self, dropped: str | None = None) -> list[CommittedTransaction]:
        """Tries again to apply what could not be; the commits that are carried out now, and yet to be finished.

        Args:
            dropped: A table that was dropped, and lacks nothing any more. Without it, what is damaged stays so.
        """
        done = []
        for token in list(self.stuck):
            async with self._trying:
                decision, error = self._decisions.unfinished.get(token), self.stuck.get(token)
                if decision is None or (isinstance(error, DataLoss) and dropped not in decision.tables):
                    continue
                async with self._uses.using(decision.tables):
                    committed = await self.roll_forward(decision)
            if committed is not None:
                _log.info("the transaction %s is applied now", token)
                done.append(committed)
        return done

    async def rewrite_log(self, remembered: Iterable[CommittedTransaction]) -> None:
        """Has the log keep no more than it must. Raises DiskFull, OSError: it is as before."""
        async with self._log:
            await self._executor.run(self._decisions.rewrite, list(remembered))

    def _rolling(
        self, decision: Decision, files: Sequence[tuple[Path, int]], tables: Mapping[str, LiveTable]
    ) -> RollForward:
        return RollForward(decision, self._decisions, files, tables, self._executor)

    def _same_table(self, name: str, incarnation: str) -> LiveTable:
        table = self._table(name)
        if table.definition.incarnation != incarnation:
            raise TableNotFound(f"table {name} was dropped, and made anew, since it was written to", table=name)
        return table


def _files(parts: Sequence[PartFile]) -> list[tuple[Path, int]]:
    return [(part.path, part.requests) for part in parts]


def _sync(directory: StagingDirectory, parts: Sequence[PartFile]) -> None:
    for part in parts:
        part.sync()
    directory.sync()
