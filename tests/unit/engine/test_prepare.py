"""Prepared rows: the last row of each key, in its bucket, in the canonical form of the key."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidKey, RequestTooLarge
from scankv.model.keys.buckets import bucket_of_one
from scankv.model.limits import MAX_KEY_BYTES, MAX_ROW_BYTES
from scankv.model.tables.schema import TableDefinition
from streaming_server.engine.merging.prepared_rows import PreparedRows, prepare
from streaming_server.engine.merging.rows import WrittenRows
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.tables import bits_of, define


def prepared(definition: TableDefinition, batch: pa.RecordBatch) -> list[PreparedRows]:
    return prepare(batch, TableCodec.of(definition), keys_only=False)


PAIRS = st.lists(st.tuples(st.integers(0, 20), st.integers()), max_size=60)
IN_ORDER = PAIRS.map(sorted)
ONCE_AND_IN_ORDER = PAIRS.map(lambda pairs: sorted(dict(pairs).items()))


@given(PAIRS | IN_ORDER | ONCE_AND_IN_ORDER, st.integers(1, 9))
def test_each_key_is_once_in_its_bucket_with_its_last_row(pairs: list[tuple[int, int]], buckets: int) -> None:
    definition = define(pa.schema([("k", pa.int64()), ("v", pa.string())]), buckets=buckets)
    rows = [{"k": key, "v": str(value)} for key, value in pairs]
    codec = RowCodec(definition)
    parts = prepared(definition, pa.RecordBatch.from_pylist(rows, schema=codec.schema))
    assert [part.bucket for part in parts] == sorted({part.bucket for part in parts})
    found = {}
    for part in parts:
        assert codec.decoder().decode(part.values).equals(part.batch)
        for key, row in zip(part.keys.to_pylist(), part.batch.to_pylist(), strict=True):
            assert bucket_of_one(key, buckets) == part.bucket
            assert row["k"] not in found
            found[row["k"]] = row["v"]
    assert found == {key: str(value) for key, value in pairs}


@given(PAIRS | IN_ORDER | ONCE_AND_IN_ORDER, st.booleans())
def test_by_key_they_are_the_same_rows_in_key_order(pairs: list[tuple[int, int]], keys_only: bool) -> None:
    definition = define(pa.schema([("k", pa.int64()), ("v", pa.string())]), buckets=2)
    codec = RowCodec(definition)
    batch = pa.RecordBatch.from_pylist([{"k": key, "v": str(value)} for key, value in pairs], schema=codec.schema)
    rows = batch.select(["k"]) if keys_only else batch
    for part in prepare(rows, TableCodec.of(definition), keys_only=keys_only):
        ordered = part.by_key()
        assert ordered.keys.to_pylist() == sorted(part.keys.to_pylist())
        assert ordered.by_key() is ordered
        assert ordered.bucket == part.bucket
        assert ordered.keys.equals(KeyEncoder(definition).encode_stored(ordered.batch))
        if ordered.values is None:
            assert keys_only
        else:
            assert codec.decoder().decode(ordered.values).equals(ordered.batch)
        by_key = {row["k"]: row for row in part.batch.to_pylist()}
        assert {row["k"]: row for row in ordered.batch.to_pylist()} == by_key


def test_rows_that_are_yet_to_be_merged_keep_their_order() -> None:
    definition = define(pa.schema([("k", pa.int64()), ("v", pa.string())]))
    codec = RowCodec(definition)
    batch = pa.RecordBatch.from_pylist([{"k": 2, "v": "a"}, {"k": 1, "v": "b"}], schema=codec.schema)
    (part,) = prepared(definition, batch)
    merging = replace(part, values=None, written=WrittenRows(batch, np.arange(3)))
    assert merging.by_key() is merging


def test_the_bucket_is_that_of_the_bucket_key() -> None:
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8())])
    definition = TableDefinition.create(
        "test.table", schema, ["a", "b"], bucket_key=["b"], buckets=7, incarnation="", created_millis=0
    )
    rows = [{"a": a, "b": b} for a in range(10) for b in range(10)]
    parts = prepared(definition, pa.RecordBatch.from_pylist(rows, schema=RowCodec(definition).schema))
    places: dict[int, set[int]] = {}
    for part in parts:
        for b in part.batch.column("b").to_pylist():
            places.setdefault(b, set()).add(part.bucket)
    assert all(len(found) == 1 for found in places.values())
    assert len(parts) > 1


def test_no_rows_are_no_parts() -> None:
    definition = define(pa.schema([("k", pa.int64())]), buckets=3)
    assert prepared(definition, pa.RecordBatch.from_pylist([], schema=RowCodec(definition).schema)) == []


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_keys_are_stored_with_one_zero_and_one_nan(type_: pa.DataType) -> None:
    definition = define(pa.schema([("k", type_), ("v", pa.float64())]))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0.0, -0.0, math.nan, -math.nan], type_), pa.array([1.0, -0.0, 2.0, -3.0])],
        schema=RowCodec(definition).schema,
    )
    (part,) = prepared(definition, batch)
    zero, nan = part.batch.to_pylist()
    assert bits_of(zero["k"]) == bits_of(0.0)
    assert bits_of(zero["v"]) == bits_of(-0.0)
    assert math.isnan(nan["k"])
    assert nan["v"] == -3.0


def test_a_row_over_the_limit_is_named() -> None:
    definition = define(pa.schema([("k", pa.int64()), ("v", pa.binary())]))
    values = [b"small", b"x" * MAX_ROW_BYTES, b"small"]
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), pa.array(values)], schema=RowCodec(definition).schema)
    with pytest.raises(RequestTooLarge) as caught:
        prepared(definition, batch)
    assert caught.value.details["row"] == "1"


def test_a_key_at_its_limit_is_taken_and_one_over_it_is_named() -> None:
    definition = define(pa.schema([("k", pa.string())]))
    schema = RowCodec(definition).schema
    longest = "k" * (MAX_KEY_BYTES - 2)
    (part,) = prepared(definition, pa.RecordBatch.from_pylist([{"k": longest}], schema=schema))
    assert len(part.keys[0].as_py()) == MAX_KEY_BYTES
    with pytest.raises(InvalidKey) as caught:
        prepared(definition, pa.RecordBatch.from_pylist([{"k": "a"}, {"k": longest + "k"}], schema=schema))
    assert caught.value.details["row"] == "1"
