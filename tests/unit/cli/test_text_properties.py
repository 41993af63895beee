from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from scankv.formats.json_text import json_lines, read_json_lines
from scankv.formats.text import from_text, to_text
from tests.unit.model.strategies import storable_types, values_of

if TYPE_CHECKING:
    from collections.abc import Callable


@st.composite
def any_columns(draw: Callable[..., pa.Array]) -> pa.Array:
    """Generates arrays of any type that a table can hold, with nulls; some of them are slices."""
    type_ = draw(storable_types())
    values = draw(st.lists(values_of(type_), min_size=1, max_size=5))
    return pa.array(values, type_).slice(draw(st.integers(0, len(values) - 1)))


@given(any_columns())
def test_any_column_comes_back_from_its_text(column: pa.Array) -> None:
    assert same(from_text(to_text(column), column.type), column)


@given(any_columns(), st.text(min_size=1, max_size=5))
def test_any_column_comes_back_from_json_lines(column: pa.Array, name: str) -> None:
    rows = pa.record_batch({name: column})
    assert same(read_json_lines(json_lines(rows), rows.schema).column(0), column)


def same(left: pa.Array, right: pa.Array) -> bool:
    """Returns whether two values are equal; NaN equals NaN."""
    left.validate(full=True)
    assert left.type == right.type
    return left.equals(right) or repr(left.to_pylist()) == repr(right.to_pylist())
