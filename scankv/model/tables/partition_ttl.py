"""The rule by which partitions expire: a time to live in calendar units after the value of a partition column. Pure."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scankv.model.tables.partitioning import Partitioning

_UNITS: Final = ("hour", "day", "week", "month", "year")
_FORM: Final = re.compile(rf"([1-9][0-9]{{0,4}}) ({'|'.join(_UNITS)})s?")
DEFAULT_FORMAT: Final = "%Y-%m-%d"
"""The format of times in a text column."""


@dataclass(frozen=True, slots=True)
class CalendarPeriod:
    """A period in calendar units, such as 3 months. Immutable.

    Attributes:
        count: How many units.
        unit: `hour`, `day`, `week`, `month` or `year`.
    """

    count: int
    unit: str

    @classmethod
    def parse(cls, text: str) -> CalendarPeriod:
        """Reads a period such as `7 days`. Raises InvalidOption."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise InvalidOption(
                f'table option "partition_ttl" must be a number of hours, days, weeks, months or years, such as '
                f'"7 days", "3 months" or "1 year", not "{text}"',
                option="partition_ttl",
            )
        return cls(int(found[1]), found[2])

    def after(self, time: dt.datetime) -> dt.datetime | None:
        """Returns the time so much later. None: it is after the last year of the calendar.

        Months and years keep the day of the month, or end on the last day of a shorter month.
        """
        try:
            if self.unit in ("month", "year"):
                months = time.year * 12 + time.month - 1 + self.count * (12 if self.unit == "year" else 1)
                year, month = months // 12, months % 12 + 1
                return time.replace(year=year, month=month, day=min(time.day, calendar.monthrange(year, month)[1]))
            return time + dt.timedelta(**{f"{self.unit}s": self.count})
        except (OverflowError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """When the partitions of a table expire. Immutable.

    Attributes:
        period: How long after the time of a partition.
        column: The column with the time.
        format: The format of the times if it is a text column: see `datetime.strptime`.
    """

    period: CalendarPeriod
    column: str
    format: str

    def expiry_of(self, values: Mapping[str, Any]) -> dt.datetime | None:
        """Returns when the partition with these values expires, in UTC. None: never, because they have no time."""
        value = values[self.column]
        if isinstance(value, pa.Scalar):  # Python has no such time
            return None
        try:
            if isinstance(value, str):
                value = dt.datetime.strptime(value, self.format)
            elif not isinstance(value, dt.datetime):
                value = dt.datetime(value.year, value.month, value.day)
        except ValueError:
            return None
        # Times without a zone are in UTC. A timestamp in nanoseconds is one of pandas, where pandas is installed.
        value = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
        return self.period.after(value)


def partition_rule(ttl: str, column: str, format_: str, partitioning: Partitioning | None) -> PartitionRule | None:
    """Returns the rule that the options of a table make. None: its partitions do not expire.

    Args:
        ttl: The option `partition_ttl`. Empty: none.
        column: The option `partition_ttl_column`. Empty: the first partition column with dates or timestamps, or else
            the first one with text.
        format_: The option `partition_ttl_format`. Empty: `DEFAULT_FORMAT`.
        partitioning: The partitions of the table. None: it has none.

    Raises:
        InvalidOption: The table is not partitioned, or the column is no partition column with times.
    """
    if not ttl:
        for option, value in (("partition_ttl_column", column), ("partition_ttl_format", format_)):
            if value:
                raise InvalidOption(
                    f'table option "{option}" has no effect without "partition_ttl": give both', option=option
                )
        return None
    if partitioning is None:
        raise InvalidOption(
            'table option "partition_ttl" needs a partitioned table: create it with partition_by',
            option="partition_ttl",
        )
    types = dict(zip(partitioning.names, partitioning.types, strict=True))
    times = [name for name, type_ in types.items() if pa.types.is_date(type_) or pa.types.is_timestamp(type_)]
    candidates = [*times, *(name for name, type_ in types.items() if pa.types.is_string(type_))]
    if not candidates or (column and column not in candidates):
        raise InvalidOption(
            'table option "partition_ttl" needs a partition column of type date, timestamp or string'
            + (f', and "{column}" is not one' if column else "")
            + f": the table is partitioned by {', '.join(f'{name} {type_}' for name, type_ in types.items())}",
            option="partition_ttl_column" if column else "partition_ttl",
        )
    chosen = column or candidates[0]
    if format_ and not pa.types.is_string(types[chosen]):
        raise InvalidOption(
            f'table option "partition_ttl_format" is for text, and "{chosen}" is {types[chosen]}: leave it out',
            option="partition_ttl_format",
        )
    return PartitionRule(CalendarPeriod.parse(ttl), chosen, format_ or DEFAULT_FORMAT)
