"""Operations that create, change and drop tables."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aio_client import agg
from tests.model.checker.drawing import (
    COLUMN_NAMES,
    EVERY_KIND,
    KINDS,
    LOG,
    NAMES,
    PARTITIONED,
    UNTRACKED,
    table_of,
)
from tests.model.checker.model import KEY, PART, CheckerColumn, CheckerTable
from tests.model.checker.operation import Arguments, define

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


TTLS: Final = (5_000, 20_000)
"""Times to live. They are longer than a run takes, so that nothing expires by itself."""
TTL_CHANGES: Final = ("delete", "delete", "none")
_ENGINES: Final = ("last_row", "last_row", "sum", "first_row", "sequenced", "versioned", "partial_update", "aggregate")
_OPTIONS: Final = ("buckets", "tablets", "bucket_key", "columnar_base", "compression", "row_deduplicate", "changelog")
FUNCTIONS: Final = {
    "int": ("sum", "max", "min", "count", "first_non_null_value"),
    "text": ("max", "min", "listagg", "last_value"),
    "float": ("sum", "max", "min", "last_value"),
    "int8": ("max", "min", "first_non_null_value"),
    "int32": ("sum", "max", "last_value"),
    "float32": ("max", "min", "last_value"),
    "time": ("max", "min", "last_value", "first_non_null_value"),
}


def draw_create(names: tuple[str, ...], world: CheckerWorld, random: Random) -> Arguments | None:
    """Returns the arguments for a table with one of some names; None if all of them exist."""
    free = [name for name in names if name not in world.tables]
    if not free:
        return None
    name = random.choice(free)
    engine = "log" if name == LOG else random.choice(_ENGINES)
    kinds = ("int",) if engine == "sum" else (*KINDS, "time")
    columns = {name: random.choice(kinds) for name in COLUMN_NAMES[: random.randrange(1, 4)]}
    buckets = random.choice([1, 2, 4])
    tablets = 2 if buckets > 1 and name not in EVERY_KIND and random.random() < 0.4 else 1
    arguments = {"table": name, "columns": columns, "engine": engine, "buckets": buckets, "tablets": tablets}
    if name != LOG and random.random() < 0.3:
        times = [column for column, kind in columns.items() if kind == "time"]
        arguments["ttl"] = {
            "seconds": random.choice(TTLS),
            "column": random.choice([None, *times * 3]),
            "changes": random.choice(TTL_CHANGES),
        }
    if name != LOG:
        arguments["columnar_base"] = random.choice(["off", "eager"])
        arguments["compression"] = random.choice(["none", "lz4", "zstd"])
    if name == UNTRACKED and engine not in ("sum", "aggregate"):
        arguments["changelog"] = random.choice(["full", "full", "upsert", "none"])
    if name in (LOG, PARTITIONED):
        arguments["bucket_key"] = random.choice([[], [KEY]])
    if engine == "last_row":
        arguments["row_deduplicate"] = random.random() < 0.75
    if engine == "aggregate":
        arguments["functions"] = {name: random.choice(FUNCTIONS[kind]) for name, kind in columns.items()}
    return arguments


def _create(operation: str, world: CheckerWorld, arguments: Arguments) -> None:
    name = arguments["table"]
    if name in world.tables:
        return
    table, merging = new_table(world, arguments)
    primary_key = table.key if table.has_key else ()
    world.tables[name] = table
    world.client.create_table(
        name, world.schema(table.columns, table.key), primary_key=primary_key, **table.options, **merging
    )
    world.record(operation, table)
    world.check(name)


def new_table(world: CheckerWorld, arguments: Arguments) -> tuple[CheckerTable, dict[str, Any]]:
    """Returns the model of a table without rows, and what merges its rows, as arguments for a client."""
    name, engine = arguments["table"], arguments["engine"]
    columns = tuple(CheckerColumn(world.next_number(), each, kind) for each, kind in arguments["columns"].items())
    options: dict[str, Any] = {each: arguments[each] for each in _OPTIONS if each in arguments}
    key = (PART, KEY) if name == PARTITIONED else (KEY,)
    functions = arguments.get("functions", {})
    order = columns[0].number if engine in ("sequenced", "versioned") else None
    if name == PARTITIONED:
        options["partition_by"] = [PART]
    merging: dict[str, Any] = {"merge_engine": engine}
    if engine == "log":
        merging = {}
    elif engine == "sequenced":
        merging = {"sequence_column": columns[0].name}
    elif engine == "versioned":
        merging["version_column"] = columns[0].name
    elif engine in ("sum", "aggregate"):
        functions = functions or {column.name: "sum" for column in columns}
        aggregators = {each: getattr(agg, function)() for each, function in functions.items()}
        merging = {"merge_engine": "aggregate", "aggregators": aggregators}
    by_number = {column.number: functions[column.name] for column in columns if column.name in functions}
    table = CheckerTable(
        name, world.next_number(), columns, engine, options, key=key, functions=by_number, order=order, now=world.now()
    )
    table.changelog = arguments.get("changelog", "full")
    if ttl := arguments.get("ttl"):
        merging |= {f"ttl_{name}": value for name, value in ttl.items()}
        table.is_silent = ttl["changes"] == "none"
        table.plan_ttl(ttl["seconds"], ttl["column"])
    return table, merging


for _name, _weight, _names in (
    ("create", 2, NAMES),
    ("create_partitioned", 1, (PARTITIONED,)),
    ("create_log", 1.5, (LOG,)),
    ("create_untracked", 1, (UNTRACKED,)),
):
    define(_name, _weight, partial(draw_create, _names))(partial(_create, _name))


def _draw_table(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    return None if table is None else {"table": table.name}


@define("drop", 0.7, _draw_table)
def _drop(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.pop(arguments["table"], None)
    if table is None:
        return
    world.client.drop_table(table.name)
    world.record("drop", table)
