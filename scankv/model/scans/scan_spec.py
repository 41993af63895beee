"""The specification of a scan: plain values without a connection, which can be stored, compared and pickled."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from scankv.model.changes.log_positions import LogSpec, PositionKind, ScanSource
from scankv.model.errors import InvalidRequest, UsageError
from scankv.model.expressions import Predicate
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import (
    MAX_BUCKETS,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_ROWS,
    MAX_RESUME_TOKEN_BYTES,
    MIN_CHUNK_BYTES,
    MIN_CHUNK_ROWS,
)
from scankv.model.names import TableName, is_column_name
from scankv.model.scans.consistency import Consistency, check_consistency
from scankv.model.scans.isolation import Isolation, check_isolation
from scankv.model.set_fields import show_set_fields
from scankv.model.shown_uris import show_location
from scankv.model.types.types import find_duplicate

_MAX_LIMIT = 2**63 - 1
_MAX_VERSION_BYTES = 1024


class Resume(enum.StrEnum):
    """Whether an interrupted scan continues by itself.

    By default, a scan of a pinned snapshot or of the changelog continues, because its rows are the same, and a scan of
    the live table does not.
    """

    NEVER = "never"
    """The stream raises the error, which contains the resume token."""

    LATEST = "latest"
    """The scan continues. A scan of the live table continues with a new view, so its rows come from several instants,
    which are in `stream.resumptions`."""


READ_PATHS: Final = ("auto", "rocksdb", "columnar", "lake")
"""The values of `read_path`."""


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """A scan of one table. Immutable, hashable, picklable.

    Attributes:
        table: The table, as `database.table`.
        columns: The columns to return, in this order, each once. None: all. Empty: rows without columns, for counting.
        where: The predicate that the rows match. None: all rows.
        limit: The most rows to return from all buckets together. None: unlimited. 0: only schema and log offsets.
        buckets: The buckets to read, each once. None: all. Empty: none, as for a shard beyond the last bucket.
        chunk_rows: The most rows of a chunk, 1 to 65,536. None: the server's default.
        chunk_bytes: The most bytes of stored rows in a chunk, 1 KiB to 16 MiB. Eight times as many if the chunk has
            at most an eighth of their bytes. None: the server's default.
        snapshot_id: The pinned snapshot to read. None: the live table.
        key_range: The encoded keys to read. None: all.
        reverse: Whether each bucket is read in descending key order.
        read_path: What the rows are read from: `auto`, `rocksdb`, `columnar` or `lake`.
        lake: With the read path `lake`, where the table is published.
        as_of: With the read path `lake`, the version to read alone: its number, or a time. None: the rows of the table
            as of now, or of the snapshot.
        isolation: Whether the scan waits until what it returns is durable: `read_committed` or `read_latest`.
        consistency: Which rows of the live table are of one instant: all of the `table`, or those of each `owner`.
        ordered: Whether the rows of all buckets together are returned in key order.
        unordered: Whether the rows of several buckets may come in any order. Otherwise they come bucket by bucket.
        resume: Whether the scan continues by itself after an interruption. None: only a scan of a pinned snapshot or
            of the changelog.
        log: The changes to read. None: the rows.
        resume_token: The position to continue after, from an earlier scan with the same spec; opaque. None: from the
            start.
        changes_follow: Whether the reader continues with the changes from the log offsets of the scan. If so, the rows
            contain those that have expired and whose deletion the changelog will get.
        if_changed_since: The version of an earlier answer about the same buckets. If nothing has changed since, the
            scan returns no rows. None: it always returns the rows.
        part: The number of the part, from 0 on, if the scan is one of several that divide a snapshot. The workers of
            the server take turns in reading them. It changes nothing else. None: the scan is no part.
    """

    table: str
    _: KW_ONLY
    columns: tuple[str, ...] | None = None
    where: Predicate | None = None
    limit: int | None = None
    buckets: tuple[int, ...] | None = None
    chunk_rows: int | None = None
    chunk_bytes: int | None = None
    snapshot_id: str | None = None
    key_range: KeyRange | None = None
    reverse: bool = False
    read_path: str = "auto"
    lake: str | None = None
    as_of: dt.datetime | int | None = None
    isolation: Isolation = "read_committed"
    consistency: Consistency = "table"
    ordered: bool = False
    unordered: bool = False
    changes_follow: bool = False
    resume: Resume | None = None
    log: LogSpec | None = None
    # Tokens hold keys, which do not belong in logs.
    resume_token: bytes | None = field(default=None, repr=False)
    if_changed_since: bytes | None = None
    part: int | None = None

    def __repr__(self) -> str:
        return show_set_fields(self, lake=show_location)

    def __post_init__(self) -> None:
        """Raises UsageError if a value is not valid, with the field and the allowed values in the message."""
        try:
            TableName.parse(self.table)
        except InvalidRequest as error:
            raise UsageError(error.message, table=self.table) from error
        if self.columns is not None:
            _check_columns(self.columns)
        if self.where is not None and not isinstance(self.where, Predicate):
            raise UsageError(f"where must be a predicate, as predicate_of makes one, not a {type(self.where).__name__}")
        if self.buckets is not None:
            _check_buckets(self.buckets)
        _check_range("limit", self.limit, 0, _MAX_LIMIT)
        _check_range("part", self.part, 0, _MAX_LIMIT)
        _check_range("chunk_rows", self.chunk_rows, MIN_CHUNK_ROWS, MAX_CHUNK_ROWS)
        _check_range("chunk_bytes", self.chunk_bytes, MIN_CHUNK_BYTES, MAX_CHUNK_BYTES)
        if self.snapshot_id is not None and (not isinstance(self.snapshot_id, str) or not self.snapshot_id):
            raise UsageError(
                f"snapshot_id must be the id of a snapshot, or None for the live table, not {self.snapshot_id!r}"
            )
        if self.key_range is not None and not isinstance(self.key_range, KeyRange):
            raise UsageError(
                f"key_range must be a KeyRange, or None for all keys, not a {type(self.key_range).__name__}"
            )
        for name, value in (
            ("reverse", self.reverse),
            ("ordered", self.ordered),
            ("unordered", self.unordered),
            ("changes_follow", self.changes_follow),
        ):
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be True or False, not {value!r}")
        if self.ordered and self.unordered:
            raise UsageError("ordered and unordered exclude each other: leave out one of them")
        if self.read_path not in READ_PATHS:
            raise UsageError(
                f"read_path must be {' or '.join(map(repr, READ_PATHS))}, not {self.read_path!r}", option="read_path"
            )
        if self.read_path == "lake" and not (isinstance(self.lake, str) and self.lake):
            raise UsageError(
                'read_path "lake" needs the location of the published table as text, such as "s3://bucket/scores", not '
                f"{self.lake!r}",
                option="lake",
            )
        if self.read_path != "lake" and self.lake is not None:
            raise UsageError(
                f'lake is for read_path "lake" only, not for "{self.read_path}": leave out {self.lake!r}', option="lake"
            )
        if self.as_of is not None:
            self._check_as_of(self.as_of)
        check_isolation(self.isolation, snapshot_id=self.snapshot_id)
        check_consistency(self.consistency, snapshot_id=self.snapshot_id, read_path=self.read_path)
        if self.resume is not None and not isinstance(self.resume, Resume):
            raise UsageError(
                f"resume must be Resume.NEVER, Resume.LATEST, or None for the default, not {self.resume!r}"
            )
        if self.log is not None:
            self._check_log(self.log)
        if self.resume_token is not None:
            _check_token(self.resume_token)
        if self.if_changed_since is not None:
            check_version("if_changed_since", self.if_changed_since)
            if self.isolation == "read_latest":
                raise UsageError(
                    'if_changed_since cannot be used with the isolation "read_latest", because only durable contents '
                    "have a version: leave one of them out",
                    option="isolation",
                )
            if self.resume_token is not None:
                raise UsageError(
                    "if_changed_since cannot be used with a resume token: a resumed scan returns the remaining rows "
                    "whatever has changed; remove the condition with if_changed_since(None)"
                )

    @property
    def source(self) -> ScanSource:
        """What the scan reads."""
        if self.log is not None:
            return ScanSource.LOG
        return ScanSource.KV if self.snapshot_id is None else ScanSource.SNAPSHOT

    def _check_as_of(self, as_of: dt.datetime | int) -> None:
        if isinstance(as_of, dt.datetime):
            is_valid = as_of.tzinfo is not None
        else:
            is_valid = isinstance(as_of, int) and not isinstance(as_of, bool) and as_of >= 0
        if not is_valid:
            raise UsageError(
                f"as_of must be a datetime with a time zone, or the number of a version from 0, not {as_of!r}",
                option="as_of",
            )
        for name, asked, why in (
            ("a snapshot", self.snapshot_id is not None, "a version has one instant, and a snapshot another"),
            ("ordered", self.ordered, "the server would have to sort the rows"),
            ("reverse", self.reverse, "the server would have to sort the rows"),
            ("resume_from", self.resume_token is not None, "start again, which reads the same version"),
            ("if_changed_since", self.if_changed_since is not None, "a version never changes"),
            ("changes_follow", self.changes_follow, "start with StartFrom.lake, which has the changes since"),
        ):
            if asked:
                raise UsageError(f"{name} cannot be used with as_of of a published version: {why}", option="as_of")

    def _check_log(self, log: LogSpec) -> None:
        if not isinstance(log, LogSpec):
            raise UsageError(f"log must be a LogSpec, or None for the rows, not a {type(log).__name__}")
        for name, asked, why in (
            ("as_of", self.snapshot_id is not None, "a snapshot has no changes; start with its log offsets"),
            ("key_range", self.key_range is not None, "select the keys with where"),
            ("reverse", self.reverse, "the changes of a bucket are always in the order of their commits"),
            ("ordered", self.ordered, "the changes of a bucket are always in the order of their commits"),
            ("unordered", self.unordered, "the changes of several buckets come in any order anyway"),
            ("read_path", self.read_path != "auto", "it selects what rows are read from"),
            ("as_of", self.as_of is not None, "start with StartFrom.timestamp, or with StartFrom.lake"),
            ("consistency", self.consistency != "table", "changes of several buckets have no common instant"),
            ("changes_follow", self.changes_follow, "start with StartFrom.FULL to begin with the rows"),
        ):
            if asked:
                raise UsageError(f"{name} is not for a scan of the changelog: {why}")
        if log.consumer_id is not None and self.isolation == "read_latest":
            raise UsageError(
                'isolation "read_latest" is not for consumers, because a power failure may undo the changes before '
                "the position that a consumer commits: leave it out",
                option="isolation",
            )
        if log.start.kind is PositionKind.LAKE and self.limit is not None:
            raise UsageError("limit is not for StartFrom.lake: use stop_at, or stop reading")
        if log.consumer_id is not None and self.limit is not None:
            raise UsageError("limit is not for consumers, which commit complete batches; use stop_at")
        if log.consumer_id is not None and self.resume_token is not None:
            raise UsageError(
                "resume_from cannot be used with with_consumer_id: a consumer continues where it committed; move "
                "it with reset_consumer"
            )


def _check_columns(columns: tuple[str, ...]) -> None:
    if not isinstance(columns, tuple) or not all(map(is_column_name, columns)):
        raise UsageError(f"columns must be a tuple of column names, not {columns!r}")
    twice = find_duplicate(columns)
    if twice is not None:
        raise UsageError(f'column "{twice}" is selected twice', column=twice)


def _check_buckets(buckets: tuple[int, ...]) -> None:
    if not isinstance(buckets, tuple):
        raise UsageError(f"buckets must be a tuple of bucket numbers, or None for all, not {buckets!r}")
    for bucket in buckets:
        _check_range("a bucket number", bucket, 0, MAX_BUCKETS - 1)
    if len(set(buckets)) < len(buckets):
        raise UsageError(f"a bucket is named twice in {buckets}")


def _check_token(token: bytes) -> None:
    if not isinstance(token, bytes):
        raise UsageError(f"a resume token must be bytes, as a stream or an error gave it, not a {type(token).__name__}")
    if not 0 < len(token) <= MAX_RESUME_TOKEN_BYTES:
        raise UsageError(f"a resume token must have between 1 and {MAX_RESUME_TOKEN_BYTES:,} bytes, not {len(token):,}")


def check_version(what: str, version: bytes) -> None:
    """Raises UsageError if the value cannot be the version of an answer, which is a short bytes object."""
    if not isinstance(version, bytes) or not 0 < len(version) <= _MAX_VERSION_BYTES:
        raise UsageError(f"{what} must be the version of an earlier answer, which is bytes, not {version!r:.80}")


def _check_range(what: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{what} must be a whole number between {low:,} and {high:,}, not {value!r}")
