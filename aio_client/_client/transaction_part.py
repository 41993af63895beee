"""`TransactionPart`: what one participant stages for a transaction, and reads of the staged rows."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from aio_client._input.data import rows_of
from aio_client._input.keys import is_one_key, keys_of
from aio_client._input.other_rows import to_pylist
from aio_client._input.requests import LOOKUP_KEYS, cut, to_ipc
from aio_client._queries.lookup import LookupAnswer, join_answers, look_up_pieces
from aio_client._transport.repeatable_calls import call_again, call_again_and_wait
from aio_client._write.column_locks import lock_ids_of
from aio_client._write.selection import Selection, check_selection, range_of_bounds
from aio_client._write.write_requests import WritePieces, mode_of
from scankv.model.errors import ConnectionFailed, InvalidKey, ScanKvError, UsageError
from scankv.model.limits import MAX_WAIT_MILLIS
from scankv.v1 import lookup_pb2, transaction_pb2, write_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    import pyarrow as pa
    from google.protobuf.message import Message

    from aio_client._client.table import Table
    from aio_client._input.data import Data
    from aio_client._transport.transport import Method, Transport
    from aio_client._write.column_locks import ColumnLock
    from aio_client._write.merging import Names, WriteMode
    from scankv.model.expressions import Where

_Request = TypeVar("_Request", bound="Message")
_Response = TypeVar("_Response")


class TransactionPart:
    """What one participant stages for a transaction, in the order of its calls.

    A transaction has a part of its own. Other participants, also in other processes, take part by its token with
    `client.transaction_part(token, part)`; the commit names the parts that count.

    Belongs to the event loop of its client. Calls of several tasks are made one after another.
    """

    def __init__(self, transport: Transport, token: str, part: str, lock_timeout: float | None = None) -> None:
        """Called by `Client.transaction_part` and `Transaction`."""
        self._lock_timeout = lock_timeout
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
        """The name of the part. Work that is repeated after a failure needs another name for each attempt."""
        return self._part

    @property
    def requests(self) -> int:
        """The number of requests that the part has staged so far, which `Transaction.commit` needs."""
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
        staged once.

        Args:
            table: The table to write to.
            data: As for `Table.upsert`.
            columns: As for `Table.upsert`.
            mode: As for `Table.upsert`.
            locks: As for `Table.upsert`; they must last until the commit.

        Returns:
            The number of rows given.

        Raises:
            TransactionLost: The transaction was aborted, has expired, or was begun again elsewhere.
            RequestTooLarge: The transaction would stage more than the server allows.
            UsageError: An earlier write of this transaction was not answered.
        """
        if columns is None and mode == "merge" and table._handle.shape.has_key:
            python_rows = table._handle.python_rows
            batch = python_rows.to_batch(data)
            if batch is not None:
                return await self._stage(table, WritePieces.of_few_rows(python_rows.shape, batch), locks)
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await table._handle.build_for_shape(lambda shape: WritePieces.of_rows(shape, rows, columns, mode))
        return await self._stage(table, pieces, locks)

    async def append(self, table: Table, data: Data, *, locks: Sequence[ColumnLock | str] = ()) -> int:
        """Stages rows to append to a table without a primary key; they become visible with the commit.

        The rows follow those that others append before the commit. Appends never conflict.

        Args:
            table: The table to append to.
            data: As for `Table.append`.
            locks: As for `Table.append`; they must last until the commit.

        Returns:
            The number of rows given.

        Raises:
            ScanKvError: As for `Table.append` and `upsert`.
        """
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await table._handle.build_for_shape(lambda shape: WritePieces.of_rows(shape, rows, append=True))
        return await self._stage(table, pieces, locks)

    async def retract(
        self, table: Table, data: Data, columns: Names | None = None, *, locks: Sequence[ColumnLock | str] = ()
    ) -> int:
        """Stages a retraction, which is checked now and becomes visible with the commit.

        Args:
            table: The table to write to.
            data: As for `Table.retract`.
            columns: As for `Table.retract`.
            locks: As for `Table.retract`; they must last until the commit.

        Returns:
            The number of rows given.

        Raises:
            ScanKvError: As for `Table.retract` and `upsert`.
        """
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await table._handle.build_for_shape(
            lambda shape: WritePieces.of_rows(shape, rows, columns, retract=True)
        )
        return await self._stage(table, pieces, locks)

    async def delete(
        self,
        table: Table,
        keys: object = None,
        columns: Names | None = None,
        *,
        where: Where | None = None,
        mode: WriteMode = "merge",
        locks: Sequence[ColumnLock | str] = (),
    ) -> int:
        """Stages a delete, by keys or by a predicate, which is checked now and takes effect with the commit.

        By a predicate, it deletes the committed rows that match at the moment of the call. If the predicate is not on
        the key alone, the commit fails with TransactionConflict if another writer has changed a key since that the
        transaction writes in the table.

        Args:
            table: The table to delete from.
            keys: As for `Table.delete`.
            columns: As for `Table.delete`.
            where: As for `Table.delete`.
            mode: As for `Table.delete`.
            locks: As for `Table.delete`; they must last until the commit.

        Returns:
            The number of keys given; with `where`, the number of rows to delete.

        Raises:
            ScanKvError: As for `Table.delete` and `upsert`.
        """
        if where is not None:
            check_selection(keys, columns)
            return await self._stage_selected(table, Selection(table._handle.parse_where(where)), mode, locks)
        if keys is None:
            raise UsageError("delete needs keys or where; delete_all deletes all rows")
        pieces = await table._handle.build_for_shape(lambda shape: WritePieces.of_keys(shape, keys, columns, mode))
        return await self._stage(table, pieces, locks)

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
            InvalidRequest: The table refuses deletes; NoPrimaryKey if it has no primary key.
            TransactionLost: The transaction was aborted, has expired, or was begun again elsewhere.
            RequestTooLarge: The transaction would stage more than the server allows.
            ColumnLocked, LockLost: A lock forbids it.
        """
        return await self._stage_selected(table, Selection(), mode, locks)

    async def replace(
        self,
        table: Table,
        data: Data,
        *,
        where: Where | None = None,
        key_range: tuple[object, object] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> int:
        """Stages the replacement of all rows of a table, or of those in a scope, by other rows.

        Args:
            table: The table.
            data: As for `Table.replace`.
            where: As for `Table.replace`.
            key_range: As for `Table.replace`.
            locks: As for `Table.replace`; they must last until the commit.

        Returns:
            The number of rows given.

        Raises:
            ScanKvError: As for `Table.replace` and `upsert`.
        """
        table._handle.shape.require_key("its rows are not replaced")
        keys = range_of_bounds(key_range, table._handle.shape.key_schema)
        scope = Selection(table._handle.parse_where(where), keys)
        rows = await asyncio.to_thread(rows_of, data)
        pieces = await table._handle.build_for_shape(
            lambda shape: scope.check_pieces(WritePieces.of_rows(shape, rows), shape, in_memory=rows.in_memory)
        )
        await self._stage_selected(table, scope, "overwrite", locks)
        return await self._stage(table, pieces, locks)

    async def _stage_selected(
        self, table: Table, selection: Selection, mode: WriteMode, locks: Sequence[ColumnLock | str]
    ) -> int:
        """Stages the deletion of selected rows, and returns how many there are."""
        table._handle.shape.require_key("rows are not deleted")
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
            selection.put_into(request)
            with self._staging():
                while True:
                    answer = await call_again(calls, lambda: calls.services.transactions.StageDeleteAll, request)
                    if answer.done:
                        break
        return answer.rows

    async def get_for_update(
        self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit"
    ) -> pa.Table:
        """Reads the rows with these keys, and makes the commit fail if one of them has changed by then.

        With `lock="keys"`, locks the keys first, so that only writers that take no locks can change them.
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
            NoPrimaryKey: The table has no primary key.
            RequestTooLarge: The rows do not fit into an answer.
            LockTimeout, DeadlockDetected, TooManyLocks: The keys cannot be locked.
        """
        if missing not in ("omit", "null"):
            raise UsageError(f'missing must be "omit" or "null", not {missing!r}', option="missing")
        table._handle.shape.require_key("rows are not found by a key: scan the table with a filter")
        batch = await asyncio.to_thread(keys_of, keys, table._handle.shape.key_schema)
        answers = await self._look_up(self._read, table, batch)
        return join_answers(answers, table.schema, fill_missing=missing == "null")

    async def get(self, table: Table, key: object) -> dict[str, Any] | None:
        """Reads the row with this key as a commit now would leave it. Returns a dictionary, or None without such a row.

        Args:
            table: The table to read.
            key: As for `Table.get`.

        Raises:
            ScanKvError: As for `lookup`.
        """
        if not is_one_key(key):
            raise InvalidKey(f"get takes one key, not a {type(key).__name__}: use lookup, which takes several")
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
            NoPrimaryKey: The table has no primary key.
            RequestTooLarge: The rows do not fit into an answer.
        """
        if missing not in ("omit", "null"):
            raise UsageError(f'missing must be "omit" or "null", not {missing!r}', option="missing")
        table._handle.shape.require_key("rows are not found by a key: scan the table with a filter")
        batch = await asyncio.to_thread(keys_of, keys, table._handle.shape.key_schema)
        answers = await self._look_up(self._read_staged, table, batch)
        return join_answers(answers, table.schema, fill_missing=missing == "null")

    async def _look_up(
        self,
        read: Callable[[Table, pa.RecordBatch], Awaitable[LookupAnswer]],
        table: Table,
        keys: pa.RecordBatch,
    ) -> list[LookupAnswer]:
        async def find(piece: pa.RecordBatch) -> list[LookupAnswer]:
            return [await read(table, piece)]

        pieces = list(cut([keys], max_rows=LOOKUP_KEYS))
        return await look_up_pieces(find, pieces, table.name, self._transport.config.operation_timeout)

    async def _read_staged(self, table: Table, keys: pa.RecordBatch) -> LookupAnswer:
        async with self._turn:
            request = transaction_pb2.LookupStagedRequest(
                token=self.token, part=self.part, requests=self.requests, table=table.name, keys=to_ipc(keys)
            )
            calls = self._transport
            response = await call_again(calls, lambda: calls.services.transactions.LookupStaged, request)
        return _answer_of(keys, response)

    async def _read(self, table: Table, keys: pa.RecordBatch) -> LookupAnswer:
        async with self._turn:
            request = transaction_pb2.GetForUpdateRequest(
                token=self.token, part=self.part, sequence=self.requests, table=table.name, keys=to_ipc(keys)
            )
            with self._staging():
                response = await self._call(lambda services: services.transactions.GetForUpdate, request)
        return _answer_of(keys, response)

    async def _stage(self, table: Table, pieces: WritePieces, locks: Sequence[ColumnLock | str]) -> int:
        rows = 0
        async with self._turn:
            held = lock_ids_of(locks)
            while (request := await pieces.make_request()) is not None:
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
        if isinstance(request, write_pb2.DeleteRequest):
            return await self._call(lambda services: services.writes.Delete, request)
        return await self._call(lambda services: services.writes.Upsert, request)

    async def _call(self, method: Callable[[Any], Method[_Request, _Response]], request: _Request) -> _Response:
        """Makes a call that may lock keys, until it is answered."""
        calls = self._transport
        if self._lock_timeout is None:
            return await call_again(calls, lambda: method(calls.services), request)
        return await call_again_and_wait(calls, method, request, self._lock_timeout)


def _answer_of(
    keys: pa.RecordBatch, response: transaction_pb2.GetForUpdateResponse | transaction_pb2.LookupStagedResponse
) -> LookupAnswer:
    found = lookup_pb2.LookupResponse(
        rows=response.rows,
        found=response.found,
        table_incarnation=response.table_incarnation,
        schema_id=response.schema_id,
    )
    return LookupAnswer.decode(keys, found)
