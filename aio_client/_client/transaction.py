"""Transactions: writes to many buckets and tables that become visible together, or never."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import anyio

from aio_client._input.arguments import text_of
from aio_client._input.awaitable import AwaitableOpener
from aio_client._input.data import rows_of
from aio_client._input.keys import is_one_key, keys_of
from aio_client._input.optional import to_pylist
from aio_client._input.requests import LOOKUP_KEYS, cut, to_ipc
from aio_client._queries.lookup import LookupAnswer, assemble
from aio_client._transport.lease import ttl_millis
from aio_client._transport.repeatable_calls import call_again
from aio_client._write.column_locks import lock_ids_of
from aio_client._write.write_requests import WritePieces, mode_of
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import ConnectionFailed, InvalidKey, ScanKvError, UsageError
from scankv.model.limits import MAX_WAIT_MILLIS
from scankv.v1 import lookup_pb2, transaction_pb2, write_pb2

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from types import TracebackType

    import pyarrow as pa

    from aio_client._client.table import Table
    from aio_client._input.data import Data
    from aio_client._transport.transport import Transport
    from aio_client._write.column_locks import ColumnLock
    from aio_client._write.merging import Names, WriteMode

ConflictMode: TypeAlias = Literal["last_wins", "abort"]
"""What a commit does if other writers have changed the transaction's keys since it first wrote to their table."""

