"""Queries in plain Python: the rows that match a predicate, and the first rows in the order of a column."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.types as pat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

Row: TypeAlias = tuple[Any, ...]
"""The values of a row in column order, as `exact_rows` returns them."""

Truth: TypeAlias = "Callable[[Mapping[str, Any]], bool | None]"
"""Evaluates a predicate on the values of one row, by column name, as `plain` returns them."""


class Answers:
    """The rows of a table at one instant, and the expected results of queries.

    Attributes:
        schema: The columns.
        key: The key columns in key order.
        rows: All rows by ascending key, as `exact_rows` returns them.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str], rows: Iterable[Row]) -> None:
        self.schema = schema
        self.key = tuple(key)
        self._places = {name: place for place, name in enumerate(schema.names)}
        self._key_columns = [(self._places[name], schema.field(name).type) for name in key]
        self.rows = sorted(rows, key=self.order_of_key)
        types = [field.type for field in schema]
        self._plain = [dict(zip(schema.names, map(plain, types, row), strict=True)) for row in self.rows]

    def order_of_key(self, row: Row) -> tuple[Any, ...]:
        """Returns a sort key by which rows compare as their keys do."""
        return tuple(order_of(plain(type_, row[place])) for place, type_ in self._key_columns)

    def where(self, truth: Truth | None) -> list[Row]:
        """Returns the rows that match a predicate, by ascending key."""
        if truth is None:
            return list(self.rows)
        return [row for row, values in zip(self.rows, self._plain, strict=True) if truth(values) is True]

    def first(self, n: int, by: str, truth: Truth | None, *, descending: bool, with_ties: bool = False) -> list[Row]:
        """Returns the first rows in the order of a column, optionally with ties: nulls last, equal values by key."""
        place, type_ = self._places[by], self.schema.field(by).type
        found = self.where(truth)
        valued = [row for row in found if row[place] is not None]
        # Python's sort is stable in both directions.
        valued.sort(key=lambda row: order_of(plain(type_, row[place])), reverse=descending)
        ordered = valued + [row for row in found if row[place] is None]
        end = min(n, len(ordered))
        last = ordered[end - 1][place] if end else None
        while with_ties and 0 < end < len(ordered) and _same(type_, ordered[end][place], last):
            end += 1
        return ordered[:end]

    def projected(self, rows: Iterable[Row], columns: Sequence[str] | None) -> list[Row]:
        """Returns rows with only some columns, in the given order. None: all columns."""
        if columns is None:
            return list(rows)
        return [tuple(row[self._places[name]] for name in columns) for row in rows]


def plain(type_: pa.DataType, exact: Any) -> Any:
    """Converts a value of `exact_rows` such that Python compares it by SQL and IEEE 754 rules, and text by bytes."""
    if exact is None:
        return None
    if pat.is_floating(type_):
        bits, number = {16: ("<H", "<e"), 32: ("<i", "<f"), 64: ("<q", "<d")}[type_.bit_width]
        (value,) = struct.unpack(number, struct.pack(bits, exact))
        return value
    return exact.encode() if pat.is_string(type_) else exact


def order_of(value: Any) -> Any:
    """Returns a sort key for `plain` values other than null: NaN equals NaN and is above infinity."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value


def _same(type_: pa.DataType, one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(order_of(plain(type_, one)) == order_of(plain(type_, other)))
