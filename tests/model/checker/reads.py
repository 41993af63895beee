"""Operations that read rows and compare them with the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.checker.drawing import EVERY_KIND, KEYED, KEYS, keys_of, table_of, value_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.world import by_key, differences

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import CheckerColumn, CheckerTable
    from tests.model.checker.world import CheckerWorld


def _draw_scan(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    return (
        None
        if table is None
        else {"table": table.name, "ordered": random.random() < 0.5, "path": random.choice(["auto", "rocksdb"])}
    )


@define("scan", 2, _draw_scan)
def _scan(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    scan = world.table(table.name).scan().read_path(arguments["path"])
    rows = (scan.ordered() if arguments["ordered"] else scan).to_pylist()
    found, expected = by_key(rows), table.view().shown()
    assert found == expected, differences(found, expected)
    if arguments["ordered"]:
        in_order = [row[KEY] for row in sorted(expected.values(), key=lambda row: [row[name] for name in table.key])]
        assert [row[KEY] for row in rows] == in_order, "the rows are not in the order of the key"
    world.record("scan", table)


def _draw_get(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    return None if table is None else {"table": table.name, "keys": keys_of(random)}


@define("get", 2, _draw_get)
def _get(world: CheckerWorld, arguments: Arguments) -> None:
    table, keys = world.tables.get(arguments["table"]), arguments["keys"]
    if table is None:
        return
    opened, expected = world.table(table.name), table.view().shown()
    if len(keys) == 1:
        found = opened.get(table.keys(keys)[0])
        assert found == expected.get(keys[0]), f"key {keys[0]}: found {found}, expected {expected.get(keys[0])}"
    rows, wanted = (
        by_key(opened.lookup(table.keys(keys)).to_pylist()),
        {key: expected[key] for key in keys if key in expected},
    )
    assert rows == wanted, differences(rows, wanted)
    world.record("get", table)


def _draw_predicate(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    if table is None or not table.columns:
        return None
    column = random.choice(table.columns)
    below = value_of(column.kind, random)
    return None if below is None else {"table": table.name, "column": column.name, "below": below}


@define("count", 2, _draw_predicate)
def _count(world: CheckerWorld, arguments: Arguments) -> None:
    table, column = _column(world, arguments)
    if table is None or column is None:
        return
    opened, keys = world.table(table.name), table.matching(column.name, arguments["below"])
    where = f"{column.name} < {arguments['below']!r}"
    assert (found := opened.count(where)) == len(keys), f"counted {found} rows instead of {len(keys)}"
    assert (found := opened.count()) == len(table.rows), f"counted {found} rows instead of {len(table.rows)}"
    rows, shown = by_key(opened.scan(where=where).to_pylist()), table.view().shown()
    assert rows == (wanted := {key: shown[key] for key in keys}), differences(rows, wanted)
    world.record("count", table)


@define("top_n", 2, _draw_predicate)
def _top_n(world: CheckerWorld, arguments: Arguments) -> None:
    table, column = _column(world, arguments)
    if table is None or column is None:
        return
    found = [row[column.name] for row in world.table(table.name).top_n(5, order_by=column.name).to_pylist()]
    values = sorted((v[column.number] for v in table.rows.values() if column.number in v), reverse=True)
    nulls = [None] * (len(table.rows) - len(values))
    assert found == (wanted := [*values, *nulls][:5]), f"the top 5 by {column.name} are {found}, not {wanted}"
    world.record("top_n", table)


def _column(world: CheckerWorld, arguments: Arguments) -> tuple[CheckerTable | None, CheckerColumn | None]:
    table = world.tables.get(arguments["table"])
    if table is None:
        return None, None
    kinds: dict[type, str] = {int: "int", str: "text", float: "float"}
    wanted = (arguments["column"], kinds[type(arguments["below"])])
    return table, next((column for column in table.columns if (column.name, column.kind) == wanted), None)


def check_all(world: CheckerWorld) -> None:
    """Compares every table with the model, and every key by itself."""
    for table in world.tables.values():
        world.check(table.name)
        if not table.has_key:
            continue
        keys = table.keys(range(KEYS))
        found: dict[int, Any] = by_key(world.table(table.name).lookup(keys).to_pylist())
        assert found == (expected := table.view().shown()), differences(found, expected)
