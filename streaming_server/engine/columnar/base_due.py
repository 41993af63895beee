"""Whether a columnar base is to be built now, and if not, why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streaming_server.engine.bucket.base_record import BaseRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseLimits:
    """When bases are built, and what they may cost.

    Attributes:
        min_rows: Rows of a bucket from which on it gets one with `columnar_base=auto`.
        changed_share: Changes since a base, as a share of its rows, beyond which it is built anew.
        max_age_seconds: With changes since, a base that is older is built anew, however few they are.
        max_write_amplification: How many times the bytes of the changes since a base building it anew may write, unless
            the base is older than that.
        delta_bytes: Memory for what was written to one bucket since its base.
        total_delta_bytes: The same for all buckets together.
        cpu_share: How much of a core building takes at most, all bases together.
    """

    min_rows: int
    changed_share: float
    max_age_seconds: float
    max_write_amplification: float
    delta_bytes: int
    total_delta_bytes: int
    cpu_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketNow:
    """A bucket, as far as it decides whether its base is built.

    Attributes:
        eager: Whether bases are wanted of buckets of any size, whether they are scanned or not.
        rows: Its rows, or more.
        base_rows: Rows of its base; None where there is none.
        changes: Changes since the base.
        delta_bytes: What the changes since the base take in memory.
        age_seconds: Since the base, or the one that was lost, was begun.
    """

    eager: bool
    rows: int
    base_rows: int | None
    changes: int
    delta_bytes: int
    age_seconds: float


def why_not_due(now: BucketNow, record: BaseRecord, limits: BaseLimits) -> str:
    """Why no base is to be built now, in words; empty when one is.

    A base is built where there is none, and anew when the changes since are many, take much memory, or wait for long.
    The first two are not reason enough while they are little beside what would be written. With `auto` a scan must
    have asked for it: a table that is written and never read costs nothing but the notes of what is written.
    """
    if now.base_rows is None and now.rows < (1 if now.eager else limits.min_rows):
        return "it has no rows" if now.eager else f"it has fewer than {limits.min_rows:,} rows (base_min_rows)"
    if not now.eager and not record.wanted:
        return "no scan has asked for one since the last"
    if now.base_rows is not None:
        if not now.changes:
            return "nothing has changed since"
        old = now.age_seconds > limits.max_age_seconds
        many = now.changes > limits.changed_share * now.base_rows or now.delta_bytes > limits.delta_bytes // 2
        if not many and not old:
            return "little has changed since"
    if now.age_seconds > limits.max_age_seconds:
        return ""
    if record.base_bytes > limits.max_write_amplification * record.changed_bytes:
        return "too little was written since the last for writing it anew (base_max_write_amplification)"
    return ""
