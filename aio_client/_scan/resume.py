"""Decides whether an interrupted scan resumes, and records the resumptions."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aio_client._scan.protocol import EndedWithoutTrailer
from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import (
    DeadlineExceeded,
    ScanKvError,
    ScanStalled,
    ScanTooLong,
    ServerBusy,
    ServerDraining,
    TooManyScans,
    Unavailable,
)
from scankv.model.scans.scan_spec import Resume

if TYPE_CHECKING:
    from datetime import datetime

    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.model.scans.scan_spec import ScanSpec

# Errors that say nothing about the rows, so that another attempt may succeed.
_INTERRUPTIONS: Final = (
    Unavailable,
    DeadlineExceeded,
    ScanStalled,
    ScanTooLong,
    ServerBusy,
    ServerDraining,
    TooManyScans,
    EndedWithoutTrailer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """One place where a scan resumed after an interruption. Over the live table, a new view begins there.

    Attributes:
        resumed_at: When the scan resumed, in UTC, by the client's clock.
        rows: The rows that the stream had returned before.
        cause: The interruption. None if the scan began with `resume_from`.
        from_log_offsets: The view of the rows before, as `ScanStream.log_offsets`.
        to_log_offsets: The view of the rows after. Over a pinned snapshot, the same view.
    """

    resumed_at: datetime
    rows: int
    cause: ScanKvError | None
    from_log_offsets: LogOffsets
    to_log_offsets: LogOffsets


class Verdict(enum.Enum):
    """What follows from an error of a scan."""

    RETRY = enum.auto()
    """Make another attempt from the last token."""
    COMPLETE = enum.auto()
    """End the scan with success: all rows have arrived."""
    INTERRUPTED = enum.auto()
    """Raise `ScanInterrupted` from the error."""
    RAISE = enum.auto()
    """Raise the error."""


def verdict(error: ScanKvError, spec: ScanSpec, *, started: bool, complete: bool) -> Verdict:
    """Decides what follows from an error of a scan.

    | error | before the first header | after it |
    |---|---|---|
    | not an interruption | raise | raise |
    | an interruption, all rows arrived | - | end with success |
    | an interruption, `Resume.NEVER` | raise | raise |
    | an interruption, pinned snapshot | retry | retry |
    | an interruption, changelog | raise; retry with a token, a consumer, or offsets | retry |
    | an interruption, live, `Resume.LATEST` | raise; retry with a token | retry |
    | an interruption, live, by default | raise; retry with a token | raise |
    | `TooManyScans`, `ServerBusy` | always retry | as every interruption |
    | `Unavailable` with a `retry_after`, or a call that was shed | always retry | as every interruption |

    Where the table says raise, a broken connection after the first header becomes `ScanInterrupted`.

    Args:
        error: The error that ended an attempt.
        spec: The scan.
        started: Whether a header has arrived; before that, no view was read.
        complete: Whether all rows have arrived: the trailer arrived, or the limit was reached.
    """
    if not isinstance(error, _INTERRUPTIONS):
        return Verdict.RAISE
    if not started:
        return Verdict.RETRY if _was_refused(error) or _can_wait_for_server(spec) else Verdict.RAISE
    if complete:
        return Verdict.COMPLETE
    if _resumes(spec):
        return Verdict.RETRY
    return Verdict.INTERRUPTED if isinstance(error, Unavailable) else Verdict.RAISE


def _was_refused(error: ScanKvError) -> bool:
    """Returns whether the server refused the call for now, or gRPC dropped it, before any row was read."""
    if isinstance(error, TooManyScans | ServerBusy):
        return True
    return isinstance(error, Unavailable) and (error.shed or error.retry_after is not None)


def _can_wait_for_server(spec: ScanSpec) -> bool:
    """Returns whether a scan may wait for an absent server: its position is known, so its rows stay the same."""
    known = spec.snapshot_id is not None or spec.resume_token is not None
    if spec.log is not None:
        known = known or spec.log.consumer_id is not None or spec.log.start.kind is PositionKind.OFFSETS
    return spec.resume is not Resume.NEVER and known


def _resumes(spec: ScanSpec) -> bool:
    exact = spec.snapshot_id is not None or spec.log is not None
    return spec.resume is Resume.LATEST or (spec.resume is None and exact)
