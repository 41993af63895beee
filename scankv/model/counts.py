"""How a number of things reads in a message."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with a noun, in the plural unless the number is 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"
