"""Compares every way into a table with every way out of it, by values that no way may change.

Each way in writes the same rows into tables of its own, and each way out reads them all. So every pair is compared. A
way may refuse a column or a value if its table of refusals says so, and then it must refuse all of them, by name.
"""

from __future__ import annotations

import itertools
import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from tests.model.exact_values import (
    key_types,
    key_values_of,
    nested_types,
    same,
    scalar_types,
    type_traits,
    value_traits,
    values_of,
)
from tests.model.ways_out import Wanted
from tests.support.examples import FACTOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

    from tests.model.exact_values import Plain
    from tests.model.ways_in import Row, Surroundings, WayIn
    from tests.model.ways_out import WayOut

_ID: Final = pa.field("id", pa.int32(), nullable=False)
_LONGEST_SHOWN: Final = 90
_MOST_VALUES: Final = 18
_numbers = itertools.count()


@dataclass(frozen=True)
class TypesLayout:
    """The columns of a table, and its rows.

    Attributes:
        name: Its name.
        types: The types of the columns besides `id`.
        is_key: Whether the columns are in the key.
    """

    name: str
    types: tuple[pa.DataType, ...]
    is_key: bool = False

    @cached_property
    def values(self) -> list[tuple[pa.Field, list[Plain]]]:
        """Returns the columns besides `id`, each with its values. A type with many values has several columns."""
        pieces = [(type_, piece) for type_ in self.types for piece in self._pieces(type_)]
        return [
            (pa.field(f"c{index}", type_, nullable=not self.is_key), piece)
            for index, (type_, piece) in enumerate(pieces)
        ]

    def _pieces(self, type_: pa.DataType) -> Iterator[list[Plain]]:
        values = key_values_of(type_) if self.is_key else [None, *values_of(type_)]
        for start in range(0, len(values), _MOST_VALUES):
            yield values[start : start + _MOST_VALUES]

    @cached_property
    def columns(self) -> list[pa.Field]:
        """Returns the columns besides `id`."""
        return [field for field, _ in self.values]

    @cached_property
    def rows(self) -> list[Row]:
        """Returns all rows. All values of a row have the same traits, so that a way refuses all of them or none."""
        by_traits: dict[frozenset[str], dict[str, list[Plain]]] = {}
        for field, values in self.values:
            for value in values:
                traits = frozenset(value_traits(value, field.type))
                by_traits.setdefault(traits, {}).setdefault(field.name, []).append(value)
        plain = by_traits[frozenset()]
        at_rest = {f.name: plain[f.name][0] if self.is_key else None for f in self.columns}
        rows = [
            at_rest | {name: values[row] for name, values in columns.items() if row < len(values)}
            for columns in by_traits.values()
            for row in range(max(map(len, columns.values())))
        ]
        return [{"id": number} | row for number, row in enumerate(rows)]

    def schema(self, refused: Set[str]) -> pa.Schema:
        """Returns `id` and the columns whose types have no trait that is refused."""
        return pa.schema([_ID, *(field for field in self.columns if not refused & type_traits(field.type))])

    def rows_without(self, schema: pa.Schema, refused: Set[str]) -> list[Row]:
        """Returns the rows in the columns of a schema, without rows that have a value with a trait that is refused."""
        rows = [{name: row[name] for name in schema.names} for row in self.rows]
        return [row for row in rows if not any(refused & value_traits(row[f.name], f.type) for f in schema)]


def layouts() -> list[TypesLayout]:
    """Returns the tables that are tried: of all types, of types that the client encodes by itself, and of keys."""
    encoded = [t for t in scalar_types() if not (pat.is_time(t) or (pat.is_timestamp(t) and t.unit != "us"))]
    return [
        TypesLayout("types", (*scalar_types(), *nested_types(every=FACTOR > 1))),
        TypesLayout("encoded", tuple(t for t in encoded if "negative scale" not in type_traits(t))),
        TypesLayout("keys", tuple(key_types()), is_key=True),
    ]


@dataclass(frozen=True)
class Written:
    """A table with the rows that should be in it."""

    table: str
    layout: TypesLayout
    schema: pa.Schema
    rows: Sequence[Row]

    def wanted(self, columns: Sequence[str] | None = None, ids: Sequence[int] | None = None) -> Wanted:
        """Returns what a way out reads: some columns of some rows, by default all."""
        names = self.schema.names if columns is None else ["id", *columns]
        key = self.schema if self.layout.is_key else pa.schema([_ID])
        return Wanted(
            self.table,
            pa.schema([self.schema.field(name) for name in names]),
            [row["id"] for row in self.rows] if ids is None else ids,
            {row["id"]: row for row in self.rows},
            key,
        )


def create(world: Surroundings, layout: TypesLayout, schema: pa.Schema) -> str:
    """Creates a table of a layout, and returns its name."""
    name = f"trips.t{next(_numbers)}"
    world.client.create_table(name, schema, primary_key=schema.names if layout.is_key else ["id"], buckets=1)
    return name


def write(world: Surroundings, way: WayIn, layout: TypesLayout) -> tuple[Written, list[str]]:
    """Writes all rows that a way takes. Returns the table and what went wrong."""
    schema = layout.schema({*way.refused_types, *way.lacks})
    rows = layout.rows_without(schema, {*way.refused_values, *way.lacks})
    table = create(world, layout, schema)
    if layout.is_key:
        rows = [row for row in rows if None not in (way.stored(row[f.name], f.type) for f in schema)]
    message = way.attempt(world, table, schema, rows)
    failures = []
    if message is not None:
        failures = [f"{way.name}: {message}", *_refusals_by_column(world, way, layout, schema, rows)]
        rows = []
    stored = [{f.name: stored_value(way, row[f.name], f.type, layout) for f in schema} for row in rows]
    return Written(table, layout, schema, stored), failures


