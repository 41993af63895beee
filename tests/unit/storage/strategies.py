"""Random tables and batches of them, for the property tests of the storage package."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.support.tables import define
from tests.unit.model.strategies import field_names, storable_types, values_of

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition


@cache
def definitions() -> st.SearchStrategy[TableDefinition]:
    """Generates tables keyed by an integer, with up to five more columns of any storable type."""
    fields = st.builds(pa.field, field_names(), storable_types(), st.booleans())
    columns = st.lists(fields, max_size=5, unique_by=lambda field: field.name)
    return columns.map(lambda more: define(pa.schema([pa.field("the key", pa.int32(), nullable=False), *more])))


def batches(
    schema: pa.Schema, min_rows: int = 0, max_rows: int = 6, *, sliced: bool = True
) -> st.SearchStrategy[pa.RecordBatch]:
    """Generates batches of a schema; many are slices of longer ones, so that their arrays have an offset."""

    def build(columns: list[list[Any]], before: int, after: int) -> pa.RecordBatch:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return batch.slice(before, batch.num_rows - before - after)

    @st.composite
    def strategy(draw: st.DrawFn) -> pa.RecordBatch:
        before, after = (draw(st.integers(0, 9)), draw(st.integers(0, 2))) if sliced else (0, 0)
        rows = draw(st.integers(min_rows, max_rows)) + before + after
        columns = [
            draw(st.lists(values_of(field.type, not field.nullable), min_size=rows, max_size=rows)) for field in schema
        ]
        return build(columns, before, after)

    return strategy()
