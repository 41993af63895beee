"""What the command line and the console show of a table: labels, and cells in words and units.

A cell is a whole number, which is shown with thousands separators and aligned right, or text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.formats.amounts import duration, size
from scankv.formats.scalar_text import scalars_to_text
from scankv.formats.text import to_text
from scankv.model.counts import counted
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from aio_client import BaseStats, BucketStats, DiskUse, IndexStatus, PartitionInfo, Table, TableBases, sync

Cell = int | str

NOT_COUNTED: Final = "not counted"
BASE_HEADERS: Final = (
    "rows",
    "on disk",
    "changes since",
    "delta rows",
    "delta memory",
    "age",
    "builds",
    "CPU",
    "written",
    "unused because",
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table to show. Immutable.

    Attributes:
        headers: The name of each column.
        rows: The cells of each row.
        named: How many of the headers, from the first on, are names that users have given.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    named: int = 0


def definition_pairs(
    table: Table | sync.Table,
    buckets: Sequence[BucketStats] | None,
    disk: DiskUse | None,
    to_count: str = "see `scankv count`",
) -> dict[str, str]:
    """Returns the definition of a table, its rows and its size, by their labels.

    Args:
        table: The table.
        buckets: The statistics of its buckets. None: not known, so the rows are left out.
        disk: Its disk use. None: not known, so it is left out.
        to_count: How a reader can have rows counted that the table does not count.
    """
    return {
        "table": table.name,
        "key": ", ".join(table.primary_key) or "none: rows are only appended",
        "bucket key": ", ".join(table.bucket_key) or "none: the buckets take turns",
        **({"partitioned by": ", ".join(table.partition_by)} if table.partition_by else {}),
        **({"tablets": str(table.tablets)} if table.tablets > 1 else {}),
        "options": ", ".join(f"{name}={value}" for name, value in table.options.items()) or "all default",
        **({} if buckets is None else {"rows": _rows(buckets, to_count)}),
        **({} if disk is None else {"on disk": disk_text(disk)}),
    }


def columns_sheet(table: Table | sync.Table, defaults: Mapping[str, pa.Scalar]) -> Sheet:
    """Returns the columns. How a column is merged, its default and its comment are shown where any column has one.

    Args:
        table: The table.
        defaults: The defaults of its columns, by name.
    """
    texts = {name: f"default {value}" for name, value in default_texts(defaults).items()}
    further = {"merge": merges(table), "default": texts, "comment": dict(table.column_comments)}
    given = {title: each for title, each in further.items() if each}
    return Sheet(
        ["column", "type", "null", *given],
        [
            [field.name, format_type(field.type), "" if field.nullable else "not null"]
            + [each.get(field.name, "") for each in given.values()]
            for field in table.schema
        ],
    )


def indexes_sheet(indexes: Sequence[IndexStatus]) -> Sheet:
    """Returns the indexes, and how far each is built."""
    return Sheet(["index", "state"], [[", ".join(index.columns), index_state(index)] for index in indexes])


def buckets_sheet(buckets: Sequence[BucketStats]) -> Sheet:
    """Returns the buckets."""
    return Sheet(
        ["bucket", "rows", "log offset", "on disk", "changes", "retention hold", "damage"],
        [_bucket_cells(bucket) for bucket in buckets],
    )


def bases_sheet(buckets: Sequence[BucketStats]) -> Sheet:
    """Returns the columnar bases of the buckets that may have one."""
    bases = [(bucket.bucket, bucket.base) for bucket in buckets if bucket.base is not None]
    return Sheet(
        ["columnar base of bucket", "log offset", *BASE_HEADERS],
        [[number, base.log_offset, *base_cells(base), base.unused_reason or ""] for number, base in bases],
    )


def why_no_base(buckets: Sequence[BucketStats]) -> str:
    """Returns why no bucket has a columnar base. Empty: one has or had one, or none may have one."""
    bases = [bucket.base for bucket in buckets if bucket.base is not None]
    if any(base.disk_bytes or base.builds for base in bases):
        return ""
    return "; ".join(sorted({base.unused_reason or "it is empty" for base in bases}))


def partitions_sheet(table: Table | sync.Table, partitions: Sequence[PartitionInfo], now: dt.datetime) -> Sheet:
    """Returns partitions. Ages are as of `now`."""
    has_rule = "partition_ttl" in table.options
    return Sheet(
        [*table.partition_by, "rows", "on disk", "age", "last write", *(["expires"] if has_rule else [])],
        [
            [
                *map(value_text, each.values.values()),
                rows_cell(each.rows),
                "" if each.disk_bytes is None else size(each.disk_bytes),
                _since(each.created_at, now),
                _since(each.last_write_at, now),
                *(["never" if each.expires_at is None else f"{each.expires_at:%Y-%m-%d %H:%M}"] if has_rule else []),
            ]
            for each in partitions
        ],
        named=len(table.partition_by),
    )


def rows_cell(rows: int | None) -> Cell:
    """Returns the cell of a number of rows. None: the table does not count its rows."""
    return NOT_COUNTED if rows is None else rows


def base_cells(base: BaseStats | TableBases) -> list[Cell]:
    """Returns the cells of a columnar base without its last one, by `BASE_HEADERS`."""
    return [
        base.rows,
        size(base.disk_bytes),
        base.changes_since,
        base.delta_rows,
        size(base.delta_bytes),
        duration(base.age),
        base.builds,
        duration(base.build_cpu),
        size(base.written_bytes),
    ]


def disk_text(use: DiskUse) -> str:
    """Returns the total and its parts, the largest first."""
    parts = {name.replace("_", " "): number for name, number in asdict(use).items() if number and name != "total"}
    most = sorted(parts.items(), key=lambda part: -part[1])
    return size(use.total) + (f" ({', '.join(f'{name} {size(number)}' for name, number in most)})" if most else "")


def default_texts(defaults: Mapping[str, pa.Scalar]) -> dict[str, str]:
    """Returns defaults as text, in the form that commands accept."""
    return {name: to_text(pa.array([default], default.type))[0].as_py() for name, default in defaults.items()}


def merges(table: Table | sync.Table) -> dict[str, str]:
    """Returns for each column how its values are merged, without the columns that the merge engine simply replaces."""
    found = {column: str(each) for column, each in table.aggregators.items()}
    newness = [table.version_column] if table.version_column is not None else table.sequence_column
    found |= dict.fromkeys(newness, "decides which row is newer")
    for by, columns in table.sequence_groups.items():
        for column in columns:
            found[column] = f"{found[column]} by {', '.join(by)}" if column in found else f"by {', '.join(by)}"
    return found


def index_state(index: IndexStatus) -> str:
    """Returns how far an index is built, or why it is not used."""
    if index.failure is not None:
        return f"not used, drop it: {index.failure}"
    if index.ready:
        return "ready"
    if index.rows is None:
        return f"building, {counted(index.rows_done, 'row')} so far"
    return f"building {100 * index.rows_done // max(index.rows, 1)} %"


def value_text(value: object) -> str:
    """Returns the text of a value of a partition; a scalar is a date or time that Python does not have."""
    if isinstance(value, pa.Scalar):
        return str(scalars_to_text(pa.array([value], value.type))[0].as_py())
    return str(value)


def _bucket_cells(bucket: BucketStats) -> list[Cell]:
    return [
        bucket.bucket,
        rows_cell(bucket.rows),
        bucket.log_offset,
        size(bucket.disk_bytes),
        size(bucket.log_bytes),
        f"{bucket.retention_holder}, {size(bucket.retention_hold_bytes)}" if bucket.retention_holder else "",
        bucket.damage or "",
    ]


def _rows(buckets: Sequence[BucketStats], to_count: str) -> str:
    counts = [bucket.rows for bucket in buckets]
    return f"{NOT_COUNTED}; {to_count}" if None in counts else f"{sum(filter(None, counts)):,}"


def _since(time: dt.datetime | None, now: dt.datetime) -> str:
    return "never" if time is None else duration(max((now - time).total_seconds(), 0))
