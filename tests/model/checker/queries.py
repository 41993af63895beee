"""Operations that ask for some rows in some order, now or as of a snapshot: scans, aggregates and top-N."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from aio_client import SnapshotLost
from tests.model.checker import statements
from tests.model.checker.drawing import EVERY_KIND, KEYS, table_of
from tests.model.checker.model import KEY, ModelView, Shown, exact, order_of
from tests.model.checker.operation import Arguments, define
from tests.model.checker.predicates import draw_where, fits_columns, has_columns, matches, to_expression, to_sql

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from aio_client import Predicate
    from aio_client.sync import Scan, Snapshot
    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld

_FUNCTIONS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "count": len,
    "sum": lambda values: sum(values) if values else None,
    "min": lambda values: min(values, key=order_of, default=None),
    "max": lambda values: max(values, key=order_of, default=None),
    "mean": lambda values: sum(values) / len(values) if values else None,
}
_SUMS: Final = {"sum", "mean"}
_WITHOUT_SUMS: Final = ("text", "time")


def draw_source(world: CheckerWorld, random: Random) -> tuple[CheckerTable, ModelView, Arguments] | None:
    """Returns a table, its rows, and the arguments that name them: those of now, or of a snapshot."""
    table = table_of(world, random, EVERY_KIND)
    if table is None:
        return None
    pinned = [
        name
        for name, kept in world.kept.items()
        if kept.kind == "snapshot" and kept.table == table.number and kept.view
    ]
    name = random.choice(pinned) if pinned and random.random() < 0.3 else None
    view = world.kept[name].view if name is not None else table.view()
    assert view is not None
    return table, view, {"table": table.name, "snapshot": name, "where": draw_where(view.columns, random)}


def source_of(world: CheckerWorld, arguments: Arguments) -> tuple[CheckerTable, ModelView, Snapshot | None] | None:
    """Returns what `draw_source` has named, and the snapshot; None if the world does not have it."""
    table = world.tables.get(arguments["table"])
    if table is None:
        return None
    view, snapshot = table.view(), None
    if arguments["snapshot"] is not None:
        kept = world.kept.get(arguments["snapshot"])
        if kept is None or kept.table != table.number:
            return None
        assert kept.view is not None
        view, snapshot = kept.view, kept.value
    return (table, view, snapshot) if fits_columns(arguments["where"], view.columns) else None


def predicate_of(arguments: Arguments) -> str | Predicate | None:
    # Text is parsed with the columns that the table has now. It has no escapes.
    where = arguments["where"]
    text = to_sql(where) if arguments["snapshot"] is None else None
    return to_expression(where) if text is None or "\\" in text else text


def _matching(view: ModelView, arguments: Arguments) -> list[Shown]:
    """Returns the rows that match, in the order of the key."""
    return [row for row in view.in_order() if matches(arguments["where"], row)]


def _lose(world: CheckerWorld, arguments: Arguments) -> None:
    """A restart ends the pins of clients that do not renew in time."""
    if arguments["snapshot"] is None:
        raise AssertionError("a query of the live table has lost a snapshot")
    del world.kept[arguments["snapshot"]]


def _draw_query(world: CheckerWorld, random: Random) -> Arguments | None:
    source = draw_source(world, random)
    if source is None:
        return None
    _, view, arguments = source
    names = [KEY, *(column.name for column in view.columns)]
    low, high = sorted(random.sample(range(KEYS), 2))
    return {
        **arguments,
        "columns": random.choice([None, random.sample(names, random.randrange(1, len(names) + 1))]),
        "order": random.choice(["bucket", "key", "key", "any"] if view.has_key else ["bucket", "any"]),
        "reverse": random.random() < 0.3,
        "limit": random.choice([None, None, 0, 1, 5]),
        "keys": random.choice([None, None, {"start": low, "end": high}])
        if view.has_key and view.key == (KEY,)
        else None,
        "inclusive": random.choice(["both", "left", "right", "neither"]),
        "options": random.choice([{}, {"isolation": "read_latest"}, {"consistency": "owner"}, {"path": "rocksdb"}]),
        "splits": random.choice([None, None, 3]),
    }


@define("query", 3, _draw_query)
def _query(world: CheckerWorld, arguments: Arguments) -> None:
    source = source_of(world, arguments)
    if source is None or not has_columns(source[1].columns, [KEY, *(arguments["columns"] or ())]):
        return
    table, view, snapshot = source
    try:
        scans = _scans(world, table, snapshot, arguments)
        found = [row for scan in scans for row in scan.to_pylist()]
    except SnapshotLost:
        _lose(world, arguments)
        return
    _compare(found, view, arguments, is_split=len(scans) > 1)
    if snapshot is None:
        used = scans[0].explain().index
        assert not used or used in world.table(table.name).indexes, f"a query uses the index {used}, which is gone"
    world.record("query", table)


def _scans(world: CheckerWorld, table: CheckerTable, snapshot: Snapshot | None, arguments: Arguments) -> list[Scan]:
    """Returns the scan, or its parts."""
    scan, options = (
        world.table(table.name).scan(arguments["columns"], where=predicate_of(arguments)),
        arguments["options"],
    )
    if arguments["keys"] is not None:
        scan = scan.key_range(**arguments["keys"], inclusive=arguments["inclusive"])
    scan = scan.read_path(options.get("path", "auto"))
    if snapshot is not None:
        scan = scan.as_of(snapshot)
        if arguments["splits"] is not None:
            return scan.splits(arguments["splits"])
    else:
        scan = scan.isolation(options.get("isolation", "read_committed"))
        scan = scan.consistency(options.get("consistency", "table"))
    if arguments["order"] == "any":
        return [scan.unordered().limit(arguments["limit"])]
    scan = scan.ordered() if arguments["order"] == "key" else scan
    return [(scan.reverse() if arguments["reverse"] else scan).limit(arguments["limit"])]


def _compare(found: list[Shown], view: ModelView, arguments: Arguments, *, is_split: bool) -> None:
    rows, keys, inclusive = _matching(view, arguments), arguments["keys"], arguments["inclusive"]
    if keys is not None:
        least = keys["start"] + (inclusive in ("right", "neither"))
        most = keys["end"] - (inclusive in ("left", "neither"))
        rows = [row for row in rows if least <= row[KEY] <= most]
    if arguments["columns"] is not None:
        rows = [{name: row[name] for name in arguments["columns"]} for row in rows]
    limit = None if is_split else arguments["limit"]
    if arguments["order"] == "key" and not is_split:
        expected = list(islice(reversed(rows) if arguments["reverse"] else rows, limit))
        assert exact(found) == exact(expected), f"found {found}, expected {expected}"
        return
    number = len(rows) if limit is None else min(limit, len(rows))
    assert len(found) == number, f"found {len(found)} rows, expected {number}"
    wrong = Counter(map(repr, exact(found))) - Counter(map(repr, exact(rows)))
    assert not wrong, f"found {list(wrong)}, which are not among {rows}"


def _draw_aggregate(world: CheckerWorld, random: Random) -> Arguments | None:
    source = draw_source(world, random)
    columns = [] if source is None else [*source[1].columns]
    if source is None or not columns:
        return None
    functions = {
        column.name: random.sample(sorted({*_FUNCTIONS} - (_SUMS if column.kind in _WITHOUT_SUMS else set())), 2)
        for column in random.sample(columns, random.randrange(1, len(columns) + 1))
    }
    groups = random.sample([column.name for column in columns], random.choice([0, 1, 1]))
    return {**source[2], "functions": functions, "group_by": groups}


@define("aggregate", 1.5, _draw_aggregate)
def _aggregate(world: CheckerWorld, arguments: Arguments) -> None:
    source, functions, groups = source_of(world, arguments), arguments["functions"], arguments["group_by"]
    if source is None or not has_columns(source[1].columns, [KEY, *functions, *groups]):
        return
    table, view, snapshot = source
    kinds = {column.name: column.kind for column in view.columns}
    if any(kinds[name] in _WITHOUT_SUMS and _SUMS & {*each} for name, each in functions.items()):
        return
    compared = [*groups, *(name for name, each in functions.items() if {"min", "max"} & {*each})]
    try:
        if statements.can_be_asked(view, arguments, compared):
            found = statements.aggregate(world.client, table.name, arguments["where"], functions, groups)
            counted = statements.count(world.client, table.name, arguments["where"])
        else:
            opened, where = world.table(table.name), predicate_of(arguments)
            found = opened.aggregate(functions, where, group_by=groups, as_of=snapshot).to_pylist()
            counted = opened.count(where, as_of=snapshot)
    except SnapshotLost:
        _lose(world, arguments)
        return
    rows = _matching(view, arguments)
    assert counted == len(rows), f"counted {counted} rows instead of {len(rows)}"
    expected = _aggregates(rows, functions, groups)
    assert _without_signs(found) == _without_signs(expected), f"found {found}, expected {expected}"
    world.record("aggregate", table)


def _aggregates(rows: list[Shown], functions: dict[str, list[str]], groups: list[str]) -> list[Shown]:
    by_group: dict[tuple[Any, ...], list[Shown]] = {} if groups else {(): []}
    for row in rows:
        by_group.setdefault(tuple((row[name] is None, order_of(row[name])) for name in groups), []).append(row)
    ordered = [by_group[group] for group in sorted(by_group)]
    return [
        {
            **{name: members[0][name] for name in groups},
            **{
                f"{name}_{function}": _FUNCTIONS[function]([row[name] for row in members if row[name] is not None])
                for name, chosen in functions.items()
                for function in chosen
            },
        }
        for members in ordered
    ]


def _without_signs(rows: list[Shown]) -> Any:
    """Returns rows without the signs of zeros: which one stands for both is not promised."""
    return [{name: "0.0" if each == "-0.0" else each for name, each in row.items()} for row in exact(rows)]


def _draw_top_n(world: CheckerWorld, random: Random) -> Arguments | None:
    source = draw_source(world, random)
    columns = [] if source is None else [*source[1].columns]
    if source is None:
        return None
    return {
        **source[2],
        "by": random.choice([KEY, *(column.name for column in columns * 4)]),
        "n": random.choice([1, 3, 10, 100]),
        "descending": random.random() < 0.5,
        "ties": random.choice(["key", "all"]),
    }


@define("top_n", 3, _draw_top_n)
def _top_n(world: CheckerWorld, arguments: Arguments) -> None:
    source, by, n = source_of(world, arguments), arguments["by"], arguments["n"]
    if source is None or not has_columns(source[1].columns, [KEY, by]):
        return
    table, view, snapshot = source
    options = {"descending": arguments["descending"], "ties": arguments["ties"]}
    opened = world.table(table.name)
    try:
        if arguments["ties"] == "key" and statements.can_be_asked(view, arguments, [by]):
            key, ends = list(opened.primary_key), " desc" if arguments["descending"] else ""
            where = arguments["where"]
            found = statements.top_n(world.client, table.name, where, by, n, key=key, ends=ends)
        else:
            found = opened.top_n(n, by, predicate_of(arguments), as_of=snapshot, **options).to_pylist()
    except SnapshotLost:
        _lose(world, arguments)
        return
    expected = first_rows(_matching(view, arguments), by, n, **options)
    if not view.has_key:
        # Which of the rows with equal values come is not promised.
        found, expected = ([row[by] for row in rows] for rows in (found, expected))
    assert exact(found) == exact(expected), f"the first {n} by {by} are {found}, expected {expected}"
    world.record("top_n", table)


def first_rows(rows: list[Shown], by: str, n: int, *, descending: bool, ties: str) -> list[Shown]:
    """Returns the first of some rows, which are in the order of the key: nulls last, equal values by key."""
    valued = sorted((row for row in rows if row[by] is not None), key=lambda row: order_of(row[by]), reverse=descending)
    ordered = [*valued, *(row for row in rows if row[by] is None)]
    if ties == "all" and n < len(ordered):
        last = order_of(ordered[n - 1][by])
        return [*ordered[:n], *(row for row in ordered[n:] if order_of(row[by]) == last)]
    return ordered[:n]
