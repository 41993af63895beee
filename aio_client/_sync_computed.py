"""What the server computes of a table's rows, for code that blocks; part of `aio_client.sync`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aio_client._sync_watch import TopNWatch
from aio_client._watch import polls_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from aio_client._aggregate import Ties
    from aio_client._runner import Runner
    from aio_client._scan_builder import Pinned
    from aio_client._table import Table as AsyncTable
    from aio_client._versioned import Versioned
    from table_model.expressions import Where


class ComputedAnswers:
    """The answers about a table's rows that the server computes. Thread-safe."""

    _runner: Runner
    _table: AsyncTable

    def count(self, where: Where | None = None, *, at: Pinned | str | None = None) -> int:
        """The number of rows, exact. See `aio_client.Table.count`."""
        return self._runner.call(partial(self._table.count, where, at=at))

    def aggregate(
        self,
        functions: Mapping[str, str | Iterable[str]],
        where: Where | None = None,
        *,
        group_by: Sequence[str] = (),
        at: Pinned | str | None = None,
    ) -> pa.Table:
        """Functions of columns over all rows, or for groups of rows. See `aio_client.Table.aggregate`."""
        return self._runner.call(partial(self._table.aggregate, functions, where, group_by=group_by, at=at))

    def top_n(
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
        """The first `n` rows in the order of a column. See `aio_client.Table.top_n`."""
        ask = partial(self._table.top_n, n, by, where, columns=columns, descending=descending, ties=ties, at=at)
        return self._runner.call(ask)

    def count_if_changed(self, since: bytes | None, where: Where | None = None) -> Versioned[int] | None:
        """The number of rows, None when nothing has changed. See `aio_client.Table.count_if_changed`."""
        return self._runner.call(self._table.count_if_changed, since, where)

    def aggregate_if_changed(
        self,
        since: bytes | None,
        functions: Mapping[str, str | Iterable[str]],
        where: Where | None = None,
        *,
        group_by: Sequence[str] = (),
    ) -> Versioned[pa.Table] | None:
        """Aggregates, None when nothing has changed. See `aio_client.Table.aggregate_if_changed`."""
        return self._runner.call(partial(self._table.aggregate_if_changed, since, functions, where, group_by=group_by))

    def top_n_if_changed(
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
        """The first rows, None when nothing has changed. See `aio_client.Table.top_n_if_changed`."""
        ask = partial(self._table.top_n_if_changed, since, n, by, where)
        return self._runner.call(partial(ask, columns=columns, descending=descending, ties=ties))

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
        """The first rows now, and whenever they are others; it asks in the background, so that `latest` never blocks.

        The arguments and errors are those of `aio_client.Table.watch_top_n`.
        """
        watch = self._table.watch_top_n(n, by, where, columns=columns, descending=descending, ties=ties, every=every)
        return TopNWatch(self._runner, polls_of(watch))
