"""The isolation of a read: whether it waits until what it returns is durable."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from scankv.model.errors import UsageError

Isolation: TypeAlias = Literal["read_committed", "read_latest"]
"""What a read may return: only what is durable, or everything that is applied."""

ISOLATIONS: Final = get_args(Isolation)


def check_isolation(isolation: str, *, snapshot_id: str | None = None) -> None:
    """Checks an isolation.

    Args:
        isolation: The value.
        snapshot_id: The pinned snapshot that is read. None: the live table.

    Raises:
        UsageError: The value is not an isolation, or a snapshot is read with `read_latest`.
    """
    if isolation not in ISOLATIONS:
        raise UsageError(
            f"isolation must be {' or '.join(map(repr, ISOLATIONS))}, not {isolation!r}", option="isolation"
        )
    if isolation == "read_latest" and snapshot_id is not None:
        raise UsageError(
            'isolation "read_latest" is not for a snapshot, which is durable and never changes: leave it out',
            option="isolation",
        )
