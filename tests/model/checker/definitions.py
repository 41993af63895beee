"""Operations that create, change and drop tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aio_client import agg
from tests.model.checker.drawing import COLUMN_NAMES, KINDS, NAMES, new_column, table_of
from tests.model.checker.model import KEY, CheckerColumn, CheckerTable
from tests.model.checker.operation import Arguments, define
from tests.model.checker.world import TYPES

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_create(world: CheckerWorld, random: Random) -> Arguments | None:
    free = [name for name in NAMES if name not in world.tables]
    if not free:
        return None
    engine = random.choice(["last_row", "last_row", "sum", "first_row"])
    kinds = ("int",) if engine == "sum" else KINDS
    columns = {name: random.choice(kinds) for name in COLUMN_NAMES[: random.randrange(1, 4)]}
    buckets = random.choice([1, 2, 4])
    tablets = 2 if buckets > 1 and random.random() < 0.4 else 1
    name = random.choice(free)
    return {"table": name, "columns": columns, "engine": engine, "buckets": buckets, "tablets": tablets}


@define("create", 2, _draw_create)
def _create(world: CheckerWorld, arguments: Arguments) -> None:
    name = arguments["table"]
    if name in world.tables:
        return
    columns = tuple(CheckerColumn(world.next_number(), each, kind) for each, kind in arguments["columns"].items())
    engine = arguments["engine"]
    options = {each: arguments[each] for each in ("buckets", "tablets")}
    merging: dict[str, Any] = {"merge_engine": engine}
    if engine == "sum":
        merging = {"merge_engine": "aggregate", "aggregators": {column.name: agg.sum() for column in columns}}
    world.client.create_table(name, world.schema(columns), primary_key=[KEY], **options, **merging)
    table = CheckerTable(name, world.next_number(), columns, engine, options)
    world.tables[name] = table
    world.record("create", table)
    world.check(name)


def _draw_table(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    return None if table is None else {"table": table.name}


@define("drop", 0.7, _draw_table)
def _drop(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.pop(arguments["table"], None)
    if table is None:
        return
    world.client.drop_table(table.name)
    world.record("drop", table)


def _draw_add(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    column = None if table is None else new_column(world, random, [each.name for each in table.columns])
    return (
        None if table is None or column is None else {"table": table.name, "column": column.name, "kind": column.kind}
    )


@define("add_column", 1.5, _draw_add)
def _add_column(world: CheckerWorld, arguments: Arguments) -> None:
    table, name, kind = world.tables.get(arguments["table"]), arguments["column"], arguments["kind"]
    if table is None or name in {column.name for column in table.columns} or (table.engine == "sum" and kind != "int"):
        return
    aggregators = {name: agg.sum()} if table.engine == "sum" else None
    added = pa.schema([pa.field(name, TYPES[kind])])
    world.client.alter_table(table.name, add_columns=added, add_aggregators=aggregators)
    table.alter(lambda column: column, [CheckerColumn(world.next_number(), name, kind)])
    world.record("add_column", table)
    world.check(table.name)


def _draw_column(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    if table is None or not table.columns:
        return None
    return {"table": table.name, "column": random.choice(table.columns).name}


@define("drop_column", 1, _draw_column)
def _drop_column(world: CheckerWorld, arguments: Arguments) -> None:
    table, name = world.tables.get(arguments["table"]), arguments["column"]
    dropped = next((column for column in table.columns if column.name == name), None) if table else None
    if table is None or dropped is None or dropped.number in table.indexes or table.engine == "sum":
        return
    world.client.alter_table(table.name, drop_columns=[name])
    table.alter(lambda column: None if column is dropped else column)
    world.record("drop_column", table)
    world.check(table.name)


def _draw_rename(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    if table is None or not table.columns:
        return None
    columns = [column.name for column in table.columns]
    if len(columns) > 1 and random.random() < 0.5:
        one, other = random.sample(columns, 2)
        return {"table": table.name, "names": {one: other, other: one}}
    free = [name for name in (*COLUMN_NAMES, "v", "w") if name not in columns]
    return {"table": table.name, "names": {random.choice(columns): random.choice(free)}} if free else None


@define("rename_columns", 1.5, _draw_rename)
def _rename_columns(world: CheckerWorld, arguments: Arguments) -> None:
    table, names = world.tables.get(arguments["table"]), arguments["names"]
    if table is None:
        return
    columns = {column.name for column in table.columns}
    if not names.keys() <= columns or {*names.values()} & (columns - names.keys()):
        return
    indexed = {column.name for column in table.columns if column.number in table.indexes}
    if indexed & names.keys():
        return
    world.client.alter_table(table.name, rename_columns=names)
    table.alter(lambda column: replace(column, name=names.get(column.name, column.name)))
    world.record("rename_columns", table)
    world.check(table.name)


@define("add_index", 1, _draw_column)
def _add_index(world: CheckerWorld, arguments: Arguments) -> None:
    table, name = world.tables.get(arguments["table"]), arguments["column"]
    column = next((column for column in table.columns if column.name == name), None) if table else None
    if table is None or column is None or column.number in table.indexes:
        return
    world.client.alter_table(table.name, add_indexes=[name])
    table.indexes.add(column.number)
    world.record("add_index", table)
    world.check(table.name)


@define("drop_index", 0.7, _draw_column)
def _drop_index(world: CheckerWorld, arguments: Arguments) -> None:
    table, name = world.tables.get(arguments["table"]), arguments["column"]
    column = next((column for column in table.columns if column.name == name), None) if table else None
    if table is None or column is None or column.number not in table.indexes:
        return
    world.client.alter_table(table.name, drop_indexes=[name])
    table.indexes.discard(column.number)
    world.record("drop_index", table)
    world.check(table.name)
