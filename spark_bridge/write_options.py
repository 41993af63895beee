"""The options of a write: parses and checks the text that Spark passes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aio_client import JobStep
from scankv.model.limits import MAX_BUCKETS, MAX_LEASE_SECONDS, MIN_LEASE_SECONDS
from scankv.model.tables.agg import Aggregator
from scankv.model.types.types import find_duplicate
from spark_bridge.connect_options import CONNECT_NAMES, ConnectOptions
from spark_bridge.options import (
    check_number,
    check_traceparent,
    normalize_names,
    option_error,
    parse_bool,
    parse_names,
    parse_seconds,
    parse_whole_number,
)
from spark_bridge.sql_tables import NO_INSERT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aio_client import sync

UPSERT: Final = "upsert"
DELETE: Final = "delete"
TRANSACTION_TTL: Final = 86_400.0
"""Seconds that a job may be silent. A day, since Spark plans the write before it runs the queries that feed it."""

WRITE_NAMES: Final = (
    "url",
    *CONNECT_NAMES,
    "table",
    "operation",
    "columns",
    "create",
    "primary_key",
    "bucket_key",
    "buckets",
    "merge_engine",
    "aggregators",
    "version_column",
    "sequence_column",
    "transaction_id",
    "transaction_follows",
    "transaction_ttl",
    "accept_incarnation",
    "replace_where",
    "traceparent",
)
_CREATE_ONLY: Final = (
    "primary_key",
    "bucket_key",
    "buckets",
    "merge_engine",
    "aggregators",
    "version_column",
    "sequence_column",
)
# Spark adds these to the options of a streaming query.
_ADDED_BY_SPARK: Final = ("checkpointlocation", "queryname")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write. Immutable, picklable.

    Attributes:
        table: `database.table`.
        url: The server, `host:port`. None: as for `scankv.connect`, where Spark plans.
        connect: How to connect to it.
        operation: "upsert", or "delete" to delete the rows with these keys.
        columns: Only these columns are written, or set to null by a delete; the others stay as they are. None: complete
            rows.
        create: Whether to create the table, with the columns of the DataFrame, if it does not exist.
        primary_key: The key columns of the new table. Empty: it has none, and rows are appended. None: not given.
        bucket_key: The columns that choose the bucket of a row in the new table. Empty: all key columns, or in a table
            without a key, the buckets take turns.
        buckets: The number of buckets of the new table. None: the server's default.
        merge_engine: The merge engine of the new table. None: `last_row`.
        aggregators: The aggregator of each column, for `merge_engine="aggregate"`.
        version_column: The column that says which row is newer. `merge_engine="versioned"` requires it.
        sequence_column: The columns that say which row is newer, for `merge_engine="last_row"`.
        transaction_id: Identifies the write, so that it is applied once however often the job runs. None: each run is
            a write of its own. See `scankv.Client.transaction`.
        transaction_follows: The `transaction_id` of the previous write, such as that of the previous micro-batch. This
            write fails if the table lacks the rows of the previous write. None: that is not checked. Streams set it
            themselves.
        transaction_ttl: Seconds that the job may be silent until its staged rows are dropped, 1 to 604,800.
        accept_incarnation: The incarnation of the table to which the job continues to write without the rows of earlier
            transactions that the table lacks. None: the write then fails.
        replace_where: With mode "overwrite", only the rows that match are replaced, and all written rows must match.
            None: all rows are replaced.
        traceparent: As for `ReadOptions`.
    """

    table: str
    url: str | None = None
    connect: ConnectOptions = field(default_factory=ConnectOptions)
    operation: str = UPSERT
    columns: tuple[str, ...] | None = None
    create: bool = False
    primary_key: tuple[str, ...] | None = None
    bucket_key: tuple[str, ...] = ()
    buckets: int | None = None
    merge_engine: str | None = None
    aggregators: tuple[tuple[str, Aggregator], ...] = ()
    version_column: str | None = None
    sequence_column: tuple[str, ...] = ()
    transaction_id: str | None = None
    transaction_follows: str | None = None
    transaction_ttl: float = TRANSACTION_TTL
    accept_incarnation: str | None = None
    replace_where: str | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError, naming the option, if a value is out of range or two options exclude each other."""
        check_number("buckets", self.buckets, 1, MAX_BUCKETS)
        check_traceparent(self.traceparent)
        if self.operation not in (UPSERT, DELETE):
            raise option_error("operation", f"must be {UPSERT} or {DELETE}, not {self.operation!r}")
        if self.columns == ():
            raise option_error("columns", "must name at least one column; leave it out to write complete rows")
        if not MIN_LEASE_SECONDS <= self.transaction_ttl <= MAX_LEASE_SECONDS:
            message = f"must be between 1 and {MAX_LEASE_SECONDS:,.0f} seconds (7 days), not {self.transaction_ttl}"
            raise option_error("transaction_ttl", message)
        if self.create and self.primary_key is None:
            raise option_error(
                "primary_key",
                "is missing: with create=true, it must name the key columns of the table, or be empty for a table "
                "without a key",
            )
        if self.create and self.operation == DELETE:
            raise option_error("create", "cannot be combined with operation=delete")
        if self.create and self.columns is not None:
            raise option_error(
                "columns", "cannot be combined with create=true: the new table has all columns of the DataFrame"
            )
        for name in _CREATE_ONLY:
            if getattr(self, name) and not self.create:
                raise option_error(name, "requires create=true: it is a property of a new table")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parses the options of `df.write`. Case and `_` in option names do not matter.

        Raises:
            UsageError: An option is unknown, missing, or given twice with different values, or its value is invalid.
        """
        texts = normalize_names(
            {name: text for name, text in options.items() if name.lower() not in _ADDED_BY_SPARK}, WRITE_NAMES
        )
        table = texts.pop("table", "")
        if not table:
            raise option_error(
                "table",
                f'is missing: name the table with save("database.table") or option("table", ...). In SQL, {NO_INSERT}',
            )
        connect = ConnectOptions.take_from(texts)
        values: dict[str, Any] = dict(texts)
        for name in ("columns", "primary_key", "bucket_key", "sequence_column"):
            if name in texts:
                values[name] = tuple(parse_names(name, texts[name]))
        if "buckets" in texts:
            values["buckets"] = parse_whole_number("buckets", texts["buckets"])
        if "transaction_ttl" in texts:
            values["transaction_ttl"] = parse_seconds("transaction_ttl", texts["transaction_ttl"])
        if "aggregators" in texts:
            values["aggregators"] = _aggregators(texts["aggregators"])
        if "create" in texts:
            values["create"] = parse_bool("create", texts["create"])
        return cls(table=table, connect=connect, **values)

    def open_client(self) -> sync.Client:
        """Opens a client of the server. Raises UsageError as `scankv.sync.connect` does."""
        return self.connect.open_client(self.url)

    def check_overwrite(self) -> None:
        """Raises UsageError if an option cannot be combined with replacing all rows."""
        if self.operation == DELETE:
            raise option_error(
                "operation", 'must be upsert with mode("overwrite"), which replaces all rows of the table, not delete'
            )
        if self.columns is not None:
            raise option_error(
                "columns", 'cannot be combined with mode("overwrite"), which replaces all rows of the table'
            )

    def check_stream(self) -> None:
        """Raises UsageError if an option makes sense only for writing a DataFrame once."""
        for name in ("transaction_id", "transaction_follows"):
            if getattr(self, name) is not None:
                raise option_error(
                    name, "cannot be used with writeStream: each micro-batch has a transaction of its own"
                )

    def check_once(self) -> None:
        """Raises UsageError if an option of a job with many transactions is given for a write without them."""
        if self.transaction_follows is not None and self.transaction_id is None:
            raise option_error("transaction_follows", "requires transaction_id: give the id of this write, too")
        if self.accept_incarnation is not None and self.transaction_follows is None:
            raise option_error(
                "accept_incarnation", "requires transaction_follows or writeStream: no other write checks for lost rows"
            )

    @property
    def job_step(self) -> JobStep | None:
        """Which transaction the write of a DataFrame follows. None: that is not checked."""
        if self.transaction_follows is None:
            return None
        accepted = self.accept_incarnation or ""
        return JobStep(table=self.table, follows=self.transaction_follows, accepted_incarnation=accepted)


def _aggregators(text: str) -> tuple[tuple[str, Aggregator], ...]:
    """Parses functions by column: `n=count, total=sum`, or JSON as in a table file for functions with parameters."""
    try:
        if text.lstrip().startswith("{"):
            found = list(json.loads(text).items())
        else:
            found = [tuple(part.strip() for part in each.split("=")) for each in text.split(",")]
        aggregators = tuple((column, Aggregator.of_config(each)) for column, each in found)
    except ValueError:
        example = '{"worst": {"function": "max", "ignore_retract": true}}'
        raise option_error(
            "aggregators",
            f"must be column=function pairs separated by commas, or JSON such as {example}, not {text!r:.80}",
        ) from None
    if twice := find_duplicate(column for column, _ in aggregators):
        raise option_error("aggregators", f'must name each column once; it names "{twice}" twice')
    return aggregators
