"""Table definitions in TOML files: name, columns, key, buckets, indexes, options and aggregators.

table = "ops.carrier_day"
schema = "carrier string, day date, flights int64, delay_sum int64, worst int32"
key = ["carrier", "day"]
buckets = 4
indexes = ["delay_sum", ["day", "worst"]]

[options]
merge_engine = "aggregate"

[aggregators]
flights = "count"
delay_sum = "sum"
worst = { function = "max", ignore_retract = true }

A table with sequence groups has one `[[sequence_groups]]` for each, with the lists `sequence` and `columns`. The same
values, as JSON, are in the metadata of exported files.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import UsageError, did_you_mean
from scankv.model.tables.agg import Aggregator
from scankv.model.toml import toml_value
from scankv.model.types.types import format_schema, parse_schema

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from aio_client import sync

_REQUIRED: Final = ("table", "schema", "key")
_NAME_LISTS: Final = {
    "key": "primary_key",
    "bucket_key": "bucket_key",
    "partition_by": "partition_by",
    "sequence_column": "sequence_column",
}
_PLAIN: Final = (
    *(*_REQUIRED, "bucket_key", "partition_by", "buckets", "tablets"),
    *("indexes", "version_column", "sequence_column"),
)
_SECTIONS: Final = ("options", "aggregators")
_EARLIER_NAMES: Final = {"aggregates": "aggregators"}
"""Fields in files of earlier versions, and what they are called now."""
_FIELDS: Final = (*_PLAIN, *_SECTIONS, "sequence_groups")


@dataclass(frozen=True, slots=True)
class TableFile:
    """The definition of a table in a file.

    Attributes:
        table: The table, as `database.table`.
        schema: The columns.
        arguments: The other arguments of `create_table`, except the options.
        options: The table options.
    """

    table: str
    schema: pa.Schema
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_values(cls, values: Mapping[str, Any], source: str) -> TableFile:
        """Reads a definition from the values of a file.

        Args:
            values: The values by field, as parsed from TOML or JSON.
            source: The name of the file in errors.

        Raises:
            UsageError: A field is missing, unknown, or of the wrong type.
            ScanKvError: The columns cannot be parsed.
        """
        values = _with_present_names(values)
        for name in values:
            if name not in _FIELDS:
                raise UsageError(f'{source}: unknown field "{name}"{did_you_mean(name, _FIELDS)}')
        for name in _REQUIRED:
            if name not in values:
                raise UsageError(f'{source}: the field "{name}" is missing')
        for name in ("table", "schema", "version_column"):
            if not isinstance(values.get(name, ""), str):
                raise UsageError(f'{source}: the field "{name}" must be a string')
        arguments: dict[str, Any] = {
            argument: _names(source, values[name], f'the field "{name}"')
            for name, argument in _NAME_LISTS.items()
            if name in values
        }
        arguments |= {name: values[name] for name in ("buckets", "tablets", "version_column") if name in values}
        if "indexes" in values:
            each_index = _list(source, values, "indexes")
            arguments["indexes"] = [_columns(source, each, "an index") for each in each_index]
        if "sequence_groups" in values:
            arguments["sequence_groups"] = dict(
                _sequence_group(source, each) for each in _list(source, values, "sequence_groups")
            )
        aggregators = _section(source, values, "aggregators")
        if aggregators:
            arguments["aggregators"] = {
                column: _aggregator(source, column, each) for column, each in aggregators.items()
            }
        return cls(values["table"], parse_schema(values["schema"]), arguments, _options(source, values))

    def create(self, client: sync.Client) -> sync.Table:
        """Creates the table."""
        return client.create_table(self.table, self.schema, **self.arguments, **self.options)


def _with_present_names(values: Mapping[str, Any]) -> dict[str, Any]:
    # A file with both names keeps both, so the earlier one is refused as unknown.
    present = {old: new for old, new in _EARLIER_NAMES.items() if new not in values}
    return {present.get(name, name): value for name, value in values.items()}


def read_table_file(path: Path) -> TableFile:
    """Reads the definition of a table from a TOML file.

    Raises:
        UsageError: The file cannot be read, or is not a valid definition. The message names the file.
        ScanKvError: The columns cannot be parsed.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    return TableFile.of_values(values, str(path))


