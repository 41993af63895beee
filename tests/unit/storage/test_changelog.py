"""Changelog records round-trip, at their offsets, in records of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.offsets import make_offset
from streaming_server.storage.changelog.records import (
    MAX_CHANGES_PER_RECORD,
    Changes,
    RowKind,
    decode_record,
    encode_records,
)
from tests.support.examples import examples
from tests.support.tables import SCORES, define, exact_rows, scores
from tests.unit.storage.strategies import batches, definitions

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition

DEFINITION = define(SCORES)


def changes_of(batch: pa.RecordBatch, kinds: list[int] | None = None) -> Changes:
    return Changes(np.array(kinds or [RowKind.INSERT] * batch.num_rows, np.uint8), batch)


def encoded(changes: Changes, definition: TableDefinition = DEFINITION) -> list[tuple[bytes, bytes]]:
    schema_id = definition.schema.id
    return list(encode_records(changes, epoch=2, count=10, schema_id=schema_id, commit_micros=123_456_789))


@given(st.data())
@examples(8)
def test_any_changes_come_back_to_the_bit(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    batch = data.draw(batches(definition.schema.arrow, min_rows=1))
    kinds = data.draw(st.lists(st.sampled_from(RowKind), min_size=batch.num_rows, max_size=batch.num_rows))
    ((key, value),) = encoded(changes_of(batch, [int(kind) for kind in kinds]), definition)
    record = decode_record(key, value, definition)
    record.changes.rows.validate(full=True)
    assert exact_rows(record.changes.rows) == exact_rows(batch)
    assert record.changes.kinds.tolist() == kinds
    assert (record.offset, record.epoch) == (make_offset(2, 10), 2)
    assert record.commit_micros.tolist() == [123_456_789] * batch.num_rows


@pytest.mark.parametrize("rows", [1, 63, 64, 500, MAX_CHANGES_PER_RECORD, MAX_CHANGES_PER_RECORD + 1, 10_000])
def test_a_commit_of_any_size_comes_back_in_records_of_bounded_size(rows: int) -> None:
    batch = scores([str(i) for i in range(rows + 5)], [None if i % 7 == 0 else i for i in range(rows + 5)]).slice(5)
    records = [decode_record(key, value, DEFINITION) for key, value in encoded(changes_of(batch))]
    assert pa.Table.from_batches([record.changes.rows for record in records]).equals(pa.Table.from_batches([batch]))
    place = 10
    for record in records:
        assert record.offset == make_offset(2, place)
        assert 1 <= len(record.changes) <= MAX_CHANGES_PER_RECORD
        place += len(record.changes)


def test_records_sort_by_offset_over_epochs() -> None:
    batch = scores(["a"], [1])
    keys = [
        next(encode_records(changes_of(batch), epoch=epoch, count=count, schema_id=1, commit_micros=0))[0]
        for epoch, count in [(0, 0), (0, 255), (0, 256), (0, 2**40), (1, 2), (1, 3), (200, 1), (30_000, 2**47)]
    ]
    assert keys == sorted(keys)


def test_a_record_of_an_older_schema_keeps_its_columns() -> None:
    ((key, value),) = encoded(changes_of(scores(["a"], [1])))
    altered = DEFINITION.add_columns(pa.schema([("more", pa.list_(pa.string()))]))
    record = decode_record(key, value, altered)
    assert record.schema_id == 1
    assert record.changes.rows.schema.names == ["player", "score"]


def test_every_shortened_record_is_data_loss() -> None:
    ((key, value),) = encoded(changes_of(scores(["a", "bb"], [1, 2])))
    for length in range(len(value)):
        with pytest.raises(DataLoss):
            decode_record(key, value[:length], DEFINITION)


def test_the_symbols_are_those_of_flink() -> None:
    assert [kind.symbol for kind in RowKind] == ["+I", "-U", "+U", "-D"]


def test_a_record_is_compressed_only_where_that_halves_it() -> None:
    rows = 2_000
    alike = scores([f"{i:020}" for i in range(rows)], [7] * rows)
    random = np.random.default_rng(4)
    unlike = scores([random.bytes(10).hex() for _ in range(rows)], random.integers(0, 2**62, rows).tolist())
    for batch, halved in ((alike, True), (unlike, False)):
        ((_, value),) = encoded(changes_of(batch))
        assert (2 * len(value) < batch.nbytes) == halved
        assert len(value) < 1.1 * batch.nbytes
        assert decode_record(b"\0" * 8, value, DEFINITION).changes.rows.equals(batch)
