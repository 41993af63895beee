"""Keeps the options of tables that are created by `CREATE TABLE ... USING scankv OPTIONS (...)`.

Spark passes the options of such a table only to `ScanKvDataSource.schema`; readers get only the columns. But Spark
keeps the metadata of columns, also in its catalog. So `schema` stores the options in the metadata of the first column,
and readers take them from there. Writers must not do that: on INSERT, Spark may pass the columns of the *source*, with
the options of another table.

Rule: *all users who may see the catalog can read what is stored here*. Never store an option that is a secret; let such
an option name a file that contains the secret.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from scankv.model.errors import UsageError
from spark_bridge.options import READ_NAMES, STREAM_NAMES, normalize_names

if TYPE_CHECKING:
    from collections.abc import Mapping

_METADATA: Final = "scankv.options"
# CREATE TABLE passes its options to `schema` twice: mixed with Spark's own options, and as copies under this prefix.
_COPY: Final = "option."

STORED: Final = frozenset({*READ_NAMES, *STREAM_NAMES}) - {"pushdown"}
"""The options that are stored in the metadata of the columns."""

NO_INSERT: Final = (
    "INSERT INTO does not work with a table that was created by CREATE TABLE ... USING scankv, since Spark does not "
    "pass on the name of the table: insert into a temporary view, CREATE TEMPORARY VIEW name USING scankv OPTIONS "
    "(url '...', table '...'), or write a DataFrame with option url and save(\"database.table\")"
)


def is_create_table(options: Mapping[str, str]) -> bool:
    """Returns whether these are the options that CREATE TABLE passes to `schema`."""
    return any(name.lower().startswith(_COPY) for name in options)


def user_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the user's options among those that CREATE TABLE passes to `schema`."""
    return {name[len(_COPY) :]: value for name, value in options.items() if name.lower().startswith(_COPY)}


def attach_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Returns the columns with the options in the metadata of the first one. Raises UsageError for unknown options."""
    stored = {name: value for name, value in normalize_names(options).items() if name in STORED}
    first = schema.fields[0]
    kept = StructField(first.name, first.dataType, first.nullable, {_METADATA: json.dumps(stored, sort_keys=True)})
    return StructType([kept, *schema.fields[1:]])


def stored_options(schema: StructType) -> dict[str, str]:
    """Returns the options that CREATE TABLE stored in the columns, or {} if the table was not created that way."""
    for column in schema.fields:
        if (text := (column.metadata or {}).get(_METADATA)) is not None:
            return {str(name): str(value) for name, value in json.loads(text).items()}
    return {}


def merge_read_options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Returns the options of a read: those of the statement, `SELECT ... FROM t WITH (...)`, override the table's.

    The `where` of the statement is combined with the table's `where` and does not replace it.

    Raises:
        UsageError: An option is unknown, or the statement names another table, server or profile.
    """
    stored, own = stored_options(schema), normalize_names(given)
    if not stored:
        return own
    for name in ("table", "url", "profile"):
        if own.get(name, stored.get(name)) != stored.get(name):
            raise UsageError(
                f"option {name} must be {stored.get(name)!r}, as in CREATE TABLE, not {own[name]!r:.80}: create "
                f"another table for another {name}",
                option=name,
            )
    merged = {**stored, **own}
    if "where" in stored and "where" in own:
        merged["where"], merged["where_of_table"] = own["where"], stored["where"]
    return merged


def strip_options(schema: StructType) -> StructType:
    """Returns the columns without the metadata that `attach_options` adds."""
    return StructType([StructField(each.name, each.dataType, each.nullable) for each in schema.fields])
