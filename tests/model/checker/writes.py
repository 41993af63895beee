"""Operations that write rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from aio_client import InvalidRequest, col
from tests.model.checker import statements
from tests.model.checker.drawing import EVERY_KIND, KEYED, KINDS, keys_of, rows_of, table_of, value_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.world import write_rows

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld


class _GivenUpError(Exception):
    """Ends a transaction that shall not be committed."""


def _draw_upsert(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    return None if table is None else {"table": table.name, "rows": rows_of(table, random)}


@define("upsert", 6, _draw_upsert)
def _upsert(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None or not fits(table, arguments["rows"], complete=True):
        return
    write_rows(world.table(table.name), arguments["rows"])
    table.upsert(arguments["rows"])
    world.record("upsert", table)
    world.check(table.name)


def _draw_upsert_columns(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None or not table.columns:
        return None
    names = random.sample([column.name for column in table.columns], random.randrange(1, len(table.columns) + 1))
    return {"table": table.name, "columns": names, "rows": rows_of(table, random, names)}


@define("upsert_columns", 3, _draw_upsert_columns)
def _upsert_columns(world: CheckerWorld, arguments: Arguments) -> None:
    table, names = world.tables.get(arguments["table"]), arguments["columns"]
    if table is None or not fits(table, arguments["rows"]) or not takes_columns(table, names):
        return
    world.table(table.name).upsert(arguments["rows"], columns=[*table.key, *names])
    table.upsert(arguments["rows"], names)
    world.record("upsert_columns", table)
    world.check(table.name)


def _draw_delete(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    return None if table is None else {"table": table.name, "keys": keys_of(random)}


@define("delete", 3, _draw_delete)
def _delete(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    opened, keys = world.table(table.name), table.keys(arguments["keys"])
    if table.engine == "partial_update":
        with pytest.raises(InvalidRequest):
            opened.delete(keys)
    else:
        opened.delete(keys)
    # The other engines ignore it.
    if table.engine in DELETING:
        table.delete(arguments["keys"])
    world.record("delete", table)
    world.check(table.name)


def _draw_delete_where(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None or not table.columns:
        return None
    column = random.choice(table.columns)
    below = value_of(column.kind, random)
    return None if below is None else {"table": table.name, "column": column.name, "below": below}


@define("delete_where", 2, _draw_delete_where)
def _delete_where(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None or table.engine not in DELETING or not _has(table, arguments["column"], arguments["below"]):
        return
    keys = table.matching(arguments["column"], arguments["below"])
    table.delete(keys)
    table.settle(table.matching_expired(arguments["column"], arguments["below"]))
    column, below = arguments["column"], arguments["below"]
    if statements.are_asked(arguments) and isinstance(below, int | str):
        rows = world.client.sql(f"delete from {table.name} where {column} < ?", [below]).run().rows
    else:
        rows = world.table(table.name).delete(where=col(column) < below).rows
    assert rows == len(keys), f"deleted {rows} rows instead of {len(keys)}"
    world.record("delete_where", table)
    world.check(table.name)


def _draw_truncate(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    return None if table is None else {"table": table.name}


@define("truncate", 0.7, _draw_truncate)
def _truncate(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    table.delete(list(table.rows))
    table.settle(table.expired)
    world.table(table.name).truncate()
    world.record("truncate", table)
    world.check(table.name)


def _draw_transaction(world: CheckerWorld, random: Random) -> Arguments | None:
    if not world.tables:
        return None
    names = random.sample(sorted(world.tables), random.randrange(1, len(world.tables) + 1))
    parts = [{"table": name, "rows": rows_of(world.tables[name], random), "keys": keys_of(random)} for name in names]
    return {"parts": parts, "commit": random.random() < 0.8}


@define("transaction", 3, _draw_transaction, effects=("transaction", "abort"))
def _transaction(world: CheckerWorld, arguments: Arguments) -> None:
    parts = [(world.tables.get(part["table"]), part) for part in arguments["parts"]]
    known = [(table, part) for table, part in parts if table is not None]
    if len(known) < len(parts) or not all(fits(table, part["rows"], complete=True) for table, part in known):
        return
    if arguments["commit"]:
        for table, part in known:
            written = {row[KEY] for row in part["rows"]}
            if table.engine == "last_row":
                table.delete(key for key in part["keys"] if key not in written)
            table.upsert(part["rows"])
    with suppress(_GivenUpError), world.client.transaction() as transaction:
        for table, part in known:
            opened = world.table(table.name)
            if table.engine == "last_row":
                transaction.delete(opened, table.keys(part["keys"]))
            (transaction.upsert if table.has_key else transaction.append)(opened, part["rows"])
        if not arguments["commit"]:
            raise _GivenUpError
    world.record("transaction" if arguments["commit"] else "abort", *(table for table, _ in known))
    for table, _ in known:
        world.check(table.name)


DELETING: Final = ("last_row", "sequenced")
"""The engines with which deletes take effect."""


def fits(table: CheckerTable, rows: list[dict[str, object]], *, complete: bool = False) -> bool:
    """Returns whether rows have columns of the table, with their types; if `complete`, all without a default."""
    names, key = {column.name for column in table.columns if column.default is None}, {KEY, *table.key}
    return all(
        (not complete or row.keys() >= key | names)
        and all(name in key or _has(table, name, value) for name, value in row.items())
        for row in rows
    )


def takes_columns(table: CheckerTable, names: list[str]) -> bool:
    """Returns whether rows with some of the columns can be written."""
    if table.engine == "sequenced":
        return table.order in {table.column(name).number for name in names}
    return table.engine not in ("first_row", "versioned", "log")


def _has(table: CheckerTable, name: str, value: object) -> bool:
    """Returns whether the table has a column of a name that can have a value."""
    return any(
        column.name == name and (value is None or isinstance(value, KINDS[column.kind])) for column in table.columns
    )
