"""Operations that delete some columns of rows, or write rows with the kinds of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tests.model.checker.drawing import KEYED, keys_of, rows_of, table_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_columns(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None or table.engine != "last_row" or not table.columns:
        return None
    names = [column.name for column in table.columns]
    chosen = random.sample(names, random.randrange(1, len(names) + 1))
    return {"table": table.name, "keys": keys_of(random), "columns": chosen}


@define("delete_columns", 1.5, _draw_columns)
def _delete_columns(world: CheckerWorld, arguments: Arguments) -> None:
    table, chosen = world.tables.get(arguments["table"]), {*arguments["columns"]}
    if table is None or table.engine != "last_row" or not chosen <= {column.name for column in table.columns}:
        return
    world.table(table.name).delete(table.keys(arguments["keys"]), arguments["columns"])
    for key in arguments["keys"]:
        if key in table.rows:
            before = table.rows[key]
            left = {each.number: None if each.name in chosen else each.of(before) for each in table.columns}
            # A row is deleted with its last value.
            table.put(key, left if any(value is not None for value in left.values()) else None)
        else:
            table.delete([key])
    world.record("delete_columns", table)
    world.check(table.name)


def _draw_kinds(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None or table.engine != "last_row":
        return None
    rows = rows_of(table, random, [column.name for column in table.columns])
    return {"table": table.name, "rows": rows, "kinds": [random.choice(["+I", "-U", "+U", "-D"]) for _ in rows]}


@define("upsert_kinds", 1.5, _draw_kinds)
def _upsert_kinds(world: CheckerWorld, arguments: Arguments) -> None:
    """Writes rows as a job does that passes on the changes of another table."""
    table, kinds = world.tables.get(arguments["table"]), arguments["kinds"]
    rows = arguments["rows"][: len(kinds)]
    if table is None or table.engine != "last_row" or not fits(table, rows, complete=True) or len(rows) < len(kinds):
        return
    written = pa.Table.from_pylist(rows, world.schema(table.columns, table.key))
    world.table(table.name).upsert(written.append_column("_change_type", pa.array(kinds, pa.string())))
    complete = [{column.name: None for column in table.columns} | row for row in rows]
    for row, kind in zip(complete, kinds, strict=True):
        if kind in ("+I", "+U"):
            table.upsert([row])
        elif kind == "-D":
            table.delete([row[KEY]])
    world.record("upsert_kinds", table)
    world.check(table.name)
