"""The `last_row` merge, against a dictionary: what is stored, and which changes the log gets in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_server.engine.last_row import merge_delete, merge_upsert
from streaming_server.engine.prepare import KeyEncoder, prepare
from streaming_server.storage.changelog import RowKind
from streaming_server.storage.row_codec import RowCodec
from tests.support.tables import define

if TYPE_CHECKING:
    from streaming_server.storage.bucket import BucketChange
    from table_model.schema import TableDefinition

Change = tuple[str, dict[str, Any]]

FIRST = define(pa.schema([("k", pa.int8()), ("text", pa.string()), ("items", pa.list_(pa.int8()))]))
SECOND = FIRST.add_columns(pa.schema([("more", pa.float32())]))


class Merged:
    """One bucket's rows in memory, written with the merge under test."""

    def __init__(self, definition: TableDefinition, *, row_deduplicate: bool = True) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.log: list[Change] = []
        self.row_deduplicate = row_deduplicate
        self.use(definition)

    def use(self, definition: TableDefinition) -> None:
        self.definition, self.codec, self.keys = definition, RowCodec(definition), KeyEncoder(definition)

    def upsert(self, rows: list[dict[str, Any]]) -> BucketChange:
        batch = pa.RecordBatch.from_pylist(rows, schema=self.codec.schema)
        (part,) = prepare(batch, self.keys, self.codec, keys_only=False)
        old = [self.stored.get(key) for key in part.keys.to_pylist()]
        return self._apply(merge_upsert(old, part, row_deduplicate=self.row_deduplicate))

    def delete(self, keys: list[int]) -> BucketChange:
        batch = pa.RecordBatch.from_pylist([{"k": key} for key in keys], schema=self.definition.key_schema)
        (part,) = prepare(batch, self.keys, self.codec, keys_only=True)
        old = [self.stored.get(key) for key in part.keys.to_pylist()]
        return self._apply(merge_delete(old, part.keys, self.codec))

    def _apply(self, change: BucketChange) -> BucketChange:
        before = len(self.stored)
        self.stored.update(zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True))
        for key in change.delete_keys.to_pylist():
            del self.stored[key]
        assert change.rows_added == len(self.stored) - before
        assert change.longest_row == max(map(len, change.put_values.to_pylist()), default=0)
        kinds = [RowKind(int(kind)).symbol for kind in change.changes.kinds]
        self.log += zip(kinds, change.changes.rows.to_pylist(), strict=True)
        return change

    def rows(self) -> list[dict[str, Any]]:
        values = pa.array([self.stored[key] for key in sorted(self.stored)], pa.binary())
        decoded: list[dict[str, Any]] = self.codec.decoder().decode(values).to_pylist()
        return decoded


class Model:
    """The same, as the documentation says it."""

    def __init__(self, *, row_deduplicate: bool = True) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.log: list[Change] = []
        self.row_deduplicate = row_deduplicate

    def upsert(self, rows: list[dict[str, Any]]) -> None:
        last = {row["k"]: number for number, row in enumerate(rows)}
        for key, number in sorted(last.items(), key=lambda item: item[1]):
            old, new = self.rows.get(key), rows[number]
            if old is None:
                self.log.append(("+I", new))
            elif old != new or not self.row_deduplicate:
                self.log += [("-U", old), ("+U", new)]
            self.rows[key] = new

    def delete(self, keys: list[int]) -> None:
        last = {key: number for number, key in enumerate(keys)}
        for key in sorted(last, key=last.__getitem__):
            if key in self.rows:
                self.log.append(("-D", self.rows.pop(key)))

    def add_column(self) -> None:
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


@given(STEPS, st.booleans())
@settings(deadline=None, max_examples=200)
def test_any_history_merges_as_a_dictionary_does(steps: list[tuple[str, list[Any]]], deduplicate: bool) -> None:
    merged, model = Merged(FIRST, row_deduplicate=deduplicate), Model(row_deduplicate=deduplicate)
    altered = False
    for name, argument in steps:
        if name == "alter":
            if not altered:
                # What the log said before has no such column; only what is said from now on is compared.
                assert merged.log == model.log
                merged.log.clear()
                model.log.clear()
                merged.use(SECOND)
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
    assert len(merged.upsert([{"k": 1, "text": "a", "items": [1], "more": None}]).changes) == 0
    assert len(merged.upsert([{"k": 1, "text": "a", "items": [1], "more": 0.5}]).changes) == 2


@pytest.mark.parametrize("value", [-0.0, float("nan"), float("-inf")])
def test_floats_that_are_the_same_to_the_bit_change_nothing(value: float) -> None:
    merged = Merged(SECOND)
    merged.upsert([{"k": 1, "more": value}])
    assert len(merged.upsert([{"k": 1, "more": value}]).changes) == 0


def test_zero_of_the_other_sign_is_a_change() -> None:
    merged = Merged(SECOND)
    merged.upsert([{"k": 1, "more": 0.0}])
    assert len(merged.upsert([{"k": 1, "more": -0.0}]).changes) == 2
