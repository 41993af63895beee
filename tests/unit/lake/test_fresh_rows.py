"""Changed keys are found among the keys of a data file."""

from __future__ import annotations

import pyarrow as pa

from scankv.lake.union.fresh_rows import FreshChanges, encode_keys, key_codec

SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False), pa.field("id", pa.int32(), nullable=False)])


def changes(*rows: tuple[str, int, int | None, int]) -> pa.RecordBatch:
    """Returns changes, given the row kind, the bucket, the value and the id of each."""
    kinds, buckets, values, ids = zip(*rows, strict=True)
    columns = {
        "_change_type": pa.array(kinds),
        "_bucket": pa.array(buckets, pa.int32()),
        "value": pa.array(values, pa.int64()),
        "id": pa.array(ids, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_changed_keys_are_found_between_the_ends_of_a_file() -> None:
    collected = FreshChanges(SCHEMA, ["id"])
    collected.add(changes(*(("+I", 0, 1, number) for number in (10, -5, 3, 7))))
    rows = pa.RecordBatch.from_pydict({"id": pa.array([-5, 3, 7, 8], pa.int32())})
    keys = encode_keys(key_codec(SCHEMA, ["id"]), rows).to_pylist()
    fresh = collected.finish()
    assert fresh.keys[0].within(keys[1], keys[2]).to_pylist() == keys[1:3]
    assert fresh.keys[0].within(keys[3], keys[3]).to_pylist() == []
    assert fresh.keys[0].within(keys[0], keys[3]).to_pylist() == keys[:3]
