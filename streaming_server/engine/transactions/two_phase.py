"""How worker processes agree on the commit of a transaction of which several have a share: two-phase commit.

The first worker with a share, by number, is the coordinator. It raises its commit barrier, and then has each other
worker prepare its share, in the order of their numbers: raise its barrier, verify, and promise durably to apply the
share. No two commits can wait for each other, because all of them raise barriers in this order. Then the coordinator
decides, with one record in its log, and notifies the others.

A worker that has prepared a share and hears nothing asks the coordinator. A coordinator that does not know a commit has
not decided it, and never will: each attempt to commit is prepared again. Until the answer is known, the share is in
doubt, and its barrier stays raised.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from scankv.model.errors import DataLoss, ScanKvError, Unavailable
from streaming_server.engine.transactions.open_transaction import check_fragments, incomplete_part
from streaming_server.storage.transactions.decisions import Share
from streaming_server.storage.transactions.staging import PartSize, sum_of_sizes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from streaming_server.storage.transactions.decisions import CommittedTransaction, Decision
    from streaming_server.storage.transactions.staging import PartFile

_ASK_AGAIN_SECONDS: Final = 1.0
"""For how long a prepared share waits for the decision before its worker asks for it, and between two questions."""

LogOffsetsOfTables: TypeAlias = "Mapping[str, Mapping[int, int]]"
"""Log offsets by table and bucket."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """Asks a worker to prepare its share of a transaction. Immutable.

    Attributes:
        token: The token of the transaction.
        attempt: Identifies the attempt to commit it.
        coordinator: The number of the worker that decides.
        sizes: The parts to commit, and the number of requests of each at all workers. Empty: all parts.
        micros: The earliest time that the commit may have.
    """

    token: str
    attempt: str
    coordinator: int
    sizes: tuple[tuple[str, int], ...]
    micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedShare:
    """The share of a transaction that a worker promises to apply. Immutable.

    Attributes:
        micros: The earliest time that the commit may have.
        rows: The number of rows and keys.
        tables: The incarnations of the tables, by name.
        sizes: How much of each part this worker has.
    """

    micros: int
    rows: int
    tables: Mapping[str, str]
    sizes: Mapping[str, PartSize]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlace:
    """Where a transaction stands at a worker. Immutable.

    Attributes:
        is_open: Whether it is open there.
        is_committed: Whether it is committed there, or a share of it is prepared.
        sizes: How much of each part the worker has, unless the transaction is applied.
        coordinator: The worker that knows more of a committed transaction. None: this one.
        remaining: For how many more seconds an open transaction lives there.
        owns_job: Whether the worker owns the table of its job.
        tables: The tables of which the worker knows that it writes to them.
        principal: The principal that it belongs to. Empty: it has no owner, or the worker does not know the owner.
    """

    is_open: bool = False
    is_committed: bool = False
    sizes: Mapping[str, PartSize] = field(default_factory=dict)
    coordinator: int | None = None
    remaining: float = 0.0
    owns_job: bool = False
    tables: frozenset[str] = frozenset()
    principal: str = ""


class CommitOutcome(Enum):
    """What a coordinator says of an attempt that it has not decided."""

    UNDECIDED = "it may still be decided"
    UNDONE = "it will never be decided"


class Peers(Protocol):
    """The other workers of a server, as the transactions of one call them.

    Every method raises Unavailable if the worker does not answer, and otherwise the error of the worker.
    """

    @property
    def number(self) -> int:
        """The number of this worker."""
        ...

    def owns(self, table: str) -> bool:
        """Whether this worker owns a table."""
        ...

    async def prepare(self, worker: int, request: ShareRequest) -> PreparedShare:
        """Has a worker prepare its share."""
        ...

    async def conclude(self, worker: int, token: str, attempt: str, micros: int | None) -> LogOffsetsOfTables:
        """Has a worker apply a prepared share, with the time of the commit, or undo it (None).

        Returns the offsets after the transaction, by table and bucket; none if the share is undone or forgotten.
        """
        ...

    async def outcome(self, worker: int, token: str, attempt: str) -> int | CommitOutcome:
        """Asks the coordinator for the outcome: the time of the commit, or its state if it has none."""
        ...

    async def remaining(self, token: str) -> float:
        """Returns for how many more seconds a transaction lives at the worker at which it lives the longest."""
        ...


class AttemptUndone(Unavailable):
    """The coordinator has undone the attempt to commit. The transaction is open, and can be committed again."""


class LeftInDoubt(Unavailable):
    """The server stops before it knows whether a prepared share is committed. The next start finds out."""


class Coordination:
    """One attempt to commit, as its coordinator sees it.

    Args:
        peers: The other workers.
        token: The token of the transaction.
        sizes: As for `ShareRequest`.
        others: The other workers with a share, all with greater numbers.
    """

    def __init__(self, peers: Peers, token: str, sizes: Sequence[tuple[str, int]], others: Sequence[int]) -> None:
        self.attempt = uuid.uuid4().hex
        self._peers = peers
        self._token = token
        self._sizes = tuple(sizes)
        self._others = sorted(others)
        self._asked: list[int] = []

    async def agree(self, decision: Decision, parts: Sequence[PartFile]) -> Decision:
        """Has all other workers prepare their shares. Call it with the barrier raised; call `undo` if it raises.

        Args:
            decision: What this worker would decide alone.
            parts: The parts that it would commit.

        Returns:
            The decision, with the shares, and with a time that suits all workers.

        Raises:
            InvalidRequest: A part does not have as many requests at all workers together.
            ScanKvError: A worker cannot commit its share.
        """
        there = [{part.part: part.staged for part in parts}]
        shares = []
        micros = decision.micros
        for number in self._others:
            request = ShareRequest(
                token=self._token,
                attempt=self.attempt,
                coordinator=self._peers.number,
                sizes=self._sizes,
                micros=micros,
            )
            self._asked.append(number)
            prepared = await self._peers.prepare(number, request)
            shares.append(Share(worker=number, rows=prepared.rows, tables=prepared.tables))
            there.append(dict(prepared.sizes))
            micros = prepared.micros
        total = sum_of_sizes(there)
        for part, requests in self._sizes:
            found = total.get(part, PartSize(0)).requests
            if found != requests:
                raise incomplete_part(part, found, requests)
        check_fragments(total, [part for part, _ in self._sizes])
        return replace(decision, micros=micros, shares=tuple(shares), attempt=self.attempt)

    async def undo(self) -> None:
        """Has all workers undo what they have prepared. One that cannot be reached asks for the outcome later."""

        async def undo(number: int) -> None:
            try:
                await self._peers.conclude(number, self._token, self.attempt, None)
            except ScanKvError as error:
                _log.info("worker %s does not know that an attempt to commit is undone: %s", number, error.message)

        await asyncio.gather(*map(undo, self._asked))


class Participation:
    """One attempt to commit, as a worker with a share sees it that does not decide.

    Args:
        peers: The other workers.
        request: The request of the coordinator.
        promise: Stores a prepared decision durably.
        forget: Forgets a prepared decision.

    Attributes:
        prepared: What this worker promises to apply, once it has.
    """

    def __init__(
        self,
        peers: Peers,
        request: ShareRequest,
        promise: Callable[[Decision], Awaitable[None]],
        forget: Callable[[str], None],
    ) -> None:
        self.attempt = request.attempt
        self.prepared: asyncio.Future[PreparedShare] = asyncio.get_running_loop().create_future()
        self._peers = peers
        self._request = request
        self._promise = promise
        self._forget = forget
        self._outcome: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def agree(self, decision: Decision, parts: Sequence[PartFile]) -> Decision:
        """Prepares the share, and waits for the decision of the coordinator. Call it with the barrier raised.

        Returns:
            The decision, with its time.

        Raises:
            AttemptUndone: The coordinator has not decided, and will not.
            DataLoss: The coordinator does not know any more whether it has decided.
            LeftInDoubt: The server stops.
            DiskFull, OSError, Unavailable: The promise cannot be stored.
        """
        request = self._request
        decision = replace(
            decision,
            micros=max(decision.micros, request.micros),
            coordinator=request.coordinator,
            attempt=request.attempt,
        )
        await self._promise(decision)
        self.prepared.set_result(
            PreparedShare(
                micros=decision.micros,
                rows=decision.rows,
                tables=decision.tables,
                sizes={part.part: part.staged for part in parts},
            )
        )
        micros = await self._wait_for_outcome()
        if micros is None:
            self._forget(decision.token)
            raise AttemptUndone("the attempt to commit the transaction was undone: commit it again")
        return replace(decision, micros=micros)

    async def _wait_for_outcome(self) -> int | None:
        while True:
            await asyncio.wait([self._outcome], timeout=_ASK_AGAIN_SECONDS)
            if self._outcome.done():
                return self._outcome.result()
            found = await ask_for_outcome(
                self._peers, self._request.coordinator, self._request.token, self._request.attempt
            )
            if found is not CommitOutcome.UNDECIDED and not self._outcome.done():
                return found if isinstance(found, int) else None

    def notify(self, micros: int | None) -> None:
        """Notifies the waiting share of the outcome: the time of the commit, or None if the attempt is undone."""
        if not self._outcome.done():
            self._outcome.set_result(micros)

    async def is_undone(self) -> bool:
        """Asks the coordinator whether it has given up the attempt, which then ends."""
        request = self._request
        found = await ask_for_outcome(self._peers, request.coordinator, request.token, request.attempt)
        if found is CommitOutcome.UNDONE:
            self.notify(None)
        return found is CommitOutcome.UNDONE

    def leave(self) -> None:
        """Ends the waiting, because the server stops."""
        if not self._outcome.done():
            self._outcome.set_exception(LeftInDoubt("the server stops: try again", retry_after=1.0))

    async def undo(self) -> None:
        """Does nothing: the coordinator undoes what others have prepared."""


Agreement: TypeAlias = "Coordination | Participation"
"""How a worker agrees with others on a commit."""


async def ask_for_outcome(peers: Peers, coordinator: int, token: str, attempt: str) -> int | CommitOutcome:
    """See `Peers.outcome`. A coordinator that does not answer may still decide.

    Raises:
        DataLoss: The coordinator cannot read its transaction log, so it does not know the outcome.
    """
    try:
        return await peers.outcome(coordinator, token, attempt)
    except DataLoss:
        raise
    except ScanKvError as error:
        _log.info("worker %s does not say whether the transaction %s is committed: %s", coordinator, token, error)
        return CommitOutcome.UNDECIDED


async def result_of(commit: asyncio.Task[CommittedTransaction]) -> CommittedTransaction:
    """Waits for a commit, which continues if the caller is cancelled. Raises a copy of its error."""
    try:
        return await asyncio.shield(commit)
    except ScanKvError as error:
        raise copy(error) from error.__cause__
