"""The mark of a table whose buckets have taken in files: its first rows are in no write-ahead log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_MARK: Final = "bootstrapped"


def mark_taken_in(table: Path) -> None:
    """Marks the directory of a table. Durable once the directory is synced."""
    (table / _MARK).touch()


def has_taken_in(table: Path) -> bool:
    """Whether the directory of a table is marked."""
    return (table / _MARK).exists()
