"""How a size and a duration read, in the command line and in the console."""

from __future__ import annotations

from typing import Final

_SIZE_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")


def size(number: int) -> str:
    """Formats a number of bytes with a unit of 1000: `1 byte`, `999 bytes`, `1.2 kB`, `34.0 GB`."""
    if number < 1000:
        return "1 byte" if number == 1 else f"{number:,} bytes"
    scaled = float(number)
    for unit in _SIZE_UNITS:
        scaled /= 1000
        if scaled < 1000 or unit == _SIZE_UNITS[-1]:
            return f"{scaled:,.1f} {unit}"
    raise AssertionError("the last unit takes every number")


def duration(seconds: float) -> str:
    """Formats a duration in its two largest units: `4.2 s`, `3 min 20 s`, `2 h 5 min`, `-6 d 1 h`."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    units = (86_400, "d"), (3600, "h"), (60, "min"), (1, "s")
    first = next(index for index, (length, _) in enumerate(units) if whole >= length)
    (length, unit), (part_length, part) = units[first : first + 2]
    parts = whole % length // part_length
    return f"{whole // length} {unit}" + (f" {parts} {part}" if parts else "")
