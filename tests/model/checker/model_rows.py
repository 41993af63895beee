"""What are the columns and rows of a model? A row has its values by the number of the column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KEY: Final = "k"
"""The name of the column of every table that tells its rows apart. It is an int64."""

PART: Final = "p"
"""The name of the column by which a table is partitioned. It follows from the key: see `key_values`."""

Values: TypeAlias = dict[int, Any]
"""The values of a row outside the key, by the number of the column. Columns that were added later are missing."""

Shown: TypeAlias = dict[str, Any]
"""A row as a reader gets it: by the names of the columns, with the key."""

Change: TypeAlias = tuple[str, Shown]
"""The symbol of a row kind, and the row."""

_PARTITIONS: Final = 3
_SPAN: Final = 1000  # more than there are keys


@dataclass(frozen=True, slots=True)
class CheckerColumn:
    """A column outside the key.

    Attributes:
        number: Stays when it is renamed; no other column ever has it.
        name: Its name.
        kind: Its type.
        initial: What rows have that were written before it was added.
        default: What complete rows get that are written without it.
        comment: What it means.
    """

    number: int
    name: str
    kind: str
    initial: Any = None
    default: Any = None
    comment: str = ""

    def of(self, values: Values) -> Any:  # of the column's type
        """Returns its value in a row."""
        return values.get(self.number, self.initial)


@dataclass(frozen=True, slots=True)
class ModelView:
    """The rows and columns of a table at one instant."""

    columns: tuple[CheckerColumn, ...]
    rows: Mapping[int, Values]
    key: tuple[str, ...] = (KEY,)
    has_key: bool = True

    def shown(self) -> dict[int, Shown]:
        """Returns the rows by key, as a reader of the view gets them."""
        return {key: show(self.columns, key, values, self.key) for key, values in self.rows.items()}

    def places(self, keys: Iterable[int]) -> dict[int, int]:
        """Returns the place of each row in the order of the key. Without a key: in the order of the appends."""
        if not self.has_key:
            return {key: place for place, key in enumerate(self.rows)}
        return {key: key % _PARTITIONS * _SPAN + key if PART in self.key else key for key in keys}

    def in_order(self) -> list[Shown]:
        """Returns the rows in this order, as a reader of the view gets them."""
        places = self.places(self.rows)
        return [row for _, row in sorted(self.shown().items(), key=lambda item: places[item[0]])]


def exact(value: Any) -> Any:  # of rows
    """Returns what differs for values that readers can tell apart, and is the same for others, in rows, too."""
    if isinstance(value, dict):
        return {key: exact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else value


def order_of(value: Any) -> tuple[bool, Any]:  # of any column
    """Returns what values are ordered by: NaN is above infinity, and -0.0 equals 0.0."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0 if is_nan else value


def show(columns: Iterable[CheckerColumn], key: int, values: Values, names: tuple[str, ...] = (KEY,)) -> Shown:
    """Returns a row as a reader gets it. The names are those of the key columns."""
    return {**key_values(names, key), **{column.name: column.of(values) for column in columns}}


def key_values(names: tuple[str, ...], key: int) -> Shown:
    """Returns the values of the key columns of a row."""
    return {PART: part_of(key), KEY: key} if PART in names else {KEY: key}


def part_of(key: int) -> str:
    """Returns the partition of a row."""
    return f"p{key % _PARTITIONS}"
