"""Queries over a table that the server computes: counts, aggregates, top-N, once, if changed, or as a watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client._input.arguments import names_of
from aio_client._queries.aggregate import (
    aggregate,
    aggregate_request,
    count,
    count_request,
    decode_rows,
    top_n,
    top_n_request,
)
from aio_client._queries.versioned import Versioned, require_change
from aio_client._queries.watch import TopNPolls, TopNWatch
from aio_client._scan.explanation import explain_top_n
from aio_client._scan.scan_builder import snapshot_id_of
from aio_client._table.handle import TableMethods

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from aio_client._queries.aggregate import Ties
    from aio_client._scan.explanation import ScanExplanation
    from aio_client._scan.scan_builder import Pinned
    from scankv.model.expressions import Where
    from scankv.model.scans.isolation import Isolation


class QueryMethods(TableMethods):
    """Queries that the server computes, so that only the result travels."""

    async def count(
        self,
        where: Where | None = None,
        *,
        as_of: Pinned | str | None = None,
        isolation: Isolation = "read_committed",
    ) -> int:
        """Counts the rows of the table: exact, and all buckets as of one instant.

        Without `where`, the server reads no rows, unless the table does not keep its number of rows (see the option
        `changelog` of `create_table`). Otherwise the server reads the rows as a scan does, and sends none.

        Args:
            where: Which rows to count, as for `Scan.where`. Default: all rows.
            as_of: A pinned snapshot, or its id, whose rows to count. Default: the current rows.
            isolation: As for `Scan.isolation`: "read_latest" counts what is applied, without waiting until it is
                durable.

        Returns:
            The number of rows.

        Raises:
            UsageError, SchemaMismatch: `where` cannot be parsed, or does not fit the table.
            SnapshotLost: The lease of the snapshot has ended.
            TooManyScans, ScanTooLong, ScanCancelled, DataLoss: As for a scan, because the server runs it as one.
            DeadlineExceeded: No answer came within the operation timeout.
        """
        predicate, snapshot_id = self._handle.parse_where(where), _optional_snapshot_id(as_of)
        request = count_request(self._handle.name, predicate, snapshot_id, isolation)
        return (await count(self._handle.transport, request)).rows

    async def count_if_changed(self, since: bytes | None, where: Where | None = None) -> Versioned[int] | None:
        """Counts the rows if the table has changed since an earlier answer.

            counted = await table.count_if_changed(None)
            later = await table.count_if_changed(counted.version)

        If nothing has changed, the server answers from memory.

        Args:
            since: The version of an earlier answer about this table. None: count in any case.
            where: As for `count`.

        Returns:
            The number of rows with its version. None if nothing in the table has changed since the version `since`.

        Raises:
            UsageError: `since` is not a version.
            ScanKvError: As for `count`.
        """
        request = require_change(count_request(self._handle.name, self._handle.parse_where(where), None), since)
        response = await count(self._handle.transport, request)
        return None if response.unchanged else Versioned(response.rows, response.version)

    async def aggregate(
        self,
        functions: Mapping[str, str | Iterable[str]],
        where: Where | None = None,
        *,
        group_by: Sequence[str] = (),
        as_of: Pinned | str | None = None,
        isolation: Isolation = "read_committed",
    ) -> pa.Table:
        """Computes sums, minima, maxima, means and counts of columns at the server, all buckets as of one instant.

            await table.aggregate({"distance": ["sum", "max"], "delay": "mean"}, "year = 2013", group_by=["carrier"])

        Nulls are ignored, as in SQL. Sums of integers (int64, or uint64 for uint64 columns) and of decimals (38 digits)
        are exact. Sums of floats are float64, and added up in the same order for the same snapshot; NaN makes them NaN.
        `min` and `max` use the key order, in which NaN is greater than infinity. The `mean` of decimals is a decimal
        with 4 more digits after the point, as far as 38 digits allow, to which the exact mean is rounded, ties away
        from zero. The `mean` of integers is the float64 nearest to the exact mean. The `mean` of floats is a float64.
        `count` of a key column counts rows.

        Args:
            functions: For each column, one or several of "count", "sum", "min", "max" and "mean".
            where: Which rows to aggregate, as for `Scan.where`. Default: all rows.
            group_by: The columns whose equal values form a group; null and NaN are values like others. Default: one
                group, which exists even if the table has no rows.
            as_of: A pinned snapshot, or its id, to read. Default: the current rows.
            isolation: As for `count`.

        Returns:
            One row per group, in ascending order of the `group_by` columns with nulls last. Its columns are those of
            `group_by`, then one per function, such as `distance_sum`, in the order of `functions`.

        Raises:
            UsageError: A function does not exist, or `where` cannot be parsed.
            SchemaMismatch: A column does not exist, or its type does not have the function.
            InvalidRequest: `functions` is empty, a sum overflows, or the groups are more than 1,000,000 or take more
                than 128 MiB.
            RequestTooLarge: The result takes more than 32 MiB.
            SnapshotLost, TooManyScans, ScanTooLong, ScanCancelled, DataLoss, DeadlineExceeded: As for `count`.
        """
        predicate, snapshot_id = self._handle.parse_where(where), _optional_snapshot_id(as_of)
        request = aggregate_request(self._handle.name, functions, predicate, group_by, snapshot_id, isolation)
        return decode_rows((await aggregate(self._handle.transport, request)).rows)

    async def aggregate_if_changed(
        self,
        since: bytes | None,
        functions: Mapping[str, str | Iterable[str]],
        where: Where | None = None,
        *,
        group_by: Sequence[str] = (),
    ) -> Versioned[pa.Table] | None:
        """Computes aggregates if the table has changed since an earlier answer.

        If nothing has changed, the server answers from memory. It computes an answer that several clients ask for at
        the same time only once.

        Args:
            since: The version of an earlier answer about this table. None: compute in any case.
            functions: As for `aggregate`.
            where: As for `aggregate`.
            group_by: As for `aggregate`.

        Returns:
            The result of `aggregate` with its version. None if nothing in the table has changed since the version
            `since`.

        Raises:
            UsageError: `since` is not a version.
            ScanKvError: As for `aggregate`.
        """
        request = aggregate_request(self._handle.name, functions, self._handle.parse_where(where), group_by, None)
        response = await aggregate(self._handle.transport, require_change(request, since))
        return None if response.unchanged else Versioned(decode_rows(response.rows), response.version)

    async def top_n(
        self,
        limit: int,
        order_by: str,
        where: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        descending: bool = True,
        ties: Ties = "key",
        as_of: Pinned | str | None = None,
        isolation: Isolation = "read_committed",
    ) -> pa.Table:
        """Returns the first `limit` rows in the order of a column: exact, and all buckets as of one instant.

        The server reads all rows as a scan does, unless an index has the order. Only the result is sent.

        Args:
            limit: How many rows, 1 to 100,000. Fewer are returned if fewer match.
            order_by: The column to order by; not a struct, list or map. The order is the key order: NaN is greater than
                infinity, and -0.0 equals 0.0. Nulls come last in both directions. Equal rows come in ascending order
                of their keys.
            where: Which rows to rank, as for `Scan.where`. Default: all rows.
            columns: The columns to return, in this order. Default: all.
            descending: Whether the greatest value comes first.
            ties: Which rows to return if several have the `order_by` value of the last row: "key" returns the first of
                them by key, so that there are at most `limit` rows; "all" returns all of them, up to 100,000 rows in
                total.
            as_of: A pinned snapshot, or its id, to read. Default: the current rows.
            isolation: As for `count`.

        Returns:
            The rows, the first in order first.

        Raises:
            UsageError: `limit` is out of range, `ties` has another value, or `where` cannot be parsed.
            SchemaMismatch: A column does not exist, or `order_by` has no order.
            InvalidRequest: With all ties, there are more than 100,000 rows.
            RequestTooLarge: The rows take more than 32 MiB, or more than 128 MiB as the server stores them.
            SnapshotLost, TooManyScans, ScanTooLong, ScanCancelled, DataLoss, DeadlineExceeded: As for `count`.
        """
        predicate, snapshot_id = self._handle.parse_where(where), _optional_snapshot_id(as_of)
        request = top_n_request(
            self._handle.name, limit, order_by, predicate, columns, descending, ties, snapshot_id, isolation
        )
        return decode_rows((await top_n(self._handle.transport, request)).rows)

    async def explain_top_n(
        self,
        limit: int,
        order_by: str,
        where: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        descending: bool = True,
        ties: Ties = "key",
        as_of: Pinned | str | None = None,
    ) -> ScanExplanation:
        """Returns how the server would answer `top_n` with these arguments. The server reads no rows.

        Args:
            limit: As for `top_n`.
            order_by: As for `top_n`.
            where: As for `top_n`.
            columns: As for `top_n`.
            descending: As for `top_n`.
            ties: As for `top_n`.
            as_of: As for `top_n`.

        Returns:
            What would be read: an index in its order, if `index_order` is true, or the rows as a scan reads them.

        Raises:
            UsageError, SchemaMismatch, SnapshotLost: As for `top_n`.
            ProtocolViolation: The server is older than this call.
        """
        predicate, snapshot_id = self._handle.parse_where(where), _optional_snapshot_id(as_of)
        request = top_n_request(self._handle.name, limit, order_by, predicate, columns, descending, ties, snapshot_id)
        return await explain_top_n(self._handle.transport, request)

    async def top_n_if_changed(
        self,
        since: bytes | None,
        limit: int,
        order_by: str,
        where: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        descending: bool = True,
        ties: Ties = "key",
    ) -> Versioned[pa.Table] | None:
        """Returns the first rows in the order of a column if the table has changed since an earlier answer.

        The rows may still equal those of the earlier answer, because other rows may have changed; `watch_top_n`
        compares the rows too. If nothing has changed, the server answers from memory. It computes an answer that
        several clients ask for at the same time only once.

        Args:
            since: The version of an earlier answer about this table. None: answer in any case.
            limit: As for `top_n`.
            order_by: As for `top_n`.
            where: As for `top_n`.
            columns: As for `top_n`.
            descending: As for `top_n`.
            ties: As for `top_n`.

        Returns:
            The result of `top_n` with its version. None if nothing in the table has changed since the version `since`.

        Raises:
            UsageError: `since` is not a version.
            ScanKvError: As for `top_n`.
        """
        predicate = self._handle.parse_where(where)
        request = top_n_request(self._handle.name, limit, order_by, predicate, columns, descending, ties, None)
        response = await top_n(self._handle.transport, require_change(request, since))
        return None if response.unchanged else Versioned(decode_rows(response.rows), response.version)

    def watch_top_n(
        self,
        limit: int,
        order_by: str,
        where: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        descending: bool = True,
        ties: Ties = "key",
        every: float = 10.0,
    ) -> TopNWatch:
        """Watches the first rows in the order of a column: returns them now, and again whenever they differ.

            async for top in table.watch_top_n(10, order_by="score", every=10.0):
                show(top.rows, top.moved)

        Each answer says which rows entered, which left, and which have another rank. The query waits at the server
        until the table changes, so the client learns of a change at once, and an idle table costs next to nothing. See
        `TopNWatch` for what happens when the reader is slow or the server is away.

        Args:
            limit: As for `top_n`.
            order_by: As for `top_n`.
            where: As for `top_n`. Text is parsed once, with the columns that the table had when it was opened.
            columns: As for `top_n`. Default: all, including columns that are added later.
            descending: As for `top_n`.
            ties: As for `top_n`.
            every: The least time between two answers in seconds, at least 0.1. Changes within that time arrive together
                at its end.

        Returns:
            An iterator of `TopN`.

        Raises:
            NoPrimaryKey: The table has no primary key.
            UsageError: `limit` or `every` is out of range, `ties` has another value, or `where` cannot be parsed.
        """
        self._handle.shape.require_key("a watch tells rows apart by their key: call top_n")
        primary_key = self._handle.shape.key_schema.names
        names = None if columns is None else names_of(columns, "columns")
        # The watch needs the key to tell rows apart. Key columns that the caller did not ask for are dropped again.
        hidden = () if names is None else tuple(key for key in primary_key if key not in names)
        requested = None if names is None else [*names, *hidden]
        predicate = self._handle.parse_where(where)
        request = top_n_request(self._handle.name, limit, order_by, predicate, requested, descending, ties, None)
        return TopNWatch(TopNPolls(self._handle.transport, request, primary_key, hidden, every))


def _optional_snapshot_id(as_of: Pinned | str | None) -> str | None:
    return None if as_of is None else snapshot_id_of(as_of)
