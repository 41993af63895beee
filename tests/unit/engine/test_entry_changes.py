"""The index entries that merges write: none that do not change, and none of rows that are too long for an index."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_KEY_BYTES
from tests.support.merged_table import MergedTable
from tests.support.tables import define

PLAIN = define(
    pa.schema([("k", pa.int8()), ("score", pa.float64()), ("text", pa.string()), ("more", pa.list_(pa.int8()))])
)
INDEXED = PLAIN.add_indexes([("score",), ("text", "score"), ("score", "k")])

TOO_LONG = "\0" * (MAX_KEY_BYTES // 2)
"""Twice as long when encoded."""


@pytest.mark.parametrize(
    ("changed", "writes"),
    [
        ({}, (0, 0)),
        ({"more": [2]}, (0, 0)),
        # The entry has its place, and another value.
        ({"score": -0.0}, (1, 0)),
    ],
    ids=["the same row", "another column", "zero of the other sign"],
)
def test_only_entries_that_change_are_written(changed: dict[str, Any], writes: tuple[int, int]) -> None:
    merged = MergedTable(INDEXED)
    row = {"k": 1, "score": 0.0, "text": "a", "more": [1]}
    merged.write([row])
    merged.write([row | changed])
    assert merged.entry_writes == [writes] * 3


@pytest.mark.parametrize("columns", [("text",), ("text", "score")])
def test_rows_too_long_for_an_index_are_refused_with_the_first_of_them_in_the_request(columns: tuple[str, ...]) -> None:
    merged = MergedTable(PLAIN.add_indexes([columns]))
    rows = [{"k": 1, "text": "a"}, {"k": 1, "text": TOO_LONG}, {"k": 1, "text": "b"}, {"k": 2, "text": TOO_LONG}]
    message = re.escape(f"row 1: the columns of index ({', '.join(columns)}) take over 16,384 bytes")
    with pytest.raises(RequestTooLarge, match=message):
        merged.write(rows)


def test_rows_from_before_an_index_that_are_too_long_for_it_can_be_changed_and_deleted() -> None:
    merged = MergedTable(PLAIN)
    long = [{"k": key, "score": 1.0, "text": TOO_LONG if key % 3 else "a"} for key in range(7)]
    merged.write(long)
    merged.use(INDEXED)
    merged.entries = merged.expected_entries()
    assert len(merged.entries) == 7 * 2 + 3
    merged.delete([1, 2])
    assert merged.entries == merged.expected_entries()
    merged.write([{"k": key, "score": 2.0, "text": "a"} for key in range(7)])
    assert merged.entries == merged.expected_entries()
    assert len(merged.entries) == 7 * 3
