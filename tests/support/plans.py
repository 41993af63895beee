"""Plans of scans and of streams of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scankv.model.changes.log_positions import StartFrom
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.changes.log_plan import LogPlan
from streaming_server.scan.read_plan import ReadPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.expressions import Predicate

_ALL_KEYS = KeyRange()


def plan_of(
    where: Predicate | None = None,
    *,
    columns: Sequence[str] | None = None,
    reverse: bool = False,
    ordered: bool = False,
    limit: int | None = None,
    token: bytes = b"",
    key_range: KeyRange = _ALL_KEYS,
    **others: Any,
) -> ReadPlan:
    """Returns the plan of a query, of all rows unless given."""
    return ReadPlan(
        buckets=None,
        columns=None if columns is None else tuple(columns),
        where=where,
        where_message=repr(where).encode(),
        key_range=key_range,
        reverse=reverse,
        ordered=ordered,
        limit=limit,
        resume_token=token,
        **others,
    )


def log_plan_of(**others: Any) -> LogPlan:
    """Returns the plan of a stream, of all changes and without an end unless given."""
    asked: dict[str, Any] = {
        "buckets": None,
        "columns": None,
        "where": None,
        "where_message": b"",
        "limit": None,
        "resume_token": b"",
        "start": StartFrom.EARLIEST,
        "stop": None,
        "clamp": False,
    }
    return LogPlan(**asked | others)
