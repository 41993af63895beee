"""What becomes of a scan that was cut: the one decision whether it goes on, and the record that it did."""

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

# What says nothing about the rows themselves: the same question, asked again, may well be answered.
_CUTS: Final = (
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
    """One place where a scan went on after a cut. Over the live table, a fresh view begins there.

    Attributes:
        at: When, in UTC, by the client's clock.
        rows: Rows that this stream had returned before.
        cause: What the cut was; None where the scan began with `resume_from`.
        from_log_offsets: The view of the rows before, as `ScanStream.log_offsets`.
        to_log_offsets: The view of the rows after; the same over a pinned snapshot.
    """

    at: datetime
    rows: int
    cause: ScanKvError | None
    from_log_offsets: LogOffsets
    to_log_offsets: LogOffsets


class Verdict(enum.Enum):
    """What follows from an error."""

    RETRY = enum.auto()
    """Ask again, from the last token on."""
    COMPLETE = enum.auto()
    """Nothing was missing: the scan ends well."""
    INTERRUPTED = enum.auto()
    """Raise `ScanInterrupted` from it."""
    RAISE = enum.auto()
    """Raise it as it is."""


def verdict(error: ScanKvError, spec: ScanSpec, *, started: bool, complete: bool) -> Verdict:
    """Decides what follows from an error of a scan.

    | error | before the first header | after it |
    |---|---|---|
    | no cut | raise | raise |
    | a cut with nothing missing | - | end well |
    | a cut, `Resume.NEVER` | raise | raise |
    | a cut, pinned | retry | retry |
    | a cut of the changelog | raise; retry with a token, a consumer, or from offsets on | retry |
    | a cut, live, `Resume.LATEST` | raise; retry with a token | retry |
    | a cut, live, no choice | raise; retry with a token | raise |
    | `TooManyScans`, `ServerBusy` | retry, always | as every cut |
    | a call that was shed | retry, always | as every cut |

    Where it says raise, a broken connection after the first header becomes `ScanInterrupted`.

    Args:
        error: What ended an attempt.
        spec: The scan.
        started: Whether a header ever came: before, no view was read.
        complete: Whether all rows have come: the trailer was there, or the limit is reached.
    """
    if not isinstance(error, _CUTS):
        return Verdict.RAISE
    if not started:
        return Verdict.RETRY if _not_begun(error) or _rides_through(spec) else Verdict.RAISE
    if complete:
        return Verdict.COMPLETE
    if _goes_on(spec):
        return Verdict.RETRY
    return Verdict.INTERRUPTED if isinstance(error, Unavailable) else Verdict.RAISE


def _not_begun(error: ScanKvError) -> bool:
    """Whether the server refused the call, or gRPC dropped it, before any row was read."""
    return isinstance(error, TooManyScans | ServerBusy) or (isinstance(error, Unavailable) and error.shed)


def _rides_through(spec: ScanSpec) -> bool:
    """Whether a scan waits for a server that is not there: where it stands is known, so waiting changes no row."""
    known = spec.snapshot_id is not None or spec.resume_token is not None
    if spec.log is not None:
        known = known or spec.log.consumer_id is not None or spec.log.start.kind is PositionKind.OFFSETS
    return spec.resume is not Resume.NEVER and known


def _goes_on(spec: ScanSpec) -> bool:
    exact = spec.snapshot_id is not None or spec.log is not None
    return spec.resume is Resume.LATEST or (spec.resume is None and exact)
