"""The options of a read: text from Spark, checked and turned into values, and what they mean for a scan."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import InvalidKey, UsageError, did_you_mean
from scankv.model.expressions import all_of
from scankv.model.limits import MAX_LEASE_SECONDS, MAX_SPLITS, MIN_LEASE_SECONDS
from spark_bridge.foreign_options import hint_for
from spark_bridge.predicates import spark_predicate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aio_client import Predicate
    from aio_client.sync import Scan, Table

DEFAULT_ROWS_PER_SPLIT: Final = 500_000
"""A task costs Spark some 30 ms, in which about a tenth of these rows are read."""

DEFAULT_MAX_PARTITIONS: Final = 200

READ_NAMES: Final = (
    "url",
    "table",
    "columns",
    "where",
    "limit",
    "key_prefix",
    "key_start",
    "key_end",
    "splits",
    "rows_per_split",
    "max_partitions",
    "snapshot",
    "snapshot_ttl",
    "pushdown",
)
STREAM_NAMES: Final = ("row_kinds", "start", "stop", "max_rows_per_trigger", "max_bytes_per_trigger", "consumer_id")
"""Those of `readStream` alone, see `StreamOptions`."""
_NO_OPTIONS: Final = (
    "In SQL, say CREATE TABLE name USING scankv OPTIONS (url '...', table '...') without columns: of one with columns, "
    "Spark keeps no options"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a read of a table was told. Immutable, picklable.

    Attributes:
        table: `database.table`.
        url: The server; None: `$SCANKV_URL` where Spark plans, else `localhost:7070`.
        columns: The columns to read, in this order. None: all.
        where: The predicate as text. None: all rows.
        where_of_table: Another one, of the SQL table that a statement reads: rows are read for which both are true.
        limit: The most rows; they are read by one task. None: all.
        key_prefix: A value of the first key column, or a JSON list of those of the leading ones.
        key_start: The first key, in the same form; keys that begin with it are in the range.
        key_end: The last key, in the same form; keys that begin with it are in the range.
        splits: How many tasks read the table, 1 to 1024. None: as many as `rows_per_split` asks for.
        rows_per_split: About how many rows one task reads, at least 1.
        max_partitions: The most tasks that `rows_per_split` leads to, 1 to 1024.
        snapshot: The id of a pinned snapshot to read, which stays its holder's. None: each query takes one.
        snapshot_ttl: Seconds that such a snapshot lives without a task that reads it, 1 to 604,800.
    """

    table: str
    url: str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = field(default=None, repr=False)
    where_of_table: str | None = field(default=None, repr=False)
    limit: int | None = None
    key_prefix: str | None = field(default=None, repr=False)
    key_start: str | None = field(default=None, repr=False)
    key_end: str | None = field(default=None, repr=False)
    splits: int | None = None
    rows_per_split: int = DEFAULT_ROWS_PER_SPLIT
    max_partitions: int = DEFAULT_MAX_PARTITIONS
    snapshot: str | None = None
    snapshot_ttl: float = 600.0

    def __post_init__(self) -> None:
        """Raises UsageError naming the option that is out of its range."""
        check_number("limit", self.limit, 0, 2**63 - 1)
        check_number("splits", self.splits, 1, MAX_SPLITS)
        check_number("rows_per_split", self.rows_per_split, 1, 2**63 - 1)
        check_number("max_partitions", self.max_partitions, 1, MAX_SPLITS)
        if not MIN_LEASE_SECONDS <= self.snapshot_ttl <= MAX_LEASE_SECONDS:
            raise wrong("snapshot_ttl", f"is 1 to {MAX_LEASE_SECONDS:,.0f} seconds (7 days), not {self.snapshot_ttl}")
        if self.columns == ():
            raise wrong("columns", "names no column; leave it out to read all of them")
        if self.limit is not None and self.splits is not None:
            raise wrong("splits", "does not go with limit: a limit counts over the whole table, so one task reads it")
        if self.key_prefix is not None and (self.key_start is not None or self.key_end is not None):
            raise wrong("key_prefix", "does not go with key_start and key_end: it is a range of its own")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Reads the options of `spark.read`; the case of their names and `_` in them do not matter.

        Raises:
            UsageError: An option is unknown, given twice, missing, or its value cannot be read.
        """
        return cls.of_read(named(options))

    @classmethod
    def of_read(cls, texts: dict[str, str]) -> ReadOptions:
        """As `parse`, of options by their own names."""
        for name in STREAM_NAMES:
            if name in texts:
                raise wrong(name, "is for readStream: this is a read of the table as of one instant")
        return cls.of_texts(texts)

    @classmethod
    def of_texts(cls, texts: dict[str, str]) -> ReadOptions:
        """As `of_read`, of a read or a stream; takes them out of the dictionary."""
        _check_pushdown(texts.pop("pushdown", "false"))
        table = texts.pop("table", "")
        if not table:
            raise wrong("table", f'is missing: load("database.table"), or option("table", ...). {_NO_OPTIONS}')
        values: dict[str, Any] = dict(texts)
        for name in ("limit", "splits", "rows_per_split", "max_partitions"):
            if name in texts:
                values[name] = whole_number(name, texts[name])
        if "snapshot_ttl" in texts:
            values["snapshot_ttl"] = seconds("snapshot_ttl", texts["snapshot_ttl"])
        if "columns" in texts:
            values["columns"] = tuple(listed("columns", texts["columns"]))
        return cls(table=table, **values)

    def predicate(self, table: Table) -> Predicate | None:
        """The rows that they ask for. Raises UsageError where that cannot be read; SchemaMismatch, see `scan_of`."""
        # Each of the two is read for itself: joined as text, the one could close the parentheses of the other.
        told = [spark_predicate(table, text) for text in (self.where, self.where_of_table)]
        found = [each for each in told if each is not None]
        return all_of(found) if found else None

    def scan_of(self, table: Table) -> Scan:
        """The scan that they ask for; columns and types are checked by the server when it explains or starts it.

        Raises:
            UsageError: The predicate, or the range of keys, cannot be read.
        """
        scan = table.scan(self.columns, where=self.predicate(table), limit=self.limit)
        key = scan.key_schema
        assert key is not None
        if self.key_prefix is not None:
            scan = scan.prefix(_key("key_prefix", self.key_prefix, key))
        if self.key_start is not None or self.key_end is not None:
            start = None if self.key_start is None else _key("key_start", self.key_start, key)
            end = None if self.key_end is None else _key("key_end", self.key_end, key)
            scan = scan.key_range(start, end)
        return scan


def named(options: Mapping[str, str], names: Sequence[str] = (*READ_NAMES, *STREAM_NAMES)) -> dict[str, str]:
    """The options by their own names; `path`, which is what `load` is given, is the table. Raises UsageError."""
    plain_names = {name.replace("_", ""): name for name in names}
    found: dict[str, str] = {}
    for given, value in options.items():
        plain = given.lower().replace("_", "")
        name = "table" if plain == "path" else plain_names.get(plain)
        if name is None:
            hint = hint_for(given)
            advice = did_you_mean(given, names) if hint is None else f": {hint}"
            raise UsageError(f'there is no option "{given}"{advice}', option=given)
        if found.setdefault(name, value) != value:
            raise wrong(name, "is given twice, with two values")
    return found


def _check_pushdown(text: str) -> None:
    if text.lower() not in ("true", "false"):
        raise wrong("pushdown", f"is true or false, not {text!r}")
    if text.lower() == "true":
        raise wrong(
            "pushdown",
            "cannot be had with PySpark 4.3: it gives one query the filters of another when both read the same "
            'DataFrame or view, and so wrong rows. Say what to read with option("where", ...), or with key_start, '
            "key_end and key_prefix",
        )


def whole_number(name: str, text: str) -> int:
    """The number that an option's text stands for. Raises UsageError."""
    try:
        return int(text)
    except ValueError:
        raise wrong(name, f"is a whole number, not {text!r}") from None


