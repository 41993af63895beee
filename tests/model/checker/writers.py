"""Operations with tables and writers that a client has opened before, with an earlier definition."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aio_client import TableNotFound, WriterFenced
from tests.model.checker.drawing import EVERY_KIND, LOG, kept_of, keys_of, table_of, value_of
from tests.model.checker.model import KEY, ModelView, key_values
from tests.model.checker.operation import Arguments, define
from tests.model.checker.world import Kept, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.model.checker.model import CheckerColumn, CheckerTable
    from tests.model.checker.world import CheckerWorld


def _draw_open(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    return None if table is None else {"table": table.name, "as": f"h{world.next_number()}"}


@define("keep_table", 0.8, _draw_open)
def _keep_table(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    opened = world.table(table.name)
    world.kept[arguments["as"]] = Kept(
        "table", table.number, table.name, opened, view=ModelView(table.columns, {}, table.key)
    )
    world.record("keep_table", table)


def _draw_writer(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    if table is None:
        return None
    return {"table": table.name, "id": random.choice(["w1", "w2"]), "as": f"w{world.next_number()}"}


@define("open_writer", 1, _draw_writer)
def _open_writer(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    writer = world.table(table.name).writer(arguments["id"])
    writer.__enter__()
    for kept in world.kept.values():
        if kept.kind == "writer" and kept.table == table.number and kept.value.id == arguments["id"]:
            kept.table = 0  # It belongs to no table any more.
    world.kept[arguments["as"]] = Kept(
        "writer", table.number, table.name, writer, view=ModelView(table.columns, {}, table.key)
    )
    world.record("open_writer", table)


def _draw_write(kind: str, world: CheckerWorld, random: Random) -> Arguments | None:
    name = kept_of(kind, world, random)
    if name is None:
        return None
    kept = world.kept[name]
    assert kept.view is not None
    keys = keys_of(random)
    if kept.name == LOG:
        keys = [random.getrandbits(48) for _ in keys]
    return {"kept": name, "rows": [_row(key, kept.view, random) for key in keys]}


def _row(key: int, view: ModelView, random: Random) -> dict[str, Any]:
    values = {column.name: value_of(column.kind, random) for column in view.columns}
    return {**key_values(view.key, key), **values}


@define("write_through_kept_table", 2, lambda world, random: _draw_write("table", world, random))
def _write_through_kept_table(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    table = None if kept is None else world.tables.get(kept.name)
    # Another table of the name takes its rows by name, if they fit: that is another promise.
    if kept is not None and table is not None and table.number == kept.table:
        _write(world, kept, arguments["rows"], partial(write_rows, kept.value), "write_through_kept_table")


@define("write_through_writer", 2.5, lambda world, random: _draw_write("writer", world, random))
def _write_through_writer(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    if kept is None:
        return

    def write(rows: list[dict[str, Any]]) -> None:
        (kept.value.append if kept.name == LOG else kept.value.upsert)(rows)
        kept.value.flush()

    _write(world, kept, arguments["rows"], write, "write_through_writer")


def _write(
    world: CheckerWorld,
    kept: Kept,
    rows: list[dict[str, Any]],
    write: Callable[[list[dict[str, Any]]], object],
    name: str,
) -> None:
    table = world.tables.get(kept.name)
    assert kept.view is not None
    columns = kept.view.columns
    if any(row.keys() != {KEY, *kept.view.key, *(column.name for column in columns)} for row in rows):
        return
    is_own = table is not None and table.number == kept.table
    try:
        write(rows)
    except (TableNotFound, WriterFenced):
        if is_own:
            raise
        return
    assert is_own, f"{kept.name} is another table, or the writer is fenced, and its rows are taken"
    assert table is not None
    table.author = kept.value.id if kept.kind == "writer" else ""
    table.upsert([translate(table, columns, row) for row in rows])
    table.author = ""
    world.record(name, table)
    world.check(table.name)


def translate(table: CheckerTable, columns: tuple[CheckerColumn, ...], row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row that was written with an earlier definition as a row of the current one."""
    values = {column.number: row.get(column.name, None if table.merges_nulls else column.default) for column in columns}
    return {KEY: row[KEY], **{each.name: values[each.number] for each in table.columns if each.number in values}}
