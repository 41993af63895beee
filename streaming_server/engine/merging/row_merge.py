"""The merge of few rows into one current row, as Python values: the counterpart of `MergeEngine` for single keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow.types as pat

from scankv.model.rows.row_values import stored_form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.rows.single_rows import Values

RowMerge: TypeAlias = "Callable[[Values | None, Sequence[Values]], Values | None]"
"""Merges the rows that are written to one key, in the order of arrival, into its current row. None: it has no row.

Written rows have no hidden columns; the current row and the result have them. Returns None if the rows have no effect.
Raises NotExactError where columns have to decide, for instance because the result does not fit."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a row as Python values.

    Attributes:
        places: The place of each column in a row, hidden columns included.
        types: The type of each column.
        keys: The names of the key columns.
    """

    places: Mapping[str, int]
    types: Mapping[str, pa.DataType]
    keys: frozenset[str]

    @classmethod
    def of(cls, definition: TableDefinition) -> RowColumns:
        columns = (*definition.schema.columns, *definition.hidden_columns(definition.schema))
        return cls(
            {column.name: place for place, column in enumerate(columns)},
            {column.name: column.type for column in columns},
            frozenset(definition.primary_key),
        )

    def start(self, current: Values | None, rows: Sequence[Values]) -> list[Any]:
        """Returns the current row, or else one that has only the key of the written rows."""
        if current is not None:
            return list(current)
        row: list[Any] = [None] * len(self.places)
        for name in self.keys:
            row[self.places[name]] = rows[0][self.places[name]]
        return row

    def age(self, names: Sequence[str]) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
        """Returns a function that orders rows by some columns, as `newness` does. None: only columns order them."""
        if any(pat.is_floating(self.types[name]) for name in names):
            return None
        forms = [(self.places[name], _ordered_form(self.types[name])) for name in names]

        def age(row: Sequence[Any]) -> tuple[Any, ...]:
            values = [(row[place], form) for place, form in forms]
            # Null is oldest. A tuple with no value is less than any with one.
            return tuple(() if value is None else (value if form is None else form(value),) for value, form in values)

        return age


def _ordered_form(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns a function that converts a value to one that orders as columns of the type do. None: the value does."""
    # The stored form of a decimal is a little-endian number, whose bytes do not order as the decimal does.
    return None if pat.is_decimal(type_) else stored_form(type_)
