"""The `last_row` merge compared with a dictionary: the stored rows, and the order of their changes.

With each of the three changelogs, with the old rows read and not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.tables.options import TableOptions
from streaming_server.engine.merging.outcome import merge_delete, merge_upsert, reads_old_rows
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.storage.changelog.records import RowKind
from streaming_server.storage.rows.index_codec import IndexCodec
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.examples import examples
from tests.support.tables import define

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.storage.bucket.bucket_change import BucketChange

Change = tuple[str, dict[str, Any]]

FIRST = define(pa.schema([("k", pa.int8()), ("text", pa.string()), ("items", pa.list_(pa.int8()))]))
SECOND = FIRST.add_columns(pa.schema([("more", pa.float32())]))
# Only the key of these rows cannot be null. Even so, a deleted row is null in all other columns.
STRICT = define(pa.schema([pa.field("k", pa.int8()), pa.field("v", pa.int64(), nullable=False)]), changelog="upsert")


class Merged:
    """One bucket's rows in memory, written with the merge under test.

    Args:
        definition: The table.
        row_deduplicate: As the option of a table.
        indexed: Whether there is an index, so that the old rows are read with every changelog.
    """

    def __init__(self, definition: TableDefinition, *, row_deduplicate: bool = True, indexed: bool = False) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.log: list[Change] = []
        self.row_deduplicate = row_deduplicate
        self.indexed = indexed
        self.use(definition)

    def use(self, definition: TableDefinition) -> None:
        self.definition, self.codec, self.keys = definition, RowCodec(definition), KeyEncoder(definition)
        indexed = definition.add_indexes([definition.schema.names[1:2]]) if self.indexed else definition
        self.indexes = [IndexCodec(indexed, index) for index in indexed.indexes]

    def upsert(self, rows: list[dict[str, Any]]) -> BucketChange:
        batch = pa.RecordBatch.from_pylist(rows, schema=self.codec.schema)
        (part,) = prepare(batch, TableCodec.of(self.definition), keys_only=False)
        merged = merge_upsert(self._old(part), part, row_deduplicate=self.row_deduplicate, indexes=self.indexes)
        return self._apply(merged)

    def delete(self, keys: list[int]) -> BucketChange:
        batch = pa.RecordBatch.from_pylist([{"k": key} for key in keys], schema=self.definition.key_schema)
        (part,) = prepare(batch, TableCodec.of(self.definition), keys_only=True)
        return self._apply(merge_delete(self._old(part), part, self.indexes))

    def _old(self, part: PreparedRows) -> list[bytes | None] | None:
        if not reads_old_rows(self.definition, self.indexes):
            return None
        return [self.stored.get(key) for key in part.keys.to_pylist()]

    def _apply(self, change: BucketChange) -> BucketChange:
        before = len(self.stored)
        self.stored.update(zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True))
        for key in change.delete_keys.to_pylist():
            self.stored.pop(key, None)
        known = reads_old_rows(self.definition, self.indexes)
        assert change.rows_added == (len(self.stored) - before if known else None)
        assert len(change.entries) == len(self.indexes)
        assert change.longest_row == max(map(len, change.put_values.to_pylist()), default=0)
        if change.changes is None:
            # A reader of the changelog would see the same number.
            kinds = ["-D"] * len(change.delete_keys) + ["+U"] * len(change.put_keys)
            self.log += zip(kinds, [{}] * change.count, strict=True)
            return change
        change.changes.rows.validate(full=True)
        assert change.count == len(change.changes)
        assert change.changes.rows.schema == self.definition.change_schema_at(self.definition.schema.id)
        kinds = [RowKind(int(kind)).symbol for kind in change.changes.kinds]
        self.log += zip(kinds, change.changes.rows.to_pylist(), strict=True)
        return change

    def rows(self) -> list[dict[str, Any]]:
        values = pa.array([self.stored[key] for key in sorted(self.stored)], pa.binary())
        decoded: list[dict[str, Any]] = self.codec.decoder().decode(values).to_pylist()
        return decoded


class LastRowModel:
    """The same, as the documentation says it."""

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
                    self.log.append(("+U", new if self.changelog == "upsert" else {}))
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
                self.log.append(("-D", {} if self.changelog == "none" else row))

    columns = FIRST.schema.names

    def add_column(self) -> None:
        self.columns = SECOND.schema.names
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


@pytest.mark.parametrize(
    ("changelog", "indexed"), [("full", False), ("upsert", False), ("upsert", True), ("none", False), ("none", True)]
)
@given(steps=STEPS, deduplicate=st.booleans())
@examples(8)
@pytest.mark.represented_by("full-False")
def test_any_history_merges_as_a_dictionary_does(
    changelog: str, indexed: bool, steps: list[tuple[str, list[Any]]], deduplicate: bool
) -> None:
    first, second = (replace(table, options=TableOptions(changelog=changelog)) for table in (FIRST, SECOND))
    merged = Merged(first, row_deduplicate=deduplicate, indexed=indexed)
    model = LastRowModel(row_deduplicate=deduplicate, changelog=changelog, indexed=indexed)
    altered = False
    for name, argument in steps:
        if name == "alter":
            if not altered:
                # Earlier changes do not have the new column, so only later changes are compared.
                assert merged.log == model.log
                merged.log.clear()
                model.log.clear()
                merged.use(second)
                model.add_column()
            altered = True
        elif name == "upsert":
            rows = [dict(row, more=float(row["k"]) if row["k"] % 2 else None) if altered else row for row in argument]
            merged.upsert(rows)
            model.upsert(rows)
        else:
            merged.delete(argument)
            model.delete(argument)
    assert merged.rows() == [model.rows[key] for key in sorted(model.rows)]
    assert merged.log == model.log


def test_the_same_row_in_a_newer_schema_changes_nothing() -> None:
    merged = Merged(FIRST)
    merged.upsert([{"k": 1, "text": "a", "items": [1]}])
    merged.use(SECOND)
    assert merged.upsert([{"k": 1, "text": "a", "items": [1], "more": None}]).count == 0
    assert merged.upsert([{"k": 1, "text": "a", "items": [1], "more": 0.5}]).count == 2


def test_a_row_deleted_without_its_before_image_is_its_key_alone() -> None:
    merged = Merged(STRICT)
    merged.upsert([{"k": 1, "v": 5}])
    merged.delete([1, 2])
    assert merged.log == [("+U", {"k": 1, "v": 5}), ("-D", {"k": 1, "v": None}), ("-D", {"k": 2, "v": None})]


@pytest.mark.parametrize("value", [-0.0, float("nan"), float("-inf")])
def test_floats_that_are_the_same_to_the_bit_change_nothing(value: float) -> None:
    merged = Merged(SECOND)
    merged.upsert([{"k": 1, "more": value}])
    assert merged.upsert([{"k": 1, "more": value}]).count == 0


def test_zero_of_the_other_sign_is_a_change() -> None:
    merged = Merged(SECOND)
    merged.upsert([{"k": 1, "more": 0.0}])
    assert merged.upsert([{"k": 1, "more": -0.0}]).count == 2
