"""The records of a bucket's writers: how long and how many it knows, and their stored form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import (
    DataLoss,
    InvalidRequest,
    RequestTooLarge,
    TooManyWriters,
    WriterExpired,
)
from scankv.model.limits import WRITER_WINDOW
from streaming_server.clock import ServerClock
from streaming_server.engine.merging.outcome import merge_upsert
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.bucket.writer_states import (
    ANONYMOUS_TTL_SECONDS,
    RefusedRow,
    WriteAnswer,
    WriteIdentity,
    WriterLimits,
    WriterState,
    WriteStep,
)
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.clocks import DAY, HOUR, FakeClocks
from tests.support.offline import OfflineBucket, opened, resources
from tests.support.tables import SCORES, define

if TYPE_CHECKING:
    from pathlib import Path

DEFINITION = define(SCORES, row_deduplicate="false")
FIRST = WriteIdentity(writer="job", epoch=0, sequence=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "buckets" / "0000"


def write(
    bucket: OfflineBucket, identity: WriteIdentity, value: int | None = 1, *, rows: int = 1, complete: bool = True
) -> None:
    """Upserts one row as a step of a request; None changes nothing."""
    row = pa.RecordBatch.from_pylist([{"player": "ann", "score": value}], schema=bucket.codec.schema)
    [part] = prepare(row, TableCodec.of(bucket.definition), keys_only=False)
    part = part if value is not None else part.slice(0, 0)
    change = merge_upsert(bucket.bucket.get(part.keys.to_pylist()), part, row_deduplicate=False)
    bucket.bucket.apply(change, WriteStep(identity=identity, rows=rows, complete=complete))


def test_an_opened_writer_that_is_not_known_any_more_is_refused(path: Path) -> None:
    with opened(path, DEFINITION) as bucket, pytest.raises(WriterExpired, match="open the writer again"):
        bucket.bucket.find_answer(WriteIdentity(writer="job", epoch=3, sequence=12))


def test_an_unknown_writer_is_a_new_one_unless_its_request_is_old(path: Path) -> None:
    with opened(path, DEFINITION) as bucket:
        assert bucket.bucket.find_answer(replace(FIRST, sequence=12, age_seconds=ANONYMOUS_TTL_SECONDS - 1)) is None
        with pytest.raises(WriterExpired):
            bucket.bucket.find_answer(replace(FIRST, sequence=12, age_seconds=ANONYMOUS_TTL_SECONDS))


def limited(path: Path, limits: WriterLimits, clock: ServerClock | None = None) -> OfflineBucket:
    bucket = OfflineBucket(path, DEFINITION)
    bucket.bucket.close()
    bucket.bucket = Bucket(
        path,
        "bucket 0000",
        compression="none",
        resources=resources(),
        clock=clock or ServerClock(),
        writer_limits=limits,
    )
    return bucket


def test_writers_expire_and_then_are_refused_for_what_is_old(path: Path) -> None:
    machine = FakeClocks()
    bucket = limited(path, WriterLimits(ttl_seconds=60), ServerClock(machine))
    try:
        write(bucket, FIRST)
        bucket.bucket.open_writer("named", 1, 0)
        assert bucket.bucket.writers.is_sweep_due()
        for jump in (2 * HOUR, -5 * HOUR, 300 * DAY):
            machine.set_wall(jump)
            assert bucket.bucket.writers.sweep() == 0
        machine.pass_time(60)
        assert bucket.bucket.writers.sweep() == 1
        # A writer that was not opened is remembered for longer than its requests are accepted without a record.
        assert bucket.bucket.writers.get("named") is None
        assert bucket.bucket.find_answer(FIRST) is not None
        machine.pass_time(6)
        assert bucket.bucket.writers.sweep() == 1
        assert bucket.bucket.find_answer(FIRST) is None
        with pytest.raises(WriterExpired):
            bucket.bucket.find_answer(replace(FIRST, age_seconds=60))
        with pytest.raises(WriterExpired):
            bucket.bucket.find_answer(WriteIdentity(writer="named", epoch=1, sequence=0))
    finally:
        bucket.bucket.close()


def test_writers_of_a_bucket_whose_server_has_lost_its_service_time_live_on_for_their_time_to_live(path: Path) -> None:
    machine = FakeClocks()
    clock = ServerClock(machine)
    machine.pass_time(100 * DAY)
    bucket = limited(path, WriterLimits(ttl_seconds=60), clock)
    write(bucket, FIRST)
    bucket.bucket.close()
    bucket = limited(path, WriterLimits(ttl_seconds=60), ServerClock(machine))
    try:
        assert bucket.bucket.writers.sweep() == 0
        machine.pass_time(65)
        assert bucket.bucket.writers.sweep() == 0
        assert bucket.bucket.find_answer(FIRST) is not None
        machine.pass_time(1)
        assert bucket.bucket.writers.sweep() == 1
    finally:
        bucket.bucket.close()


def test_a_bucket_full_of_writers_refuses_new_ones_and_serves_those_it_knows(path: Path) -> None:
    bucket = limited(path, WriterLimits(max_writers=3))
    try:
        for number in range(3):
            write(bucket, replace(FIRST, writer=f"w{number}"))
        for _ in range(2):
            with pytest.raises(TooManyWriters, match="max_writers_per_bucket"):
                bucket.bucket.find_answer(replace(FIRST, writer="w3"))
        assert bucket.bucket.find_answer(replace(FIRST, writer="w1", sequence=1)) is None
        write(bucket, replace(FIRST, writer="w1", sequence=1))
    finally:
        bucket.bucket.close()
    bucket = limited(path, WriterLimits(max_writers=4))
    try:
        assert bucket.bucket.find_answer(replace(FIRST, writer="w3")) is None
        write(bucket, replace(FIRST, writer="w3"))
        with pytest.raises(TooManyWriters):
            bucket.bucket.find_answer(replace(FIRST, writer="w4"))
    finally:
        bucket.bucket.close()


@pytest.mark.breadth
def test_more_writers_than_are_kept_in_memory_are_all_known(path: Path) -> None:
    with opened(path, DEFINITION) as bucket:
        for number in range(1100):
            write(bucket, replace(FIRST, writer=f"w{number}"), None)
        assert not bucket.bucket.writers.is_cached("w0")
        assert bucket.bucket.find_answer(replace(FIRST, writer="w0")) is not None


@pytest.mark.parametrize("count", [0, 1, WRITER_WINDOW])
def test_a_state_is_read_as_it_was_written(count: int) -> None:
    answers = tuple(WriteAnswer(2**62 + n, n, 2**50 + n, n % 2 == 0) for n in range(count))
    state = WriterState(epoch=3, next_sequence=2**63, acked_below=9, used_micros=2**50, answers=answers)
    assert WriterState.from_bytes(state.to_bytes()) == state
    for broken in (b"", b"\x02" + state.to_bytes()[1:], state.to_bytes()[:-1], state.to_bytes() + b"x"):
        with pytest.raises(DataLoss):
            WriterState.from_bytes(broken)


def test_refused_rows_are_read_as_they_were_written() -> None:
    errors = [
        InvalidRequest('column "total", key (ä): the sum does not fit int8', column="total", key="ä"),
        RequestTooLarge("row 0: the columns of index (s) take over 16,384 bytes", row=0),
    ]
    refused = tuple(RefusedRow(place, error) for place, error in zip((0, 7), errors, strict=True))
    answers = (WriteAnswer(1, 8, 5, True, refused), WriteAnswer(2, 1, 6, True))
    state = WriterState(epoch=3, next_sequence=3, answers=answers)
    stored = state.to_bytes()
    first, second = WriterState.from_bytes(stored).answers
    assert second == answers[1]
    assert [(each.row, type(each.error), each.error.message, each.error.details) for each in first.refusals] == [
        (each.row, type(each.error), each.error.message, each.error.details) for each in refused
    ]
    for broken in (stored[:-1], stored + b"x", b"\1" + stored[1:], b"\3" + stored[1:]):
        with pytest.raises(DataLoss):
            WriterState.from_bytes(broken)


def test_a_new_writer_without_owner_does_not_inherit_one_that_an_earlier_version_left(path: Path) -> None:
    with opened(path, DEFINITION) as bucket:
        bucket.bucket.open_writer("job", 5, 0, "before")
        bucket.bucket.open_writer("job", 6, 0)
        bucket.bucket.writers._cache.clear()
        state = bucket.bucket.writers.get("job")
        assert state is not None
        assert state.principal is None
