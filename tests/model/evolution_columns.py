"""The columns of tables of every merge engine, and random changes of them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client import agg
from scankv.model.types.types import is_key_type

if TYPE_CHECKING:
    from random import Random

SCHEMA: Final = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("v", pa.int32()),
        ("a", pa.string()),
        ("b", pa.int16()),
        ("c", pa.float32()),
        ("d", pa.date32()),
        ("e", pa.decimal128(6, 2)),
    ]
)
_NAMES: Final = "abcdefghij"
_WIDER: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.uint8(): (pa.uint16(), pa.int16(), pa.uint32(), pa.int32(), pa.uint64(), pa.int64()),
    pa.uint16(): (pa.uint32(), pa.int32(), pa.uint64(), pa.int64()),
    pa.uint32(): (pa.uint64(), pa.int64()),
    pa.float16(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.decimal128(6, 2): (pa.decimal128(12, 2), pa.decimal128(38, 2)),
    pa.decimal128(12, 2): (pa.decimal128(38, 2),),
    pa.date32(): (pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us")),
}
_ADDED: Final = (
    pa.int8(),
    pa.uint8(),
    pa.float16(),
    pa.float32(),
    pa.string(),
    pa.date32(),
    pa.decimal128(6, 2),
    pa.int32(),
)

ENGINES: Final[dict[str, dict[str, Any]]] = {
    "last_row": {},
    "upsert_changelog": {"changelog": "upsert"},
    "based": {"columnar_base": "eager"},
    "indexed": {"indexes": ["a", "v"]},
    "sequence_column": {"sequence_column": "v"},
    "sequence_columns": {"sequence_column": ["v", "b"]},
    "first_row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": "versioned", "version_column": "v"},
    "aggregate": {"merge_engine": "aggregate", "aggregators": {"v": agg.sum()}, "delete_behavior": "allow"},
    "partial_update": {"merge_engine": "partial_update", "delete_behavior": "allow"},
    "sequence_groups": {
        "merge_engine": "partial_update",
        "sequence_groups": {"v": ["a", "b"]},
        "delete_behavior": "retract",
    },
}
"""The options of tables of every merge engine."""

MERGES_NULLS: Final = ("aggregate", "partial_update", "sequence_groups")
COMPLETE_ROWS: Final = ("first_row", "versioned")
WITHOUT_DELETES: Final = (*COMPLETE_ROWS, "sequence_groups")
RETRACTS: Final = ("aggregate", "sequence_groups")
ORDER: Final = {"versioned": (2,), "sequence_column": (2,), "sequence_columns": (2, 4)}
"""The ids of the columns that say which row is newer."""
GROUPED: Final = (3, 4)
"""The ids of the columns in the sequence group, whose order column is 2."""

Row = dict[int, Any]


@dataclass(frozen=True)
class ModelColumn:
    """A column of the model. `initial` and `default` are its defaults, and `comment` says what it means."""

    id: int
    name: str
    type: pa.DataType
    initial: Any = None
    default: Any = None
    comment: str = ""


def widened_value(value: Any, type_: pa.DataType) -> Any:
    """Returns a value as a wider type has it in Python."""
    if value is not None and pa.types.is_timestamp(type_) and type(value) is dt.date:
        return dt.datetime.combine(value, dt.time())
    return value


def random_value(random: Random, type_: pa.DataType) -> Any:
    """Returns a value of a type, or null."""
    if random.random() < 0.2:
        return None
    if pa.types.is_integer(type_):
        least = -(2 ** (type_.bit_width - 1)) if pa.types.is_signed_integer(type_) else 0
        return random.choice([least, least + 2**type_.bit_width - 1, random.randrange(100), random.randrange(5)])
    if pa.types.is_floating(type_):
        return random.randrange(100) / 4
    if pa.types.is_decimal(type_):
        return Decimal(random.randrange(1000)) / 100
    if pa.types.is_string(type_):
        return random.choice("xyz") * random.randrange(3)
    day = dt.date(2000, 1, 1) + dt.timedelta(random.randrange(1000))
    return day if pa.types.is_date32(type_) else dt.datetime.combine(day, dt.time())


def random_changes(
    random: Random, engine: str, columns: list[ModelColumn], indexes: set[int], last_id: int
) -> tuple[dict[str, Any], list[ModelColumn]]:
    """Returns arguments of `alter_table`, and the columns after it.

    Args:
        random: Chooses.
        engine: The kind of table, of `ENGINES`.
        columns: The columns before.
        indexes: The ids of the columns that have an index.
        last_id: The greatest id that a column ever had.
    """
    groups = GROUPED if engine == "sequence_groups" else ()
    fixed = {1, 2, *indexes, *ORDER.get(engine, ()), *groups}
    free = [each for each in columns if each.id not in fixed]
    arguments: dict[str, Any] = {}
    dropped = {each.id for each in free if random.random() < 0.12}
    if dropped:
        arguments["drop_columns"] = [each.name for each in columns if each.id in dropped]
        columns = [each for each in columns if each.id not in dropped]
    renamed = [each for each in columns if each.id > 1 and random.random() < 0.25]
    names = [name for name in _NAMES if name not in {each.name for each in columns} - {e.name for e in renamed}]
    new_names = dict(zip([each.id for each in renamed], random.sample(names, len(renamed)), strict=True))
    if renamed:
        arguments["rename_columns"] = {each.name: new_names[each.id] for each in renamed}
    keeps_type = {1, *indexes} | ({2} if engine == "aggregate" else set())
    types = {
        each.id: random.choice(_WIDER[each.type])
        for each in columns
        if each.id not in keeps_type and each.type in _WIDER and random.random() < 0.15
    }
    if types:
        arguments["column_types"] = {each.name: types[each.id] for each in columns if each.id in types}
    columns = [
        replace(
            each,
            name=new_names.get(each.id, each.name),
            type=types.get(each.id, each.type),
            initial=widened_value(each.initial, types.get(each.id, each.type)),
            default=widened_value(each.default, types.get(each.id, each.type)),
        )
        for each in columns
    ]
    defaults: dict[str, Any] = {}
    merges = engine in MERGES_NULLS
    unused = [name for name in _NAMES if name not in {each.name for each in columns}]
    if unused and random.random() < 0.4:
        type_, name = random.choice(_ADDED), random.choice(unused)
        default = random_value(random, type_) if random.random() < 0.6 else None
        if default is not None:
            defaults[name] = default
        columns.append(ModelColumn(last_id + 1, name, type_, default, None if merges else default))
        arguments["add_columns"] = pa.schema([(name, type_)])
    if not merges and random.random() < 0.3:
        place = random.randrange(1, len(columns))
        each = columns[place]
        if each.name not in defaults and each.id > 2:
            default = random_value(random, each.type)
            defaults[each.name] = default
            columns[place] = replace(each, default=default)
            if each.id > last_id:
                columns[place] = replace(columns[place], initial=default)
    if defaults:
        arguments["column_defaults"] = defaults
    if random.random() < 0.15:
        place = random.randrange(len(columns))
        comment = random.choice(["", "what it means", "\u00e9 \U0001f600"])
        arguments["column_comments"] = {columns[place].name: comment}
        columns[place] = replace(columns[place], comment=comment)
    if random.random() < 0.2:
        random.shuffle(columns)
        arguments["column_order"] = [each.name for each in columns]
    return arguments, columns


def change_indexes(
    random: Random, arguments: dict[str, Any], before: list[ModelColumn], columns: list[ModelColumn], indexes: set[int]
) -> set[int]:
    """Adds a random index to the arguments of `alter_table`, or drops one. Returns the indexes after it.

    Indexes are dropped before columns change, and added after that.
    """
    if random.random() < 0.6:
        return indexes
    chosen = random.choice(columns[1:])
    if chosen.id in indexes:
        arguments["drop_indexes"] = [each.name for each in before if each.id == chosen.id]
    elif chosen.id != 1 and is_key_type(chosen.type):
        arguments["add_indexes"] = [chosen.name]
    else:
        return indexes
    return indexes ^ {chosen.id}
