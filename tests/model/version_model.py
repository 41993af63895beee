"""Versions of a table against its model: another one after every change, and after nothing else."""

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
    """The versions that one question has had.

    Attributes:
        last: The last one; None before the first.
    """

    def __init__(self) -> None:
        self.last: bytes | None = None
        self._changes: object = None
        self._rows: object = None
        self._earlier: set[bytes] = set()

    def note(self, version: bytes, changes: object, rows: object) -> None:
        """Compares a version with the one before: the same without changes, and a new one for other rows.

        Changes that leave all rows as they were, as a table without `row_deduplicate` logs them, may go either way.
        """
        assert version
        if changes == self._changes:
            assert version == self.last, "nothing has changed, but the version has"
        elif rows != self._rows:
            assert version not in self._earlier, "the table has changed, but its version was there before"
        self._earlier.add(version)
        self.last, self._changes, self._rows = version, changes, rows


class VersionModel:
    """Asks for the versions of a table, and for answers if it has changed.

    Args:
        model: What the table is.
        random: Chooses what is asked.
        counter: Counts `changed` and `unchanged` answers.
    """

    def __init__(self, model: ModelTable, random: Random, counter: Counter[str]) -> None:
        self._model = model
        self._random = random
        self._counter = counter
        self._whole = _Seen()
        self._buckets = [_Seen() for _ in range(model.buckets)]

    async def check(self, table: Table, answers: Answers) -> None:
        """Asks twice: with the version known so far, and with the one of now; and of one bucket alone."""
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
        """All questions that know a version are unchanged for the one of now, and answered for every other one."""
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
    """Whether a scan said that nothing has changed, and its rows."""
    async with scan.stream() as stream:
        rows = [row async for batch in stream for row in exact_rows(batch)]
        assert stream.version == version
        return stream.unchanged, rows
