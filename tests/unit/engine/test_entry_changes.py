"""The index entries that merges write, compared with a dictionary:

exactly the entries of the rows, without extra writes.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_KEY_BYTES
from streaming_server.engine.merging.outcome import merge_delete, merge_upsert
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.storage.rows.index_codec import IndexCodec
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.examples import examples
from tests.support.tables import define

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.bucket.bucket_change import BucketChange

PLAIN = define(
    pa.schema([("k", pa.int8()), ("score", pa.float64()), ("text", pa.string()), ("more", pa.list_(pa.int8()))])
)
INDEXED = PLAIN.add_indexes([("score",), ("text", "score"), ("score", "k")])
WIDER = INDEXED.add_columns(pa.schema([("extra", pa.int16())])).add_indexes([("extra",)])

TOO_LONG = "\0" * (MAX_KEY_BYTES // 2)
"""Twice as long when encoded."""


class Indexed:
    """Rows and entries in memory, written with the merges under test."""

    def __init__(self, definition: TableDefinition, *, row_deduplicate: bool = True) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.entries: dict[bytes, bytes] = {}
        self.row_deduplicate = row_deduplicate
        self.use(definition)

    def use(self, definition: TableDefinition) -> None:
        self.codec, self.keys = RowCodec(definition), KeyEncoder(definition)
        self.indexes = [IndexCodec(definition, index) for index in definition.indexes]

    def upsert(self, rows: list[dict[str, Any]]) -> BucketChange:
        batch = pa.RecordBatch.from_pylist(rows, schema=self.codec.schema)
        (part,) = prepare(batch, TableCodec.of(self.codec.definition), keys_only=False)
        old = [self.rows.get(key) for key in part.keys.to_pylist()]
        return self._apply(merge_upsert(old, part, row_deduplicate=self.row_deduplicate, indexes=self.indexes))

    def delete(self, keys: list[int]) -> BucketChange:
        batch = pa.RecordBatch.from_pylist([{"k": key} for key in keys], schema=self.codec.definition.key_schema)
        (part,) = prepare(batch, TableCodec.of(self.codec.definition), keys_only=True)
        old = [self.rows.get(key) for key in part.keys.to_pylist()]
        return self._apply(merge_delete(old, part, self.indexes))

    def _apply(self, change: BucketChange) -> BucketChange:
        self.rows.update(zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True))
        for key in change.delete_keys.to_pylist():
            del self.rows[key]
        for entries in change.entries:
            for key in entries.delete_keys.to_pylist():
                del self.entries[key]
            for key, value in zip(entries.put_keys.to_pylist(), entries.put_values.to_pylist(), strict=True):
                assert self.entries.get(key) != value, "an entry is put that is there"
                self.entries[key] = value
        return change

    def expected(self) -> dict[bytes, bytes]:
        """Returns the entries computed from the rows, without those of rows that are too long for an entry."""
        entries = {}
        for key, row in self.rows.items():
            batch = self.codec.decoder().decode(pa.array([row], pa.binary()))
            for index in self.indexes:
                with suppress(RequestTooLarge):
                    entry_keys, values = index.entries(batch, pa.array([key], pa.binary()))
                    entries[entry_keys[0].as_py()] = values[0].as_py()
        return entries


KEYS = st.integers(0, 6)
ROWS = st.fixed_dictionaries(
    {
        "k": KEYS,
        "score": st.sampled_from([None, 0.0, -0.0, 1.5, -1.5, float("nan"), float("inf")]),
        "text": st.sampled_from([None, "", "a", "a\0", "b"]),
        "more": st.sampled_from([None, [], [1]]),
        "extra": st.sampled_from([None, 1, 2]),
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
@examples(15)
def test_after_any_history_the_entries_are_those_of_the_rows(
    steps: list[tuple[str, list[Any]]], deduplicate: bool
) -> None:
    merged = Indexed(INDEXED, row_deduplicate=deduplicate)
    for name, argument in steps:
        if name == "alter":
            # A new index has no entries of existing rows: its build is tested elsewhere.
            merged.rows.clear()
            merged.entries.clear()
            merged.use(WIDER)
        elif name == "upsert":
            names = merged.codec.schema.names
            merged.upsert([{name: row[name] for name in names} for row in argument])
        else:
            merged.delete(argument)
        assert merged.entries == merged.expected()


def test_rows_of_an_older_schema_lose_their_entries_when_they_change() -> None:
    merged = Indexed(INDEXED)
    merged.upsert([{"k": 1, "score": 1.0, "text": "a"}, {"k": 2, "score": 2.0, "text": "b"}])
    altered = INDEXED.add_columns(pa.schema([("extra", pa.int16())]))
    merged.use(altered)
    merged.upsert([{"k": 1, "score": 3.0, "text": "a", "extra": 1}])
    merged.delete([2])
    assert len(merged.entries) == len(altered.indexes)
    assert merged.entries == merged.expected()


def test_a_change_of_other_columns_writes_no_entries() -> None:
    merged = Indexed(INDEXED)
    merged.upsert([{"k": 1, "score": 1.0, "text": "a", "more": [1]}])
    change = merged.upsert([{"k": 1, "score": 1.0, "text": "a", "more": [2]}])
    assert change.count == 2
    assert [(len(entries.put_keys), len(entries.delete_keys)) for entries in change.entries] == [(0, 0)] * 3


def test_the_same_row_again_writes_no_entries() -> None:
    merged = Indexed(INDEXED)
    merged.upsert([{"k": 1, "score": 1.0, "text": "a"}])
    change = merged.upsert([{"k": 1, "score": 1.0, "text": "a"}])
    assert change.count == 0
    assert not any(len(entries.put_keys) + len(entries.delete_keys) for entries in change.entries)


def test_zero_of_the_other_sign_puts_the_entry_anew_in_its_place() -> None:
    merged = Indexed(INDEXED)
    merged.upsert([{"k": 1, "score": 0.0, "text": "a"}])
    change = merged.upsert([{"k": 1, "score": -0.0, "text": "a"}])
    assert [(len(entries.put_keys), len(entries.delete_keys)) for entries in change.entries] == [(1, 0)] * 3


def test_a_table_without_indexes_writes_no_entries() -> None:
    merged = Indexed(PLAIN)
    assert merged.upsert([{"k": 1}]).entries == ()
    assert merged.delete([1]).entries == ()


@pytest.mark.parametrize("columns", [("text",), ("text", "score")])
def test_rows_too_long_for_an_index_are_refused_with_the_first_of_them_in_the_request(columns: tuple[str, ...]) -> None:
    merged = Indexed(PLAIN.add_indexes([columns]))
    rows = [{"k": 1, "text": "a"}, {"k": 1, "text": TOO_LONG}, {"k": 1, "text": "b"}, {"k": 2, "text": TOO_LONG}]
    message = re.escape(f"row 1: the columns of index ({', '.join(columns)}) take over 16,384 bytes")
    with pytest.raises(RequestTooLarge, match=message):
        merged.upsert(rows)


def test_rows_from_before_an_index_that_are_too_long_for_it_can_be_changed_and_deleted() -> None:
    merged = Indexed(PLAIN)
    long = [{"k": key, "score": 1.0, "text": TOO_LONG if key % 3 else "a"} for key in range(7)]
    merged.upsert(long)
    merged.use(INDEXED)
    merged.entries = merged.expected()
    assert len(merged.entries) == 7 * 2 + 3
    merged.delete([1, 2])
    assert merged.entries == merged.expected()
    merged.upsert([{"k": key, "score": 2.0, "text": "a"} for key in range(7)])
    assert merged.entries == merged.expected()
    assert len(merged.entries) == 7 * 3
