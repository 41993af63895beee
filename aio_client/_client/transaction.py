"""Transactions: writes to many buckets and tables that become visible together, or never."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

import anyio

from aio_client._client.transaction_info import CommitResult, JobStep, LostWrites, TransactionInfo
from aio_client._client.transaction_part import TransactionPart
from aio_client._input.arguments import principal_of, text_of
from aio_client._input.awaitable import AwaitableOpener
from aio_client._transport.lease import ttl_millis
from aio_client._transport.repeatable_calls import call_again
from scankv.model.errors import ConnectionFailed, ScanKvError, UnknownField, UsageError
from scankv.model.limits import MAX_WAIT_MILLIS
from scankv.v1 import transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import pyarrow as pa

    from aio_client._client.table import Table
    from aio_client._transport.transport import Transport
    from aio_client._write.column_locks import ColumnLock
    from aio_client._write.merging import WriteMode
    from aio_client._write.selection import Selection
    from aio_client._write.write_requests import WritePieces

ConflictMode: TypeAlias = Literal["last_wins", "abort"]
"""What a commit does if other writers have changed the transaction's keys since it first wrote to their table."""

LockMode: TypeAlias = Literal["keys"]
"""What a transaction locks: the keys that it reads with `get_for_update` and that it writes."""

_LOCK_SECONDS: Final = 10.0

# An abort that the server does not answer must not delay the end of the block: the transaction expires by itself.
_ABORT_SECONDS: Final = 5.0
_MODES: Final = {
    "last_wins": transaction_pb2.CONFLICT_MODE_LAST_WINS,
    "abort": transaction_pb2.CONFLICT_MODE_ABORT,
}
_MAIN: Final = "main"


