"""Random table definitions: all consistent combinations of arguments of `create_table`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from scankv.model.tables.agg import Aggregator
from scankv.model.tables.merge_functions import FUNCTIONS
from scankv.model.types.types import is_key_type
from tests.unit.model.strategies import field_names, key_types, storable_types

if TYPE_CHECKING:
    from aio_client.sync import Client, Table

_OPTIONS: dict[str, list[Any]] = {
    "changelog": ["full", "upsert", "none"],
    "row_deduplicate": [True, False],
    "compression": ["none", "lz4", "zstd"],
    "columnar_base": ["off", "auto"],
    "log_retention_seconds": [1, 60, 7 * 86_400],
    "log_retention_bytes": [0, 2**40],
}
_DELETES = {
    "last_row": ["allow", "ignore", "disable"],
    "first_row": ["ignore", "disable"],
    "versioned": ["ignore", "disable"],
    "partial_update": ["disable", "ignore", "allow"],
    "aggregate": ["ignore", "allow", "disable"],
}


@dataclass(frozen=True)
class RandomDefinition:
    """Arguments of `create_table`."""

    schema: pa.Schema
    arguments: dict[str, Any]

    def create(self, client: Client, name: str) -> Table:
        """Creates a table of this definition."""
        return client.create_table(name, self.schema, **self.arguments)


@st.composite
def definitions(draw: st.DrawFn) -> RandomDefinition:
    """Returns definitions with any merge engine, options, indexes and column names."""
    names = draw(st.lists(field_names(), min_size=1, max_size=7, unique=True))
    types = [draw(key_types()), *(draw(storable_types()) for _ in names[1:])]
    fields = [pa.field(name, type_, draw(st.booleans())) for name, type_ in zip(names, types, strict=True)]
    ordered = [field.name for field in fields if is_key_type(field.type)]
    key = [names[0], *draw(_some_of(ordered[1:], most=1))]
    others = [field for field in fields if field.name not in key]
    engine = draw(st.sampled_from(list(_DELETES)))
    options: dict[str, Any] = {
        name: draw(st.sampled_from(values)) for name, values in _OPTIONS.items() if draw(st.booleans())
    }
    if draw(st.booleans()):
        options["delete_behavior"] = draw(st.sampled_from(_DELETES[engine]))
    arguments = draw(_merging(engine, others, options))
    if engine == "aggregate":
        options.pop("changelog", None)
    arguments |= {"primary_key": key, "buckets": draw(st.sampled_from([None, 1, 2, 5]))}
    if draw(st.booleans()):
        arguments["bucket_key"] = draw(st.lists(st.sampled_from(key), min_size=1, unique=True))
    indexes = st.lists(st.sampled_from(ordered), min_size=1, max_size=3, unique=True).map(tuple)
    arguments["indexes"] = draw(st.lists(indexes, max_size=3, unique=True))
    return RandomDefinition(pa.schema(fields), arguments | options)


@st.composite
def _merging(draw: st.DrawFn, engine: str, others: list[pa.Field], options: dict[str, Any]) -> dict[str, Any]:
    """Returns a merge engine with its options; `last_row` if the columns allow no other."""
    orders = [field.name for field in others if is_key_type(field.type)]
    match engine:
        case "versioned" if orders:
            return {"merge_engine": engine, "version_column": draw(st.sampled_from(orders))}
        case "last_row":
            return {"sequence_column": chosen} if (chosen := draw(_some_of(orders))) else {}
        case "partial_update" if orders and len(others) > 1:
            sequence = draw(st.sampled_from(orders))
            grouped = [field for field in others if field.name != sequence]
            options["delete_behavior"] = draw(st.sampled_from(["disable", "ignore"]))
            return {
                "merge_engine": engine,
                "sequence_groups": {(sequence,): tuple(field.name for field in grouped)},
                "aggregators": draw(_aggregates(grouped)),
            }
        case "aggregate":
            return {"merge_engine": engine, "aggregators": draw(_aggregates(others))}
        case "first_row" | "partial_update":
            return {"merge_engine": engine}
    options.pop("delete_behavior", None)
    return {}


@st.composite
def _aggregates(draw: st.DrawFn, columns: list[pa.Field]) -> dict[str, Aggregator]:
    aggregators = {}
    for column in columns:
        possible = [name for name, rules in FUNCTIONS.items() if rules.takes(column.type)]
        if not draw(st.booleans()):
            continue
        function = draw(st.sampled_from(possible))
        values = {
            "delimiter": st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
            "distinct": st.sampled_from(["true", "false"]),
            "ignore_retract": st.sampled_from(["true", "false"]),
        }
        known = [*FUNCTIONS[function].parameters, "ignore_retract"]
        chosen = {name: draw(values[name]) for name in known if draw(st.booleans())}
        aggregators[column.name] = Aggregator(function, tuple(sorted(chosen.items())))
    return aggregators


def _some_of(names: list[str], most: int = 2) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), max_size=most, unique=True) if names else st.just([])
