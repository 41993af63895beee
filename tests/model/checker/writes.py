"""Operations that write rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tests.model.checker.drawing import KINDS, keys_of, rows_of, table_of, value_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld


class _GivenUpError(Exception):
    """Ends a transaction that shall not be committed."""


def _draw_upsert(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    return None if table is None else {"table": table.name, "rows": rows_of(table, random)}


@define("upsert", 6, _draw_upsert)
def _upsert(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None or not fits(table, arguments["rows"], complete=True):
        return
    world.table(table.name).upsert(arguments["rows"])
    table.upsert(arguments["rows"])
    world.record("upsert", table)
    world.check(table.name)


def _draw_upsert_columns(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    if table is None or not table.columns:
        return None
    names = random.sample([column.name for column in table.columns], random.randrange(1, len(table.columns) + 1))
    return {"table": table.name, "columns": names, "rows": rows_of(table, random, names)}


@define("upsert_columns", 3, _draw_upsert_columns)
def _upsert_columns(world: CheckerWorld, arguments: Arguments) -> None:
    table, names = world.tables.get(arguments["table"]), arguments["columns"]
    if table is None or table.engine == "first_row" or not fits(table, arguments["rows"]):
        return
    world.table(table.name).upsert(arguments["rows"], columns=[KEY, *names])
    table.upsert(arguments["rows"], names)
    world.record("upsert_columns", table)
    world.check(table.name)


def _draw_delete(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    return None if table is None else {"table": table.name, "keys": keys_of(random)}


@define("delete", 3, _draw_delete)
def _delete(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None or table.engine != "last_row":
        return
    world.table(table.name).delete(arguments["keys"])
    table.delete(arguments["keys"])
    world.record("delete", table)
    world.check(table.name)


def _draw_delete_where(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    if table is None or not table.columns:
        return None
    column = random.choice(table.columns)
    below = value_of(column.kind, random)
    return None if below is None else {"table": table.name, "column": column.name, "below": below}


@define("delete_where", 2, _draw_delete_where)
def _delete_where(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None or table.engine != "last_row" or not _has(table, arguments["column"], arguments["below"]):
        return
    keys = table.matching(arguments["column"], arguments["below"])
    found = world.table(table.name).delete(where=f"{arguments['column']} < {arguments['below']!r}")
    assert found.rows == len(keys), f"deleted {found.rows} rows instead of {len(keys)}"
    table.delete(keys)
    world.record("delete_where", table)
    world.check(table.name)


def _draw_truncate(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    return None if table is None else {"table": table.name}


@define("truncate", 0.7, _draw_truncate)
def _truncate(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    world.table(table.name).truncate()
    table.delete(list(table.rows))
    world.record("truncate", table)
    world.check(table.name)


def _draw_transaction(world: CheckerWorld, random: Random) -> Arguments | None:
    if not world.tables:
        return None
    names = random.sample(sorted(world.tables), random.randrange(1, len(world.tables) + 1))
    parts = [{"table": name, "rows": rows_of(world.tables[name], random), "keys": keys_of(random)} for name in names]
    return {"parts": parts, "commit": random.random() < 0.8}


@define("transaction", 3, _draw_transaction)
def _transaction(world: CheckerWorld, arguments: Arguments) -> None:
    parts = [(world.tables.get(part["table"]), part) for part in arguments["parts"]]
    known = [(table, part) for table, part in parts if table is not None]
    if len(known) < len(parts) or not all(fits(table, part["rows"], complete=True) for table, part in known):
        return
    with suppress(_GivenUpError), world.client.transaction() as transaction:
        for table, part in known:
            opened = world.table(table.name)
            if table.engine == "last_row":
                transaction.delete(opened, part["keys"])
            transaction.upsert(opened, part["rows"])
        if not arguments["commit"]:
            raise _GivenUpError
    if arguments["commit"]:
        for table, part in known:
            written = {row[KEY] for row in part["rows"]}
            if table.engine == "last_row":
                table.delete(key for key in part["keys"] if key not in written)
            table.upsert(part["rows"])
    world.record("transaction" if arguments["commit"] else "abort", *(table for table, _ in known))
    for table, _ in known:
        world.check(table.name)


def fits(table: CheckerTable, rows: list[dict[str, object]], *, complete: bool = False) -> bool:
    """Returns whether rows have columns of the table, with their types; if `complete`, all of them."""
    names = {column.name for column in table.columns}
    return all(
        (not complete or row.keys() == {KEY, *names})
        and all(name == KEY or _has(table, name, value) for name, value in row.items())
        for row in rows
    )


def _has(table: CheckerTable, name: str, value: object) -> bool:
    """Returns whether the table has a column of a name that can have a value."""
    types = dict(zip(KINDS, (int, str, float), strict=True))
    return any(
        column.name == name and (value is None or isinstance(value, types[column.kind])) for column in table.columns
    )
