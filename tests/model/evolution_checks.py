"""Compares all readers of a table whose columns change with the model of its history."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from aio_client import StartFrom, StopAt, col
from tests.model.evolution_columns import Row, widened_value
from tests.model.evolution_history import KEYS, EvolutionHistory
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aio_client import Predicate, Scan, Table

    Matches = Callable[[dict[str, Any]], bool]

Rows = dict[int, dict[str, Any]]


async def check(history: EvolutionHistory) -> None:
    """Compares everything that reads the table with the model."""
    table, expected = await history.client.table(history.table.name), history.expected()
    assert await by_key(table.scan()) == expected
    await _check_keys(history, table, expected)
    for _ in range(2):
        where, matches = _condition(history, expected)
        await _check_condition(history, table, where, [row for row in expected if matches(row)])
    await _check_top(history, table, expected)
    await _check_snapshots(history, table)
    for start in (StartFrom.EARLIEST, StartFrom.FULL):
        assert await _replay(history, table.changes(start, StopAt.LATEST), {}) == expected, start
    await _check_moments(history, table)
    assert all(bucket.is_consistent for bucket in await history.client.check_table(table.name))


async def by_key(scan: Scan) -> list[dict[str, Any]]:
    """Returns the rows of a scan in key order."""
    rows: list[dict[str, Any]] = (await scan.to_arrow()).sort_by("k").to_pylist()
    return rows


async def _check_keys(history: EvolutionHistory, table: Table, expected: list[dict[str, Any]]) -> None:
    keys = history.random.sample(range(KEYS), 10)
    wanted = {row["k"]: row for row in expected}
    found = (await table.lookup(keys, missing="omit")).to_pylist()
    assert found == [wanted[key] for key in keys if key in wanted]
    for key in keys[:4]:
        assert await table.get(key) == wanted.get(key)


def _condition(history: EvolutionHistory, rows: list[dict[str, Any]]) -> tuple[Predicate, Matches]:
    """Returns a random condition on a present column, for the server and in Python."""
    random = history.random
    if random.random() < 0.3:
        name, least = next(each.name for each in history.columns if each.id == 2), random.randrange(100)
        return col(name) >= least, lambda row: row[name] is not None and row[name] >= least
    name = random.choice(history.columns).name
    value = random.choice([row[name] for row in rows] or [None])
    if value is None:
        return col(name).is_null(), lambda row: row[name] is None
    return col(name) == value, lambda row: row[name] == value


async def _check_condition(
    history: EvolutionHistory, table: Table, where: Predicate, matching: list[dict[str, Any]]
) -> None:
    assert await table.count(where=where) == len(matching)
    assert await by_key(table.scan(where=where)) == matching
    names = [each.name for each in history.columns if each.id > 1]
    some = ["k", *history.random.sample(names, history.random.randint(0, len(names)))]
    projected = await by_key(table.scan(some, where=where))
    assert projected == [{name: row[name] for name in some} for row in matching]


async def _check_top(history: EvolutionHistory, table: Table, expected: list[dict[str, Any]]) -> None:
    order = next(each.name for each in history.columns if each.id == 2)
    for each in {order, *(each.name for each in history.columns if each.id in history.indexes)}:
        top = (await table.top_n(5, each)).to_pylist()
        values = sorted((row[each] for row in expected if row[each] is not None), reverse=True)
        assert [row[each] for row in top if row[each] is not None] == values[:5]
        assert len(top) == min(5, len(expected))
        assert all(row in expected for row in top)


async def _check_snapshots(history: EvolutionHistory, table: Table) -> None:
    """Reads snapshots, which have the columns of their time, also by name."""
    for name, (pinned, then) in history.snapshots.items():
        snapshot = await table.adopt_snapshot(name) if history.random.random() < 0.5 else pinned
        assert await by_key(table.scan().as_of(snapshot)) == then
        if then:
            some = history.random.choice(list(then[0]))
            value = history.random.choice(then)[some]
            where = col(some).is_null() if value is None else col(some) == value
            found = await by_key(table.scan(list(dict.fromkeys(["k", some])), where=where).as_of(snapshot))
            assert found == [{"k": row["k"], some: row[some]} for row in then if row[some] == value]


async def _check_moments(history: EvolutionHistory, table: Table) -> None:
    """Reads the changes since some moments, all or net ones, also of the matching rows alone."""
    for offsets, rows in history.moments:
        before, now = history.expected(rows), history.expected()
        for where, matches in ((None, lambda row: True), _condition(history, now)):
            changes = table.changes(StartFrom.offsets(offsets), StopAt.LATEST, where=where)
            if history.random.random() < 0.5:
                changes = changes.with_catch_up("net", lag_threshold=history.random.choice([1, 20]))
            if where is not None:
                changes = changes.with_unmatched("delete")
            known = {row["k"]: row for row in before if matches(row)}
            assert await _replay(history, changes, known, verify=False) == [row for row in now if matches(row)]


async def _replay(history: EvolutionHistory, changes: Scan, rows: Rows, *, verify: bool = True) -> list[dict[str, Any]]:
    """Returns what changes add up to, for a reader that knows some rows."""
    verify = verify and history.tracks_all and history.engine != "upsert_changelog"
    names = [each.name for each in history.columns]
    for change in await changes.with_untracked("rescan").to_pylist():
        kind, row = change["_change_type"], {name: change[name] for name in names}
        if verify:
            assert rows.get(row["k"]) == (row if kind in ("-U", "-D") else None), change
        if kind in ("-U", "-D"):
            rows.pop(row["k"], None)
        else:
            rows[row["k"]] = row
    return [row for _, row in sorted(rows.items())]


class SchemaFollower:
    """A reader of a running stream of changes that keeps rows by column id, as the documentation says.

    Attributes:
        rows: The rows that the changes so far add up to, by key and column id.
    """

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self._ids: tuple[int, ...] = ()

    async def follow(self, table: Table) -> None:
        """Follows all changes, for ever."""
        async with table.changes().with_untracked("rescan").stream() as stream:
            async for batch in stream:
                ids = stream.column_ids
                names = dict(zip(ids, batch.schema.names[-len(ids) :], strict=True))
                if ids != self._ids:
                    self._take_columns(names, {name: each.as_py() for name, each in stream.initial_defaults.items()})
                    self._ids = ids
                for change in batch.to_pylist():
                    row = {id_: change[name] for id_, name in names.items()}
                    if change["_change_type"] in ("-U", "-D"):
                        self.rows.pop(row[1], None)
                    else:
                        self.rows[row[1]] = row

    def _take_columns(self, names: dict[int, str], defaults: dict[str, Any]) -> None:
        self.rows = {
            key: {id_: row[id_] if id_ in row else defaults.get(name) for id_, name in names.items()}
            for key, row in self.rows.items()
        }

    def expected(self, history: EvolutionHistory) -> list[dict[str, Any]]:
        """Returns the rows with the present names and types."""
        types = {each.id: each.type for each in history.columns}
        return history.expected(
            {
                key: {id_: widened_value(value, types[id_]) for id_, value in row.items() if id_ in types}
                for key, row in self.rows.items()
            }
        )


@asynccontextmanager
async def following(history: EvolutionHistory) -> AsyncIterator[None]:
    """Follows the changes of the table during the block, after which the follower must have the rows of the model."""
    follower = SchemaFollower()
    running = asyncio.create_task(follower.follow(history.table))
    try:
        yield

        async def has_rows() -> bool:
            if running.done():
                running.result()
            return follower.expected(history) == history.expected()

        await await_until(has_rows, "the follower has the rows of the table")
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