def seconds(name: str, text: str) -> float:
    """The seconds that an option's text stands for. Raises UsageError."""
    try:
        return float(text)
    except ValueError:
        raise wrong(name, f"is a number of seconds, not {text!r}") from None


def check_number(name: str, value: int | None, low: int, high: int) -> None:
    """Raises UsageError when an option is given and is none of these numbers."""
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise wrong(name, f"is a whole number from {low:,} to {high:,}, not {value!r}")


def listed(name: str, text: str) -> list[str]:
    """Names between commas, or a JSON list, for names with commas in them. Raises UsageError."""
    if not text.lstrip().startswith("["):
        return [each.strip() for each in text.split(",")] if text.strip() else []
    names = _json_list(name, text)
    if not all(isinstance(each, str) for each in names):
        raise wrong(name, "is a list of names")
    return names


def _key(option: str, text: str, key: pa.Schema) -> tuple[object, ...]:
    """The values of the leading key columns that a text stands for, each read as its column's type."""
    given = _json_list(option, text) if text.lstrip().startswith("[") else [text]
    if not 1 <= len(given) <= len(key):
        raise wrong(option, f"has {len(given)} values; they are those of the leading columns of {', '.join(key.names)}")
    return tuple(_key_value(option, each, column) for each, column in zip(given, key, strict=False))


def _key_value(option: str, value: object, column: pa.Field) -> object:
    if value is None or isinstance(value, list | dict):
        raise wrong(option, f'has no value for key column "{column.name}"')
    try:
        return pa.scalar(value if isinstance(value, str) else json.dumps(value)).cast(column.type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        message = f'option {option}: key column "{column.name}" is {column.type}, and a value is none'
        raise InvalidKey(message, option=option, column=column.name) from None


def _json_list(name: str, text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise wrong(name, "begins with [ and is no JSON list")
    return found


def wrong(option: str, what: str) -> UsageError:
    """The error for an option: its name, and what is wrong with it."""
    return UsageError(f"option {option} {what}", option=option)
