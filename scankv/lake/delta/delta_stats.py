"""The statistics of a data file in the log of a Delta table, by which readers skip files."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow.types as pat

from scankv.lake.utf8_json import utf8_json
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from scankv.lake.lake_table import DataFile

_LONGEST_TEXT: Final = 128
_EXACT_DIGITS: Final = 15
"""Decimals with more digits are not exact in the JSON numbers of most readers."""


def statistics_json(file: DataFile, schema: pa.Schema) -> str:
    """Returns the statistics of a new file: the rows, and for each column of a plain type the nulls and the bounds.

    Bounds are left out where a reader could take them wrongly: of binary and boolean columns, of floats with NaN, which
    Parquet leaves out of its bounds, and of long texts.
    """
    assert file.footer is not None
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    known = set(schema.names)
    for place in range(file.footer.num_columns):
        name = file.footer.schema.column(place).path
        if name not in known or pat.is_nested(schema.field(name).type):
            continue
        groups = [
            file.footer.row_group(number).column(place).statistics for number in range(file.footer.num_row_groups)
        ]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        bounds = None if name in file.nan_columns else _bounds(groups, schema.field(name).type)
        if bounds is not None:
            lowest[name], highest[name] = bounds
    return utf8_json({"numRecords": file.rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


def partition_values(file: DataFile, partition_by: Sequence[str]) -> dict[str, str | None]:
    """Returns the values of the partition columns of a new file, as text in the form of the log.

    Raises:
        UsageError: A value is an empty text, which Delta Lake reads as null.
    """
    found = {}
    for name, value in zip(partition_by, file.partition, strict=True):
        if value == "":
            raise UsageError(
                f'partition column "{name}" has an empty text, which Delta Lake reads as null: publish with '
                "--no-partitions",
                column=name,
            )
        found[name] = _partition_text(value)
    return found


def _bounds(groups: Sequence[Any], type_: pa.DataType) -> tuple[Any, Any] | None:
    filled = [group for group in groups if group.has_min_max]
    has_bounds = not pat.is_boolean(type_) and not pat.is_binary(type_)
    if not filled or not has_bounds or any(group.num_values and not group.has_min_max for group in groups):
        return None
    try:
        bounds = min(group.min for group in filled), max(group.max for group in filled)
        return _json_value(bounds[0]), _json_value(bounds[1])
    except (_NoBoundError, OverflowError, ValueError):  # such as a date that Python does not have
        return None


class _NoBoundError(Exception):
    """A value that cannot be a bound."""


def _json_value(value: object) -> object:
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        if len(value.as_tuple().digits) > _EXACT_DIGITS:
            raise _NoBoundError
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _NoBoundError
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        raise _NoBoundError
    return value


def _partition_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return str(value)
