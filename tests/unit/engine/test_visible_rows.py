"""Rows that are encoded one by one for a client have the same bytes as those that are encoded by column."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import agg
from scankv.model.errors import DataLoss
from streaming_server.engine.reads.visible_rows import VisibleRows
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.examples import examples
from tests.support.merged_table import merging_table
from tests.unit.storage.strategies import batches, definitions

many = examples(30)
ADDED = pa.schema([("added_long_name", pa.int32()), ("added_text", pa.string())])


@given(st.data())
@many
def test_rows_of_older_schemas_have_the_bytes_of_columns(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    codec = TableCodec.of(definition)
    rows = codec.rows.encode(data.draw(batches(definition.schema.arrow))).to_pylist()
    assert VisibleRows().encode(codec, rows) == codec.rows.visible(rows)
    altered = TableCodec.of(definition.add_columns(ADDED))
    assert VisibleRows().encode(altered, rows) == altered.rows.visible(rows)


def test_rows_without_hidden_columns_have_the_bytes_of_columns_before_and_after_an_alteration() -> None:
    schema = pa.schema([("k", pa.int8()), ("mean", pa.float64()), ("text", pa.string())])
    first = merging_table(schema, merge_engine="aggregate", aggregates={"mean": agg.avg()})
    visible, old = VisibleRows(), TableCodec.of(first)
    batch = pa.RecordBatch.from_pylist(
        [{"k": 1, "mean": 2.5, "text": "a"}, {"k": 2, "mean": None, "text": ""}], schema=old.schema
    )
    rows = old.rows.encode(batch).to_pylist()
    expected = old.rows.visible(rows)
    assert expected != rows
    assert visible.encode(old, rows) == expected
    new = TableCodec.of(first.add_columns(ADDED))
    assert visible.encode(new, rows) == new.rows.visible(rows) != expected
    for broken in (b"", rows[0][:-1], b"\xff" + rows[0][1:]):
        with pytest.raises(DataLoss):
            visible.encode(old, [rows[0], broken])
