"""Where a stream of changes starts and ends."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import InvalidRequest, UsageError
from scankv.model.limits import MAX_BUCKETS, MAX_LAG_THRESHOLD, MAX_LAST_CHANGES
from scankv.model.names import check_consumer_id
from scankv.model.set_fields import show_set_fields
from scankv.model.shown_uris import show_location

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class ScanSource(enum.StrEnum):
    """The source that a scan reads."""

    KV = "kv"
    """The rows of the table, as of the start of the scan."""
    SNAPSHOT = "snapshot"
    """The rows of a pinned snapshot."""
    LOG = "log"
    """The changes in the changelog."""


class CatchUp(enum.StrEnum):
    """How a stream of changes reads a backlog."""

    ALL = "all"
    """Every change."""
    NET = "net"
    """One net change for each key."""


class Unmatched(enum.StrEnum):
    """How a stream of changes treats rows that do not match its predicate and may have matched before."""

    REFUSE = "refuse"
    """Refuse the stream if there can be such rows."""
    DELETE = "delete"
    """Send the deletion of such rows."""


class Untracked(enum.StrEnum):
    """What a stream of changes does where rows were written with `track_changes=False`."""

    FAIL = "fail"
    """Fail with RangeNotTracked."""
    RESCAN = "rescan"
    """Send the rows of the written key ranges again, as updates."""


class PositionKind(enum.StrEnum):
    """The kinds of positions in a changelog."""

    FULL = "full"
    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    OFFSETS = "offsets"
    LAST = "last"
    LAKE = "lake"


@dataclass(frozen=True, slots=True)
class _Position:
    """A position in the changelogs of a table. Immutable, hashable, picklable.

    Attributes:
        kind: The kind of the position.
        micros: For a time, microseconds since 1970 UTC.
        by_bucket: For offsets, pairs of a bucket and its offset.
        table_incarnation: For offsets, the incarnation of their table. Empty: unknown.
        count: For the last changes, how many.
        uri: For a published table, its location.
    """

    kind: PositionKind
    micros: int = 0
    by_bucket: tuple[tuple[int, int], ...] = ()
    count: int = 0
    table_incarnation: str = ""
    uri: str = ""

    @classmethod
    def _of_offsets(cls, offsets: Mapping[int, int]) -> Self:
        by_bucket, incarnation = _by_bucket(offsets), LogOffsets.incarnation_of(offsets)
        return cls(PositionKind.OFFSETS, by_bucket=by_bucket, table_incarnation=incarnation)

    def __repr__(self) -> str:
        name = type(self).__name__
        match self.kind:
            case PositionKind.TIMESTAMP:
                return f"{name}.timestamp({(_EPOCH + dt.timedelta(microseconds=self.micros)).isoformat()})"
            case PositionKind.OFFSETS:
                return f"{name}.offsets({dict(self.by_bucket)})"
            case PositionKind.LAST:
                return f"{name}.last({self.count})"
            case PositionKind.LAKE:
                return f"{name}.lake({show_location(self.uri)!r})"
        return f"{name}.{self.kind.name}"


class StartFrom(_Position):
    """Where a stream of changes starts.

    Attributes:
        FULL: All rows as of the start of the stream, then every later change.
        EARLIEST: The oldest change that is kept.
        LATEST: The changes after the start of the stream.
    """

    __slots__ = ()

    FULL: ClassVar[StartFrom]
    EARLIEST: ClassVar[StartFrom]
    LATEST: ClassVar[StartFrom]

    @classmethod
    def timestamp(cls, time: dt.datetime) -> StartFrom:
        """Starts with the first change committed at or after a time.

        If the changelog lacks a change since that time, the stream raises PositionExpired. With `clamp`, it starts with
        the oldest change that is kept. A time in the future is allowed, and so is a time before the table was created.

        Args:
            time: A time with a time zone.
        """
        return cls(PositionKind.TIMESTAMP, micros=_micros(time))

    @classmethod
    def offsets(cls, offsets: Mapping[int, int]) -> StartFrom:
        """Starts at log offsets: for every bucket that is read, the offset of the first change, as in `log_offsets`.

        `LogOffsets` contain the incarnation of their table. The server refuses them with TableRecreated if the table
        was restored, or dropped and created again. A plain dictionary names no incarnation, so only the first table of
        a name accepts it.
        """
        return cls._of_offsets(offsets)

    @classmethod
    def last(cls, count: int) -> StartFrom:
        """Starts with the last `count` changes before the start of the stream, 1 to 100,000; later changes follow."""
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_LAST_CHANGES:
            raise UsageError(f"count must be a whole number between 1 and {MAX_LAST_CHANGES:,}, not {count!r}")
        return cls(PositionKind.LAST, count=count)

    @classmethod
    def lake(cls, uri: str) -> StartFrom:
        """Starts with all rows of the latest version of a published table, then every change after that version.

        As `FULL`, but the client reads the rows from the files of the version. If the server no longer has the changes
        since, the stream raises PositionExpired. Such a stream has no `limit`.

        Args:
            uri: Where the table is published: a directory, or a URI such as `s3://bucket/scores`.
        """
        if not isinstance(uri, str) or not uri:
            raise UsageError(
                'StartFrom.lake needs the location of the published table as text, such as "s3://bucket/scores", not '
                f"{uri!r}"
            )
        return cls(PositionKind.LAKE, uri=uri)


class StopAt(_Position):
    """Where a stream of changes ends. A stream without a stop never ends.

    Attributes:
        LATEST: After the last change before the start of the stream.
    """

    __slots__ = ()

    LATEST: ClassVar[StopAt]

    @classmethod
    def timestamp(cls, time: dt.datetime) -> StopAt:
        """Ends before the first change committed at or after a time with a time zone. Waits until that time."""
        return cls(PositionKind.TIMESTAMP, micros=_micros(time))

    @classmethod
    def offsets(cls, offsets: Mapping[int, int]) -> StopAt:
        """Ends before these offsets, one for every bucket that is read. `LogOffsets` are checked as by `StartFrom`."""
        return cls._of_offsets(offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """The part of the changelog that a scan reads. Immutable, hashable, picklable.

    Attributes:
        start: Where the stream starts.
        stop: Where the stream ends. None: never.
        clamp: Whether the stream starts at the nearest change that is kept if changes since `start` were removed.
        row_kind: Whether the rows have their row kinds. Must be True when the scan starts.
        consumer_id: The consumer at whose position the stream starts. None: no consumer.
        consumer_must_exist: Whether an unknown consumer is refused rather than created.
        consumer_principal: The principal to whom a new consumer belongs. None: that of the token.
        catch_up: How a backlog of changes is read.
        lag_threshold: A bucket whose lag is greater, in changes, is read as net changes. None: the server's setting.
        unmatched: How the stream treats rows that do not match its predicate and may have matched before.
        untracked: What the stream does where rows were written without tracking of changes.
        rows_elsewhere: Whether the reader of the consumer takes the rows before the changes from published files.
    """

    start: StartFrom = field(default_factory=lambda: StartFrom.LATEST)
    stop: StopAt | None = None
    clamp: bool = False
    row_kind: bool = False
    consumer_id: str | None = None
    consumer_must_exist: bool = False
    consumer_principal: str | None = None
    catch_up: CatchUp = CatchUp.ALL
    lag_threshold: int | None = None
    unmatched: Unmatched = Unmatched.REFUSE
    untracked: Untracked = Untracked.FAIL
    rows_elsewhere: bool = False

    def __repr__(self) -> str:
        return show_set_fields(self)

    def __post_init__(self) -> None:
        """Raises UsageError if a value is not allowed."""
        if not isinstance(self.start, StartFrom):
            raise UsageError(f"start must be StartFrom.FULL, EARLIEST, LATEST, last(count), ..., not {self.start!r}")
        if self.stop is not None and not isinstance(self.stop, StopAt):
            raise UsageError(f"stop must be StopAt.LATEST, timestamp(...) or offsets(...), not {self.stop!r}")
        if not isinstance(self.catch_up, CatchUp):
            raise UsageError(f'catch_up must be "all" or "net", not {self.catch_up!r}')
        lag_threshold = self.lag_threshold
        if lag_threshold is not None and (
            type(lag_threshold) is not int or not 1 <= lag_threshold <= MAX_LAG_THRESHOLD
        ):
            raise UsageError(
                f"lag_threshold must be a whole number between 1 and {MAX_LAG_THRESHOLD:,}, not {lag_threshold!r}"
            )
        if lag_threshold is not None and self.catch_up is not CatchUp.NET:
            raise UsageError('lag_threshold is for net changes only: use with_catch_up("net", lag_threshold=...)')
        if not isinstance(self.consumer_must_exist, bool) or (self.consumer_must_exist and self.consumer_id is None):
            raise UsageError(f"must_exist must be True or False, with a consumer_id, not {self.consumer_must_exist!r}")
        if not isinstance(self.unmatched, Unmatched):
            raise UsageError(f'unmatched must be "refuse" or "delete", not {self.unmatched!r}')
        if not isinstance(self.untracked, Untracked):
            raise UsageError(f'untracked must be "fail" or "rescan", not {self.untracked!r}')
        if self.consumer_id is not None:
            try:
                check_consumer_id(self.consumer_id)
            except InvalidRequest as error:
                raise UsageError(error.message) from error


StartFrom.FULL = StartFrom(PositionKind.FULL)
StartFrom.EARLIEST = StartFrom(PositionKind.EARLIEST)
StartFrom.LATEST = StartFrom(PositionKind.LATEST)
StopAt.LATEST = StopAt(PositionKind.LATEST)


def _micros(time: dt.datetime) -> int:
    if not isinstance(time, dt.datetime) or time.tzinfo is None:
        raise UsageError(f"a time must be a datetime with a time zone, not {time!r}")
    return (time - _EPOCH) // dt.timedelta(microseconds=1)


def _by_bucket(offsets: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    if not hasattr(offsets, "items"):
        raise UsageError(f"offsets must be a dictionary of bucket numbers and log offsets, not {offsets!r:.80}")
    whole = all(isinstance(n, int) and not isinstance(n, bool) for pair in offsets.items() for n in pair)
    if not offsets or not whole or not all(0 <= bucket < MAX_BUCKETS for bucket in offsets):
        raise UsageError("offsets must be a dictionary of bucket numbers and log offsets, as stream.log_offsets is")
    if not all(0 <= offset < 2**63 for offset in offsets.values()):
        raise UsageError("a log offset must be between 0 and 2**63 - 1")
    return tuple(sorted(offsets.items()))
