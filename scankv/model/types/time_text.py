"""Converts dates and timestamps of any year to ISO 8601 text and back, a complete array at a time.

pyarrow prints and parses the years 0 to 9999. It prints other years wrongly or not at all. They have a sign here, as in
ISO 8601 and Java: `+10000-01-01`, `-0001-12-31`. Year 0 is the year before year 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model import lazy_compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

_FIRST_DAY: Final = -719_528
"""The first day of year 0, counted from 1970."""
_LAST_DAY: Final = 2_932_896
"""The last day of year 9999."""
_SECONDS_OF_DAY: Final = 86_400
_UNITS: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_SIGNED: Final = r"^[+-]\d{4}"
# No more digits than a year of timestamp[s] has, so that no number of days overflows.
_PARTS: Final = r"^(?P<date>[+-]\d{4,12}-\d\d-\d\d)(?:[T ](?P<time>\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)(?P<zone>Z)?)?$"


def times_to_text(column: pa.Array) -> pa.StringArray:
    """Returns the text of dates, or of timestamps without a time zone or in UTC; a null stays null."""
    texts = column.cast(pa.string())
    if pat.is_timestamp(column.type):
        texts = pc.replace_substring(texts, " ", "T")
    integers = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64()).cast(pa.int64())
    units = _units_of_day(column.type)
    limits = pc.min_max(integers)
    least, greatest = limits["min"].as_py(), limits["max"].as_py()
    if least is None or _FIRST_DAY * units <= least <= greatest < (_LAST_DAY + 1) * units:
        return texts
    values = pc.fill_null(integers, 0).to_numpy(zero_copy_only=False)
    days, rest = np.floor_divide(values, units), np.remainder(values, units)
    is_far = (days < _FIRST_DAY) | (days > _LAST_DAY)
    days, rest = days[is_far], rest[is_far]
    dates = np.datetime_as_string(days.view("datetime64[D]"))
    # NumPy pads negative years to three digits, and gives other years no sign.
    signed = np.where(days < 0, np.char.zfill(dates, 11), np.char.add("+", dates))
    far = pa.array(signed.tolist(), pa.string())
    if pat.is_timestamp(column.type):
        zone = "" if column.type.tz is None else "Z"
        far = pc.binary_join_element_wise(far, "T", _times_of_day(rest, column.type), zone, "")
    return pc.replace_with_mask(texts, pa.array(is_far), far)


def times_from_text(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Returns the dates or timestamps of texts without white space around them; a null stays null.

    Raises:
        ValueError: A text is not a value of the type, or the type cannot hold it exactly.
    """
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        is_signed = pc.fill_null(pc.match_substring_regex(texts, _SIGNED), False)
        if not pc.any(is_signed, min_count=0).as_py():
            raise
    # Not if_else, which pyarrow 20 to 23 gets wrong for a slice and a null.
    others = pc.replace_with_mask(texts, is_signed, pa.scalar(None, pa.string())).cast(type_)
    signed = _parse_signed(texts.filter(is_signed), type_)
    mask = is_signed.to_numpy(zero_copy_only=False)
    places = np.where(mask, len(texts) + np.cumsum(mask) - 1, np.arange(len(texts)))
    return pa.concat_arrays([others, signed]).take(pa.array(places))


def _units_of_day(type_: pa.DataType) -> int:
    return _SECONDS_OF_DAY * _UNITS[type_.unit] if pat.is_timestamp(type_) else 1


def _time_type(type_: pa.TimestampType) -> pa.DataType:
    return pa.time32(type_.unit) if type_.unit in ("s", "ms") else pa.time64(type_.unit)


def _times_of_day(rest: Integers, type_: pa.TimestampType) -> pa.StringArray:
    time = _time_type(type_)
    return pa.array(rest).cast(pa.int32() if time.bit_width == 32 else pa.int64()).view(time).cast(pa.string())


def _parse_signed(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    parts = pc.extract_regex(texts, _PARTS)
    dates, times, zones = parts.flatten() if not parts.null_count else (None, None, None)
    has_zone = "Z" if pat.is_timestamp(type_) and type_.tz is not None else ""
    if dates is None or (not pat.is_timestamp(type_) and pc.any(pc.not_equal(times, "")).as_py()):
        raise ValueError(f"a text is not {type_}")
    if pat.is_timestamp(type_) and pc.any(pc.not_equal(zones, has_zone)).as_py():
        raise ValueError(f"a text is not {type_}")
    days = np.asarray(dates.to_pylist(), "U").astype("datetime64[D]").astype(np.int64)
    if not pat.is_timestamp(type_):
        return pa.array(days).cast(pa.int32()).view(type_)
    given = pc.if_else(pc.equal(times, ""), "00:00", times)
    instants = pc.binary_join_element_wise("1970-01-01T", given, "").cast(pa.timestamp(type_.unit))
    units = _units_of_day(type_)
    values = days * units + instants.view(pa.int64()).to_numpy(zero_copy_only=False)
    if (np.floor_divide(values, units) != days).any():
        raise ValueError(f"a time is beyond the range of {type_}")
    return pa.array(values).view(type_)
