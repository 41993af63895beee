"""The position of a streaming query, as Spark stores it in the checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION: Final = 1

INITIAL: Final[dict[str, Any]] = {"version": _VERSION}
"""The offset of a query that has not begun. It is a constant, since Spark asks for it repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotProgress:
    """How many of the initial rows have been read, in a query with `start=full`.

    Attributes:
        snapshot_id: The snapshot that contains the initial rows.
        parts: How many parts the snapshot is divided into. The snapshot and this number determine the parts.
        next: The number of the first part that has not been read.
        expires: Whether rows of the table expired when the snapshot was pinned. All parts then have the expired rows
            whose deletions follow, also if the TTL is removed before they are read.
    """

    snapshot_id: str
    parts: int
    next: int
    expires: bool = False

    @property
    def are_read(self) -> bool:
        """Whether all parts have been read."""
        return self.next == self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProgress:
    """How many files with the initial rows have been read, in a query with `start=lake`.

    Attributes:
        version: The published version that has the initial rows.
        commit_id: Identifies the version: one that is published again has another.
        files: How many files it has.
        next: The number of the first file that has not been read.
    """

    version: int
    commit_id: str
    files: int
    next: int

    @property
    def are_read(self) -> bool:
        """Whether all files have been read."""
        return self.next == self.files


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """A position in a streaming query. Immutable.

    Spark compares offsets as text, so equal offsets have equal JSON. The two offsets of a micro-batch determine what it
    reads, so a repeated micro-batch reads the same rows.

    Attributes:
        name: The table, as `database.table`.
        table: The incarnation of the table. The log offsets contain it, too.
        consumer_id: The consumer that holds the changes.
        log_offsets: By bucket, the offset of the first change to read next, or to read after the initial rows.
        since: Where the changes of the first micro-batch begin. None in all later offsets, and if the query begins with
            initial rows.
        rows: How many of the initial rows have been read. None without initial rows, or once all of them are committed.
        lake: The same of a query whose initial rows are in published files.
    """

    name: str
    table: str
    consumer_id: str
    log_offsets: Mapping[int, int]
    since: Mapping[int, int] | None = None
    rows: SnapshotProgress | None = None
    lake: FileProgress | None = None

    def __post_init__(self) -> None:
        # With the incarnation inside, the server refuses the offsets for a table that was created again.
        object.__setattr__(self, "log_offsets", LogOffsets.of(self.log_offsets, self.table))
        if self.since is not None:
            object.__setattr__(self, "since", LogOffsets.of(self.since, self.table))

    def to_json(self) -> dict[str, Any]:
        """Returns the offset as values for JSON, always in the same order."""
        values: dict[str, Any] = {
            "version": _VERSION,
            "name": self.name,
            "table": self.table,
            "consumer": self.consumer_id,
        }
        if self.rows is not None:
            rows = self.rows
            values["rows"] = {"snapshot": rows.snapshot_id, "parts": rows.parts, "next": rows.next}
            if rows.expires:
                values["rows"]["expires"] = True
        if self.lake is not None:
            values["lake"] = asdict(self.lake)
        if self.since is not None:
            values["since"] = _format_offsets(self.since)
        return {**values, "offsets": _format_offsets(self.log_offsets)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StreamOffset | None:
        """Parses the values from `to_json`. Returns None for `INITIAL`.

        Raises:
            UsageError: The values come from another data source or a later version.
        """
        if values == INITIAL:
            return None
        try:
            if values["version"] != _VERSION:
                raise ValueError
            rows = values.get("rows")
            return cls(
                name=str(values["name"]),
                table=str(values["table"]),
                consumer_id=str(values["consumer"]),
                log_offsets=_parse_offsets(values["offsets"]),
                since=_parse_offsets(values["since"]) if "since" in values else None,
                rows=None
                if rows is None
                else SnapshotProgress(
                    snapshot_id=str(rows["snapshot"]),
                    parts=int(rows["parts"]),
                    next=int(rows["next"]),
                    expires=bool(rows.get("expires", False)),
                ),
                lake=FileProgress(**values["lake"]) if "lake" in values else None,
            )
        except (LookupError, TypeError, ValueError, AttributeError):
            raise UsageError(
                "the checkpoint has an offset of another data source or of a later version of ScanKV: start the query "
                "with another checkpoint"
            ) from None


def _format_offsets(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(bucket): offsets[bucket] for bucket in sorted(offsets)}


def _parse_offsets(values: Mapping[str, Any]) -> dict[int, int]:
    return {int(bucket): int(offset) for bucket, offset in values.items()}
