"""Few rows as Python values: the same changes as in columns, and no other bytes are taken for rows or keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scankv.model.errors import InvalidKey, InvalidRequest, SchemaMismatch
from streaming_server.engine.merging.few_rows import FewRows, merge_few
from streaming_server.engine.merging.outcome import merge_delete, merge_upsert
from streaming_server.storage.rows.single_rows import has_single_rows
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.examples import examples
from tests.support.tables import define
from tests.unit.storage.strategies import batches

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.bucket.bucket_change import BucketChange

many = examples(60)

NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
KEYS = (*NUMBERS, pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
TYPES = (*KEYS, pa.float16(), pa.float32(), pa.float64())


@st.composite
def tables(draw: st.DrawFn, /, changelog: str = "full", row_deduplicate: str = "true") -> TableDefinition:
    """Generates tables whose rows can be written one by one, with up to three key columns."""
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    others = draw(st.lists(st.tuples(st.sampled_from(TYPES), st.booleans()), max_size=10))
    fields = [pa.field(f"k{number}", type_, nullable=False) for number, type_ in enumerate(keys)]
    names = [field.name for field in fields]
    fields += [pa.field(f"v{number}", type_, nullable) for number, (type_, nullable) in enumerate(others)]
    definition = define(
        pa.schema(draw(st.permutations(fields))), *names, changelog=changelog, row_deduplicate=row_deduplicate
    )
    assert has_single_rows(definition)
    return definition


def few_rows(codec: TableCodec, batch: pa.RecordBatch, *, deletes: bool = False) -> FewRows:
    """Reads the rows of a batch one by one, as the server reads those of a request."""
    assert codec.single is not None
    read = codec.single.read
    rows = dict(read(row, number) for number, row in enumerate(codec.rows.encode(batch).to_pylist()))
    keys = sorted(rows)
    if deletes:
        values = [codec.single.read_key(key, 0) for key in keys]
    else:
        values = [rows[key] for key in keys]
    return FewRows(0, codec.rows, codec.single, deletes, keys, values)


def assert_same(one: BucketChange, other: BucketChange) -> None:
    assert one.put_keys.to_pylist() == other.put_keys.to_pylist()
    assert one.put_values.to_pylist() == other.put_values.to_pylist()
    assert one.delete_keys.to_pylist() == other.delete_keys.to_pylist()
    assert (one.rows_added, one.schema_id, one.count) == (other.rows_added, other.schema_id, other.count)
    assert (one.longest_row, one.longest_deleted_key) == (other.longest_row, other.longest_deleted_key)
    if one.changes is None or other.changes is None:
        assert one.changes is other.changes
        return
    assert one.changes.kinds.tolist() == other.changes.kinds.tolist()
    assert one.changes.rows.schema == other.changes.rows.schema
    # By their bytes, so that NaN equals itself.
    assert str(one.changes.rows.to_pydict()) == str(other.changes.rows.to_pydict())


@given(st.data(), st.sampled_from(["full", "upsert", "none"]), st.booleans(), st.booleans())
@many
def test_few_rows_change_what_columns_change(
    data: st.DataObject, changelog: str, deduplicate: bool, deletes: bool
) -> None:
    deduplicate = deduplicate and changelog == "full"
    definition = data.draw(tables(changelog=changelog, row_deduplicate=str(deduplicate).lower()))
    codec = TableCodec.of(definition)
    rows = data.draw(batches(definition.schema.arrow))
    try:
        new = few_rows(codec, rows, deletes=deletes)
    except (InvalidRequest, InvalidKey):
        assume(False)
        raise
    old: list[bytes | None] | None = None
    if definition.options.before_images:
        stored = codec.rows.encode(data.draw(batches(definition.schema.arrow))).to_pylist()
        own = codec.rows.encode(rows).to_pylist()
        # A stored row may equal the new one, differ from it, or be missing.
        old = [data.draw(st.sampled_from([None, *stored[:3], *own[:3]])) for _ in new.keys]
    columns = new.prepare()
    expected = merge_delete(old, columns) if deletes else merge_upsert(old, columns, row_deduplicate=deduplicate)
    assert_same(merge_few(old, new), expected)


@given(st.data())
@many
def test_bytes_are_refused_or_read_as_the_row_that_has_them(data: st.DataObject) -> None:
    definition = data.draw(tables())
    codec = TableCodec.of(definition)
    assert codec.single is not None
    (row,) = codec.rows.encode(data.draw(batches(definition.schema.arrow, 1, 1))).to_pylist()
    places = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=3))
    broken = bytearray(row)
    for place in places:
        broken[place] = data.draw(st.integers(0, 255))
    try:
        key, values = codec.single.read(bytes(broken[: data.draw(st.integers(0, len(row)))]), 0)
    except (InvalidRequest, InvalidKey, SchemaMismatch):
        return
    stored = codec.single.encode(values)
    decoded = codec.rows.decoder().decode(pa.array([stored], pa.binary()))
    decoded.validate(full=True)
    assert str(decoded.to_pylist()) == str([dict(zip(definition.schema.arrow.names, values, strict=True))])
    assert codec.keys.encode(codec.keys.canonicalize(decoded))[0].to_pylist() == [key]


@given(st.data())
@many
def test_bytes_are_refused_or_read_as_the_key_that_has_them(data: st.DataObject) -> None:
    definition = data.draw(tables())
    codec = TableCodec.of(definition)
    assert codec.single is not None
    batch = data.draw(batches(definition.schema.arrow, 1, 1))
    (key,) = codec.keys.encode(codec.keys.canonicalize(batch))[0].to_pylist()
    broken = bytearray(key)
    for place in data.draw(st.lists(st.integers(0, max(len(key) - 1, 0)), max_size=2)):
        if broken:
            broken[place] = data.draw(st.integers(0, 255))
    sent = bytes(broken[: data.draw(st.integers(0, len(key)))])
    try:
        values = codec.single.read_key(sent, 0)
    except InvalidKey:
        return
    columns = codec.single.to_key_batch([values])
    assert codec.keys.encode(columns)[0].to_pylist() == [sent]


def test_nulls_in_required_columns_are_refused_by_name() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    codec = TableCodec.of(define(schema, "k"))
    assert codec.single is not None
    with pytest.raises(SchemaMismatch, match=r'column "v", row 3: it is NOT NULL'):
        codec.single.read(codec.single.encode((1, None)), 3)
