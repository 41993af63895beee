"""The transactions of a server: begin, stage, commit or abort, and roll forward after a crash."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from scankv.model.errors import (
    DataLoss,
    ScanKvError,
    TooManyTransactions,
    TransactionCommitted,
    Unavailable,
)
from streaming_server.access.owners import new_owner, owner_check, share_refusal
from streaming_server.activity import Activity
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.engine.tasks.detached_tasks import DetachedTasks
from streaming_server.engine.tasks.reaper import Reaper
from streaming_server.engine.transactions.commit import CommitCoordinator
from streaming_server.engine.transactions.committed_transactions import CommittedTransactions
from streaming_server.engine.transactions.jobs import recall_job
from streaming_server.engine.transactions.key_locks import KeyLocks
from streaming_server.engine.transactions.open_transaction import (
    OpenTransaction,
    TransactionOptions,
    footprints_of,
    transaction_lost,
)
from streaming_server.engine.transactions.request_staging import RequestStaging
from streaming_server.engine.transactions.shares import TransactionShares
from streaming_server.engine.transactions.stuck import RETRY_SECONDS, in_doubt
from streaming_server.engine.transactions.summaries import RequestSummaries
from streaming_server.engine.transactions.table_usage_lock import TableUsageLock
from streaming_server.engine.transactions.two_phase import Coordination, Participation, result_of
from streaming_server.storage.transactions.decisions import Decisions
from streaming_server.storage.transactions.staging import (
    StagingDirectory,
    list_tokens,
)
from streaming_server.storage.transactions.transaction_log import UnreadableLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.commit import CommitStats
    from streaming_server.engine.transactions.give_up import BucketLoss
    from streaming_server.engine.transactions.jobs import JobMemory, JobRequest
    from streaming_server.engine.transactions.two_phase import Agreement, Peers
    from streaming_server.storage.transactions.decisions import CommittedTransaction, Decision
    from streaming_server.storage.transactions.staging import TableFootprint

T = TypeVar("T")

_RETRY_SECONDS: Final = 1.0

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """The limits of transactions.

    Attributes:
        open: How many transactions may be open at once.
        share: Which share of them one principal may have.
        bytes: How many bytes each transaction may stage.
        ttl_seconds: The default time to live of a transaction without calls.
        remembered_seconds: How long the server remembers the commit of a transaction with an id.
        locked_keys: How many keys all transactions together may lock.
    """

    open: int
    share: float
    bytes: int
    ttl_seconds: float
    remembered_seconds: float
    locked_keys: int


class Transactions:
    """All transactions of a server. Bound to the event loop.

    A commit that has started runs to completion, even when its caller cancels the call.

    Args:
        root: The directory of the transactions; created if missing.
        executor: Runs blocking work.
        table: Returns the table of a name, or raises TableNotFound.
        limits: The limits of transactions.
        clock: The server's clock.
        has_elsewhere: Whether a table of another worker has a name and an incarnation.
        activity: Counts the committed rows of each table. None: nothing does.

    Attributes:
        uses: Keeps tables from being altered while a commit uses them.
        key_locks: The keys that open transactions have locked.
        staging: Stages requests in open transactions.
        summaries: Stages the summaries of requests to tables with tablets.

    If the transaction log cannot be read, every method raises the reason, but the tables are still served.
    """

    def __init__(
        self,
        root: Path,
        executor: StorageExecutor,
        table: Callable[[str], LiveTable],
        limits: TransactionLimits,
        clock: ServerClock,
        has_elsewhere: Callable[[str, str], bool] = lambda name, incarnation: True,
        activity: Activity | None = None,
    ) -> None:
        self._clock = clock
        self._has_elsewhere = has_elsewhere
        self.uses = TableUsageLock()
        self._root = root
        self._executor = executor
        self._table = table
        self._limits = limits
        self._damage: ScanKvError | None = None
        try:
            self._decisions = Decisions(root, clock)
        except ScanKvError as error:
            _log.error("%s: transactions cannot be used: %s", error.reason, error.message)
            self._damage = error
            self._decisions = Decisions(root, clock, UnreadableLog(error))
        self._peers: Peers | None = None
        self._coordinator = CommitCoordinator(
            root, self._decisions, executor, table, self.uses, clock, self._end_committed, activity or Activity()
        )
        self._committed = CommittedTransactions(limits.remembered_seconds, self._table_exists)
        for committed in self._decisions.take_finished():
            self._committed.add(committed)
        self._open: dict[str, OpenTransaction] = {}
        self._tasks = DetachedTasks()
        self.key_locks = KeyLocks(limits.locked_keys)
        self.staging = RequestStaging(executor, limits.bytes, self._renew, self._tasks, self.key_locks)
        self.summaries = RequestSummaries(executor, self._renew)
        self._reaper = Reaper(self._next_expiry, self._expire, clock)
        self._retrying = Background(
            partial(repeat, RETRY_SECONDS, self._retry), partial(repeat, _RETRY_SECONDS, self._retry_with_peers)
        )

    def set_peers(self, peers: Peers) -> TransactionShares:
        """Sets the other workers of the server, which may have shares of transactions. Call it before `recover`.

        Returns the shares of this worker, for the others.
        """
        self._peers = peers
        self._coordinator.set_peers(peers)
        return TransactionShares(peers, self, self._decisions, self._coordinator, self._tasks)

    @property
    def open(self) -> list[OpenTransaction]:
        """The transactions that are neither committed nor aborted, the oldest first."""
        return sorted(self._open.values(), key=lambda each: each.began_at)

    def tables_of(self, token: str, id_: str) -> frozenset[str]:
        """Returns the tables with writes of the transactions that a token or an id names; empty if it names none.

        Finds open transactions, committed ones, and remembered commits.

        Args:
            token: A token. Empty: none.
            id_: An id of a transaction. Empty: none.
        """
        tables: set[str] = set()
        for opened in self._open.values():
            if opened.token == token or (id_ and opened.options.id == id_):
                tables.update(opened.tables)
        for decision in self.decided:
            if decision.token == token or (id_ and decision.id == id_):
                tables.update(decision.tables)
        for committed in (self._committed.find(token, ""), self._committed.find("", id_)):
            if committed is not None:
                tables.update(committed.tables)
        return frozenset(tables)

    @property
    def decided(self) -> list[Decision]:
        """The decisions that are not applied yet, and those that a coordinator may take."""
        return [*self._decisions.unfinished.values(), *self._decisions.prepared.values()]

    @property
    def epoch(self) -> int:
        """The epoch of the transaction log."""
        return self._decisions.epoch

    def remembered(self) -> list[CommittedTransaction]:
        """Returns the remembered commits, the oldest first.

        These include commits whose end is being recorded, and commits that this worker has applied but has not reported
        to all others.
        """
        known = (*self._coordinator.applied_here, *self._committed, *self._decisions.unwritten)
        kept = {each.token: each for each in known}
        return sorted(kept.values(), key=lambda each: each.number)

    async def take_over(self, other: Transactions) -> None:
        """Continues the transaction log of others, which have been recovered, and remembers their commits; durable.

        Raises:
            ScanKvError: A log cannot be read or written, or a transaction of the other log is stuck.
        """
        self.check_log()
        other.check_log()
        for decision, error in other.stuck:
            raise copy(error) from DataLoss(f"the transaction {decision.token} is committed, and cannot be applied")
        # The coordinator of a divided transaction remembers the complete answer.
        remembered = [each for each in other.remembered() if each.coordinator is None]
        self._decisions.continue_after(other.epoch, 1 + max((each.number for each in remembered), default=0))
        for committed in sorted((*self.remembered(), *remembered), key=lambda each: each.micros):
            self._committed.add(committed)
        await self._coordinator.rewrite_log(self._committed)

    @property
    def default_ttl(self) -> float:
        """The time to live, in seconds, of a transaction that does not set one."""
        return self._limits.ttl_seconds

    @property
    def stats(self) -> CommitStats:
        """The stats of the commits since the start."""
        return self._coordinator.stats

    async def recover(self) -> None:
        """Rolls forward committed transactions after a crash, and loads staged rows. Call it before tables are served.

        Rule: no transaction keeps other tables from being served. A bucket to which a committed transaction cannot be
        applied is blocked, see `LiveBucket.block`. If the log cannot be read, every bucket with staged rows is blocked.
        """
        # Load open transactions first: they have retention holds on buckets that the roll-forward opens.
        for token in await self._executor.run(list_tokens, self._root):
            try:
                await self._recover_staged(StagingDirectory(self._root, token))
            except Exception:
                _log.exception("the staged rows of the transaction %s cannot be loaded; they stay on disk", token)
        failure = await self._coordinator.sync_log()
        for decision in list(self._decisions.unfinished.values()):
            if failure is not None:
                self._coordinator.block(decision, failure)
                continue
            _log.info("applying the transaction %s, which was committed before the last stop", decision.token)
            committed = await self._coordinator.roll_forward(decision)
            if committed is not None:
                await self._conclude(committed)
        for decision in list(self._decisions.prepared.values()):
            _log.info("the transaction %s was being committed: worker %s knows", decision.token, decision.coordinator)
            self._coordinator.block(decision, in_doubt(decision))
        self._committed.forget(self._clock.service_micros())
        await self._shorten_log()

    async def _recover_staged(self, directory: StagingDirectory) -> None:
        token = directory.path.name
        if self._damage is not None:
            parts = await self._executor.run(directory.load_parts)
            self._block(footprints_of(parts), self._damage)
        elif self._committed.find(token, "") is not None:
            await self._executor.run(directory.remove)
        elif token not in self._decisions.unfinished and token not in self._decisions.prepared:
            await self._executor.run(self._load, directory)

    def _block(self, tables: Mapping[str, TableFootprint], damage: ScanKvError) -> None:
        """Blocks the buckets for which a transaction has staged rows: whether it was committed is unknown."""
        for name, touched in tables.items():
            if self._table_exists(name, touched.incarnation):
                for number in touched.buckets:
                    live = self._table(name).buckets[number]
                    live.block(
                        type(damage)(
                            f"{live.location} may lack rows of a committed transaction, and is not served: "
                            f"{damage.message}",
                            table=name,
                            bucket=number,
                        )
                    )

    async def _shorten_log(self) -> None:
        if self._damage is None:
            try:
                await self._coordinator.rewrite_log(self._committed)
            except (ScanKvError, OSError) as error:
                # The log keeps its length until the next attempt.
                _log.warning("the transaction log cannot be shortened: %s", error)

    def _load(self, directory: StagingDirectory) -> None:
        try:
            transaction = OpenTransaction.load(directory, self._clock, is_divided=self._peers is not None)
        except (DataLoss, TypeError, ValueError, LookupError) as error:
            _log.error("DATA_LOSS: the transaction staged in %s is given up: %s", directory.path, error)
            transaction = None
        if transaction is None:
            directory.remove()
        else:
            self._open[transaction.token] = transaction

    def start(self) -> None:
        """Starts the tasks that expire transactions and retry stuck commits. They run until `close`."""
        self._reaper.start()
        self._retrying.start()

    async def close(self) -> None:
        """Stops the background tasks, and waits for running commits. Staged rows stay on disk."""
        await self._reaper.close()
        await self._retrying.close()
        for opened in self._open.values():
            if isinstance(opened.agreement, Participation):
                opened.agreement.leave()
        for deleting in [task for each in self._open.values() for task in each.deleting.values()]:
            deleting.cancel()
        await self._tasks.join()
        self._decisions.close()

    def recall_job(self, step: JobRequest) -> JobMemory:
        """Returns what this worker knows of a job. Raises TableNotFound."""
        self.check_log()
        return recall_job(step, self._committed, self._own_table(step.table))

    def _own_table(self, name: str) -> TableDefinition | None:
        is_other = self._peers is not None and not self._peers.owns(name)
        return None if is_other else self._table(name).definition

    async def begin(self, options: TransactionOptions, token: str = "") -> OpenTransaction | CommittedTransaction:
        """Begins a transaction, or returns the earlier commit of its id. See transaction.proto.

        Args:
            options: The options.
            token: Its token, which the worker processes of a server must have in common. Empty: a new one.

        Raises:
            InvalidRequest: The id or the time to live is not allowed.
            PermissionDenied: A transaction of this id, open or committed, belongs to another principal.
            TooManyTransactions: The limit of the server, or of the principal, of open transactions is reached.
            TransactionCommitted: The call is late: the transaction is committed, and another worker knows its id.
        """
        options.check()
        self.check_log()
        if options.id:
            while (before := self._find_open(options.id)) is not None:
                before.check_principal()
                if before.options.attempt == options.attempt:
                    before.renew()
                    return before
                await self._settle(before)
            committed = self._committed.find("", options.id)
            if committed is not None:
                _check_owner(committed)
                return committed
            self.check_not_stuck("", options.id)
        self._check_not_committed(token)
        if len(self._open) >= self._limits.open:
            raise TooManyTransactions(
                f"there are {len(self._open)} open transactions, which is the limit: commit or abort some, or raise "
                "max_transactions",
                retry_after=_RETRY_SECONDS,
            )
        mine = sum(each.principal == new_owner() for each in self._open.values())
        limits = self._limits
        refusal = share_refusal("open transactions", mine, len(self._open), limits.open, limits.share)
        if refusal is not None:
            raise TooManyTransactions(refusal, retry_after=_RETRY_SECONDS)
        token = token or uuid.uuid4().hex
        directory = StagingDirectory(self._root, token)
        transaction = self._open[token] = OpenTransaction(
            token=token,
            options=options,
            directory=directory,
            clock=self._clock,
            is_divided=self._peers is not None,
            principal=new_owner(),
        )
        try:
            # Concurrent calls with the same attempt get this token. Their stage calls wait for this lock.
            async with transaction.lock:
                await self._executor.run(directory.create, transaction.content())
        except BaseException:
            if not transaction.has_ended:
                self._forget(transaction)
            raise
        self._reaper.notify(transaction.expires)
        return transaction

    def _find_open(self, id_: str) -> OpenTransaction | None:
        return next((each for each in self._open.values() if each.options.id == id_), None)

    async def _settle(self, transaction: OpenTransaction) -> None:
        """Aborts a transaction. If it is being committed, waits for the end of the commit first."""
        while transaction.commit is not None and not transaction.has_ended:
            with suppress(ScanKvError):
                await asyncio.shield(transaction.commit)
            if self._coordinator.is_decided(transaction.token):
                # The commit is decided, but stuck: this raises why.
                await self.commit(transaction.token, transaction.options.id, ())
        await self._end(transaction)

    def retention_holds(self, table: str, bucket: int) -> dict[str, int]:
        """Returns the first retained offset of a bucket's changelog, by owner. Safe in any thread."""
        holds = {each.log_owner: each.retention_holds.get(table, {}) for each in list(self._open.values())}
        return {owner: offsets[bucket] for owner, offsets in holds.items() if bucket in offsets}

    def _renew(self, token: str) -> OpenTransaction:
        """Returns an open transaction of the caller, and renews its time to live."""
        self.check_log()
        transaction = self._open.get(token)
        if transaction is None:
            self._check_not_committed(token)
            self.check_not_stuck(token, "")
            raise transaction_lost(token)
        transaction.check_principal()
        transaction.check_open()
        transaction.renew()
        return transaction

    def _check_not_committed(self, token: str) -> None:
        if self._committed.find(token, "") is not None:
            raise TransactionCommitted("the transaction is committed: begin another one")

    async def commit(
        self, token: str, id_: str, sizes: Sequence[tuple[str, int]], others: Sequence[int] = ()
    ) -> CommittedTransaction:
        """Commits a transaction, or returns its earlier commit; see `CommitCoordinator.commit`.

        Args:
            token: The transaction's token.
            id_: Its id, which finds the commit once the token is forgotten.
            sizes: The parts to commit, and the number of requests of each. Empty: all parts.
            others: The other workers with a share, all with greater numbers than this one.

        Raises:
            TransactionLost: No such transaction exists.
            PermissionDenied: It belongs to another principal.
            ScanKvError: As `CommitCoordinator.commit`.
        """
        self.check_log()
        committed = self._committed.find(token, id_)
        if committed is not None:
            _check_owner(committed)
            return committed
        self.check_not_stuck(token, id_)
        transaction = self._open.get(token)
        if transaction is None:
            raise transaction_lost(token)
        transaction.check_end()
        if isinstance(transaction.agreement, Participation):
            raise Unavailable("another worker commits the transaction: try again", retry_after=_RETRY_SECONDS)
        commit = transaction.commit
        if commit is None:
            agreement = Coordination(self._peers, token, sizes, others) if others and self._peers is not None else None
            commit = self.begin_commit(transaction, sizes, agreement)
        return await result_of(commit)

    def begin_commit(
        self, transaction: OpenTransaction, sizes: Sequence[tuple[str, int]], agreement: Agreement | None
    ) -> asyncio.Task[CommittedTransaction]:
        """Begins to commit an open transaction, and returns the task, which runs to completion."""
        transaction.agreement = agreement
        transaction.commit = self._tasks.start(self._commit(transaction, list(sizes)))
        return transaction.commit

    async def reopen(self, token: str) -> None:
        """Reopens a transaction whose prepared share is undone."""
        transaction = self._open.get(token)
        if transaction is not None:
            self._open_again(transaction)
        else:
            await self._executor.run(self._load, StagingDirectory(self._root, token))

    def find(self, token: str) -> OpenTransaction | None:
        """Returns an open transaction, which may be being committed."""
        return self._open.get(token)

    def find_committed(self, token: str, id_: str = "") -> CommittedTransaction | None:
        """Returns a remembered commit by its token or id."""
        return self._committed.find(token, id_)

    async def _commit(self, transaction: OpenTransaction, sizes: Sequence[tuple[str, int]]) -> CommittedTransaction:
        try:
            # Wait for a request that is being staged: it belongs to the commit.
            async with transaction.lock:
                pass
            committed = await self._coordinator.commit(transaction, sizes)
        except BaseException:
            # Another task may have applied it.
            if not transaction.has_ended and not self._coordinator.is_decided(transaction.token):
                self._open_again(transaction)
            raise
        self._tasks.start(self._conclude(committed))
        return committed

    def _open_again(self, transaction: OpenTransaction) -> None:
        """Reopens a transaction after a failed commit, so that it can be committed again or aborted."""
        transaction.commit = transaction.agreement = None
        transaction.renew()
        self._reaper.notify(transaction.expires)

    def _end_committed(self, committed: CommittedTransaction) -> None:
        """Ends a transaction that is applied everywhere, and remembers its commit."""
        self._committed.add(committed)
        transaction = self._open.get(committed.token)
        if transaction is not None:
            self._forget(transaction)

    async def _conclude(self, committed: CommittedTransaction) -> None:
        """Makes the end of a committed transaction durable, and removes its staged rows."""
        try:
            await self._coordinator.finish(committed)
        except (ScanKvError, OSError) as error:
            # The next decision, or the next start, finds the transaction applied already.
            _log.error("the end of the transaction %s cannot be recorded: %s", committed.token, error)
            return
        if self._decisions.is_rewrite_due:
            self._committed.forget(self._clock.service_micros())
            await self._shorten_log()

    async def _retry(self) -> None:
        """Applies stuck transactions and records the end of applied ones, as far as that is possible now."""
        try:
            await asyncio.shield(self._tasks.start(self.retry()))
        except (ScanKvError, OSError) as error:
            _log.warning("the end of transactions cannot be recorded: %s", error)

    async def _retry_with_peers(self) -> None:
        """Like `_retry`, if the reason may be that another worker was not there, which takes about a second."""
        if self._coordinator.waits_for_peers:
            await self._retry()

    async def retry(self, dropped: str | None = None) -> None:
        """Applies stuck transactions, as far as that is possible now.

        Args:
            dropped: The table whose drop is the reason for this attempt. None: the attempt has another reason.
        """
        if dropped is None and not self._coordinator.has_more_to_do:
            return
        # First, because nothing can be logged before.
        if self._coordinator.is_uncertain:
            for token in await self._coordinator.settle(self._committed):
                if (undecided := self._open.get(token)) is not None:
                    self._open_again(undecided)
        await self._end_doubts()
        done = await self._coordinator.retry(dropped)
        if not done:
            await self._coordinator.tidy_up()
        for committed in done:
            await self._conclude(committed)

    async def end_doubts(self) -> None:
        """Asks for the outcomes of shares in doubt, and reopens the transactions of those that are undone.

        Runs to completion, even when the caller cancels.
        """
        await asyncio.shield(self._tasks.start(self._end_doubts()))

    async def _end_doubts(self) -> None:
        for token in await self._coordinator.ask_in_doubt():
            await self.reopen(token)

    async def give_up(self, token: str) -> tuple[CommittedTransaction, list[BucketLoss]]:
        """Gives up the rows of a committed transaction that cannot be applied; see `CommitCoordinator.give_up`.

        Runs to completion, even when the caller cancels.
        """
        self.check_log()
        return await asyncio.shield(self._tasks.start(self._give_up(token)))

    async def _give_up(self, token: str) -> tuple[CommittedTransaction, list[BucketLoss]]:
        await self._end_doubts()
        committed, lost = await self._coordinator.give_up(token)
        await self._conclude(committed)
        # Later transactions may have waited for this one.
        await self.retry()
        return committed, lost

    @property
    def stuck(self) -> list[tuple[Decision, ScanKvError]]:
        """The committed transactions that could not be applied everywhere, each with the reason; the oldest first.

        Those that are in doubt follow.
        """
        return [
            (decision, self._coordinator.stuck[decision.token])
            for decision in self.decided
            if decision.token in self._coordinator.stuck
        ]

    def check_log(self) -> None:
        """Raises the damage of the transaction log, if it is damaged."""
        if self._damage is not None:
            raise copy(self._damage)

    def check_applied(self, table: str, incarnation: str) -> None:
        """Raises the reason if a table lacks rows of a transaction that is committed, or in doubt.

        Rule: rows are checked against the schema and the indexes of their table before they are committed. So it gets
        no other schema and no other index before they are applied.
        """
        for decision, error in self.stuck:
            if any(decision.is_pending(table, incarnation, bucket) for bucket in decision.buckets.get(table, ())):
                raise copy(error)

    def check_not_stuck(self, token: str, id_: str) -> None:
        """Raises the reason if a committed transaction is stuck, or in doubt; PermissionDenied if it is another's."""
        for decision in self.decided:
            stuck = self._coordinator.stuck.get(decision.token)
            if stuck is not None and (decision.token == token or (id_ and decision.id == id_)):
                _check_owner(decision)
                raise copy(stuck)

    async def abort(self, token: str) -> None:
        """Aborts a transaction, if it exists, and removes its staged rows.

        Raises:
            PermissionDenied: It belongs to another principal.
            TransactionCommitted: The transaction is committed, or being committed.
            Unavailable: A share of it is in doubt.
        """
        self.check_log()
        if token in self._decisions.prepared:
            # Its coordinator may have given the commit up.
            await self.end_doubts()
            if token in self._decisions.prepared:
                self.check_not_stuck(token, "")
        transaction = self._open.get(token)
        if transaction is not None:
            transaction.check_end()
        is_committed = self._committed.find(token, "") is not None or any(each.token == token for each in self.decided)
        if is_committed or (transaction is not None and transaction.commit is not None):
            raise TransactionCommitted("the transaction is committed, or is being committed: it cannot be aborted")
        if transaction is not None:
            await self._end(transaction)

    async def _end(self, transaction: OpenTransaction) -> None:
        """Ends a transaction, unless it has ended or is being committed."""
        if transaction.has_ended or transaction.commit is not None:
            return
        self._forget(transaction)
        await asyncio.shield(self._tasks.start(self._remove(transaction)))

    async def _remove(self, transaction: OpenTransaction) -> None:
        async with transaction.lock:
            await self._executor.run(transaction.directory.remove)

    def _forget(self, transaction: OpenTransaction) -> None:
        transaction.has_ended = True
        del self._open[transaction.token]
        self.key_locks.release(transaction.token, transaction_lost(transaction.token))
        for name in transaction.retention_holds:
            # A dropped table has no changes to release.
            with suppress(ScanKvError):
                for live in self._table(name).buckets:
                    live.release_log(transaction.log_owner)

    def _table_exists(self, name: str, incarnation: str) -> bool:
        if self._peers is not None and not self._peers.owns(name):
            return self._has_elsewhere(name, incarnation)
        try:
            return self._table(name).definition.incarnation == incarnation
        except ScanKvError:
            return False

    def _next_expiry(self) -> float | None:
        return min((each.expires for each in self._open.values() if each.commit is None), default=None)

    async def _expire(self) -> None:
        now = self._clock.monotonic()
        for transaction in [each for each in self._open.values() if each.commit is None and each.expires <= now]:
            if self._peers is not None and (remaining := await self._peers.remaining(transaction.token)) > 0:
                # Its calls may go to other workers.
                transaction.expires = self._clock.monotonic() + remaining
                continue
            if transaction.commit is not None or transaction.expires > now:
                continue
            _log.info("the transaction %s has expired", transaction.token)
            await self._end(transaction)


def _check_owner(transaction: Decision | CommittedTransaction) -> None:
    """Raises PermissionDenied if it belongs to another principal, and the caller is no admin of its tables."""
    owner_check(f"the transaction {transaction.id or transaction.token}", transaction.tables)(transaction.principal)