def table_file_values(table: sync.Table, columns: pa.Schema | None = None) -> dict[str, Any]:
    """Returns the complete definition of a table as the values of a file, without those that are the default.

    Args:
        table: The table.
        columns: An earlier schema version, such as that of a snapshot. Indexes and aggregators of columns that were
            added later are left out.
    """
    schema = table.schema if columns is None else columns
    known = set(schema.names)
    values: dict[str, Any] = {
        "table": table.name,
        "schema": format_schema(schema),
        "key": table.primary_key,
        "bucket_key": table.bucket_key if table.bucket_key != table.primary_key else [],
        "partition_by": table.partition_by,
        "buckets": table.buckets,
        "tablets": table.tablets if table.tablets > 1 else None,
        "indexes": [list(index) for index in table.indexes if known.issuperset(index)],
        "version_column": table.version_column,
        "sequence_column": list(table.sequence_column),
        "options": {name: _option(text) for name, text in table.options.items()},
        "aggregators": {name: _aggregator_value(each) for name, each in table.aggregators.items() if name in known},
        "sequence_groups": [
            {"sequence": list(sequence), "columns": list(grouped)}
            for sequence, grouped in table.sequence_groups.items()
        ],
    }
    # A table without a key has an empty one.
    return {name: value for name, value in values.items() if value or name == "key"}


def to_toml(values: Mapping[str, Any]) -> str:
    """Returns a definition as the text of a file that `create -f` reads."""
    lines = [f"{name} = {toml_value(value)}" for name, value in values.items() if name in _PLAIN]
    for name in _SECTIONS:
        if name in values:
            lines += ["", f"[{name}]", *(f"{_key(key)} = {toml_value(each)}" for key, each in values[name].items())]
    for group in values.get("sequence_groups", ()):
        lines += ["", "[[sequence_groups]]", *(f"{key} = {toml_value(each)}" for key, each in group.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").isalnum() else toml_value(name)


def _option(text: str) -> str | bool | int:
    """Returns an option, which the server sends as text, as a bool, an integer or a string."""
    return {"true": True, "false": False}.get(text, int(text) if text.isdecimal() else text)


def _aggregator_value(aggregator: Aggregator) -> str | dict[str, str | bool]:
    truths: dict[str, str | bool] = {"true": True, "false": False}
    parameters = {name: truths.get(value, value) for name, value in aggregator.parameters}
    return {"function": aggregator.function, **parameters} if parameters else aggregator.function


def _options(source: str, values: Mapping[str, Any]) -> dict[str, Any]:
    options = _section(source, values, "options")
    for name, value in options.items():
        if name in (*_FIELDS, "primary_key", "name"):
            raise UsageError(f'{source}: "{name}" is not a table option: write it above [options]')
        if not isinstance(value, str | bool | int):
            raise UsageError(f'{source}: the option "{name}" must be a string, a whole number, true or false')
    return options


def _section(source: str, values: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, dict):
        raise UsageError(f'{source}: "{name}" must be a section: write [{name}]')
    return section


def _list(source: str, values: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(values[name], list):
        form = ": [[sequence_groups]]" if name == "sequence_groups" else ' of columns: ["a", ["b", "c"]]'
        raise UsageError(f'{source}: the field "{name}" must be a list{form}')
    return list(values[name])


def _sequence_group(source: str, group: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(group, dict) or set(group) != {"sequence", "columns"}:
        raise UsageError(
            f"{source}: each of [[sequence_groups]] must have the lists sequence and columns, and no others"
        )
    sequence, columns = (
        _columns(source, group[name], f'"{name}" of a sequence group') for name in ("sequence", "columns")
    )
    return sequence, columns


def _columns(source: str, value: object, what: str) -> tuple[str, ...]:
    """Reads a single column name, which may contain commas, or a list of column names."""
    return tuple(_names(source, [value] if isinstance(value, str) else value, what))


def _names(source: str, names: object, what: str) -> list[str]:
    if isinstance(names, str):
        return [part.strip() for part in names.split(",")]
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise UsageError(f"{source}: {what} must be a list of columns")
    return names


def _aggregator(source: str, column: str, value: object) -> Aggregator:
    try:
        return Aggregator.of_config(value)
    except ValueError:
        raise UsageError(
            f'{source}: the aggregator of "{column}" must be the name of a function, or {{ function = "...", ... }}'
        ) from None
