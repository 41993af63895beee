"""The `last_row` merge compared with a dictionary: the stored rows, and the order of their changes.

With each of the three changelogs, with the old rows read and not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.merged_table import MergedTable, merging_table

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition

Change = tuple[str, dict[str, Any]]


class LastRowModel:
    """A table, as the documentation says it."""

    def __init__(self, *, row_deduplicate: bool = True, changelog: str = "full", indexed: bool = False) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.log: list[Change] = []
        self.row_deduplicate = row_deduplicate
        self.changelog = changelog
        self.reads = changelog == "full" or indexed

    def upsert(self, rows: list[dict[str, Any]]) -> None:
        last = {row["k"]: number for number, row in enumerate(rows)}
        for key, number in sorted(last.items(), key=lambda item: item[1]):
            old, new = self.rows.get(key), rows[number]
            if self.changelog != "full":
                if not (self.reads and self.row_deduplicate and old == new):
                    self.log.append(("+U", new))
            elif old is None:
                self.log.append(("+I", new))
            elif old != new or not self.row_deduplicate:
                self.log += [("-U", old), ("+U", new)]
            self.rows[key] = new

    def delete(self, keys: list[int]) -> None:
        last = {key: number for number, key in enumerate(keys)}
        for key in sorted(last, key=last.__getitem__):
            if key in self.rows or not self.reads:
                row = self.rows.pop(key, {"k": key})
                if self.changelog == "upsert":
                    row = dict.fromkeys(self.columns) | {"k": key}
                self.log.append(("-D", row))

    columns: tuple[str, ...] = ("k", "text", "items")

    def add_column(self) -> None:
        self.columns = (*self.columns, "more")
        for row in self.rows.values():
            row["more"] = None


KEYS = st.integers(0, 6)
ROWS = st.fixed_dictionaries(
    {
        "k": KEYS,
        "text": st.sampled_from([None, "", "a", "b"]),
        "items": st.sampled_from([None, [], [1], [None]]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(ROWS, min_size=1, max_size=8)),
        st.tuples(st.just("delete"), st.lists(KEYS, min_size=1, max_size=5)),
        st.just(("alter", [])),
    ),
    max_size=12,
)


def versions_of(changelog: str = "full", *, deduplicate: bool = True, indexed: bool = False) -> list[TableDefinition]:
    """Returns a table before and after a column was added. With an index, the old rows are read with any changelog."""
    columns = pa.schema([("k", pa.int8()), ("text", pa.string()), ("items", pa.list_(pa.int8()))])
    options: dict[str, Any] = {"changelog": changelog, "row_deduplicate": str(deduplicate).lower()}
    first = merging_table(columns, indexes=[["text"]] if indexed else [], **options)
    return [first, first.add_columns(pa.schema([("more", pa.float32())]))]


@pytest.mark.parametrize(
    ("changelog", "indexed"), [("full", False), ("upsert", False), ("upsert", True), ("none", False), ("none", True)]
)
@given(steps=STEPS, deduplicate=st.booleans())
@examples(8)
@pytest.mark.represented_by("full-False")
def test_any_history_merges_as_a_dictionary_does(
    changelog: str, indexed: bool, steps: list[tuple[str, list[Any]]], deduplicate: bool
) -> None:
    deduplicate = deduplicate or changelog != "full"
    first, second = versions_of(changelog, deduplicate=deduplicate, indexed=indexed)
    merged = MergedTable(first)
    model = LastRowModel(row_deduplicate=deduplicate, changelog=changelog, indexed=indexed)
    altered = False
    for name, argument in steps:
        if name == "alter":
            if not altered:
                # Earlier changes do not have the new column, so only later changes are compared.
                check_changes(merged, model)
                merged.use(second)
                model.add_column()
            altered = True
        elif name == "upsert":
            rows = [dict(row, more=float(row["k"]) if row["k"] % 2 else None) if altered else row for row in argument]
            merged.write(rows)
            model.upsert(rows)
        else:
            merged.delete(argument)
            model.delete(argument)
    assert merged.rows() == model.rows
    check_changes(merged, model)


def check_changes(merged: MergedTable, model: LastRowModel) -> None:
    """Compares the changes since the last check."""
    assert merged.counted == len(model.log)
    assert merged.log == ([] if model.changelog == "none" else model.log)
    merged.counted = 0
    merged.log.clear()
    model.log.clear()


def test_the_same_row_in_a_newer_schema_changes_nothing() -> None:
    first, second = versions_of()
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
    merged = MergedTable(versions_of()[1])
    for more in (before, after):
        merged.write([{"k": 1, "text": None, "items": None, "more": more}])
    assert merged.counted == changes
