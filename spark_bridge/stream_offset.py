"""How far a streaming query has come, as it stands in Spark's checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION: Final = 1

INITIAL: Final[dict[str, Any]] = {"version": _VERSION}
"""The offset of a query that has not begun: a constant, since Spark asks for it again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotProgress:
    """How far the rows are read that a start from the whole table begins with.

    Attributes:
        snapshot_id: The snapshot that they are of.
        parts: Into how many parts it is cut; which ones is fixed by the snapshot.
        next: The first part that is not read.
    """

    snapshot_id: str
    parts: int
    next: int

    @property
    def are_read(self) -> bool:
        """Whether none is left."""
        return self.next == self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """A place in a query. Immutable.

    Spark compares offsets as text, so equal ones have equal JSON. All that a micro-batch reads is told by the two
    offsets that it lies between: whoever reads it again reads the same.

    Attributes:
        name: The table, as `database.table`.
        table: The incarnation of the table, which its offsets know, too.
        consumer_id: In whose name the changes are kept.
        log_offsets: For each bucket the first change that is not read; while there are rows to read, that which comes
            behind them.
        since: Of the first one of a query that begins with changes: where those begin. None for all others.
        rows: How far the rows are read that come before the changes. None: there are none, or they are committed.
    """

    name: str
    table: str
    consumer_id: str
    log_offsets: Mapping[int, int]
    since: Mapping[int, int] | None = None
    rows: SnapshotProgress | None = None

    def __post_init__(self) -> None:
        """Has all offsets say of which table they are, so that the server refuses them for another one."""
        object.__setattr__(self, "log_offsets", LogOffsets.of(self.log_offsets, self.table))
        if self.since is not None:
            object.__setattr__(self, "since", LogOffsets.of(self.since, self.table))

    def to_json(self) -> dict[str, Any]:
        """As values for JSON, always in the same order."""
        values: dict[str, Any] = {
            "version": _VERSION,
            "name": self.name,
            "table": self.table,
            "consumer": self.consumer_id,
        }
        if self.rows is not None:
            rows = self.rows
            values["rows"] = {"snapshot": rows.snapshot_id, "parts": rows.parts, "next": rows.next}
        if self.since is not None:
            values["since"] = _to_json(self.since)
        return {**values, "offsets": _to_json(self.log_offsets)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> StreamOffset | None:
        """Reads what `to_json` made; None for `INITIAL`.

        Raises:
            UsageError: It is something else, as of another data source or a later version.
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
                log_offsets=_of_json(values["offsets"]),
                since=_of_json(values["since"]) if "since" in values else None,
                rows=None
                if rows is None
                else SnapshotProgress(
                    snapshot_id=str(rows["snapshot"]), parts=int(rows["parts"]), next=int(rows["next"])
                ),
            )
        except (LookupError, TypeError, ValueError, AttributeError):
            raise UsageError(
                "the checkpoint has an offset that is none of this data source, or of a later version of it: start the "
                "query with another checkpoint"
            ) from None


def _to_json(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(bucket): offsets[bucket] for bucket in sorted(offsets)}


def _of_json(values: Mapping[str, Any]) -> dict[int, int]:
    return {int(bucket): int(offset) for bucket, offset in values.items()}
