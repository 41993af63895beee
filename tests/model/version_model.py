"""Checks that the version of a table changes with every change and never otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from collections import Counter
    from random import Random

    from aio_client import Scan, Table
    from tests.model.index_oracle import Answers
    from tests.model.model_table import ModelTable, Row


class _Seen:
    """The versions of one query.

    Attributes:
        last: The last version; None before the first.
    """

    def __init__(self) -> None:
        self.last: bytes | None = None
        self._changes: object = None
        self._rows: object = None
        self._earlier: set[bytes] = set()

    def note(self, version: bytes, changes: object, rows: object) -> None:
        """Compares a version with the previous one: equal without changes, and new if rows have changed.

        The version may or may not change if changes leave all rows the same, as without `row_deduplicate`.
        """
        assert version
        if changes == self._changes:
            assert version == self.last, "the version has changed, but the table has not"
        elif rows != self._rows:
            assert version not in self._earlier, "the table has changed, but an earlier version came again"
        self._earlier.add(version)
        self.last, self._changes, self._rows = version, changes, rows


class VersionModel:
    """Queries the versions of a table, and results if it has changed.

    Args:
        model: The model of the table.
        random: Chooses the queries.
        counter: Counts `changed` and `unchanged` results.
    """

    def __init__(self, model: ModelTable, random: Random, counter: Counter[str]) -> None:
        self._model = model
        self._random = random
        self._counter = counter
        self._whole = _Seen()
        self._buckets = [_Seen() for _ in range(model.buckets)]

    async def check(self, table: Table, answers: Answers) -> None:
        """Queries with the last known version and with the current one, and a single bucket."""
        before = self._whole.last
        counted = await table.count_if_changed(None)
        assert counted is not None
        assert counted.value == len(answers.rows)
        self._note(self._whole, counted.version, range(self._model.buckets))
        changed = counted.version != before
        self._counter["changed" if changed else "unchanged"] += 1
        for since in {before, b"no version", counted.version}:
            await self._ask(table, answers, since, counted.version)
        number = self._random.randrange(self._model.buckets)
        async with table.scan([]).with_buckets(number).stream() as stream:
            async for _ in stream:
                pass
            assert stream.version is not None
            self._note(self._buckets[number], stream.version, [number])

    async def _ask(self, table: Table, answers: Answers, since: bytes | None, version: bytes) -> None:
        """Checks that conditional queries are unchanged for the current version, and answered for every other one."""
        by = self._random.choice(
            [name for name in ("score", "weight", "title", "version") if name in table.schema.names]
        )
        n = self._random.choice([1, 10, 1000])
        counted = await table.count_if_changed(since)
        summed = await table.aggregate_if_changed(since, {"version": "count"})
        first = await table.top_n_if_changed(since, n, by)
        scan = table.scan().ordered()
        unchanged, rows = await _scanned(scan if since is None else scan.if_changed_since(since), version)
        if since == version:
            assert (counted, summed, first, unchanged, rows) == (None, None, None, True, [])
            return
        assert counted is not None
        assert summed is not None
        assert first is not None
        assert {counted.version, summed.version, first.version} == {version}
        assert (counted.value, summed.value.to_pylist()) == (
            len(answers.rows),
            [{"version_count": len(answers.rows)}],
        )
        assert exact_rows(first.value) == answers.first(n, by, None, descending=True)
        assert (unchanged, rows) == (False, answers.rows)

    def _note(self, seen: _Seen, version: bytes, buckets: Any) -> None:
        columns = len(self._model.schema)
        changes = sum(len(each) for bucket in buckets for _, each in self._model.changes_in(bucket))
        rows = {key: row for bucket in buckets for key, row in self._model.rows_in(bucket).items()}
        seen.note(version, (columns, changes), (columns, rows))


async def _scanned(scan: Scan, version: bytes) -> tuple[bool, list[Row]]:
    """Returns whether a scan reported that nothing has changed, and its rows."""
    async with scan.stream() as stream:
        rows = [row async for batch in stream for row in exact_rows(batch)]
        assert stream.version == version
        return stream.unchanged, rows
