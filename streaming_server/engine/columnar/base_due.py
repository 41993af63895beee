"""Decides whether a columnar base is due to be built, and if not, why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from streaming_server.engine.bucket.base_record import BaseRecord


NEVER_SCANNED: Final = "no scan has asked for one yet"
NOT_SCANNED: Final = "no scan has asked for a base since the last one was built"
_DELTAS_IN_MEMORY: Final = 8
"""A base is rebuilt when its delta takes more than this part of the memory for all deltas, so many fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseLimits:
    """When bases are built, and what they may cost.

    Attributes:
        min_rows: With `columnar_base=auto`, the fewest rows of a bucket that gets a base.
        changed_share: A base is rebuilt when its delta exceeds this share of its rows.
        max_age_seconds: A base that is older is rebuilt, however few changes it has.
        max_write_amplification: A rebuild may write at most this multiple of the bytes that have changed, unless the
            base is older than `max_age_seconds`.
        total_delta_bytes: Memory for the deltas of all buckets together.
        cpu_share: The share of one core that all builds together may take.
    """

    min_rows: int
    changed_share: float
    max_age_seconds: float
    max_write_amplification: float
    total_delta_bytes: int
    cpu_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketNow:
    """The state of a bucket that decides whether its base is due.

    Attributes:
        eager: Whether every bucket gets a base, of any size and without a scan that asks for it.
        rows: An upper bound of its rows.
        base_rows: The rows of its base. None: it has no base.
        changes: The rows that have changed since the base, with those of deleted ranges. Each counts once, but again
            for each write that was not merged yet.
        delta_bytes: The memory of the delta.
        age_seconds: The time since the build of the base, or of the lost one, began.
        build_bytes: About the bytes of a base: those of the last one, or of the files with the rows.
        free_bytes: The disk space that a build can take.
    """

    eager: bool
    rows: int
    base_rows: int | None
    changes: int
    delta_bytes: int
    age_seconds: float
    build_bytes: int
    free_bytes: int


def why_not_due(now: BucketNow, record: BaseRecord, limits: BaseLimits) -> str:
    """Returns the human-readable reason why no base is due now. Empty: a base is due.

    A base is built if none exists. It is rebuilt when its changes are many, take much memory, or are old. The first
    two reasons do not suffice while the changes are small compared with what a rebuild would write. With `auto`, a scan
    must have asked for a base, so that a table that is never read costs no more than its delta.
    """
    if now.base_rows is None and now.rows < (1 if now.eager else limits.min_rows):
        return "it has no rows" if now.eager else f"it has fewer than {limits.min_rows:,} rows (base_min_rows)"
    if not now.eager and not record.wanted:
        return NOT_SCANNED if record.base_bytes else NEVER_SCANNED
    if now.base_rows is not None:
        old = now.age_seconds > limits.max_age_seconds
        if not now.changes:
            return "nothing has changed since the last base was built"
        many = (
            now.changes > limits.changed_share * now.base_rows
            or now.delta_bytes > limits.total_delta_bytes // _DELTAS_IN_MEMORY
        )
        if not many and not old:
            return "too little has changed since the last base was built"
    if now.build_bytes > now.free_bytes:
        return "the disk has too little space for another base"
    if now.age_seconds > limits.max_age_seconds:
        return ""
    if record.base_bytes > limits.max_write_amplification * record.changed_bytes:
        return "too little has changed since the last base to rewrite it (base_max_write_amplification)"
    return ""
