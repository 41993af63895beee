"""What trimming removes: what is beyond the retention and not held, or held for more than it is worth."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from streaming_server.engine.log_upkeep import _trim
from tests.support.offline import opened
from tests.support.tables import define

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
DEFINITION = define(SCHEMA, "k")
MEBIBYTE = 1 << 20


def noise(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(range(rows)), pa.array([os.urandom(40).hex() for _ in range(rows)])], schema=DEFINITION.schema.arrow
    )


def test_old_changes_stay_as_long_as_they_are_held_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "0000", DEFINITION) as offline:
        for _ in range(3):
            offline.upsert_batch(noise(20_000))
        offline.upsert_batch(noise(1))  # too little for a mark behind it
        bucket = offline.bucket
        assert bucket.state.log_bytes > 3 * MEBIBYTE
        bucket.log.hold("slow", bucket.log.span.offset_of(100))
        later = time.time_ns() + (DEFINITION.options.log_retention_seconds + 60) * 10**9
        _trim(bucket, DEFINITION, 1 << 40)
        assert bucket.state.log_first == 0, "nothing is old yet"
        monkeypatch.setattr("time.time_ns", lambda: later)
        _trim(bucket, DEFINITION, 1 << 40)
        assert bucket.state.log_first == 100, "all of it is old, and the holder needs what comes from there on"
        assert bucket.log.holds.oldest() is not None
        _trim(bucket, DEFINITION, MEBIBYTE)
        assert bucket.log.holds.oldest() is None, "it holds over a MiB"
        assert bucket.state.log_first == bucket.state.count
