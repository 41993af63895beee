"""All ways by which rows get into a table, for the round trips. Each writes rows of the model as that way has them."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from aio_client import ScanKvError
from tests.model.exact_python import to_python
from tests.model.exact_text import csv_text, field_text, json_text
from tests.model.exact_values import to_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aio_client import sync
    from tests.model.exact_values import Plain
    from tests.support.command_line import CommandLine

Row = dict[str, "Plain"]
_IS_NOT: Final = r"is (.+, )?not (date32|timestamp|list|map|struct)"


class WayRefusedError(Exception):
    """A way has refused rows, with this message."""


@dataclass(frozen=True)
class Surroundings:
    """A server, its client and its command line."""

    client: sync.Client
    scankv: CommandLine

    def run(self, *arguments: str, stdin: bytes | str | None = None) -> bytes:
        """Runs a command and returns what it prints. Raises WayRefusedError if it fails with one error."""
        try:
            return self.scankv(*arguments, stdin=stdin).stdout
        except AssertionError:
            raise WayRefusedError(self.scankv.fails(*arguments, stdin=stdin)) from None


@dataclass(frozen=True)
class WayIn:
    """A way to write rows.

    Attributes:
        name: Its name.
        write: Writes rows with the columns of a schema into a table.
        refused_types: Columns that it refuses: a trait of their type, with a pattern of the reason.
        refused_values: Values that it refuses, in the same form.
        lacks: Traits of types and values that the other library or the format does not have.
        encodes: Whether the client encodes rows of some types by itself.
        stored: What becomes of a value that the way cannot tell from another, as documented.
    """

    name: str
    write: Callable[[Surroundings, str, pa.Schema, Sequence[Row]], None]
    refused_types: Mapping[str, str] = field(default_factory=dict)
    refused_values: Mapping[str, str] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    encodes: bool = False
    stored: Callable[[Plain, pa.DataType], Plain] = lambda value, _: value

    def attempt(self, world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> str | None:
        """Writes rows. Returns the message if they are refused."""
        try:
            self.write(world, table, schema, rows)
        except (ScanKvError, WayRefusedError) as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__} instead of a typed error: {error}"
        return None

    @property
    def refuses(self) -> bool:
        """Returns whether the way refuses anything."""
        return bool(self.refused_types or self.refused_values)


def arrow_table(schema: pa.Schema, rows: Sequence[Row]) -> pa.Table:
    """Returns rows of the model as Arrow data."""
    return pa.table([to_arrow([row[f.name] for row in rows], f.type) for f in schema], schema=schema)


def _dicts(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    plain = [{f.name: to_python(row[f.name], f.type) for f in schema} for row in rows]
    world.client.table(table).upsert(plain)


def _single_dicts(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    handle = world.client.table(table)
    for row in rows:
        handle.upsert([{f.name: to_python(row[f.name], f.type) for f in schema}])


def _arrow(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    world.client.table(table).upsert(arrow_table(schema, rows))


def _other_layouts(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    exact = arrow_table(schema, rows)
    columns = [_in_other_layout(column.combine_chunks(), index) for index, column in enumerate(exact.columns)]
    world.client.table(table).upsert(pa.table(columns, names=schema.names))


def _in_other_layout(column: pa.Array, index: int) -> pa.Array:
    type_ = column.type
    if pat.is_string(type_) or pat.is_binary(type_):
        large = column.cast(pa.large_string() if pat.is_string(type_) else pa.large_binary())
        return large if index % 2 else large.dictionary_encode()
    if pat.is_decimal(type_) and index % 2:
        return column.cast(pa.decimal256(76, type_.scale))
    if pat.is_list(type_):
        return column.cast(pa.large_list(type_.value_field))
    return column if pat.is_nested(type_) or pat.is_float16(type_) else column.dictionary_encode()


def _writer(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    with world.client.table(table).writer() as writer:
        writer.upsert(arrow_table(schema, rows))


def _replace(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    world.client.table(table).replace(arrow_table(schema, rows))


def _transaction(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    with world.client.transaction() as transaction:
        transaction.upsert(world.client.table(table), arrow_table(schema, rows))


def _pandas_arrow(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    world.client.table(table).upsert(arrow_table(schema, rows).to_pandas(types_mapper=pd.ArrowDtype))


def _pandas_objects(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    columns = {f.name: pd.Series([to_python(row[f.name], f.type) for row in rows], dtype=object) for f in schema}
    world.client.table(table).upsert(pd.DataFrame(columns))


def _nan_is_null(value: Plain, type_: pa.DataType) -> Plain:
    return None if isinstance(value, float) and value != value else value  # NaN


def _polars(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    world.client.table(table).upsert(pl.from_arrow(arrow_table(schema, rows)))


def _csv(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    world.run("load", table, "-", "--format", "csv", stdin=csv_text(schema, rows))


def json_objects(schema: pa.Schema, rows: Sequence[Row]) -> list[str]:
    """Returns rows as JSON objects."""
    struct = pa.struct(list(schema))
    return [json_text(row, struct) for row in rows]


def _json_lines(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    world.run("load", table, "-", "--format", "jsonl", stdin="\n".join(json_objects(schema, rows)))


def _parquet(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    world.run("load", table, "-", stdin=parquet_bytes(arrow_table(schema, rows)))


def parquet_bytes(rows: pa.Table) -> bytes:
    """Returns rows as a Parquet file."""
    file = io.BytesIO()
    parquet.write_table(rows, file)
    return file.getvalue()


def _arrow_file(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    rows_ = arrow_table(schema, rows)
    file = io.BytesIO()
    with pa.ipc.new_file(file, rows_.schema) as writer:
        writer.write_table(rows_)
    world.run("load", table, "-", stdin=file.getvalue())


def _put(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    for row in rows:
        texts = {f.name: field_text(row[f.name], f.type) for f in schema}
        world.run("put", table, *(f"{name}={text}" for name, text in texts.items() if text is not None))


def _put_json(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    world.run("put", table, *json_objects(schema, rows))


ARROW: Final = WayIn("arrow", _arrow, encodes=True)

_NO_SUCH_TEXT: Final = {"first second of nanoseconds": _IS_NOT}

WAYS_IN: Final = (
    WayIn("dict", _dicts, encodes=True),
    WayIn("single dict", _single_dicts, encodes=True),
    ARROW,
    WayIn("arrow in other layouts", _other_layouts),
    WayIn("writer", _writer),
    WayIn("replace", _replace),
    WayIn("transaction", _transaction),
    WayIn("pandas with Arrow dtypes", _pandas_arrow),
    WayIn("pandas with objects", _pandas_objects, stored=_nan_is_null),
    WayIn("polars", _polars, lacks=frozenset({"negative scale", "zone +05:30", "more seconds than milliseconds"})),
    WayIn("load csv", _csv, refused_values=_NO_SUCH_TEXT),
    WayIn("load jsonl", _json_lines, refused_values=_NO_SUCH_TEXT),
    WayIn("load parquet", _parquet, lacks=frozenset({"negative scale", "more seconds than milliseconds"})),
    WayIn("load arrow", _arrow_file),
    WayIn("put values", _put, refused_values=_NO_SUCH_TEXT),
    WayIn("put json", _put_json, refused_values=_NO_SUCH_TEXT),
)
