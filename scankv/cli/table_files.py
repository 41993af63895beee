"""Tables written down in a TOML file: name, columns, key, buckets, options, indexes, and how rows become one.

table = "ops.carrier_day"
schema = "carrier string, day date, flights int64, delay_sum int64, worst int32"
key = ["carrier", "day"]
buckets = 4
indexes = ["delay_sum", ["day", "worst"]]

[options]
merge_engine = "aggregate"

[aggregates]
flights = "count"
delay_sum = "sum"
worst = { function = "max", ignore_retract = true }
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from table_model.agg import Aggregator
from table_model.errors import UsageError, did_you_mean
from table_model.types import parse_schema

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableFile:
    """What a file says.

    Attributes:
        table: `database.table`.
        schema: The columns.
        arguments: The other arguments of `create_table`.
    """

    table: str
    schema: pa.Schema
    arguments: dict[str, Any] = field(default_factory=dict)


_FIELDS = (
    "table",
    "schema",
    "key",
    "bucket_key",
    "buckets",
    "indexes",
    "options",
    "version_column",
    "sequence_column",
    "sequence_groups",
    "aggregates",
)


def read_table_file(path: Path) -> TableFile:
    """Reads a file. Raises UsageError, naming it and what is wrong."""
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    for name in values:
        if name not in _FIELDS:
            raise UsageError(f'{path}: there is no field "{name}"{did_you_mean(name, _FIELDS)}')
    for name in ("table", "schema", "key"):
        if name not in values:
            raise UsageError(f'{path}: the field "{name}" is missing')
    for name in ("table", "schema"):
        if not isinstance(values[name], str):
            raise UsageError(f'{path}: the field "{name}" is a text')
    arguments: dict[str, Any] = {"primary_key": _names(path, values, "key")}
    if "bucket_key" in values:
        arguments["bucket_key"] = _names(path, values, "bucket_key")
    for name in ("buckets", "version_column", "sequence_column"):
        if name in values:
            arguments[name] = values[name]
    if "indexes" in values:
        if not isinstance(values["indexes"], list):
            raise UsageError(f'{path}: the field "indexes" is a list of columns, or of lists of columns')
        arguments["indexes"] = [tuple(each) if isinstance(each, list) else each for each in values["indexes"]]
    arguments |= _section(path, values, "options")
    if "sequence_groups" in values:
        # A group of several sequence columns has their names with commas.
        groups = _section(path, values, "sequence_groups")
        arguments["sequence_groups"] = {tuple(_split(by)): tuple(columns) for by, columns in groups.items()}
    if "aggregates" in values:
        aggregates = _section(path, values, "aggregates")
        arguments["aggregates"] = {column: _aggregator(path, column, each) for column, each in aggregates.items()}
    return TableFile(values["table"], parse_schema(values["schema"]), arguments)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _section(path: Path, values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, dict):
        raise UsageError(f'{path}: "{name}" is a section, as [{name}]')
    return section


def _names(path: Path, values: dict[str, Any], name: str) -> list[str]:
    names = values[name]
    if isinstance(names, str):
        return _split(names)
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise UsageError(f'{path}: the field "{name}" is a list of columns')
    return names


def _aggregator(path: Path, column: str, value: object) -> Aggregator:
    try:
        return Aggregator.of_config(value)
    except ValueError:
        raise UsageError(
            f'{path}: the aggregate of "{column}" is the name of a function, or {{ function = "...", ... }}'
        ) from None