# An abort that the server does not answer must not delay the end of the block: the transaction expires by itself.
_ABORT_SECONDS: Final = 5.0
_MODES: Final = {
    "last_wins": transaction_pb2.CONFLICT_MODE_LAST_WINS,
    "abort": transaction_pb2.CONFLICT_MODE_ABORT,
}
_MAIN: Final = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What a commit has done. All of it is durable and visible to all readers.

    Attributes:
        rows: The number of rows and keys given.
        log_offsets: By table name and bucket, the offset of the first change after the transaction.
    """

    rows: int
    log_offsets: dict[str, LogOffsets]

    @classmethod
    def of(cls, message: transaction_pb2.CommitTransactionResponse) -> CommitResult:
        """Decodes the result in an answer."""
        offsets = {each.table: LogOffsets.of(each.log_offsets, each.table_incarnation) for each in message.tables}
        return cls(rows=message.rows, log_offsets=offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    """A transaction that is neither committed nor aborted, or that is committed and could not be applied everywhere.

    Attributes:
        token: Identifies the transaction.
        id: The transaction's id; empty if it has none.
        conflict: "last_wins" or "abort".
        tables: The names of the tables that it has written to so far.
        rows: The number of rows and keys that it has staged.
        bytes: What these take on the server's disk.
        age_seconds: Seconds since it was begun, or since the server started if that is later.
        ttl: Seconds without a call after which it is aborted.
        remaining: Seconds until then.
        committing: Whether it is being committed.
        stuck: Why it is committed and could not be applied everywhere, and what to do; empty otherwise. See
            `Client.give_up_transaction`.
    """

    token: str
    id: str
    conflict: str
    tables: tuple[str, ...]
    rows: int
    bytes: int
    age_seconds: float
    ttl: float
    remaining: float
    committing: bool
    stuck: str

    @classmethod
    def of(cls, message: transaction_pb2.OpenTransaction) -> TransactionInfo:
        """Decodes a transaction in an answer."""
        aborts = message.conflict_mode == transaction_pb2.CONFLICT_MODE_ABORT
        return cls(
            token=message.token,
            id=message.id,
            conflict="abort" if aborts else "last_wins",
            tables=tuple(message.tables),
            rows=message.rows,
            bytes=message.bytes,
            age_seconds=message.age_millis / 1000,
            ttl=message.ttl_millis / 1000,
            remaining=message.remaining_millis / 1000,
            committing=message.committing,
            stuck=message.stuck,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWrites:
    """The writes of a transaction that one bucket never gets, because the transaction was given up.

    Attributes:
        table: The bucket's table.
        bucket: The bucket's number.
        rows: How many rows and keys of the transaction belong to the bucket. None if they can no longer be read.
        applied: How many of these keys, each counted once, were applied all the same.
        reason: Why the others cannot be applied.
    """

    table: str
    bucket: int
    rows: int | None
    applied: int
    reason: str

    @classmethod
    def of(cls, message: transaction_pb2.LostWrites) -> LostWrites:
        """Decodes the losses of one bucket in an answer."""
        return cls(
            table=message.table,
            bucket=message.bucket,
            rows=message.rows if message.HasField("rows") else None,
            applied=message.applied,
            reason=message.reason,
        )


class TransactionPart:
    """What one participant stages for a transaction, in the order of its calls.

    A transaction has a part of its own. Other participants, also in other processes, take part by its token with
    `client.transaction_part(token, part)`; the commit names the parts that count.

    Belongs to the event loop of its client. Calls of several tasks are made one after another.
    """

    def __init__(self, transport: Transport, token: str, part: str) -> None:
        """Called by `Client.transaction_part` and `Transaction`."""
        self._token = token
        self._part = part
        self._requests = 0
        self._transport = transport
        self._turn = asyncio.Lock()
        self._failure: ScanKvError | None = None

    @property
    def token(self) -> str:
        """Identifies the transaction."""
        return self._token

    @property
    def part(self) -> str:
        """The name of the part, another one for each attempt of work that may fail and be repeated."""
        return self._part

    @property
    def requests(self) -> int:
        """How many requests the part has staged so far, which the commit names for a part."""
        return self._requests

    async def upsert(
        self,
        table: Table,
        data: Data,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        locks: Sequence[ColumnLock | str] = (),
    ) -> int:
        """Stages an upsert, which is checked now and becomes visible with the commit.

        The arguments and errors are those of `Table.upsert`. Each request is repeated until it is answered, and is
        staged once. Locks must last until the commit.

        Args:
            table: The table to write to.
            data: As for `Table.upsert`.
            columns: As for `Table.upsert`.
            mode: As for `Table.upsert`.
            locks: As for `Table.upsert`.

        Returns:
            The number of rows given.

        Raises:
            TransactionLost: The transaction was aborted, has expired, or was begun again elsewhere.
            RequestTooLarge: The transaction would stage more than the server allows.
        """
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await table._handle.build_for_shape(lambda shape: WritePieces.of_rows(shape, rows, columns, mode))
        return await self._stage(pieces, locks)

    async def retract(
        self, table: Table, data: Data, columns: Names | None = None, *, locks: Sequence[ColumnLock | str] = ()
    ) -> int:
        """Stages a retraction. Returns the number of rows. Arguments and errors as for `Table.retract` and `upsert`."""
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await table._handle.build_for_shape(
            lambda shape: WritePieces.of_rows(shape, rows, columns, retract=True)
        )
        return await self._stage(pieces, locks)

    async def delete(
        self,
        table: Table,
        keys: object,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        locks: Sequence[ColumnLock | str] = (),
    ) -> int:
        """Stages a delete. Returns the number of keys. Arguments and errors as for `Table.delete` and `upsert`."""
        pieces = await table._handle.build_for_shape(lambda shape: WritePieces.of_keys(shape, keys, columns, mode))
        return await self._stage(pieces, locks)

    async def delete_all(
        self, table: Table, *, mode: WriteMode = "merge", locks: Sequence[ColumnLock | str] = ()
    ) -> int:
        """Stages the deletion of all rows that the table has at the moment of the call.

        Followed by staged writes, it lets a commit replace all rows of a table at once. It takes effect in the order of
        the staged writes: what is staged after it stays; of what was staged before it, the keys that the table has are
        deleted. Rows that others insert after the call stay. With `conflict="abort"`, the commit fails if one of the
        rows has changed. No key leaves the server, which reads and stages about a million rows per second.

        Args:
            table: The table.
            mode: As for `Table.delete`: "overwrite" deletes whatever the merge engine and `delete_behavior` say.
            locks: As for `Table.delete`; they must last until the commit.

        Returns:
            The number of rows to delete.

        Raises:
            InvalidRequest: The table refuses deletes.
            TransactionLost: The transaction was aborted, has expired, or was begun again elsewhere.
            RequestTooLarge: The transaction would stage more than the server allows.
            ColumnLocked, LockLost: A lock forbids it.
        """
        async with self._turn:
            calls = self._transport
            request = transaction_pb2.StageDeleteAllRequest(
                token=self.token,
                part=self.part,
                sequence=self.requests,
                table=table.name,
                mode=mode_of(mode),
                column_locks=lock_ids_of(locks),
                wait_millis=min(MAX_WAIT_MILLIS, int(calls.config.call_timeout * 1000 / 2)),
            )
            with self._staging():
                while True:
                    answer = await call_again(calls, lambda: calls.services.transactions.StageDeleteAll, request)
                    if answer.done:
                        break
        return answer.rows

    async def get_for_update(
        self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit"
    ) -> pa.Table:
        """Reads the rows with these keys, and makes the commit fail if one of them has changed by then. Takes no locks.

        Returns what is committed, without what this transaction has staged. The rows of one call must fit into 32 MiB
        for every 10,000 keys.

        Args:
            table: The table to read.
            keys: As for `Table.lookup`.
            missing: As for `Table.lookup`.

        Returns:
            As `Table.lookup`.

        Raises:
            TransactionLost: The transaction was aborted, has expired, or was begun again elsewhere.
            InvalidRequest: The table has no changelog, so changes cannot be found.
            InvalidKey: A key is incomplete, null, or not of its columns' types.
        """
        if missing not in ("omit", "null"):
            raise UsageError(f'missing is "omit" or "null", not {missing!r}', option="missing")
        batch = await asyncio.to_thread(keys_of, keys, table._handle.shape.key_schema)
        answers = [await self._read(table, piece) for piece in cut([batch], max_rows=LOOKUP_KEYS)]
        return assemble(answers, table.schema, fill_missing=missing == "null")

    async def get(self, table: Table, key: object) -> dict[str, Any] | None:
        """Reads the row with this key as a commit now would leave it; None if there is none. See `lookup`."""
        if not is_one_key(key):
            raise InvalidKey(f"get takes one key, not a {type(key).__name__}; lookup takes many")
        rows = to_pylist(await self.lookup(table, key))
        return rows[0] if rows else None

    async def lookup(self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit") -> pa.Table:
        """Reads the rows with these keys as a commit now would leave them: with everything that this part has staged.

        The result is right for every merge engine, but has nothing of other parts. The commit does not depend on the
        rows read; see `get_for_update` for that. For every 10,000 keys, the server reads everything that is staged
        here. The rows of one call must fit into 32 MiB for every 10,000 keys.

        Args:
            table: The table to read.
            keys: As for `Table.lookup`.
            missing: As for `Table.lookup`.

        Returns:
            As `Table.lookup`.

        Raises:
            TransactionLost: The transaction was aborted, has expired, or was begun again elsewhere.
            InvalidRequest: The staged writes cannot be merged, for example because a sum overflows.
            InvalidKey: A key is incomplete, null, or not of its columns' types.
        """
        if missing not in ("omit", "null"):
            raise UsageError(f'missing is "omit" or "null", not {missing!r}', option="missing")
        batch = await asyncio.to_thread(keys_of, keys, table._handle.shape.key_schema)
        answers = [await self._read_staged(table, piece) for piece in cut([batch], max_rows=LOOKUP_KEYS)]
        return assemble(answers, table.schema, fill_missing=missing == "null")

    async def _read_staged(self, table: Table, keys: pa.RecordBatch) -> LookupAnswer:
        async with self._turn:
            request = transaction_pb2.LookupStagedRequest(
                token=self.token, part=self.part, requests=self.requests, table=table.name, keys=to_ipc(keys)
            )
            calls = self._transport
            response = await call_again(calls, lambda: calls.services.transactions.LookupStaged, request)
        return LookupAnswer.decode(keys, lookup_pb2.LookupResponse(rows=response.rows, found=response.found))

    async def _read(self, table: Table, keys: pa.RecordBatch) -> LookupAnswer:
        async with self._turn:
            request = transaction_pb2.GetForUpdateRequest(
                token=self.token, part=self.part, sequence=self.requests, table=table.name, keys=to_ipc(keys)
            )
            calls = self._transport
            with self._staging():
                response = await call_again(calls, lambda: calls.services.transactions.GetForUpdate, request)
        return LookupAnswer.decode(keys, lookup_pb2.LookupResponse(rows=response.rows, found=response.found))

    async def _stage(self, pieces: WritePieces, locks: Sequence[ColumnLock | str]) -> int:
        rows = 0
        async with self._turn:
            held = lock_ids_of(locks)
            while (request := await asyncio.to_thread(pieces.next_request)) is not None:
                request.column_locks.extend(held)
                request.transaction.token, request.transaction.part = self.token, self.part
                request.transaction.sequence = self.requests
                with self._staging():
                    rows += (await self._write(request)).rows
        return rows

    @contextmanager
    def _staging(self) -> Iterator[None]:
        """Stages one request: counts it when it is answered, and refuses all later ones if it is not."""
        if self._failure is not None:
            raise UsageError(
                "an earlier write of this transaction was not answered, so it is unknown whether it is staged: begin "
                "another transaction"
            ) from self._failure
        try:
            yield
        except ConnectionFailed as error:
            self._failure = error
            raise
        self._requests += 1

    async def _write(self, request: write_pb2.UpsertRequest | write_pb2.DeleteRequest) -> write_pb2.WriteResponse:
        calls = self._transport
        if isinstance(request, write_pb2.DeleteRequest):
            return await call_again(calls, lambda: calls.services.writes.Delete, request)
        return await call_again(calls, lambda: calls.services.writes.Upsert, request)


class Transaction(TransactionPart):
    """A transaction: what is staged with it becomes visible together when it is committed, or never.

    Made by `client.transaction(...)`. `async with` commits it at the end of the block, and aborts it if an error leaves
    the block.
    """

    def __init__(
        self, transport: Transport, id_: str, token: str, committed: transaction_pb2.CommitTransactionResponse | None
    ) -> None:
        """Called by `TransactionOpener`."""
        super().__init__(transport, token, _MAIN)
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

    async def _stage(self, pieces: WritePieces, locks: Sequence[ColumnLock | str]) -> int:
        return await super()._stage(pieces, locks) if self._is_open() else 0

    async def delete_all(
        self, table: Table, *, mode: WriteMode = "merge", locks: Sequence[ColumnLock | str] = ()
    ) -> int:
        """As `TransactionPart.delete_all`. If the id was committed earlier, it does nothing."""
        return await super().delete_all(table, mode=mode, locks=locks) if self._is_open() else 0

    async def get_for_update(
        self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit"
    ) -> pa.Table:
        """As `TransactionPart.get_for_update`. If the id was committed earlier, returns the rows of now."""
        if not self._is_open():
            return await table.lookup(keys, missing=missing)
        return await super().get_for_update(table, keys, missing=missing)

    async def lookup(self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit") -> pa.Table:
        """As `TransactionPart.lookup`. If the id was committed earlier, returns the rows of now."""
        if not self._is_open():
            return await table.lookup(keys, missing=missing)
        return await super().lookup(table, keys, missing=missing)

    def _is_open(self) -> bool:
        """Whether calls stage anything. Raises UsageError once this object has committed."""
        if self.result is not None and self.token:
            raise UsageError("the transaction is committed: begin another one")
        return bool(self.token)

    async def commit(self, parts: Sequence[TransactionPart | tuple[str, int]] = ()) -> CommitResult:
        """Commits the transaction. When the call returns, all writes are durable and visible to all readers.

        The call is repeated until it is answered, for the operation timeout; a large commit takes about as long as its
        writes would have taken. If no answer ever comes, the transaction may be committed: begin a transaction with the
        same id to find out. Calling it again returns the same result.

        Args:
            parts: The parts of other participants that count, as `(part, requests)` or as objects. They are applied
                after what this object has staged, in this order. What other parts have staged is dropped.

        Returns:
            The number of rows, and the log offsets after the transaction.

        Raises:
            TransactionConflict: A key that the transaction depends on has changed. Nothing was written.
            TransactionLost: The transaction was aborted, has expired, or was begun again elsewhere. It wrote nothing.
            InvalidRequest: A part does not have as many requests; or a merge has no result. Nothing was written.
            TableNotFound, ColumnLocked, LockLost, PositionExpired: A table was dropped, or a lock or a missing
                changelog forbids the commit. Nothing was written.
            ConnectionFailed: No answer came within the operation timeout.
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


