"""Tables that are made by `CREATE TABLE ... USING scankv OPTIONS (...)`.

Spark hands the options of such a table to `schema` alone, and nothing but the columns to whatever reads it. It keeps
the metadata of columns, though, also in its catalog. So `schema` puts the options into the metadata of the first
column, and readers take them out. Writers must not: on INSERT, Spark may give the columns of the *source*, with the
options of another table.

Rule: *what is stored here is readable by everybody who may see the catalog*. An option that is a secret must not be
stored; a secret is given by the name of a file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from scankv.model.errors import UsageError
from spark_bridge.options import READ_NAMES, STREAM_NAMES, named

if TYPE_CHECKING:
    from collections.abc import Mapping

_METADATA: Final = "scankv.options"
# CREATE TABLE hands its options to `schema` with copies under this prefix, among some that are Spark's own.
_COPY: Final = "option."

STORED: Final = frozenset({*READ_NAMES, *STREAM_NAMES}) - {"pushdown"}
"""The options that are kept with the columns."""

NO_INSERT: Final = (
    "rows cannot be inserted through a table that was made with CREATE TABLE ... USING scankv: Spark does not tell "
    "which table it is. INSERT INTO a temporary view, CREATE TEMPORARY VIEW name USING scankv OPTIONS (url '...', "
    "table '...'), or write a DataFrame with option url and save(\"database.table\")"
)


def is_create_table(options: Mapping[str, str]) -> bool:
    """Whether these are what `schema` is given by CREATE TABLE."""
    return any(name.lower().startswith(_COPY) for name in options)


def user_options(options: Mapping[str, str]) -> dict[str, str]:
    """What the user wrote, of what `schema` is given by CREATE TABLE."""
    return {name[len(_COPY) :]: value for name, value in options.items() if name.lower().startswith(_COPY)}


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The columns, the first of which has the options. Raises UsageError for an unknown one."""
    stored = {name: value for name, value in named(options).items() if name in STORED}
    first = schema.fields[0]
    kept = StructField(first.name, first.dataType, first.nullable, {_METADATA: json.dumps(stored, sort_keys=True)})
    return StructType([kept, *schema.fields[1:]])


def stored_options(schema: StructType) -> dict[str, str]:
    """The options that CREATE TABLE has put into the columns; empty where they are not of such a table."""
    for column in schema.fields:
        if (text := (column.metadata or {}).get(_METADATA)) is not None:
            return {str(name): str(value) for name, value in json.loads(text).items()}
    return {}


def read_options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read: those of the statement, `SELECT ... FROM t WITH (...)`, before those of its table.

    A `where` of the statement narrows that of the table, and does not take its place.

    Raises:
        UsageError: An option is unknown; or the statement names a table of its own.
    """
    stored, own = stored_options(schema), named(given)
    if not stored:
        return own
    for name in ("table", "url"):
        if own.get(name, stored.get(name)) != stored.get(name):
            raise UsageError(
                f"option {name} is fixed by CREATE TABLE, as {stored.get(name)!r}: drop the table and create it again, "
                "or use another one",
                option=name,
            )
    merged = {**stored, **own}
    if "where" in stored and "where" in own:
        merged["where"], merged["where_of_table"] = own["where"], stored["where"]
    return merged


def plain_columns(schema: StructType) -> StructType:
    """The columns without what `with_options` has added."""
    return StructType([StructField(each.name, each.dataType, each.nullable) for each in schema.fields])
