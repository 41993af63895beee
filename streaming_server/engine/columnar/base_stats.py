"""The statistics of the columnar base of a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from streaming_server.engine.bucket.base_record import BaseRecord
    from streaming_server.engine.bucket.live_bucket import LiveBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBaseStats:
    """The statistics of the base of a bucket and of its delta. Zeros if no base exists.

    Attributes:
        unused_reason: The human-readable reason why scans read no base. Empty if they read one.
        log_offset: The offset of the first change that is not in the base.
        rows: The rows in the base.
        disk_bytes: The bytes of its files.
        changes_since: The changes since the base, as log offsets count them.
        delta_rows: The rows and deletions in the delta.
        delta_bytes: The memory of the delta, including older states that scans still read.
        age_millis: The time since its build began.
        record: What the bases of the bucket have cost.
    """

    unused_reason: str
    log_offset: int = 0
    rows: int = 0
    disk_bytes: int = 0
    changes_since: int = 0
    delta_rows: int = 0
    delta_bytes: int = 0
    age_millis: int = 0
    record: BaseRecord


def base_stats_of(live: LiveBucket, now_micros: int) -> LiveBaseStats:
    """Returns the statistics as of a commit time, from memory. Opens nothing and takes no mutex."""
    # Read once, because a write in a thread may change them.
    base, delta, state, record = live.columnar.base, live.columnar.delta, live.state, live.columnar.record
    taken = live.columnar.delta_bytes
    if base is None or delta is None or state is None:
        return LiveBaseStats(unused_reason=record.unused_reason or "it is not open", delta_bytes=taken, record=record)
    return LiveBaseStats(
        unused_reason="",
        log_offset=base.info.log_offset,
        rows=base.info.rows,
        disk_bytes=base.info.disk_bytes,
        changes_since=state.count - count_of(base.info.log_offset),
        delta_rows=delta.rows,
        delta_bytes=taken,
        # Commit time may have moved back, if the file of the clock was lost.
        age_millis=max(0, now_micros // 1000 - base.info.cut_millis),
        record=record,
    )
