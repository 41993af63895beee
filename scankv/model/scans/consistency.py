"""The consistency of a scan: of which instants the rows of a live table are."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from scankv.model.errors import UsageError

Consistency: TypeAlias = Literal["table", "owner"]
"""Which rows are of one instant: those of the table, or those of each worker process that owns tablets of it."""

CONSISTENCIES: Final = get_args(Consistency)


def check_consistency(consistency: str, *, snapshot_id: str | None = None, read_path: str = "auto") -> None:
    """Checks a consistency.

    Args:
        consistency: The value.
        snapshot_id: The pinned snapshot that is read. None: the live table.
        read_path: What the rows are read from.

    Raises:
        UsageError: The value is not a consistency, or what is read is always of one instant.
    """
    if consistency not in CONSISTENCIES:
        raise UsageError(
            f"consistency must be {' or '.join(map(repr, CONSISTENCIES))}, not {consistency!r}", option="consistency"
        )
    if consistency == "owner" and (snapshot_id is not None or read_path == "lake"):
        what = "a snapshot" if snapshot_id is not None else 'the read path "lake"'
        raise UsageError(
            f'consistency "owner" is not for {what}, which is always of one instant: leave it out', option="consistency"
        )
