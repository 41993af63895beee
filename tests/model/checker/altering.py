"""Operations that change the columns and indexes of a table: one change, or several at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from aio_client import agg
from tests.model.checker.definitions import FUNCTIONS
from tests.model.checker.drawing import COLUMN_NAMES, EVERY_KIND, WIDER, new_column, rows_of, table_of, value_of
from tests.model.checker.model import CheckerColumn, CheckerTable
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_definition
from tests.model.checker.world import TYPES, write_rows
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld

_Draw: TypeAlias = Callable[["CheckerWorld", CheckerTable, "Random"], Arguments | None]
_Change: TypeAlias = Callable[["CheckerWorld", CheckerTable, Arguments], dict[str, Any] | None]

_CHANGES: Final[dict[str, tuple[_Draw, _Change]]] = {}
"""The changes in the order in which one call makes them. Each changes the model, and returns arguments of the call."""


def _register(name: str, weight: float, draw: _Draw, change: _Change) -> None:
    _CHANGES[name] = draw, change

    def draw_one(world: CheckerWorld, random: Random) -> Arguments | None:
        table = table_of(world, random, EVERY_KIND)
        drawn = None if table is None else draw(world, table, random)
        return None if table is None or drawn is None else {"table": table.name, **drawn}

    @define(name, weight, draw_one)
    def run(world: CheckerWorld, arguments: Arguments) -> None:
        table = world.tables.get(arguments["table"])
        options = None if table is None else change(world, table, arguments)
        if table is None or options is None:
            return
        world.client.alter_table(table.name, **options)
        world.record(name, table)
        check_definition(world, table)
        world.check(table.name)


def _draw_column(_world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    return {"column": random.choice(table.columns).name} if table.columns else None


def _column_of(table: CheckerTable, arguments: Arguments) -> CheckerColumn | None:
    return next((column for column in table.columns if column.name == arguments["column"]), None)


def _alter(table: CheckerTable, column: CheckerColumn, **changes: Any) -> None:
    table.alter(lambda each: replace(each, **changes) if each is column else each)


def _draw_index(_world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    names = [column.name for column in table.columns]
    return {"columns": random.sample(names, random.randrange(1, len(names) + 1))} if names else None


def _index_of(table: CheckerTable, arguments: Arguments) -> tuple[int, ...] | None:
    numbers = {column.name: column.number for column in table.columns}
    if not numbers.keys() >= {*arguments["columns"]} or not table.has_key:
        return None
    return tuple(numbers[name] for name in arguments["columns"])


def _draw_dropped_index(_world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    names = {column.number: column.name for column in table.columns}
    return {"columns": [names[each] for each in random.choice(sorted(table.indexes))]} if table.indexes else None


def _drop_index(_world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    if (index := _index_of(table, arguments)) not in table.indexes:
        return None
    table.indexes.remove(index)
    return {"drop_indexes": [arguments["columns"]]}


def _fixed(table: CheckerTable) -> set[int | None]:
    """Returns the columns that have an index or a function."""
    return {*table.functions, *(number for index in table.indexes for number in index)}


def _drop_column(_world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    dropped = _column_of(table, arguments)
    if dropped is None or dropped.number in _fixed(table) | {table.order}:
        return None
    table.alter(lambda column: None if column is dropped else column)
    return {"drop_columns": [dropped.name]}


def _draw_wider(_world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    narrow = [column for column in table.columns if column.kind in WIDER]
    if not narrow:
        return None
    column = random.choice(narrow)
    return {"column": column.name, "kind": random.choice(WIDER[column.kind])}


def _widen_column(_world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    column, kind = _column_of(table, arguments), arguments["kind"]
    if column is None or kind not in WIDER.get(column.kind, ()) or column.number in _fixed(table):
        return None
    _alter(table, column, kind=kind)
    return {"column_types": {column.name: TYPES[kind]}}


def _draw_rename(_world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    columns = [column.name for column in table.columns]
    if len(columns) > 1 and random.random() < 0.5:
        one, other = random.sample(columns, 2)
        return {"names": {one: other, other: one}}
    free = [name for name in (*COLUMN_NAMES, "v", "w") if name not in columns]
    return {"names": {random.choice(columns): random.choice(free)}} if free and columns else None


def _rename_columns(_world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    names, columns = arguments["names"], {column.name for column in table.columns}
    if not names.keys() <= columns or {*names.values()} & (columns - names.keys()):
        return None
    table.alter(lambda column: replace(column, name=names.get(column.name, column.name)))
    return {"rename_columns": names}


def _draw_add(world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    column = new_column(world, random, [each.name for each in table.columns])
    if column is None:
        return None
    function = random.choice([*FUNCTIONS[column.kind], None]) if table.engine == "aggregate" else None
    default = value_of(column.kind, random) if random.random() < 0.5 and function is None else None
    return {"column": column.name, "kind": column.kind, "function": function, "default": default}


def _add_column(world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    name, kind, default = arguments["column"], arguments["kind"], arguments.get("default")
    if _column_of(table, arguments) is not None or (table.engine == "sum" and (kind != "int" or default is not None)):
        return None
    function: str = "sum" if table.engine == "sum" else arguments.get("function") or ""
    options: dict[str, Any] = {"add_columns": pa.schema([pa.field(name, TYPES[kind])])}
    write_default = None if table.merges_nulls else default
    column = CheckerColumn(world.next_number(), name, kind, default, write_default)
    table.alter(lambda each: each, [column])
    if function and table.engine in ("sum", "aggregate"):
        table.functions[column.number] = function
        options["add_aggregators"] = {name: getattr(agg, function)()}
    if default is not None:
        options["column_defaults"] = {name: default}
    return options


def _draw_default(_world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    if not table.columns:
        return None
    column = random.choice(table.columns)
    return {"column": column.name, "default": value_of(column.kind, random)}


def _set_default(_world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    column, default = _column_of(table, arguments), arguments["default"]
    if column is None or table.merges_nulls or not fits(table, [{"k": 0, column.name: default}]):
        return None
    _alter(table, column, default=default)
    return {"column_defaults": {column.name: default}}


def _draw_comment(world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    drawn = _draw_column(world, table, random)
    return drawn and {**drawn, "comment": random.choice(["", "what it means", f"\U0001f600 {world.next_number()}"])}


def _set_comment(_world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    column = _column_of(table, arguments)
    if column is None:
        return None
    _alter(table, column, comment=arguments["comment"])
    return {"column_comments": {arguments["column"]: arguments["comment"]}}


def _draw_order(_world: CheckerWorld, table: CheckerTable, random: Random) -> Arguments | None:
    return {"order": random.sample([column.name for column in table.columns], len(table.columns))}


def _reorder_columns(_world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    by_name = {column.name: column for column in table.columns}
    if sorted(by_name) != sorted(arguments["order"]):
        return None
    table.columns = tuple(by_name[name] for name in arguments["order"])
    return {"column_order": [*table.key, *arguments["order"]]}


def _add_index(_world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any] | None:
    index = _index_of(table, arguments)
    if index is None or index in table.indexes:
        return None
    table.indexes.add(index)
    return {"add_indexes": [arguments["columns"]]}


_register("drop_index", 0.3, _draw_dropped_index, _drop_index)
_register("drop_column", 1, _draw_column, _drop_column)
_register("widen_column", 1, _draw_wider, _widen_column)
_register("rename_columns", 1.5, _draw_rename, _rename_columns)
_register("add_column", 1.5, _draw_add, _add_column)
_register("set_default", 1, _draw_default, _set_default)
_register("set_comment", 0.3, _draw_comment, _set_comment)
_register("reorder_columns", 0.5, _draw_order, _reorder_columns)
_register("add_index", 1.2, _draw_index, _add_index)


def _draw_together(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    if table is None:
        return None
    drawn = {name: draw(world, table, random) for name, (draw, _) in _CHANGES.items() if random.random() < 0.4}
    changes = {name: each for name, each in drawn.items() if each is not None}
    is_written = not _depends_on_order(table, changes) and random.random() < 0.7
    return {"table": table.name, "changes": changes, "rows": rows_of(table, random) if is_written else []}


def _depends_on_order(table: CheckerTable, changes: Arguments) -> bool:
    """Returns whether it matters for the changes if rows are written before a table is altered, or after."""
    # Defaults of added columns are merged with. Rows that differ in a dropped column alone are equal afterwards.
    return table.merges_nulls or ("drop_column" in changes and table.options.get("row_deduplicate", True))


@define("alter_together", 1.5, _draw_together)
def _alter_together(world: CheckerWorld, arguments: Arguments) -> None:
    """Makes several changes, while rows may be written: all of them take effect, or none."""
    table, rows = world.tables.get(arguments["table"]), arguments["rows"]
    if (
        table is None
        or not fits(table, rows, complete=True)
        or (rows and _depends_on_order(table, arguments["changes"]))
    ):
        return
    opened, before = world.table(table.name), deepcopy(table)
    table.upsert(rows)
    options = _plan(world, table, arguments)
    if not options:
        world.tables[table.name] = before
        return
    failures = list[BaseException]()

    def write() -> None:
        try:
            write_rows(opened, rows)
        except BaseException as error:  # raised below, in the thread of the checker
            failures.append(error)

    thread = threading.Thread(target=write if rows else lambda: None)
    thread.start()
    try:
        world.client.alter_table(table.name, **options)
    finally:
        thread.join()
    if failures:
        raise failures[0]
    world.record("alter_together", table)
    check_definition(world, table)
    world.check(table.name)


def _plan(world: CheckerWorld, table: CheckerTable, arguments: Arguments) -> dict[str, Any]:
    """Makes the changes in the model that are possible, and returns the arguments of the call."""
    options: dict[str, Any] = {}
    for name, (_, change) in _CHANGES.items():
        if name in arguments["changes"]:
            made = change(world, table, arguments["changes"][name]) or {}
            options |= {key: {**options[key], **each} if key in options else each for key, each in made.items()}
    return options
