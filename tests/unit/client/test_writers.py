"""Anonymous writers, and the lane of a writer that each key takes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from aio_client._table.shape import TableShape
from aio_client._transport.anonymous_writers import AnonymousWriters
from aio_client._write.writer_lanes import LaneChooser
from scankv.model.keys.buckets import bucket_of
from scankv.model.keys.key_codec import KeyCodec
from scankv.v1 import table_pb2

SCHEMA = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("x", pa.float64(), nullable=False)])


def test_who_writes_in_sequence_is_one_writer_whose_earlier_requests_are_settled() -> None:
    writers = AnonymousWriters()
    seen = []
    for _ in range(3):
        with writers.one() as writer:
            seen += [writer.next_identity(), writer.next_identity()]
    assert len({identity.id for identity in seen}) == 1
    assert [identity.sequence for identity in seen] == list(range(6))
    assert all(identity.acked_below == identity.sequence and not identity.epoch for identity in seen)


def test_who_writes_at_the_same_time_is_another_writer_and_the_last_one_is_taken_again_first() -> None:
    writers = AnonymousWriters()
    with writers.one() as first, writers.one() as second:
        ids = {first.next_identity().id, second.next_identity().id}
        assert len(ids) == 2
    with writers.one() as again:
        assert again is first
        with writers.one() as other:
            assert other is second
    assert AnonymousWriters()._client != writers._client


def shape(buckets: int, bucket_key: list[str]) -> TableShape:
    description = table_pb2.Table(
        name="a.b",
        arrow_schema=SCHEMA.serialize().to_pybytes(),
        primary_key=["a", "x"],
        bucket_key=bucket_key,
        buckets=buckets,
    )
    return TableShape.of(description)


@pytest.mark.parametrize("bucket_key", [["a", "x"], ["a"]])
@pytest.mark.parametrize(
    ("buckets", "lanes", "made"), [(1, 1, 1), (1, 4, 4), (2, 5, 4), (3, 4, 3), (4, 4, 4), (16, 4, 4), (5, 16, 15)]
)
def test_a_key_always_takes_the_same_lane_and_lanes_share_no_bucket_unless_there_are_few(
    buckets: int, lanes: int, made: int, bucket_key: list[str]
) -> None:
    table = shape(buckets, bucket_key)
    chosen = LaneChooser(table, lanes)
    assert chosen.lanes == made
    batch = pa.record_batch({"a": list(range(500)), "x": [0.0, -0.0] * 250}, schema=SCHEMA)
    lane_of: dict[tuple[int, float], int] = {}
    buckets_of: dict[int, set[int]] = {}
    codec = KeyCodec([SCHEMA.field(name).type for name in bucket_key], bucket_key)
    for part in (batch, batch.slice(100, 77), batch.slice(499)):
        rows = 0
        for lane, split in chosen.split(part):
            rows += split.num_rows
            assert 0 <= lane < made
            for row in split.to_pylist():
                # -0.0 and 0.0 are the same key.
                assert lane_of.setdefault((row["a"], row["x"]), lane) == lane
            keys = codec.encode([codec.canonical(split.column(name)) for name in bucket_key])
            buckets_of.setdefault(lane, set()).update(bucket_of(keys, buckets).tolist())
        assert rows == part.num_rows
    assert len(buckets_of) == made
    if lanes <= buckets:
        assert sum(map(len, buckets_of.values())) == buckets
    else:
        assert all(len(one) == 1 for one in buckets_of.values())