def stored_value(way: WayIn, value: Plain, type_: pa.DataType, layout: TypesLayout) -> Plain:
    """Returns what the table has of a value: keys have one zero."""
    stored = way.stored(value, type_)
    return 0.0 if layout.is_key and isinstance(stored, float) and stored == 0 else stored


def _refusals_by_column(
    world: Surroundings, way: WayIn, layout: TypesLayout, schema: pa.Schema, rows: Sequence[Row]
) -> Iterator[str]:
    for field in list(schema)[1:]:
        alone = pa.schema([_ID, field])
        distinct = [{name: row[name] for name in alone.names} for row in rows]
        message = way.attempt(world, create(world, layout, alone), alone, distinct)
        if message is not None:
            yield f"{way.name}: {field.type}: {message}"


def read_all(world: Surroundings, written: Written, way_in: str, way: WayOut) -> list[str]:
    """Reads all that a way gives of a table. Returns what differs."""
    refused = [f.name for f in written.schema if way.refused_types.keys() & type_traits(f.type)]
    names = [name for name in written.schema.names[1:] if name not in refused]
    rows = written.layout.rows_without(written.schema, way.refused_values.keys())
    # Of the many columns, a slow way reads some of the rows, others of each way in.
    step = way.step if written.layout.name == "types" else 1
    ids = {row["id"] for row in rows[zlib.crc32(way_in.encode()) % step :: step]}
    expected = {
        row["id"]: {f.name: way.returned(row[f.name], f.type) for f in written.schema}
        for row in written.rows
        if row["id"] in ids
    }
    pair = f"{way_in} > {way.name}"
    found = way.attempt(world, written.wanted(names, list(expected)))
    if not isinstance(found, str):
        return [f"{pair}: {text}" for text in _differences(found, expected, written.wanted(names).schema)]
    failures = [f"{pair}: {found}"]
    for name in names if way.is_examined else []:
        wanted = written.wanted([name], list(expected))
        found = way.attempt(world, wanted)
        if isinstance(found, str):
            failures.append(f"{pair}: {wanted.schema.field(name).type}: {found}")
        else:
            failures += [f"{pair}: {text}" for text in _differences(found, expected, wanted.schema)]
    return failures


def _differences(found: Sequence[Row], expected: Mapping[int, Row], schema: pa.Schema) -> Iterator[str]:
    by_id = {row["id"]: row for row in found}
    if by_id.keys() != expected.keys() or len(found) != len(expected):
        yield f"read the rows {sorted(by_id)} instead of {sorted(expected)}"
    for field in schema:
        for id_, row in expected.items():
            value = by_id[id_][field.name] if id_ in by_id else row[field.name]
            if not same(value, row[field.name]):
                yield f"{field.type}: {_shown(row[field.name])} became {_shown(value)}"
                break


def _shown(value: Plain) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def check_refusals_in(world: Surroundings, way: WayIn, layout: TypesLayout, *, every: bool) -> list[str]:
    """Writes, each alone, columns and values that a way refuses. Returns those that it takes, or does not name."""
    failures = []
    for field, row, reason in _refused(layout, way.refused_types, way.refused_values, every=every):
        alone = pa.schema([_ID, field])
        table = create(world, layout, alone)
        message = way.attempt(world, table, alone, [{name: row[name] for name in alone.names}])
        failures += _bad_refusal(way.name, field, row[field.name], message, reason)
    return failures


def check_refusals_out(world: Surroundings, written: Written, way: WayOut, arrow: WayIn, *, every: bool) -> list[str]:
    """Reads, each alone, the columns and values that a way refuses. Returns those that it gives, or does not name."""
    failures = []
    for field, row, reason in _refused(written.layout, way.refused_types, way.refused_values, every=every):
        source = written
        if way.needs_all_columns:
            alone = TypesLayout("alone", (field.type,))
            only = {"id": row["id"], "c0": row[field.name]}
            source = Written(create(world, alone, alone.schema(set())), alone, alone.schema(set()), [only])
            arrow.write(world, source.table, source.schema, [only])
            field = source.schema.field("c0")
            row = only
        found = way.attempt(world, source.wanted([field.name], [row["id"]]))
        message = found if isinstance(found, str) else None
        failures += _bad_refusal(way.name, field, row[field.name], message, reason)
    return failures


def _refused(
    layout: TypesLayout, types: Mapping[str, str], values: Mapping[str, str], *, every: bool
) -> Iterator[tuple[pa.Field, Row, str]]:
    """Yields columns with a row and the pattern of the reason for which it is refused, once for each set of traits."""
    seen = set()
    for field in layout.columns:
        by_type = type_traits(field.type) & types.keys()
        for row in layout.rows:
            traits = by_type or value_traits(row[field.name], field.type) & values.keys()
            kind = (frozenset(traits), field.type if every else pat.is_nested(field.type))
            if traits and kind not in seen and (by_type or row[field.name] is not None):
                seen.add(kind)
                yield field, row, "|".join((types if by_type else values)[trait] for trait in sorted(traits))


def _bad_refusal(way: str, field: pa.Field, value: Plain, message: str | None, reason: str) -> list[str]:
    shown = f"{way}: {field.type}: {_shown(value)}"
    if message is None:
        return [f"{shown} is not refused"]
    if f'"{field.name}"' not in message or not re.search(reason, message):
        return [f"{shown} is refused without the column or the reason: {message}"]
    return []
