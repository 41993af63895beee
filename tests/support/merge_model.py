"""A model of merge engines and aggregators in plain Python: dictionaries, one row at a time.

It is written from the documentation and independent of the implementation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.types as pat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

Row = dict[str, Any]
Event = tuple[str, Row]
"""The change type and the row of one change."""


class RefusedError(Exception):
    """The documentation says that the input is refused."""


class Function:
    """One function of one column.

    Args:
        name: Its name.
        type_: The type of the column.
        parameters: What it was given.
    """

    def __init__(self, name: str, type_: pa.DataType, **parameters: Any) -> None:
        self.name = name
        self.type = type_
        self.parameters = parameters

    def fold(self, before: Any, hidden: Any, value: Any, *, back: bool = False) -> tuple[Any, Any]:
        """Returns the column and its hidden state after one more input."""
        if back and self.parameters.get("ignore_retract"):
            return before, hidden
        results: tuple[Any, Any] = getattr(self, f"_{self.name}")(before, hidden, value, back)
        return results

    def alone(self, value: Any) -> Any:
        """Returns the hidden state of a value that was set directly."""
        return self.fold(None, None, value)[1]

    def older(self, before: Any, hidden: Any, value: Any) -> tuple[Any, Any]:
        """As `fold`, for an input that is older than all before."""
        match self.name:
            case "last_value":
                return before, hidden
            case "last_non_null_value":
                return (value if before is None else before), hidden
            case "first_value":
                return value, True
            case "first_non_null_value":
                return (before if value is None else value), hidden
            case "collect" | "listagg" | "merge_map":
                return self.fold(value, None, before)[0] if before is not None else self.fold(None, None, value)[
                    0
                ], None
        return self.fold(before, hidden, value)

    def _number(self, value: Any) -> Any:
        """Converts a number to the type of the column. Raises RefusedError if it does not fit."""
        if pat.is_floating(self.type):
            return self.type.to_pandas_dtype()(value)
        if pat.is_decimal(self.type):
            if abs(value) >= Decimal(10) ** (self.type.precision - self.type.scale):
                raise RefusedError
            return value
        bounds = np.iinfo(self.type.to_pandas_dtype())
        if not bounds.min <= value <= bounds.max:
            raise RefusedError
        return value

    def _sum(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        if value is None:
            return before, hidden
        value = self._number(value)
        with np.errstate(all="ignore"):
            value = -value if back else value
            return self._number(value if before is None else self._number(before) + value), hidden

    def _product(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        if value is None:
            return before, hidden
        before = 1 if before is None else before
        if back and value == 0:
            raise RefusedError
        if pat.is_floating(self.type):
            with np.errstate(all="ignore"):
                factor = self._number(1) / self._number(value) if back else self._number(value)
                return self._number(before) * factor, hidden
        if pat.is_decimal(self.type):
            exact = Fraction(before) / Fraction(value) if back else Fraction(before) * Fraction(value)
            scaled = exact * 10**self.type.scale
            digits = int(abs(scaled) + Fraction(1, 2)) * (1 if scaled >= 0 else -1)
            return self._number(Decimal(digits).scaleb(-self.type.scale)), hidden
        if back and before % value:
            raise RefusedError
        return self._number(before // value if back else before * value), hidden

    def _count(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        before = 0 if before is None else before
        return self._number(before if value is None else before - 1 if back else before + 1), hidden

    def _avg(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        total, count = hidden or (None, 0)
        if value is None:
            return before, (total, count)
        exact = float(value) if pat.is_floating(self.type) else value
        total = (-exact if back else exact) if total is None else total - exact if back else total + exact
        count += -1 if back else 1
        if not count:
            return None, (total, count)
        if pat.is_floating(self.type):
            return self._number(np.float64(total) / count), (total, count)
        scale = self.type.scale if pat.is_decimal(self.type) else 0
        mean = Fraction(total) / count * 10**scale
        rounded = Decimal(round(mean)).scaleb(-scale)
        return (rounded if scale or pat.is_decimal(self.type) else int(rounded)), (total, count)

    def _best(self, before: Any, value: Any, back: bool, *, greatest: bool) -> Any:
        if back:
            raise RefusedError
        if value is None or before is None:
            return before if value is None else value
        if value != value or before != before:
            nan, other = (value, before) if value != value else (before, value)
            return nan if greatest else other
        return max(before, value) if greatest else min(before, value)

    def _max(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        return self._best(before, value, back, greatest=True), hidden

    def _min(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        return self._best(before, value, back, greatest=False), hidden

    _bool_or, _bool_and = _max, _min

    def _last_value(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        return None if back else value, hidden

    def _last_non_null_value(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        return before if value is None else None if back else value, hidden

    def _first_value(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        if back:
            raise RefusedError
        return (before if hidden else value), True

    def _first_non_null_value(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        if back:
            raise RefusedError
        return (value if before is None else before), hidden

    def _listagg(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        if back:
            raise RefusedError
        delimiter = self.parameters.get("delimiter", ",")
        parts: list[str] = []
        for text in (before, value):
            if text is None:
                continue
            for part in text.split(delimiter) if self.parameters.get("distinct") else [text]:
                if not self.parameters.get("distinct") or part not in parts:
                    parts.append(part)
        return (None if before is None and value is None else delimiter.join(parts)), hidden

    def _collect(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        if value is None or (back and before is None):
            return before, hidden
        elements = list(before or [])
        for element in value:
            if back and element in elements:
                elements.remove(element)
            elif not back and not (self.parameters.get("distinct") and element in elements):
                elements.append(element)
        return elements, hidden

    def _merge_map(self, before: Any, hidden: Any, value: Any, back: bool) -> tuple[Any, Any]:
        if value is None or (back and before is None):
            return before, hidden
        entries = dict(before or [])
        for key, item in value:
            if back:
                entries.pop(key, None)
            else:
                entries[key] = item
        return list(entries.items()), hidden


@dataclass
class MergeModel:
    """A table.

    Attributes:
        engine: Its merge engine.
        deletes: The option that says what deletes do.
        key: The key column.
        columns: The other columns.
        order: The columns that say which row is newer.
        groups: Sequence groups: sequence columns and the others.
        functions: By column.
        rows: By key.
        hidden: The hidden state of aggregates, by key and column.
    """

    engine: str
    deletes: str
    key: str
    columns: Sequence[str]
    order: Sequence[str] = ()
    groups: Sequence[tuple[Sequence[str], Sequence[str]]] = ()
    functions: Mapping[str, Function] = field(default_factory=dict)
    rows: dict[Any, Row] = field(default_factory=dict)
    hidden: dict[Any, Row] = field(default_factory=dict)

    def write(self, events: Iterable[Event], columns: Sequence[str] | None = None, *, overwrite: bool = False) -> None:
        """Writes rows one after another. `columns` does not contain the key."""
        for kind, row in events:
            targets = [name for name in self.columns if columns is None or name in columns]
            if kind in ("+I", "+U"):
                (self._overwrite if overwrite else getattr(self, f"_{self.engine}"))(row, targets)
            elif not overwrite and (self.engine == "aggregate" or self.deletes == "retract"):
                self._take_back(row, targets)
            elif kind == "-D" and (overwrite or self.deletes == "allow"):
                if overwrite or not self.order or self._is_newer(row):
                    self.delete(row[self.key], columns)

    def delete(self, key: Any, columns: Sequence[str] | None = None) -> None:
        """Deletes a row or some of its columns."""
        row = self.rows.get(key)
        if row is None:
            return
        for name in self.columns:
            if columns is None or name in columns:
                row[name] = None
                self.hidden[key].pop(name, None)
        if columns is None or all(row[name] is None for name in self.columns):
            del self.rows[key], self.hidden[key]

    def _standing(self, row: Row) -> Row:
        key = row[self.key]
        self.hidden.setdefault(key, {})
        return self.rows.setdefault(key, {self.key: key} | dict.fromkeys(self.columns))

    def _is_newer(self, row: Row) -> bool:
        old = self.rows.get(row[self.key])
        return old is None or _sequence(row, self.order) >= _sequence(old, self.order)

    def _overwrite(self, row: Row, targets: Sequence[str]) -> None:
        self._standing(row).update({name: row[name] for name in targets})
        for name in targets:
            if name in self.functions:
                self.hidden[row[self.key]][name] = self.functions[name].alone(row[name])

    def _last_row(self, row: Row, targets: Sequence[str]) -> None:
        if not self.order or self._is_newer(row):
            self._standing(row).update({name: row[name] for name in targets})

    _versioned = _last_row

    def _first_row(self, row: Row, targets: Sequence[str]) -> None:
        if row[self.key] not in self.rows:
            self._last_row(row, targets)

    def _aggregate(self, row: Row, targets: Sequence[str], *, back: bool = False) -> None:
        standing, hidden = self._standing(row), self.hidden[row[self.key]]
        for name in targets:
            function = self.functions[name]
            standing[name], hidden[name] = function.fold(standing[name], hidden.get(name), row[name], back=back)

    def _partial_update(self, row: Row, targets: Sequence[str]) -> None:
        standing = self._standing(row)
        grouped = {name for sequence, members in self.groups for name in (*sequence, *members)}
        for name in targets:
            if name not in grouped and row[name] is not None:
                standing[name] = row[name]
        self._groups(row, targets, back=False)

    def _groups(self, row: Row, targets: Sequence[str], *, back: bool) -> None:
        standing, hidden = self.rows[row[self.key]], self.hidden[row[self.key]]
        for sequence, members in self.groups:
            if any(name not in targets for name in sequence) or all(row[name] is None for name in sequence):
                continue
            newer = _sequence(row, sequence) >= _sequence(standing, sequence)
            for name in members:
                if name not in targets:
                    continue
                function = self.functions.get(name)
                if function is None:
                    if newer:
                        standing[name] = None if back else row[name]
                elif newer or back:
                    results = function.fold(standing[name], hidden.get(name), row[name], back=back)
                    standing[name], hidden[name] = results
                else:
                    standing[name], hidden[name] = function.older(standing[name], hidden.get(name), row[name])
            if newer:
                standing.update({name: row[name] for name in sequence})

    def _take_back(self, row: Row, targets: Sequence[str]) -> None:
        if self.engine == "aggregate":
            self._aggregate(row, targets, back=True)
        elif row[self.key] in self.rows:
            self._groups(row, targets, back=True)


def _sequence(row: Row, columns: Sequence[str]) -> tuple[tuple[bool, Any], ...]:
    """Returns a sort key for sequence columns: null is least."""
    return tuple((row[name] is not None, 0 if row[name] is None else row[name]) for name in columns)
