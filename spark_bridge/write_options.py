"""The options of a write: text from Spark, checked and turned into values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scankv.model.limits import MAX_BUCKETS, MAX_LEASE_SECONDS, MIN_LEASE_SECONDS
from scankv.model.tables.agg import Aggregator
from scankv.model.types.types import find_duplicate
from spark_bridge.options import check_number, listed, named, seconds, whole_number, wrong
from spark_bridge.sql_tables import NO_INSERT

if TYPE_CHECKING:
    from collections.abc import Mapping

UPSERT: Final = "upsert"
DELETE: Final = "delete"
TRANSACTION_TTL: Final = 86_400.0
"""Seconds that a job may be silent: Spark plans the write before it runs the queries in front of it."""

_NAMES: Final = (
    "url",
    "table",
    "operation",
    "columns",
    "create",
    "primary_key",
    "buckets",
    "merge_engine",
    "aggregates",
    "version_column",
    "sequence_column",
    "transaction_id",
    "transaction_ttl",
)
_OF_CREATE: Final = ("primary_key", "buckets", "merge_engine", "aggregates", "version_column", "sequence_column")
# What Spark adds for itself to the options of a streaming query.
_OF_SPARK: Final = ("checkpointlocation", "queryname")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What a write to a table was told. Immutable, picklable.

    Attributes:
        table: `database.table`.
        url: The server; None: `$SCANKV_URL` where Spark plans, else `localhost:7070`.
        operation: "upsert", or "delete" to delete the rows with these keys.
        columns: The columns that are written, or deleted, alone: others stay as they are. None: whole rows.
        create: Whether to create the table with the columns of the DataFrame when it is not there.
        primary_key: The key columns of a table that is created.
        buckets: How many buckets it has. None: as many as the server makes.
        merge_engine: Its merge engine. None: `last_row`.
        aggregates: By column, what becomes of it; of `merge_engine="aggregate"`.
        version_column: The column that says which row is newer; of `merge_engine="versioned"`, which needs it.
        sequence_column: The columns that say so; of `merge_engine="last_row"`.
        transaction_id: Names what is written, so that it is written once however often the job is run. None: it has no
            name. See `scankv.Client.transaction`.
        transaction_ttl: Seconds without a word from the job after which what it has written is dropped, 1 to 604,800.
    """

    table: str
    url: str | None = None
    operation: str = UPSERT
    columns: tuple[str, ...] | None = None
    create: bool = False
    primary_key: tuple[str, ...] = ()
    buckets: int | None = None
    merge_engine: str | None = None
    aggregates: tuple[tuple[str, Aggregator], ...] = ()
    version_column: str | None = None
    sequence_column: tuple[str, ...] = ()
    transaction_id: str | None = None
    transaction_ttl: float = TRANSACTION_TTL

    def __post_init__(self) -> None:
        """Raises UsageError naming the option that is out of its range, or does not go with another."""
        check_number("buckets", self.buckets, 1, MAX_BUCKETS)
        if self.operation not in (UPSERT, DELETE):
            raise wrong("operation", f"is {UPSERT} or {DELETE}, not {self.operation!r}")
        if self.columns == ():
            raise wrong("columns", "names no column; leave it out to write whole rows")
        if not MIN_LEASE_SECONDS <= self.transaction_ttl <= MAX_LEASE_SECONDS:
            message = f"is 1 to {MAX_LEASE_SECONDS:,.0f} seconds (7 days), not {self.transaction_ttl}"
            raise wrong("transaction_ttl", message)
        if self.create and not self.primary_key:
            raise wrong("primary_key", "is missing: with create=true it names the key columns of the table")
        if self.create and self.operation == DELETE:
            raise wrong("create", "does not go with operation=delete")
        if self.create and self.columns is not None:
            raise wrong("columns", "does not go with create=true: the table has the columns of the DataFrame")
        for name in _OF_CREATE:
            if getattr(self, name) and not self.create:
                raise wrong(name, "is of a table that is created: it goes with create=true")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Reads the options of `df.write`; the case of their names and `_` in them do not matter.

        Raises:
            UsageError: An option is unknown, given twice, missing, or its value cannot be read.
        """
        texts = named({name: text for name, text in options.items() if name.lower() not in _OF_SPARK}, _NAMES)
        table = texts.pop("table", "")
        if not table:
            raise wrong("table", f'is missing: save("database.table"), or option("table", ...). In SQL, {NO_INSERT}')
        values: dict[str, Any] = dict(texts)
        for name in ("columns", "primary_key", "sequence_column"):
            if name in texts:
                values[name] = tuple(listed(name, texts[name]))
        if "buckets" in texts:
            values["buckets"] = whole_number("buckets", texts["buckets"])
        if "transaction_ttl" in texts:
            values["transaction_ttl"] = seconds("transaction_ttl", texts["transaction_ttl"])
        if "aggregates" in texts:
            values["aggregates"] = _aggregates(texts["aggregates"])
        if "create" in texts:
            values["create"] = _is_true("create", texts["create"])
        return cls(table=table, **values)

    def check_overwrite(self) -> None:
        """Raises UsageError when an option does not go with replacing all rows."""
        if self.operation == DELETE:
            raise wrong("operation", 'delete does not go with mode("overwrite"), which replaces the rows of the table')
        if self.columns is not None:
            raise wrong("columns", 'does not go with mode("overwrite"), which replaces the rows of the table')

    def check_stream(self) -> None:
        """Raises UsageError when an option is only for writing a DataFrame once."""
        if self.transaction_id is not None:
            raise wrong("transaction_id", "is not for writeStream: each micro-batch has its own")


def _aggregates(text: str) -> tuple[tuple[str, Aggregator], ...]:
    """Functions by column: `n=count, total=sum`, or, for those with parameters, JSON as in a table file."""
    try:
        if text.lstrip().startswith("{"):
            found = list(json.loads(text).items())
        else:
            found = [tuple(part.strip() for part in each.split("=")) for each in text.split(",")]
        aggregates = tuple((column, Aggregator.of_config(each)) for column, each in found)
    except ValueError:
        example = '{"worst": {"function": "max", "ignore_retract": true}}'
        raise wrong("aggregates", f"is column=function between commas, or JSON such as {example}") from None
    if twice := find_duplicate(column for column, _ in aggregates):
        raise wrong("aggregates", f'names column "{twice}" twice')
    return aggregates


def _is_true(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise wrong(option, f"is true or false, not {text!r}")
    return text.lower() == "true"
