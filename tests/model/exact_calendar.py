"""Days and times of the proleptic Gregorian calendar as plain integers, for years that Python does not have."""

from __future__ import annotations

import re
from typing import Final

PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""How many units a second has."""

_DATE: Final = re.compile(r"([+-]?\d{4,})-(\d\d)-(\d\d)")
_CLOCK: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?")
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def days_of(year: int, month: int, day: int) -> int:
    """Returns the days since 1970-01-01. The algorithm is Howard Hinnant's `days_from_civil`."""
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def date_of(days: int) -> tuple[int, int, int]:
    """Returns year, month and day; the inverse of `days_of`."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted_month + 2) // 5 + 1


def timestamp_of(unit: str, year: int, month: int, day: int, second: int = 0, fraction: int = 0) -> int:
    """Returns a timestamp in its unit, `fraction` units after a second of a day."""
    return (days_of(year, month, day) * 86_400 + second) * PER_SECOND[unit] + fraction


def date_text(days: int) -> str:
    """Returns the ISO 8601 text of a day."""
    year, month, day = date_of(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def clock_text(value: int, unit: str) -> str:
    """Returns the text of a time of day, with all digits of its unit."""
    seconds, fraction = divmod(value, PER_SECOND[unit])
    digits = f".{fraction:0{_DIGITS[unit]}}" if _DIGITS[unit] else ""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{digits}"


def timestamp_text(value: int, unit: str, zone: str | None) -> str:
    """Returns the ISO 8601 text of a timestamp, in UTC if it has a zone."""
    days, rest = divmod(value, 86_400 * PER_SECOND[unit])
    return f"{date_text(days)}T{clock_text(rest, unit)}{'' if zone is None else 'Z'}"


def parse_date(text: str) -> int:
    """Returns the days of an ISO 8601 text."""
    match = _DATE.fullmatch(text)
    assert match, f"not a date: {text!r}"
    return days_of(*(int(part) for part in match.groups()))


def parse_clock(text: str, unit: str) -> int:
    """Returns a time of day in units. A time that the unit cannot express fails."""
    match = _CLOCK.fullmatch(text)
    assert match, f"not a time: {text!r}"
    hours, minutes, seconds, fraction = (part or "0" for part in match.groups())
    nanoseconds = int(fraction[:9].ljust(9, "0"))
    units, lost = divmod(nanoseconds * PER_SECOND[unit], 10**9)
    assert not lost, f"more precise than {unit}: {text!r}"
    return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * PER_SECOND[unit] + units


def parse_timestamp(text: str, unit: str, zone: str | None) -> int:
    """Returns a timestamp in units. With a zone, the text must be in UTC."""
    assert text.endswith("Z") is (zone is not None), f"not in the zone {zone}: {text!r}"
    date, _, clock = text.removesuffix("Z").replace(" ", "T").partition("T")
    return parse_date(date) * 86_400 * PER_SECOND[unit] + parse_clock(clock or "00:00", unit)
