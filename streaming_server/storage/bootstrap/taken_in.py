"""The mark of a table whose buckets have taken in files: its first rows are in no write-ahead log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streaming_server.storage.files.checked_json import find_checked_json, write_checked_json

if TYPE_CHECKING:
    from pathlib import Path

_MARK: Final = "bootstrapped.json"


def mark_taken_in(table: Path, rows: int) -> None:
    """Marks the directory of a table, which has so many rows, durably."""
    write_checked_json(table / _MARK, {"rows": rows})


def rows_taken_in(table: Path) -> int:
    """Returns how many rows a table had when it was marked. 0: it is not marked. Raises DataLoss."""
    found = find_checked_json(table / _MARK)
    return 0 if found is None else int(found["rows"])


def has_taken_in(table: Path) -> bool:
    """Whether the directory of a table is marked."""
    return (table / _MARK).exists()
