"""What a statement in SQL that changes something has done."""

from __future__ import annotations

from dataclasses import dataclass

from aio_client._input.shown_fields import ShownFields


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlResult(ShownFields):
    """What a statement has done; `print` shows it.

    Attributes:
        rows: How many rows it has inserted, updated or deleted. 0 for statements about tables.
        summary: What it has done, in words, for people.
    """

    rows: int
    summary: str

    def __str__(self) -> str:
        """Returns the summary."""
        return self.summary

    def __repr__(self) -> str:
        return f"<SqlResult: {self.summary}>"
