"""Prepared rows in key order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.engine.merging.rows import WrittenRows
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.tables import define

PAIRS = st.lists(st.tuples(st.integers(0, 20), st.integers()), max_size=60)
IN_ORDER = PAIRS.map(sorted)
ONCE_AND_IN_ORDER = PAIRS.map(lambda pairs: sorted(dict(pairs).items()))


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
    (part,) = prepare(batch, TableCodec.of(definition), keys_only=False)
    merging = replace(part, values=None, written=WrittenRows(batch, np.arange(3)))
    assert merging.by_key() is merging