class TransactionOpener(AwaitableOpener):
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
    ) -> None:
        """Called by `Client.transaction`; begins nothing yet. Raises UsageError for invalid arguments."""
        if not isinstance(conflict, str) or conflict not in _MODES:
            raise UsageError(f'conflict is "last_wins" or "abort", not {conflict!r}', option="conflict")
        if attempt is not None and id_ is None:
            raise UsageError("attempt needs a transaction with an id: give id, too", option="attempt")
        self._transport = transport
        self._request = transaction_pb2.BeginTransactionRequest(
            id="" if id_ is None else text_of(id_, "id"),
            conflict_mode=_MODES[conflict],
            ttl_millis=0 if ttl is None else ttl_millis(ttl),
            writer="" if writer is None else text_of(writer, "writer"),
            attempt="" if attempt is None else text_of(attempt, "attempt"),
        )
        self._transaction: Transaction | None = None

    def __await__(self) -> Generator[None, None, Transaction]:
        return self.begin().__await__()

    async def begin(self) -> Transaction:
        """Begins a transaction, which the caller commits or aborts. Raises as `Client.transaction`."""
        request = transaction_pb2.BeginTransactionRequest()
        request.CopyFrom(self._request)
        request.attempt = request.attempt or uuid.uuid4().hex
        calls = self._transport
        answer = await call_again(calls, lambda: calls.services.transactions.BeginTransaction, request)
        committed = answer.committed if answer.HasField("committed") else None
        return Transaction(self._transport, request.id, answer.token, committed)

    async def __aenter__(self) -> Transaction:
        if self._transaction is not None:
            raise UsageError("this client.transaction() is in use; call it again for another transaction")
        self._transaction = await self.begin()
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._transaction is not None
        transaction, self._transaction = self._transaction, None
        await transaction.__aexit__(kind, error, traceback)


async def _try_to_abort(transaction: Transaction) -> None:
    """Aborts within a short time. If that fails, the transaction expires."""
    with anyio.move_on_after(_ABORT_SECONDS, shield=True), suppress(ScanKvError):
        await transaction.abort()


async def list_transactions(transport: Transport) -> list[TransactionInfo]:
    """The open transactions of all clients, oldest first."""
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


def _size(part: TransactionPart | tuple[str, int]) -> transaction_pb2.TransactionPartSize:
    name, requests = (part.part, part.requests) if isinstance(part, TransactionPart) else part
    return transaction_pb2.TransactionPartSize(part=name, requests=requests)
