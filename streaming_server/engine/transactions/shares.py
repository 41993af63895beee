"""The shares that this worker process has of transactions, for the workers that coordinate them: see `two_phase`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scankv.model.errors import TransactionCommitted, Unavailable
from streaming_server.engine.transactions.open_transaction import transaction_lost
from streaming_server.engine.transactions.two_phase import CommitOutcome, Participation, TransactionPlace, result_of

if TYPE_CHECKING:
    from streaming_server.engine.tasks.detached_tasks import DetachedTasks
    from streaming_server.engine.transactions.commit import CommitCoordinator
    from streaming_server.engine.transactions.open_transaction import OpenTransaction
    from streaming_server.engine.transactions.transactions import Transactions
    from streaming_server.engine.transactions.two_phase import Peers, PreparedShare, ShareRequest
    from streaming_server.storage.transactions.decisions import CommittedTransaction, Decisions
    from streaming_server.storage.transactions.staging import PartSize


class TransactionShares:
    """Answers the other workers. Bound to the event loop.

    Args:
        peers: The other workers.
        transactions: The transactions of this worker.
        decisions: Their decisions.
        coordinator: Commits them.
        tasks: Runs work that continues when its caller is cancelled.
    """

    def __init__(
        self,
        peers: Peers,
        transactions: Transactions,
        decisions: Decisions,
        coordinator: CommitCoordinator,
        tasks: DetachedTasks,
    ) -> None:
        self._peers = peers
        self._transactions = transactions
        self._decisions = decisions
        self._coordinator = coordinator
        self._tasks = tasks

    def locate(self, token: str, id_: str) -> TransactionPlace:
        """Returns where a transaction stands at this worker."""
        self._transactions.check_log()
        committed = self._transactions.find_committed(token, id_)
        if committed is not None:
            return TransactionPlace(
                is_committed=True,
                coordinator=committed.coordinator,
                tables=frozenset(committed.tables),
                principal=committed.principal,
            )
        transaction = self._transactions.find(token)
        tables, principal = frozenset[str](), ""
        if transaction is not None:
            tables, principal = transaction.tables, transaction.principal
        for decision in self._transactions.decided:
            if decision.token == token or (id_ and decision.id == id_):
                # After a restart, the parts of a share in doubt are not loaded. Its coordinator knows their sizes.
                return TransactionPlace(
                    is_committed=True,
                    coordinator=decision.coordinator,
                    sizes=_sizes_of(transaction),
                    tables=frozenset(decision.tables),
                    principal=decision.principal,
                )
        if transaction is None:
            return TransactionPlace()
        return TransactionPlace(
            is_open=True,
            sizes=_sizes_of(transaction),
            remaining=transaction.remaining,
            owns_job=bool(transaction.options.job_table),
            tables=tables,
            principal=principal,
        )

    async def prepare(self, request: ShareRequest) -> PreparedShare:
        """Prepares the share of a transaction, and raises the barrier before it.

        Raises:
            TransactionLost, TransactionCommitted: The transaction is not open.
            ScanKvError: As `CommitCoordinator.commit`; nothing is prepared.
        """
        self._transactions.check_log()
        transaction = await self._end_earlier_attempt(request)
        share = Participation(self._peers, request, self._coordinator.promise, self._coordinator.forget_promise)
        commit = self._transactions.begin_commit(transaction, request.sizes, share)
        first: list[asyncio.Future[object]] = [commit, share.prepared]  # type: ignore[list-item]  # invariant
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not share.prepared.done():
            await result_of(commit)
        return share.prepared.result()

    async def _end_earlier_attempt(self, request: ShareRequest) -> OpenTransaction:
        """Returns the open transaction, after its earlier attempt, if the coordinator of that one has given it up.

        Raises:
            Unavailable: It may still decide that attempt, as if a call is late or another worker coordinates.
            ScanKvError: Why the transaction is not open.
        """
        token = request.token
        await self._transactions.end_doubts()
        self._transactions.check_not_stuck(token, "")
        transaction = self._transactions.find(token)
        if transaction is not None and transaction.commit is not None:
            if not isinstance(transaction.agreement, Participation):
                raise TransactionCommitted("the transaction is being committed")
            if not await transaction.agreement.is_undone():
                raise Unavailable("an earlier attempt to commit is not over: try again", retry_after=1.0)
            await asyncio.wait([transaction.commit])
            if transaction.commit is not None:
                await result_of(transaction.commit)
        if transaction is None or transaction.has_ended:
            raise transaction_lost(token)
        return transaction

    async def conclude(self, token: str, attempt: str, micros: int | None) -> CommittedTransaction | None:
        """Applies a prepared share of a transaction, or undoes it.

        Args:
            token: The token of the transaction.
            attempt: The attempt to commit it.
            micros: The time of the commit. None: the attempt is undone.

        Returns:
            What is applied. None: the share is undone, or it was applied so long ago that it is forgotten.

        Raises:
            TransactionLost: The share is to be applied, and is not prepared.
            DataLoss, DiskFull, Unavailable: The share cannot be applied everywhere yet.
        """
        self._transactions.check_log()
        committed = self._transactions.find_committed(token)
        if committed is not None:
            return committed
        transaction = self._transactions.find(token)
        share = None if transaction is None else transaction.agreement
        prepared = self._decisions.prepared.get(token)
        if isinstance(share, Participation) and share.attempt == attempt:
            assert transaction is not None
            assert transaction.commit is not None
            share.notify(micros)
            if micros is not None:
                return await result_of(transaction.commit)
            await asyncio.wait([transaction.commit])
            return None
        if prepared is not None and prepared.attempt == attempt:
            await self._end_doubt(token, micros)
            committed = self._transactions.find_committed(token)
        self._transactions.check_not_stuck(token, "")
        if committed is None and micros is not None:
            if prepared is not None:
                raise Unavailable("the share is not applied yet: try again", retry_after=1.0)
            if transaction is not None:
                raise transaction_lost(token)
            # A coordinator decides only after the share is durable here. If nothing of it is left, it was applied.
        return committed

    async def _end_doubt(self, token: str, micros: int | None) -> None:
        """Ends the doubt about a share that was prepared before a restart."""
        await asyncio.shield(self._tasks.start(self._end_doubt_completely(token, micros)))

    async def _end_doubt_completely(self, token: str, micros: int | None) -> None:
        if await self._coordinator.end_doubt(token, micros):
            await self._transactions.reopen(token)
        else:
            await self._transactions.retry()

    def outcome(self, token: str, attempt: str) -> int | CommitOutcome:
        """Returns the time of a commit that this worker coordinates, or why it has no time.

        Once all shares of an attempt are applied, no worker asks about it: one that asks has a share of another one.
        """
        self._transactions.check_log()
        if self._decisions.is_uncertain:
            return CommitOutcome.UNDECIDED
        decision = self._decisions.unfinished.get(token)
        if decision is not None and decision.attempt == attempt:
            return decision.micros
        transaction = self._transactions.find(token)
        agreement = None if transaction is None else transaction.agreement
        is_running = agreement is not None and agreement.attempt == attempt
        return CommitOutcome.UNDECIDED if is_running else CommitOutcome.UNDONE


def _sizes_of(transaction: OpenTransaction | None) -> dict[str, PartSize]:
    """Returns how much of each part this worker has."""
    parts = () if transaction is None else transaction.parts.values()
    return {part.part: part.staged for part in parts if part.requests}
