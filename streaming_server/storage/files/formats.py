"""Formats: the numbers that say how a file or a record is laid out. docs/internals/formats.md lists all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import NewerFormat

if TYPE_CHECKING:
    from scankv.model.errors import DataLoss


def newer_format(what: str, found: object, newest: int) -> NewerFormat:
    """Returns the error for a file or a record of an unknown format.

    Args:
        what: What has the format, such as a path.
        found: The number of the format, and flags if they are unknown.
        newest: The newest format that this server reads.
    """
    return NewerFormat(
        f"{what} has format {found}, written by a newer ScanKV: this server reads formats up to {newest}; upgrade the "
        "server"
    )


def check_format(what: str, found: object, newest: int) -> None:
    """Refuses a number of a format above the newest known one. Raises NewerFormat."""
    if isinstance(found, int) and found > newest:
        raise newer_format(what, found, newest)


def locate(error: DataLoss, location: str) -> DataLoss:
    """Returns the same error with the location in front of the message."""
    located = type(error)(f"{location}: {error.message}")
    located.details.update(error.details)
    return located
