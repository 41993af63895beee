"""Trimming removes changes beyond the retention that are not held, or that are held beyond the limit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa

from streaming_server.clock import ServerClock
from streaming_server.engine.changelog.log_maintenance import _trim
from tests.support.clocks import DAY, FakeClocks
from tests.support.offline import opened
from tests.support.tables import define

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
DEFINITION = define(SCHEMA, "k")
MEBIBYTE = 1 << 20


def noise(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(range(rows)), pa.array([os.urandom(40).hex() for _ in range(rows)])], schema=DEFINITION.schema.arrow
    )


def test_old_changes_stay_as_long_as_they_are_held_within_the_bound(tmp_path: Path) -> None:
    machine = FakeClocks()
    clock = ServerClock(machine)
    with opened(tmp_path / "0000", DEFINITION, clock) as offline:
        for _ in range(3):
            offline.upsert_batch(noise(20_000))
        offline.upsert_batch(noise(1))  # too little for a mark after it
        bucket = offline.bucket
        assert bucket.state.log_bytes > 3 * MEBIBYTE
        bucket.log.holds.hold("slow", bucket.log.span.offset_of(100))
        _trim(bucket, DEFINITION, 1 << 40, clock.service_micros())
        assert bucket.state.log_first == 0, "nothing is old yet"
        machine.pass_time(DEFINITION.options.log_retention_seconds)
        _trim(bucket, DEFINITION, 1 << 40, clock.service_micros())
        assert bucket.state.log_first == 100, "all of it is old, and the holder needs what comes from there on"
        assert bucket.log.holds.oldest() is not None
        _trim(bucket, DEFINITION, MEBIBYTE, clock.service_micros())
        assert bucket.log.holds.oldest() is None, "it holds over a MiB"
        assert bucket.state.log_first == bucket.state.count


def test_retention_counts_the_time_for_which_the_server_ran_whatever_the_wall_clock_says(tmp_path: Path) -> None:
    machine = FakeClocks()
    clock = ServerClock(machine)
    definition = define(SCHEMA, "k", log_retention_seconds="1000")
    with opened(tmp_path / "0000", definition, clock) as offline:
        bucket, first = offline.bucket, []
        for jump in (0.0, 300 * DAY, -300 * DAY, -50 * DAY, 50 * DAY):
            machine.set_wall(jump)
            for _ in range(20):
                offline.upsert_batch(noise(1))
                first.append((clock.service_micros(), bucket.state.count))
                machine.pass_time(20)
        for _ in range(80):
            machine.pass_time(20)
            now = clock.service_micros()
            _trim(bucket, definition, 1 << 40, now)
            old = [count for written, count in first if written <= now - 1_000_000_000]
            late = [count for written, count in first if written <= now - 1_010_000_000]
            assert max(late, default=0) <= bucket.state.log_first <= max(old, default=0)
        assert bucket.state.log_first == bucket.state.count


def test_after_service_time_was_lost_old_changes_are_kept_for_one_more_retention(tmp_path: Path) -> None:
    machine = FakeClocks()
    clock = ServerClock(machine)
    machine.pass_time(100 * DAY)
    definition = define(SCHEMA, "k", log_retention_seconds="1000")
    with opened(tmp_path / "0000", definition, clock) as offline:
        for _ in range(3):
            offline.upsert_batch(noise(1))
            machine.pass_time(100)
    clock = ServerClock(machine)
    with opened(tmp_path / "0000", definition, clock) as offline:
        bucket = offline.bucket
        before = bucket.state.count
        for _ in range(2):
            offline.upsert_batch(noise(1))
            machine.pass_time(100)
        machine.pass_time(790)
        _trim(bucket, definition, 1 << 40, clock.service_micros())
        assert bucket.state.log_first == 0
        machine.pass_time(20)
        _trim(bucket, definition, 1 << 40, clock.service_micros())
        assert before <= bucket.state.log_first < bucket.state.count
