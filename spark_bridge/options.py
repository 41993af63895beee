"""The options of a read: parses and checks the text that Spark passes, and builds a scan from the options."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import InvalidKey, UsageError, did_you_mean
from scankv.model.expressions import all_of
from scankv.model.limits import MAX_LEASE_SECONDS, MAX_SPLITS, MIN_LEASE_SECONDS
from scankv.model.tables.log_tables import require_key
from spark_bridge.connect_options import CONNECT_NAMES, ConnectOptions
from spark_bridge.foreign_options import hint_for
from spark_bridge.predicates import spark_predicate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aio_client import Predicate, sync
    from aio_client.sync import Scan, Table

DEFAULT_ROWS_PER_SPLIT: Final = 500_000
"""A task costs Spark some 30 ms of overhead; reading a tenth of these rows takes as long."""

DEFAULT_MAX_PARTITIONS: Final = 200

READ_NAMES: Final = (
    "url",
    *CONNECT_NAMES,
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
    "traceparent",
)
STREAM_NAMES: Final = (
    "row_kinds",
    "start",
    "lake",
    "stop",
    "max_rows_per_trigger",
    "max_bytes_per_trigger",
    "consumer_id",
    "untracked",
    "deleted_ranges",
)
"""Options of `readStream` only, see `StreamOptions`."""
_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_OPTIONS: Final = (
    "In SQL, use CREATE TABLE name USING scankv OPTIONS (url '...', table '...') without columns: if the statement "
    "lists columns, Spark drops its options"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read. Immutable, picklable.

    Attributes:
        table: `database.table`.
        url: The server, `host:port`. None: as for `scankv.connect`, where Spark plans.
        connect: How to connect to it.
        columns: The columns to read, in this order. None: all.
        where: A predicate as text. None: all rows.
        where_of_table: A second predicate, from the SQL table that a statement reads. A row must match both.
        limit: The most rows to read. With a limit, one task reads them. None: all.
        key_prefix: A value of the first key column, or a JSON list with the values of the leading key columns.
        key_start: The first key, in the same form; keys that begin with it are in the range.
        key_end: The last key, in the same form; keys that begin with it are in the range.
        splits: How many tasks read the table, 1 to 1024. None: one for about every `rows_per_split` rows, at most
            `max_partitions`.
        rows_per_split: About how many rows one task reads, at least 1.
        max_partitions: The most tasks if `splits` is not set, 1 to 1024.
        snapshot: The id of a pinned snapshot to read. Its holder still renews and releases it. None: each query pins a
            snapshot of its own.
        snapshot_ttl: Seconds that a query's own snapshot lives while no task reads it, 1 to 604,800.
        traceparent: The trace that planning and tasks continue, in the form of W3C Trace Context. None: no trace.
    """

    table: str
    url: str | None = None
    connect: ConnectOptions = field(default_factory=ConnectOptions)
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
    traceparent: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError, naming the option, if a value is out of range or two options exclude each other."""
        check_number("limit", self.limit, 0, 2**63 - 1)
        check_number("splits", self.splits, 1, MAX_SPLITS)
        check_number("rows_per_split", self.rows_per_split, 1, 2**63 - 1)
        check_number("max_partitions", self.max_partitions, 1, MAX_SPLITS)
        if not MIN_LEASE_SECONDS <= self.snapshot_ttl <= MAX_LEASE_SECONDS:
            raise option_error(
                "snapshot_ttl",
                f"must be between 1 and {MAX_LEASE_SECONDS:,.0f} seconds (7 days), not {self.snapshot_ttl}",
            )
        check_traceparent(self.traceparent)
        if self.columns == ():
            raise option_error("columns", "must name at least one column; leave it out to read all columns")
        if self.limit is not None and self.splits is not None:
            raise option_error(
                "splits",
                "cannot be combined with limit: one task reads a limited number of rows. Leave out one of them",
            )
        if self.key_prefix is not None and (self.key_start is not None or self.key_end is not None):
            raise option_error(
                "key_prefix", "cannot be combined with key_start or key_end: give either a prefix or a range"
            )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parses the options of `spark.read`. Case and `_` in option names do not matter.

        Raises:
            UsageError: An option is unknown, missing, or given twice with different values, or its value is invalid.
        """
        return cls.parse_read(normalize_names(options))

    @classmethod
    def parse_read(cls, texts: dict[str, str]) -> ReadOptions:
        """Parses the options of `spark.read` under their normalized names. Raises UsageError as `parse` does."""
        for name in STREAM_NAMES:
            if name in texts:
                raise option_error(
                    name, "is an option of readStream only; spark.read reads the table as of one instant"
                )
        return cls.parse_texts(texts)

    @classmethod
    def parse_texts(cls, texts: dict[str, str]) -> ReadOptions:
        """Parses the options that reads and streams have in common. Removes `table` and `pushdown` from `texts`."""
        _check_pushdown(texts.pop("pushdown", "false"))
        table = texts.pop("table", "")
        if not table:
            raise option_error(
                "table",
                f'is missing: name the table with load("database.table") or option("table", ...). {_NO_OPTIONS}',
            )
        connect = ConnectOptions.take_from(texts)
        values: dict[str, Any] = dict(texts)
        for name in ("limit", "splits", "rows_per_split", "max_partitions"):
            if name in texts:
                values[name] = parse_whole_number(name, texts[name])
        if "snapshot_ttl" in texts:
            values["snapshot_ttl"] = parse_seconds("snapshot_ttl", texts["snapshot_ttl"])
        if "columns" in texts:
            values["columns"] = tuple(parse_names("columns", texts["columns"]))
        return cls(table=table, connect=connect, **values)

    def open_client(self) -> sync.Client:
        """Opens a client of the server. Raises UsageError as `scankv.sync.connect` does."""
        return self.connect.open_client(self.url)

    def predicate(self, table: Table) -> Predicate | None:
        """Returns the predicate that selects the rows to read, or None for all rows.

        Raises:
            SchemaMismatch: A predicate does not fit the table's columns.
            UsageError: A predicate is not valid text.
        """
        # Parsed one by one: if the texts were joined, one could close the parentheses of the other.
        parsed = [spark_predicate(table, text) for text in (self.where, self.where_of_table)]
        given = [predicate for predicate in parsed if predicate is not None]
        return all_of(given) if given else None

    def build_scan(self, table: Table) -> Scan:
        """Builds the scan of a table. The server checks columns and types when it explains or starts the scan.

        Raises:
            SchemaMismatch: The predicate does not fit the table's columns.
            UsageError: The predicate or the key range is not valid text.
        """
        scan = table.scan(self.columns, where=self.predicate(table), limit=self.limit)
        key = scan.key_schema
        assert key is not None
        if not (self.key_prefix is self.key_start is self.key_end is None):
            require_key(table.name, key.names, "it has no ranges of keys: filter with where")
        if self.key_prefix is not None:
            scan = scan.prefix(_parse_key("key_prefix", self.key_prefix, key))
        if self.key_start is not None or self.key_end is not None:
            start = None if self.key_start is None else _parse_key("key_start", self.key_start, key)
            end = None if self.key_end is None else _parse_key("key_end", self.key_end, key)
            scan = scan.key_range(start, end)
        return scan


