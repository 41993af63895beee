"""Transactions for code that blocks; part of `aio_client.sync`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from aio_client._sync_writer import ids_of
from table_model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import pyarrow as pa

    from aio_client._data import Data
    from aio_client._merging import Names, WriteMode
    from aio_client._runner import Runner
    from aio_client._sync_writer import ColumnLock
    from aio_client._transaction import Beginning, CommitResult
    from aio_client._transaction import Transaction as AsyncTransaction
    from aio_client._transaction import TransactionPart as AsyncTransactionPart
    from aio_client.sync import Table


class TransactionPart:
    """What one participant stages for a transaction. Thread-safe. See `aio_client.TransactionPart`."""

    def __init__(self, runner: Runner, part: AsyncTransactionPart) -> None:
        """Called by `Client.transaction_part` and `Transaction`."""
        self._runner = runner
        self._part = part

    def __repr__(self) -> str:
        return f"<sync {repr(self._part)[1:]}"

    @property
    def token(self) -> str:
        """Names the transaction."""
        return self._part.token

    @property
    def part(self) -> str:
        """Names the part."""
        return self._part.part

    @property
    def requests(self) -> int:
        """How many requests it has staged so far."""
        return self._part.requests

    def upsert(
        self,
        table: Table,
        data: Data,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        locks: Sequence[ColumnLock | str] = (),
    ) -> int:
        """Stages an upsert. See `aio_client.TransactionPart.upsert`."""
        part, held = self._part, ids_of(locks)
        return self._runner.call(lambda: part.upsert(table._table, data, columns, mode=mode, locks=held))

    def retract(
        self, table: Table, data: Data, columns: Names | None = None, *, locks: Sequence[ColumnLock | str] = ()
    ) -> int:
        """Stages taking rows back. See `aio_client.TransactionPart.retract`."""
        part, held = self._part, ids_of(locks)
        return self._runner.call(lambda: part.retract(table._table, data, columns, locks=held))

    def delete(
        self,
        table: Table,
        keys: object,
        columns: Names | None = None,
        *,
        mode: WriteMode = "merge",
        locks: Sequence[ColumnLock | str] = (),
    ) -> int:
        """Stages a delete. See `aio_client.TransactionPart.delete`."""
        part, held = self._part, ids_of(locks)
        return self._runner.call(lambda: part.delete(table._table, keys, columns, mode=mode, locks=held))

    def delete_all(self, table: Table, *, mode: WriteMode = "merge", locks: Sequence[ColumnLock | str] = ()) -> int:
        """Stages the deletion of all rows of a table. See `aio_client.TransactionPart.delete_all`."""
        part, held = self._part, ids_of(locks)
        return self._runner.call(lambda: part.delete_all(table._table, mode=mode, locks=held))

    def get_for_update(self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit") -> pa.Table:
        """The rows with these keys, which may not change until the commit. See `aio_client.TransactionPart`."""
        part = self._part
        return self._runner.call(lambda: part.get_for_update(table._table, keys, missing=missing))

    def get(self, table: Table, key: object) -> dict[str, Any] | None:
        """The row with this key as it would be if this was committed now. See `aio_client.TransactionPart.get`."""
        part = self._part
        return self._runner.call(lambda: part.get(table._table, key))

    def lookup(self, table: Table, keys: object, *, missing: Literal["omit", "null"] = "omit") -> pa.Table:
        """The rows with these keys as they would be if this was committed now. See `aio_client.TransactionPart`."""
        part = self._part
        return self._runner.call(lambda: part.lookup(table._table, keys, missing=missing))


class Transaction(TransactionPart):
    """A transaction that was begun. Thread-safe. In `with` it is committed, or aborted when the block fails.

    Made by `Client.transaction`. See `aio_client.Transaction`.
    """

    def __init__(self, runner: Runner, beginning: Beginning) -> None:
        """Called by `Client.transaction`; begins it."""
        self._transaction: AsyncTransaction = runner.call(beginning.__aenter__)
        self._beginning = beginning
        super().__init__(runner, self._transaction)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A client closed meanwhile cannot abort it; nothing that it says must hide an error of the block.
        with suppress(*(() if kind is None else (UsageError,))):
            self._runner.call(self._beginning.__aexit__, kind, error, traceback)

    @property
    def id(self) -> str:
        """Its id; empty when it has none."""
        return self._transaction.id

    @property
    def result(self) -> CommitResult | None:
        """What the commit has done. See `aio_client.Transaction`."""
        return self._transaction.result

    def commit(self, parts: Sequence[TransactionPart | tuple[str, int]] = ()) -> CommitResult:
        """Commits. See `aio_client.Transaction.commit`."""
        sizes = [(part.part, part.requests) if isinstance(part, TransactionPart) else part for part in parts]
        return self._runner.call(self._transaction.commit, sizes)

    def abort(self) -> None:
        """Aborts. See `aio_client.Transaction.abort`."""
        self._runner.call(self._transaction.abort)
