"""Parses options that name positions in a changelog."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from aio_client import LogOffsets, StartFrom, StopAt
from scankv.model.errors import UsageError

_LAST: Final = re.compile(r"last:([0-9]{1,9})")
_LAKE: Final = "lake:"
_NUMBER: Final = re.compile("[0-9]{1,18}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ]|$)")
_OFFSETS: Final = re.compile(r"[0-9]+=[0-9]+(,[0-9]+=[0-9]+)*")
_NAMED: Final = {"full": StartFrom.FULL, "earliest": StartFrom.EARLIEST, "latest": StartFrom.LATEST}


def parse_start(option: str, text: str) -> StartFrom:
    """Parses where to start: full, earliest, latest, last:N, lake:URI, offsets, or a time.

    Raises:
        UsageError: The text is none of these forms. The message names the option.
    """
    if text in _NAMED:
        return _NAMED[text]
    last = _LAST.fullmatch(text)
    if last is not None:
        return StartFrom.last(int(last[1]))
    if text.startswith(_LAKE):
        return StartFrom.lake(text.removeprefix(_LAKE))
    offsets = _offsets(text)
    if offsets is not None:
        return StartFrom.offsets(offsets)
    return StartFrom.timestamp(_time(option, text, "full, earliest, latest, last:N, lake:URI, offsets as 0=12,1=7"))


def parse_stop(option: str, text: str) -> StopAt:
    """Parses where to stop: latest, offsets, or a time.

    Raises:
        UsageError: The text is none of these forms. The message names the option.
    """
    if text == "latest":
        return StopAt.LATEST
    offsets = _offsets(text)
    if offsets is not None:
        return StopAt.offsets(offsets)
    return StopAt.timestamp(_time(option, text, "latest, offsets as 0=12,1=7"))


def parse_version(text: str) -> datetime | int | None:
    """Parses a version of a published table: its number, or a time. Returns None for any other text.

    Raises:
        UsageError: The text looks like a date or a time, but is not a valid one.
    """
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        return _to_time(text)
    except ValueError:
        if _DATE.match(text):
            raise UsageError(
                "--as-of must be a snapshot, a version as 12, or a time between the years 1 and 9999 as "
                f'2026-01-31T12:00:00Z, not "{text}"'
            ) from None
        return None


def _offsets(text: str) -> LogOffsets | None:
    """Parses offsets as 0=12,1=7 or as JSON with the table incarnation; returns None for any other text."""
    if text.lstrip().startswith("{"):
        return LogOffsets.from_json(text)
    if _OFFSETS.fullmatch(text):
        return LogOffsets(
            (int(bucket), int(offset)) for bucket, offset in (each.split("=") for each in text.split(","))
        )
    return None


def _time(option: str, text: str, others: str) -> datetime:
    try:
        return _to_time(text)
    except ValueError:
        raise UsageError(f'{option} must be {others}, or a time as 2026-01-31T12:00:00Z, not "{text}"') from None


def _to_time(text: str) -> datetime:
    """Parses a time. A time without a zone is in the local zone of this machine. Raises ValueError for other text."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError as error:
        # In UTC, the year is not between 1 and 9999.
        raise ValueError(text) from error
