"""The last change of each key counts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scankv.lake.masking import ChangedRows
from scankv.model.keys.key_codec import KeyCodec

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
CODEC = KeyCodec([pa.int64()])


def changes(*rows: tuple[str, int, int]) -> pa.RecordBatch:
    kinds, ids, values = zip(*rows, strict=True)
    columns = {"_change_type": list(kinds), "id": list(ids), "value": list(values)}
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("compacts", [False, True])
def test_rows_are_those_after_the_last_change(compacts: bool) -> None:
    collected = ChangedRows(SCHEMA, lambda rows: CODEC.encode([rows.column("id")]))
    for batch in (
        changes(("+I", 5, 1), ("+I", 3, 1), ("+I", 4, 1)),
        changes(("-U", 5, 1), ("+U", 5, 2), ("-D", 3, 1), ("-D", 4, 1)),
        changes(("+I", 4, 7), ("-D", 9, 9)),
    ):
        collected.add(batch)
        if compacts:
            collected.compact()
    found = collected.finish()
    assert found.keys.to_pylist() == CODEC.encode([pa.array([3, 4, 5, 9])]).to_pylist()
    assert found.rows.to_pylist() == [{"id": 4, "value": 7}, {"id": 5, "value": 2}]


def test_compacted_changes_take_less_memory() -> None:
    collected = ChangedRows(SCHEMA, lambda rows: CODEC.encode([rows.column("id")]))
    collected.compact()
    for value in range(100):
        collected.add(changes(*(("+U", id_, value) for id_ in range(10))))
    before = collected.bytes
    collected.compact()
    assert collected.bytes * 20 < before
    assert [row["value"] for row in collected.finish().rows.to_pylist()] == [99] * 10