def normalize_names(options: Mapping[str, str], names: Sequence[str] = (*READ_NAMES, *STREAM_NAMES)) -> dict[str, str]:
    """Returns the options under their normalized names. `path`, the argument of `load`, becomes `table`.

    Raises:
        UsageError: An option is unknown, or given twice with different values.
    """
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
            raise option_error(name, "is given twice, with different values")
    return found


def _check_pushdown(text: str) -> None:
    if parse_bool("pushdown", text):
        raise option_error(
            "pushdown",
            "must be false: PySpark 4.3 applies the filters of one query to another if both read the same DataFrame or "
            'view, and returns wrong rows. Select rows with option("where", ...), key_start, key_end or key_prefix',
        )


def parse_bool(name: str, text: str) -> bool:
    """Parses the text of an option that is true or false, in upper or lower case. Raises UsageError."""
    if text.lower() not in ("true", "false"):
        raise option_error(name, f"must be true or false, not {text!r}")
    return text.lower() == "true"


def parse_whole_number(name: str, text: str) -> int:
    """Parses the text of an option that is a whole number. Raises UsageError."""
    try:
        return int(text)
    except ValueError:
        raise option_error(name, f"must be a whole number, not {text!r}") from None


def parse_seconds(name: str, text: str) -> float:
    """Parses the text of an option that is a number of seconds. Raises UsageError."""
    try:
        return float(text)
    except ValueError:
        raise option_error(name, f"must be a number of seconds, not {text!r}") from None


def check_number(name: str, value: int | None, low: int, high: int) -> None:
    """Raises UsageError if an option is given and is not a whole number from `low` to `high`."""
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise option_error(name, f"must be a whole number between {low:,} and {high:,}, not {value!r}")


def check_traceparent(text: str | None) -> None:
    """Raises UsageError if the option `traceparent` is given and has another form."""
    if text is not None and not _TRACEPARENT.fullmatch(text):
        raise option_error(
            "traceparent", f"must be a traceparent of W3C Trace Context, as OpenTelemetry injects it, not {text!r:.80}"
        )


def parse_names(name: str, text: str) -> list[str]:
    """Parses names separated by commas, or a JSON list, which allows names with commas. Raises UsageError."""
    if not text.lstrip().startswith("["):
        return [each.strip() for each in text.split(",")] if text.strip() else []
    names = _parse_json_list(name, text)
    if not all(isinstance(each, str) for each in names):
        raise option_error(name, f"must be names separated by commas or a JSON list of strings, not {text!r:.80}")
    return names


def _parse_key(option: str, text: str, key: pa.Schema) -> tuple[object, ...]:
    """Parses the values of leading key columns, each as its column's type."""
    given = _parse_json_list(option, text) if text.lstrip().startswith("[") else [text]
    if not 1 <= len(given) <= len(key):
        raise option_error(
            option,
            f"must have one value for each leading key column to restrict, of {', '.join(key.names)}, not {len(given)} "
            "values",
        )
    return tuple(_parse_key_value(option, each, column) for each, column in zip(given, key, strict=False))


def _parse_key_value(option: str, value: object, column: pa.Field) -> object:
    if value is None or isinstance(value, list | dict):
        raise option_error(option, f'must have a string, number or boolean for key column "{column.name}"')
    try:
        return pa.scalar(value if isinstance(value, str) else json.dumps(value)).cast(column.type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        message = f'option {option} must have a value of type {column.type} for key column "{column.name}"'
        raise InvalidKey(message, option=option, column=column.name) from None


def _parse_json_list(name: str, text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise option_error(name, "must be a JSON list if it begins with [")
    return found


def option_error(option: str, what: str) -> UsageError:
    """Returns the error of an option. `what` continues a sentence that begins with "option NAME"."""
    return UsageError(f"option {option} {what}", option=option)
