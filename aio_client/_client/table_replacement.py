"""Deletes from a table, by keys or by a predicate, and replaces its rows: what needs a transaction of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from aio_client._client.transaction import TransactionOpener
from aio_client._input.arguments import flag_of
from aio_client._write.selection import Selection, check_selection
from aio_client._write.table_writes import WriteMethods
from aio_client._write.write_requests import WriteResult
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import TransactionConflict, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from aio_client._client.table import Table
    from aio_client._client.transaction import Transaction
    from aio_client._input.data import Data
    from aio_client._write.column_locks import ColumnLock
    from aio_client._write.merging import Names, WriteMode
    from scankv.model.expressions import Where

_TRIES: Final = 5
"""How often a delete begins again because selected rows were changed before its commit."""


class ReplacementMethods(WriteMethods):
    """Deletes and replaces rows of a table, all of them at one instant."""

    async def delete(
        self,
        keys: object = None,
        columns: Names | None = None,
        *,
        where: Where | None = None,
        mode: WriteMode = "merge",
        if_version: Mapping[int, int] | None = None,
        locks: Sequence[ColumnLock | str] = (),
        track_changes: bool = True,
    ) -> WriteResult:
        """Deletes the rows with some keys, or all rows that match a predicate.

            await table.delete(["ann", "bob"])
            await table.delete(where="score < 10")

        Keys without a row are ignored. A request that gets no answer is repeated as for `upsert`. Concurrent calls with
        one key and no other argument share requests as calls of `upsert` do, if the table's `delete_behavior` is
        "allow", the default of `last_row` tables. An upsert and a delete share no request, and have no order if they
        overlap.

        By a predicate, all rows are deleted at one instant, or none: readers see all of them or none of them. No key
        leaves the server, which reads and stages about a million rows per second. Rows that others insert during the
        call may stay. If another writer changes a selected row before the end, the call starts again, up to five times.
        `await table.count(where)` says how many rows would be deleted.

        Args:
            keys: As for `lookup`. Not with `where`.
            columns: Set only these columns to null. A row whose columns outside the key are then all null is deleted.
                All columns outside the key must be nullable. Not with `where`. Default: delete the rows.
            where: Which rows to delete, as for `Scan.where`.
            mode: "overwrite" deletes whatever the table's `delete_behavior` says.
            if_version: As for `upsert`. Not with `where`.
            locks: As for `upsert`. Deleting a row changes all columns.
            track_changes: With `where`. False leaves the changes of the rows out of the changelog, which then has only
                the range of their keys, and deletes any number of rows in about the time of counting them. The
                predicate must select exactly one range of keys, such as `day = 3` or `day = 3 AND hour < 4` if the key
                is (day, hour, id). Readers of changes fail at such a range as `upsert` says, unless they clear it: see
                `ScanStream.on_cleared`.

        Returns:
            The number of keys given, or with `where` of the rows deleted; and the log offsets after the write.

        Raises:
            InvalidKey: A key is incomplete, null, longer than 16 KiB, or not of its columns' types. Nothing was
                deleted.
            SchemaMismatch: A column does not exist, or is not nullable; or `where` does not fit the table.
            InvalidRequest: The table refuses deletes; or, with `track_changes=False`, `where` does not select exactly
                one range of keys.
            TransactionConflict: Other writers have changed selected rows in each of five attempts; nothing was deleted.
            RequestTooLarge: The keys of the selected rows take more than the server lets a transaction stage.
            UpgradeNotConfirmed: With `track_changes=False`, the data directory has a format of an earlier version;
                nothing was deleted.
            WriteConflict, TableRecreated, PositionExpired, ColumnLocked, LockLost, UsageError, ConnectionFailed: As for
                `upsert`.
        """
        tracks_changes = flag_of(track_changes, "track_changes")
        if where is None:
            if keys is None:
                raise UsageError("delete needs keys or where; truncate deletes all rows")
            if not tracks_changes:
                raise UsageError("track_changes is for a delete with where", option="track_changes")
            return await self._delete_keys(keys, columns, mode, if_version, locks)
        check_selection(keys, columns)
        if if_version is not None:
            raise UsageError(
                "if_version is for a delete by keys: use a transaction, and delete in it", option="if_version"
            )
        return await self._delete_selected(Selection(self._handle.parse_where(where)), tracks_changes, mode, locks)

    async def truncate(self, *, track_changes: bool = True, locks: Sequence[ColumnLock | str] = ()) -> WriteResult:
        """Deletes all rows at one instant, whatever the table's `delete_behavior` says.

        Rows that others insert during the call may stay.

        Args:
            track_changes: Whether the changelog gets a change for each row. False deletes any number of rows in
                milliseconds, and leaves one marker in the changelog of each bucket: see `delete`.
            locks: As for `upsert`.

        Returns:
            The number of rows deleted, and the log offsets after the write. With `track_changes=False`, the number is
            that of the rows at the beginning of the call.

        Raises:
            ScanKvError: As for `delete`.
        """
        tracks_changes = flag_of(track_changes, "track_changes")
        return await self._delete_selected(Selection(), tracks_changes, "overwrite", locks)

    async def replace(
        self,
        data: Data,
        *,
        where: Where | None = None,
        key_range: tuple[object, object] | None = None,
        locks: Sequence[ColumnLock | str] = (),
    ) -> WriteResult:
        """Replaces all rows of the table, or those in a scope, by other rows at one instant.

            await table.replace(rows)
            await table.replace(rows_of_monday, where="day = 'monday'")

        Afterwards, the table has exactly these rows in the scope, whatever its `delete_behavior` says, and its other
        rows as before. The changelog gets net changes: none for a row that stays the same. Readers see the rows before
        or those after. Rows that others insert during the call may stay. If another writer changes a row of a scope
        with other columns than the key, the call fails.

        Args:
            data: As for `upsert`. A merge engine merges its rows with each other, not with the rows before.
            where: The scope, as for `Scan.where`. Default: all rows.
            key_range: The scope as a pair of its first and its last key, both included, each as for `Scan.key_range`.
                With `where`, the rows in both.
            locks: As for `upsert`.

        Returns:
            The number of rows given, and the log offsets after the write.

        Raises:
            UsageError: A row of the data is outside of the scope; nothing was written.
            TransactionConflict: Another writer has changed a row in the scope; nothing was written.
            ScanKvError: As for `upsert` and `delete`.
        """

        async def stage(transaction: Transaction) -> int:
            return await transaction.replace(table, data, where=where, key_range=key_range, locks=locks)

        table = cast("Table", self)
        return await self._commit(stage)

    async def _delete_selected(
        self, selection: Selection, tracks_changes: bool, mode: WriteMode, locks: Sequence[ColumnLock | str]
    ) -> WriteResult:
        # Only there does the server make use of it, and earlier servers do not know it.
        alone = self._handle.shape.description.options.get("changelog") == "none"
        selection = replace(selection, untracked=not tracks_changes, alone=alone)

        async def stage(transaction: Transaction) -> int:
            return await transaction._stage_selected(table, selection, mode, locks)

        table = cast("Table", self)
        for _ in range(_TRIES - 1):
            try:
                return await self._commit(stage)
            except TransactionConflict:
                continue
        return await self._commit(stage)

    async def _commit(self, stage: Callable[[Transaction], Awaitable[int]]) -> WriteResult:
        """Commits a transaction of its own, and returns its result with the number that `stage` returns."""
        opener = TransactionOpener(self._handle.transport, None, "last_wins", None, None, None, None, None)
        async with opener as transaction:
            rows = await stage(transaction)
        result = transaction.result
        assert result is not None
        return WriteResult(rows=rows, log_offsets=result.log_offsets.get(self._handle.name, LogOffsets()))
