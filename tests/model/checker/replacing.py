"""Operations that write many rows as one: in place of others, or as a new table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import UsageError
from tests.model.checker.definitions import draw_create, new_table
from tests.model.checker.drawing import KEYED, KEYS, PARTITIONED, rows_of, table_of
from tests.model.checker.model import KEY, PART, part_of
from tests.model.checker.operation import Arguments, define
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_replace(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None:
        return None
    first = random.randrange(KEYS)
    rows, end = rows_of(table, random), random.randrange(first + 1, KEYS + 1)
    if random.random() < 0.8:
        rows = [row for row in rows if first <= row[KEY] < end and row.get(PART, part_of(first)) == part_of(first)]
    whole = random.random() < 0.3
    return {"table": table.name, "rows": rows, "first": first, "end": end, "whole": whole}


@define("replace", 2, _draw_replace)
def _replace(world: CheckerWorld, arguments: Arguments) -> None:
    table, rows = world.tables.get(arguments["table"]), arguments["rows"]
    # Which rows count as written again by it is not promised.
    if table is None or (table.ttl is not None and table.time is None) or not fits(table, rows, complete=True):
        return
    first, end, opened = arguments["first"], arguments["end"], world.table(table.name)
    scope, where = set(range(first, end)), f"{KEY} >= {first} and {KEY} < {end}"
    if table.name == PARTITIONED:
        where = f"{PART} = '{part_of(first)}' and {where}"
        scope = {key for key in scope if part_of(key) == part_of(first)}
    if arguments["whole"]:
        scope = set(range(KEYS))
    elif not {row[KEY] for row in rows} <= scope:
        with pytest.raises(UsageError):
            opened.replace(rows, where=where)
        world.check(table.name)
        return
    table.delete(scope - {row[KEY] for row in rows})
    for row in rows:
        table.replace(row)
    opened.replace(rows, where=None if arguments["whole"] else where)
    world.record("replace", table)
    world.check(table.name)


def _draw_bootstrap(world: CheckerWorld, random: Random) -> Arguments | None:
    arguments = draw_create(KEYED, world, random)
    if arguments is None:
        return None
    table, _ = new_table(world, arguments)
    # Some keys occur twice.
    return {**arguments, "tablets": 1, "rows": [*rows_of(table, random), *rows_of(table, random)]}


@define("bootstrap", 1, _draw_bootstrap)
def _bootstrap(world: CheckerWorld, arguments: Arguments) -> None:
    name = arguments["table"]
    if name in world.tables or not arguments["rows"]:
        return
    table, merging = new_table(world, arguments)
    rows = pa.Table.from_pylist(arguments["rows"], world.schema(table.columns, table.key))
    table.upsert(arguments["rows"], tracked=False)
    world.tables[name] = table
    world.client.bootstrap(name, rows, primary_key=table.key, duplicates="merge", **table.options, **merging)
    world.record("bootstrap", table)
    world.check(name)