class Transaction(TransactionPart):
    """A transaction: everything staged with it becomes visible together at the commit, or never.

    Made by `client.transaction(...)`. `async with` commits it at the end of the block, and aborts it if an error leaves
    the block.
    """

    def __init__(
        self,
        transport: Transport,
        id_: str,
        token: str,
        committed: transaction_pb2.CommitTransactionResponse | None,
        lock_timeout: float | None = None,
    ) -> None:
        """Called by `TransactionOpener`."""
        super().__init__(transport, token, _MAIN, lock_timeout)
        self._id = id_
        self._result = None if committed is None else CommitResult.of(committed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self._commit_or_abort()
        elif self._result is None:
            await _try_to_abort(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id or self.token}>"

    def _repr_html_(self) -> str:
        from aio_client._input.notebooks import html_table

        state = "open" if self.result is None else repr(self.result)
        return html_table(type(self).__name__, ("id", "state"), [(self.id or self.token, state)])

    @property
    def id(self) -> str:
        """The transaction's id; empty if it has none."""
        return self._id

    @property
    def result(self) -> CommitResult | None:
        """The result of the commit. None before the commit.

        If the id was committed earlier, for example before a crash, the result is there from the beginning: then all
        calls stage nothing, and the commit returns the result.
        """
        return self._result

    async def _stage(self, table: Table, pieces: WritePieces, locks: Sequence[ColumnLock | str]) -> int:
        return await super()._stage(table, pieces, locks) if self._is_open() else 0

    async def _stage_selected(
        self, table: Table, selection: Selection, mode: WriteMode, locks: Sequence[ColumnLock | str]
    ) -> int:
        return await super()._stage_selected(table, selection, mode, locks) if self._is_open() else 0

    async def delete_all(
        self, table: Table, *, mode: WriteMode = "merge", locks: Sequence[ColumnLock | str] = ()
    ) -> int:
        """See `TransactionPart.delete_all`. If the id was committed earlier, does nothing and returns 0."""
        return await super().delete_all(table, mode=mode, locks=locks)

    async def get_for_update(
        self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit"
    ) -> pa.Table:
        """See `TransactionPart.get_for_update`. If the id was committed earlier, returns the current rows."""
        if not self._is_open():
            return await table.lookup(keys, missing=missing)
        return await super().get_for_update(table, keys, missing=missing)

    async def lookup(self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit") -> pa.Table:
        """See `TransactionPart.lookup`. If the id was committed earlier, returns the current rows."""
        if not self._is_open():
            return await table.lookup(keys, missing=missing)
        return await super().lookup(table, keys, missing=missing)

    def _is_open(self) -> bool:
        """Returns whether calls stage anything. Raises UsageError once this object has committed."""
        if self.result is not None and self.token:
            raise UsageError("the transaction is committed: begin another one")
        return bool(self.token)

    async def commit(self, parts: Sequence[TransactionPart | tuple[str, int]] = ()) -> CommitResult:
        """Commits the transaction. When the call returns, all writes are durable and visible to all readers.

        The call is repeated until it is answered, for the operation timeout; a large commit takes about as long as its
        writes would have taken. If no answer ever comes, the transaction may be committed: begin a transaction with the
        same id to find out. Calling it again returns the same result.

        Args:
            parts: The parts of other participants that count, as `(part, requests)` or `TransactionPart`. They are
                applied after what this object has staged, in this order. What other parts have staged is dropped.

        Returns:
            The number of rows, and the log offsets after the transaction.

        Raises:
            TransactionConflict: A key that the transaction depends on has changed. Nothing was written.
            TransactionLost: The transaction was aborted, has expired, or was begun again elsewhere. It wrote nothing.
            InvalidRequest: A part does not have as many requests; or a merge has no result. Nothing was written.
            TableNotFound, ColumnLocked, LockLost, PositionExpired: A table was dropped, or a lock or a missing
                changelog forbids the commit. Nothing was written.
            ConnectionFailed: No answer came within the operation timeout.
            UsageError: An earlier write of this transaction was not answered.
        """
        if self._result is None:
            async with self._turn:
                if self._failure is not None:
                    raise UsageError("a write of this transaction was not answered: it cannot be committed") from (
                        self._failure
                    )
                sizes = [_size(each) for each in (self, *parts)]
                request = transaction_pb2.CommitTransactionRequest(token=self.token, id=self.id, parts=sizes)
                calls = self._transport
                answer = await call_again(calls, lambda: calls.services.transactions.CommitTransaction, request)
                self._result = CommitResult.of(answer)
        return self._result

    async def abort(self) -> None:
        """Aborts the transaction: what was staged is removed. Idempotent; does nothing if the id was committed earlier.

        Raises:
            TransactionCommitted: The transaction is committed, or is being committed.
        """
        if self.token:
            await abort_transaction(self._transport, self.token)

    async def _commit_or_abort(self) -> None:
        try:
            await self.commit()
        except ConnectionFailed:
            # No answer came, so the transaction may be committed.
            raise
        except BaseException:
            await _try_to_abort(self)
            raise


class TransactionOpener(AwaitableOpener[Transaction]):
    """The result of `client.transaction()`: each `async with` or `await` begins a transaction."""

    call = "client.transaction(...)"
    name = "tx"
    result = Transaction

    def __init__(
        self,
        transport: Transport,
        id_: str | None,
        conflict: str,
        ttl: float | None,
        writer: str | None,
        attempt: str | None,
        lock: LockMode | None,
        lock_timeout: float | None,
        job: JobStep | None = None,
        principal: str | None = None,
    ) -> None:
        """Called by `Client.transaction`; begins nothing yet. Raises UsageError for invalid arguments."""
        if not isinstance(conflict, str) or conflict not in _MODES:
            raise UsageError(f'conflict must be "last_wins" or "abort", not {conflict!r}', option="conflict")
        if attempt is not None and id_ is None:
            raise UsageError("attempt needs a transaction with an id: also give id", option="attempt")
        if job is not None and id_ is None:
            raise UsageError('job needs a transaction with an id: also give id, such as "job-1:7"', option="job")
        if lock not in (None, "keys"):
            raise UsageError(f'lock must be "keys" or None, not {lock!r}', option="lock")
        if lock_timeout is not None and lock is None:
            raise UsageError(
                'lock_timeout needs a transaction that locks keys: also give lock="keys"', option="lock_timeout"
            )
        self._lock_timeout = None if lock is None else _lock_timeout_of(lock_timeout)
        self._transport = transport
        self._request = transaction_pb2.BeginTransactionRequest(
            id="" if id_ is None else text_of(id_, "id"),
            conflict_mode=_MODES[conflict],
            ttl_millis=0 if ttl is None else ttl_millis(ttl),
            writer="" if writer is None else text_of(writer, "writer"),
            attempt="" if attempt is None else text_of(attempt, "attempt"),
            lock_keys=self._lock_timeout is not None,
            lock_wait_millis=round(1000 * (self._lock_timeout or 0)),
            job=None if job is None else _job_message(job),
            principal=principal_of(principal),
        )

    async def _open(self) -> Transaction:
        """Begins a transaction, which the caller commits or aborts. Raises the errors of `Client.transaction`."""
        request = transaction_pb2.BeginTransactionRequest()
        request.CopyFrom(self._request)
        request.attempt = request.attempt or uuid.uuid4().hex
        try:
            answer = await self._begin(request)
        except UnknownField:
            if not request.HasField("job"):
                raise
            # A server of an earlier version does not know whether a table has the rows of earlier transactions.
            request.ClearField("job")
            answer = await self._begin(request)
        committed = answer.committed if answer.HasField("committed") else None
        return Transaction(self._transport, request.id, answer.token, committed, self._lock_timeout)

    async def _begin(
        self, request: transaction_pb2.BeginTransactionRequest
    ) -> transaction_pb2.BeginTransactionResponse:
        calls = self._transport
        return await call_again(calls, lambda: calls.services.transactions.BeginTransaction, request)


def _job_message(job: JobStep) -> transaction_pb2.JobStep:
    return transaction_pb2.JobStep(
        table=text_of(job.table, "job.table"),
        follows=text_of(job.follows, "job.follows"),
        accepted_incarnation=text_of(job.accepted_incarnation, "job.accepted_incarnation"),
    )


async def _try_to_abort(transaction: Transaction) -> None:
    """Aborts within a short time. If that fails, the transaction expires."""
    with anyio.move_on_after(_ABORT_SECONDS, shield=True), suppress(ScanKvError):
        await transaction.abort()


async def list_transactions(transport: Transport) -> list[TransactionInfo]:
    """Returns the open transactions of all clients, oldest first."""
    request = transaction_pb2.ListTransactionsRequest()
    response = await transport.call(lambda: transport.services.transactions.ListTransactions, request)
    return [TransactionInfo.of(each) for each in response.transactions]


async def abort_transaction(transport: Transport, token: str) -> None:
    """Aborts a transaction of any client. Raises TransactionCommitted."""
    request = transaction_pb2.AbortTransactionRequest(token=text_of(token, "token"))
    await call_again(transport, lambda: transport.services.transactions.AbortTransaction, request)


async def give_up_transaction(transport: Transport, token: str) -> list[LostWrites]:
    """Accepts what a stuck transaction has lost. Raises TransactionLost, TransactionCommitted, DiskFull."""
    request = transaction_pb2.GiveUpTransactionRequest(token=text_of(token, "token"))
    response = await transport.call(
        lambda: transport.services.transactions.GiveUpTransaction, request, repeatable=False
    )
    return [LostWrites.of(each) for each in response.lost]


def _lock_timeout_of(seconds: float | None) -> float:
    """Returns the seconds that a call may wait for locks. Raises UsageError for an invalid number."""
    if seconds is None:
        return _LOCK_SECONDS
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_WAIT_MILLIS / 1000:
        raise UsageError(
            f"lock_timeout must be a number of seconds from 0 to {MAX_WAIT_MILLIS / 1000:g}, not {seconds!r}",
            option="lock_timeout",
        )
    return float(seconds)


def _size(part: TransactionPart | tuple[str, int]) -> transaction_pb2.TransactionPartSize:
    name, requests = (part.part, part.requests) if isinstance(part, TransactionPart) else part
    return transaction_pb2.TransactionPartSize(part=name, requests=requests)
