"""Converts the arguments that define a new table to the message that carries them."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from inspect import signature
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from aio_client._admin.indexes import index_messages
from aio_client._input.arguments import names_of, text_of
from aio_client._write.merging import merge_spec
from scankv.model.errors import UsageError, did_you_mean
from scankv.model.tables.merge_wire import merging_to_proto
from scankv.model.tables.options import TableOptions
from scankv.model.types.types import parse_schema
from scankv.v1 import table_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aio_client._admin.indexes import Indexes
    from aio_client._write.merging import Names
    from scankv.model.tables.agg import Aggregator


NewTableMessage: TypeAlias = table_pb2.CreateTableRequest
"""The definition of a new table."""


def definition_message(
    name: str,
    schema: pa.Schema | str,
    options: Mapping[str, str | bool | int | None],
    *,
    primary_key: Sequence[str],
    bucket_key: Sequence[str],
    buckets: int | None,
    tablets: int = 1,
    indexes: Indexes,
    partition_by: Sequence[str],
    version_column: str | None,
    sequence_column: Names | None,
    sequence_groups: Mapping[Names, Names] | None,
    aggregators: Mapping[str, Aggregator] | None,
) -> table_pb2.CreateTableRequest:
    """Returns the definition of a new table, from the arguments of `Client.create_table`. Raises UsageError."""
    schema = schema_of(schema, "schema")
    if buckets is not None and (type(buckets) is not int or buckets < 1):
        raise UsageError(f"buckets must be a whole number of at least 1, not {buckets!r}", option="buckets")
    if type(tablets) is not int or tablets < 1:
        raise UsageError(f"tablets must be a whole number of at least 1, not {tablets!r}", option="tablets")
    merging = merge_spec(version_column, sequence_column, sequence_groups, aggregators)
    return table_pb2.CreateTableRequest(
        name=text_of(name, "name"),
        arrow_schema=schema_bytes(schema),
        primary_key=names_of(primary_key, "primary_key"),
        bucket_key=names_of(bucket_key, "bucket_key"),
        buckets=buckets or 0,
        tablets=tablets if tablets > 1 else 0,
        options=option_texts(options, definition_message),
        indexes=index_messages(indexes, "indexes"),
        partition_by=names_of(partition_by, "partition_by"),
        merging=merging_to_proto(merging),
    )


def schema_of(schema: pa.Schema | str, option: str) -> pa.Schema:
    """Returns columns that may be given as text, as the command line takes it.

    Raises:
        InvalidRequest: The text cannot be parsed; SchemaMismatch for a type that cannot be stored.
        UsageError: The argument is neither text nor a schema.
    """
    if isinstance(schema, str):
        return parse_schema(schema)
    if not isinstance(schema, pa.Schema):
        raise UsageError(
            f'{option} must be a pyarrow.Schema, or text such as "player string, score int64", not a '
            f"{type(schema).__name__}",
            option=option,
        )
    return schema


def schema_bytes(schema: pa.Schema) -> bytes:
    """Returns columns as an encapsulated Arrow IPC schema message, without metadata."""
    data: bytes = schema.remove_metadata().serialize().to_pybytes()
    return data


def option_texts(options: Mapping[str, object], method: Callable[..., object]) -> dict[str, str]:
    """Returns the table options that are not None, as messages carry them.

    Args:
        options: The options by name.
        method: Has the parameters beside the options. A misspelt one arrives among the options.

    Raises:
        UsageError: A value cannot be that of an option.
    """
    return {name: _option_text(name, value, method) for name, value in options.items() if value is not None}


def _option_text(name: str, value: object, method: Callable[..., object]) -> str:
    known = [each.name for each in fields(TableOptions)]
    hint = "" if name in known else did_you_mean(name, [*signature(method).parameters, *known])
    if not isinstance(value, str | Integral):
        kind = type(value).__name__
        raise UsageError(
            f'table option "{name}" must be a string, a whole number, true or false, not a {kind}{hint}', option=name
        )
    if not get_close_matches(name, known) and get_close_matches(name, signature(method).parameters):
        # The server knows the options, and not the other arguments.
        raise UsageError(f'there is no table option "{name}"{hint}', option=name)
    return str(value).lower() if isinstance(value, bool) else str(value)
