"""What the server computes of a table's rows: counts, aggregates, top-N; once, only when changed, and as a watch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from aio_client._input.arguments import names_of
from aio_client._queries.aggregate import (
    aggregate,
    aggregate_request,
    count,
    count_request,
    rows_in,
    top_n,
    top_n_request,
)
from aio_client._queries.versioned import Versioned, since_version
from aio_client._queries.watch import TopNPolls, TopNWatch
from aio_client._scan.scan_builder import snapshot_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from aio_client._queries.aggregate import Ties
    from aio_client._scan.scan_builder import Pinned
    from aio_client._transport.transport import Transport
    from scankv.model.expressions import Predicate, Where


class ComputedAnswers(ABC):
    """The answers about a table's rows that the server computes, so that no rows travel but those of the answer."""

    _transport: Transport

    @property
    @abstractmethod
    def name(self) -> str:
        """`database.table`."""

    @property
    @abstractmethod
    def primary_key(self) -> list[str]:
        """The key columns in key order."""

    async def count(self, where: Where | None = None, *, at: Pinned | str | None = None) -> int:
        """The number of rows, exact, of all buckets at one instant.

        Without `where` the rows are not read, unless their number is not kept (see the option `changelog` of
        `create_table`). Otherwise the server reads them as a scan does, and sends none.

        Args:
            where: What is true of the rows to count, as for `Scan.where`. Default: all rows.
            at: A pinned snapshot, or its id, whose rows are counted. Default: those of now.

        Raises:
            UsageError, SchemaMismatch: `where` cannot be read, or does not fit the table.
            SnapshotLost: The snapshot has ended.
            TooManyScans, ScanTooLong, ScanCancelled, DataLoss: As for a scan, of which it is one.
            DeadlineExceeded: There was no answer within the operation timeout.
        """
        request = count_request(self.name, self._predicate(where), _snapshot_id(at))
        return (await count(self._transport, request)).rows

    async def count_if_changed(self, since: bytes | None, where: Where | None = None) -> Versioned[int] | None:
        """The number of rows with its version; None when nothing of the table has changed since that of `since`.

            counted = await table.count_if_changed(None)
            later = await table.count_if_changed(counted.version)

        The server answers "unchanged" from memory.

        Args:
            since: The version of an earlier answer about this table. None: answer in any case.
            where: As for `count`.

        Raises:
            UsageError: `since` is no version; otherwise as `count`.
        """
        request = since_version(count_request(self.name, self._predicate(where), None), since)
        response = await count(self._transport, request)
        return None if response.unchanged else Versioned(response.rows, response.version)

    async def aggregate(
        self,
        functions: Mapping[str, str | Iterable[str]],
        where: Where | None = None,
        *,
        group_by: Sequence[str] = (),
        at: Pinned | str | None = None,
    ) -> pa.Table:
        """Sums, least and greatest values, means and counts of columns, computed at the server: no rows travel.

            await table.aggregate({"distance": ["sum", "max"], "delay": "mean"}, "year = 2013", group_by=["carrier"])

        Nulls are passed over, as in SQL. Sums of integers (int64) and decimals (38 digits) are exact. Sums of floats
        are added up in float64, for one pinned view always in the same order; NaN makes them NaN. `min` and `max` are
        in key order, in which NaN is above infinity. `mean` is float64. `count` of a key column counts rows.

        Args:
            functions: For each column, some of "count", "sum", "min", "max", "mean".
            where: What is true of the rows that count, as for `Scan.where`. Default: all rows.
            group_by: Rows that are equal in these columns are a group; null and NaN are values like others. Default:
                one group, which is there even without rows.
            at: A pinned snapshot, or its id, that is read. Default: the rows of now.

        Returns:
            One row a group, ascending by the columns of `group_by`, nulls last: these columns, then `distance_sum` and
            so on in the order asked.

        Raises:
            UsageError: A function does not exist.
            SchemaMismatch: A column does not exist, or is not of a type that has this function.
            InvalidRequest: Nothing is asked for, a sum does not fit, or there are over 1,000,000 groups.
            RequestTooLarge: The result is over 32 MiB.
            SnapshotLost, TooManyScans, ScanTooLong, ScanCancelled, DataLoss, DeadlineExceeded: As for `count`.
        """
        request = aggregate_request(self.name, functions, self._predicate(where), group_by, _snapshot_id(at))
        return rows_in((await aggregate(self._transport, request)).rows)

    async def aggregate_if_changed(
        self,
        since: bytes | None,
        functions: Mapping[str, str | Iterable[str]],
        where: Where | None = None,
        *,
        group_by: Sequence[str] = (),
    ) -> Versioned[pa.Table] | None:
        """Aggregates with their version; None when nothing of the table has changed since that of `since`.

        The server answers "unchanged" from memory, and computes an answer that many ask for at once only once.

        Args:
            since: The version of an earlier answer about this table. None: answer in any case.
            functions: As for `aggregate`.
            where: As for `aggregate`.
            group_by: As for `aggregate`.

        Raises:
            UsageError: `since` is no version; otherwise as `aggregate`.
        """
        request = aggregate_request(self.name, functions, self._predicate(where), group_by, None)
        response = await aggregate(self._transport, since_version(request, since))
        return None if response.unchanged else Versioned(rows_in(response.rows), response.version)

    async def top_n(
        self,
        n: int,
        by: str,
        where: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        descending: bool = True,
        ties: Ties = "key",
        at: Pinned | str | None = None,
    ) -> pa.Table:
        """The first `n` rows in the order of a column, best first, exact over all buckets as of one instant.

        The server reads all rows as a scan does, unless an index tells which they are, and sends these.

        Args:
            n: How many rows, 1 to 100,000; fewer where there are fewer.
            by: The column, not a struct, list or map. In key order: NaN is above infinity, -0.0 equals 0.0. Nulls come
                last in both directions, and rows that are equal by ascending key.
            where: What is true of the rows that count, as for `Scan.where`. Default: all rows.
            columns: The columns to return, in this order. Default: all.
            descending: Whether the greatest is first.
            ties: Which of the rows are returned that are equal in `by` to the last one: "key", the first of them by
                key, so that there are `n`, or "all", so that there may be more, up to 100,000.
            at: A pinned snapshot, or its id, that is read. Default: the rows of now.

        Raises:
            UsageError: `n` is out of its range.
            SchemaMismatch: A column does not exist, or `by` has no order.
            InvalidRequest: With all ties, there are over 100,000 rows.
            RequestTooLarge: The rows take over 32 MiB, or over 128 MiB as they are stored.
            SnapshotLost, TooManyScans, ScanTooLong, ScanCancelled, DataLoss, DeadlineExceeded: As for `count`.
        """
        predicate, snapshot_id = self._predicate(where), _snapshot_id(at)
        request = top_n_request(self.name, n, by, predicate, columns, descending, ties, snapshot_id)
        return rows_in((await top_n(self._transport, request)).rows)

    async def top_n_if_changed(
        self,
        since: bytes | None,
        n: int,
        by: str,
        where: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        descending: bool = True,
        ties: Ties = "key",
    ) -> Versioned[pa.Table] | None:
        """The first rows with their version; None when nothing of the table has changed since that of `since`.

        The rows may be the same all the same: what changed need not be one of them. `watch_top_n` looks at that, too.
        The server answers "unchanged" from memory, and computes an answer that many ask for at once only once.

        Args:
            since: The version of an earlier answer about this table. None: answer in any case.
            n: As for `top_n`.
            by: As for `top_n`.
            where: As for `top_n`.
            columns: As for `top_n`.
            descending: As for `top_n`.
            ties: As for `top_n`.

        Raises:
            UsageError: `since` is no version; otherwise as `top_n`.
        """
        request = top_n_request(self.name, n, by, self._predicate(where), columns, descending, ties, None)
        response = await top_n(self._transport, since_version(request, since))
        return None if response.unchanged else Versioned(rows_in(response.rows), response.version)

    def watch_top_n(
        self,
        n: int,
        by: str,
        where: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        descending: bool = True,
        ties: Ties = "key",
        every: float = 10.0,
    ) -> TopNWatch:
        """The first rows now, and then whenever they are others, with what moved: who entered, who left, which ranks.

            async for top in table.watch_top_n(10, by="score", every=10.0):
                show(top.rows, top.moved)

        The question waits at the server until something has changed, so changes are told at once, and while there are
        none it costs next to nothing. See `TopNWatch` for what it does about slow readers, and when the server is away.

        Args:
            n: As for `top_n`.
            by: As for `top_n`.
            where: As for `top_n`. Text is read once, with the columns that the table had when it was asked for.
            columns: As for `top_n`. Default: all, also those that are added later.
            descending: As for `top_n`.
            ties: As for `top_n`.
            every: The least seconds from one change that is told to the next, at least 0.1: what changes sooner is told
                together, at the end of that time.

        Raises:
            UsageError: `n` or `every` is out of its range, or `where` cannot be read.
        """
        names = None if columns is None else names_of(columns, "columns")
        hidden = () if names is None else tuple(key for key in self.primary_key if key not in names)
        asked = None if names is None else [*names, *hidden]
        request = top_n_request(self.name, n, by, self._predicate(where), asked, descending, ties, None)
        return TopNWatch(TopNPolls(self._transport, request, self.primary_key, hidden, every))

    @abstractmethod
    def _predicate(self, where: Where | None) -> Predicate | None:
        """What was given as `where`, read with the columns of the table."""


def _snapshot_id(at: Pinned | str | None) -> str | None:
    return None if at is None else snapshot_id_of(at)
