"""How are names, columns, keys and values drawn? From few, so that operations meet."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tests.model.checker.model import CheckerColumn, key_values

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld

NAMES: Final = ("checker.a", "checker.b", "checker.c")
PARTITIONED: Final = "checker.parts"
"""A table that is partitioned."""
UNTRACKED: Final = "checker.untracked"
"""A table that is also written without a change for each row."""
LOG: Final = "checker.log"
"""A table without a key."""
KEYED: Final = (PARTITIONED, UNTRACKED)
EVERY_KIND: Final = (*KEYED, LOG)
COLUMN_NAMES: Final = ("x", "y", "z")
KINDS: Final[dict[str, type]] = {
    "int": int,
    "text": str,
    "float": float,
    "int8": int,
    "int32": int,
    "float32": float,
    "time": datetime,
}
"""The kinds of columns, and what their values are in Python."""
WIDER: Final = {"int8": ("int32", "int"), "int32": ("int",), "float32": ("float",)}
"""The kinds that columns of a kind can be widened to."""
KEYS: Final = 24
_AGES: Final = (-1_000, 500, 2_500, 8_000, 30_000)
"""How old times are, about. None is close to a time to live or to the difference of two."""


def table_of(world: CheckerWorld, random: Random, more: tuple[str, ...] = ()) -> CheckerTable | None:
    """Returns one of the plain tables that exist, or of those with one of more names; None if none does."""
    names = [name for name in sorted(world.tables) if name in NAMES or name in more]
    return world.tables[random.choice(names)] if names else None


def kept_of(kind: str, world: CheckerWorld, random: Random) -> str | None:
    """Returns the name of something of a kind that is kept, mostly of a table that still exists; None if none is."""
    names = [name for name, kept in world.kept.items() if kept.kind == kind]
    numbers = {table.number for table in world.tables.values()}
    current = [name for name in names if world.kept[name].table in numbers]
    chosen = current if current and random.random() < 0.9 else names
    return random.choice(chosen) if chosen else None


def new_column(world: CheckerWorld, random: Random, taken: Iterable[str]) -> CheckerColumn | None:
    """Returns a column with a name that is free; None if none is."""
    free = [name for name in COLUMN_NAMES if name not in set(taken)]
    return CheckerColumn(world.next_number(), random.choice(free), random.choice([*KINDS])) if free else None


def value_of(kind: str, random: Random) -> Any:  # of the column's type
    """Returns a value of a column, or null."""
    if random.random() < 0.15:
        return None
    number = random.randrange(-5, 20)
    if kind == "time":
        return f"@{number - random.choice(_AGES)}"
    if KINDS[kind] is float and random.random() < 0.2:
        return random.choice([math.nan, -0.0, 0.0, math.inf, -math.inf])
    text = f"t{number + 5:02d}" + random.choice(["", "", "\0", "\0a", "\xe9"])
    return {int: number, str: text, float: number / 4}[KINDS[kind]]


def rows_of(table: CheckerTable, random: Random, names: list[str] | None = None) -> list[dict[str, Any]]:
    """Returns rows to write, with distinct keys, and all columns, perhaps without those with defaults, or some."""
    columns = [
        column
        for column in table.columns
        if (column.name in names if names is not None else column.default is None or random.random() < 0.7)
    ]
    keys = keys_of(random)
    if not table.has_key:
        keys = [random.getrandbits(48) for _ in keys]
    return [
        {**key_values(table.key, key), **{column.name: value_of(column.kind, random) for column in columns}}
        for key in keys
    ]


def keys_of(random: Random) -> list[int]:
    """Returns some distinct keys."""
    return random.sample(range(KEYS), random.choice([1, 1, 2, 5, KEYS]))
