"""What the `last_row` merge takes for a change, and what a delete without a before-image records."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.merged_table import MergedTable, merging_table

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition


def versions() -> list[TableDefinition]:
    """Returns a table before and after a column was added."""
    columns = pa.schema([("k", pa.int8()), ("text", pa.string()), ("items", pa.list_(pa.int8()))])
    first = merging_table(columns)
    return [first, first.add_columns(pa.schema([("more", pa.float32())]))]


def test_the_same_row_in_a_newer_schema_changes_nothing() -> None:
    first, second = versions()
    merged = MergedTable(first)
    merged.write([{"k": 1, "text": "a", "items": [1]}])
    merged.use(second)
    merged.write([{"k": 1, "text": "a", "items": [1], "more": None}])
    assert merged.counted == 1
    merged.write([{"k": 1, "text": "a", "items": [1], "more": 0.5}])
    assert merged.counted == 3


def test_a_row_deleted_without_its_before_image_is_its_key_alone() -> None:
    # Only the key of these rows cannot be null. Even so, a deleted row is null in all other columns.
    strict = pa.schema([pa.field("k", pa.int8()), pa.field("v", pa.int64(), nullable=False)])
    merged = MergedTable(merging_table(strict, changelog="upsert"))
    merged.write([{"k": 1, "v": 5}])
    merged.delete([1, 2])
    assert merged.log == [("+U", {"k": 1, "v": 5}), ("-D", {"k": 1, "v": None}), ("-D", {"k": 2, "v": None})]


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [(-0.0, -0.0, 1), (math.nan, math.nan, 1), (-math.inf, -math.inf, 1), (0.0, -0.0, 3)],
)
def test_only_floats_that_differ_in_their_bits_are_a_change(before: float, after: float, changes: int) -> None:
    merged = MergedTable(versions()[1])
    for more in (before, after):
        merged.write([{"k": 1, "text": None, "items": None, "more": more}])
    assert merged.counted == changes
