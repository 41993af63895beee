"""The key of a stored row equals the bytes that the key codec makes from its columns, and damage is detected."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss
from scankv.model.keys.key_codec import KeyCodec
from streaming_server.storage.rows.row_codec import RowCodec
from tests.support.examples import examples
from tests.support.tables import define
from tests.unit.model.strategies import columns, key_types, storable_types, values_of
from tests.unit.storage import damage

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.rows.row_keys import RowKeys


def row_keys_of(definition: TableDefinition) -> tuple[RowKeys, KeyCodec]:
    keys = KeyCodec([definition.schema.column(name).type for name in definition.primary_key])
    return RowCodec(definition).row_keys(keys), keys


@st.composite
def tables(draw: st.DrawFn) -> TableDefinition:
    """Generates tables with one to four key columns of any type, at any position."""
    key = [(f"k{i}", type_) for i, type_ in enumerate(draw(st.lists(key_types(), min_size=1, max_size=4)))]
    others = [(f"v{i}", type_) for i, type_ in enumerate(draw(st.lists(storable_types(), max_size=4)))]
    fields = draw(st.permutations([pa.field(name, type_, name.startswith("v")) for name, type_ in key + others]))
    return define(pa.schema(fields), *(name for name, _ in key))


@given(st.data())
@examples(10)
def test_the_key_of_a_row_is_what_the_key_codec_gives_for_its_columns(data: st.DataObject) -> None:
    definition = data.draw(tables())
    rows = data.draw(st.integers(1, 3))
    batch = pa.RecordBatch.from_arrays(
        [
            data.draw(columns(field.type, rows))
            if field.name.startswith("k")
            else pa.array(data.draw(st.lists(values_of(field.type), min_size=rows, max_size=rows)), field.type)
            for field in definition.schema.arrow
        ],
        schema=definition.schema.arrow,
    )
    stored = RowCodec(definition).encode(batch).to_pylist()
    altered = definition.add_columns(pa.schema([("w0", data.draw(storable_types()))]))
    for reader, keys in (row_keys_of(definition), row_keys_of(altered)):
        expected = keys.encode([batch.column(name) for name in definition.primary_key]).to_pylist()
        assert [reader.key_of(row) for row in stored] == expected


def stored_rows(version: int) -> list[bytes]:
    codec = RowCodec((damage.FIRST, damage.SECOND)[version])
    rows: list[bytes] = codec.encode(pa.RecordBatch.from_pylist(damage.rows(version), schema=codec.schema)).to_pylist()
    return rows


@pytest.mark.parametrize("version", [0, 1])
def test_every_shortened_or_lengthened_row_is_data_loss(version: int) -> None:
    reader, _ = row_keys_of(damage.SECOND)
    for row in stored_rows(version):
        for damaged in (*(row[:length] for length in range(len(row))), row + b"\0"):
            with pytest.raises(DataLoss):
                reader.key_of(damaged)


def test_a_row_without_its_key_is_data_loss() -> None:
    reader, _ = row_keys_of(damage.FIRST)
    row = bytearray(stored_rows(0)[0])
    row[6] &= 0xFE
    with pytest.raises(DataLoss):
        reader.key_of(bytes(row))


@given(st.integers(0, 2**32))
@examples(20)
def test_damage_is_data_loss_or_the_key_that_is_decoded(seed: int) -> None:
    rng = random.Random(seed)
    reader, keys = row_keys_of(damage.SECOND)
    row = damage.damaged(rng.choice(stored_rows(rng.randrange(2))), rng)
    try:
        found = reader.key_of(row)
        decoded = RowCodec(damage.SECOND).decoder(["k"]).decode(pa.array([row], pa.binary()))
    except DataLoss:
        return
    assert [found] == keys.encode(decoded.columns).to_pylist()
