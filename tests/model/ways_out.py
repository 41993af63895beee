"""All ways by which rows get out of a table, for the round trips. Each returns rows of the model."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from aio_client import ScanKvError
from tests.model.exact_python import of_python, to_python
from tests.model.exact_text import of_field, of_json, parse_csv, parse_json
from tests.model.exact_values import from_arrow
from tests.model.ways_in import WayRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.model.exact_values import Plain
    from tests.model.ways_in import Row, Surroundings


@dataclass(frozen=True)
class Wanted:
    """What to read.

    Attributes:
        table: The name of the table.
        schema: The columns to read, with their types.
        ids: The rows to read, by their ids. The column `id` is one of the columns.
        keys: The key of each row by its id, as a struct of the model.
        key_schema: The columns of the key.
    """

    table: str
    schema: pa.Schema
    ids: Sequence[int]
    keys: Mapping[int, Row]
    key_schema: pa.Schema

    @property
    def where(self) -> str:
        """Returns the predicate that the rows match."""
        return f"id in ({', '.join(map(str, self.ids))})"


@dataclass(frozen=True)
class WayOut:
    """A way to read rows.

    Attributes:
        name: Its name.
        read: Reads rows.
        refused_types: Columns that it refuses: a trait of their type, with a pattern of the reason.
        refused_values: Values that it refuses, in the same form.
        needs_all_columns: Whether it always reads complete rows.
        is_examined: Whether the columns are read one by one if they cannot be read together, to find those at fault.
        returned: What the reader makes of a value that it cannot tell from another, as documented.
        step: It reads every so many rows of a large table.
    """

    name: str
    read: Callable[[Surroundings, Wanted], list[Row]]
    refused_types: Mapping[str, str] = field(default_factory=dict)
    refused_values: Mapping[str, str] = field(default_factory=dict)
    needs_all_columns: bool = False
    step: int = 1
    returned: Callable[[Plain, pa.DataType], Plain] = lambda value, _: value
    is_examined: bool = True

    def attempt(self, world: Surroundings, wanted: Wanted) -> list[Row] | str:
        """Reads rows. Returns the message if they are refused."""
        try:
            return self.read(world, wanted)
        except (ScanKvError, WayRefusedError) as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__} instead of a typed error: {error}"


def rows_of_arrow(rows: pa.Table, schema: pa.Schema) -> list[Row]:
    """Returns Arrow data as rows of the model."""
    columns = {f.name: from_arrow(rows.column(f.name), f.type) for f in schema}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _scan(world: Surroundings, wanted: Wanted) -> Any:  # a blocking scan
    return world.client.table(wanted.table).scan(columns=wanted.schema.names, where=wanted.where)


def _rows_of_python(found: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[Row]:
    return [{f.name: of_python(row[f.name], f.type) for f in schema} for row in found]


def _arrow(world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_arrow(_scan(world, wanted).to_arrow(), wanted.schema)


def _dicts(world: Surroundings, wanted: Wanted) -> list[Row]:
    return _rows_of_python(_scan(world, wanted).to_pylist(), wanted.schema)


def _pandas(world: Surroundings, wanted: Wanted) -> list[Row]:
    frame = _scan(world, wanted).to_pandas()
    columns = {f.name: _of_series(frame[f.name], f.type) for f in wanted.schema}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _of_series(series: pd.Series, type_: pa.DataType) -> list[Any]:
    if isinstance(series.dtype, pd.ArrowDtype):
        return from_arrow(pa.array(series), type_)
    # The frame has times for which there is no Timestamp.
    values = series.to_numpy() if series.dtype.kind == "M" and series.dt.tz is None else list(series)
    return [of_python(value, type_) for value in values]


def _polars(world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_arrow(_scan(world, wanted).to_polars().to_arrow(), wanted.schema)


def _lazy_polars(world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_arrow(_scan(world, wanted).to_polars(lazy=True).collect().to_arrow(), wanted.schema)


def _keys(wanted: Wanted) -> list[Any]:
    schema = wanted.key_schema
    return [tuple(to_python(wanted.keys[id_][f.name], f.type) for f in schema) for id_ in wanted.ids]


def _get(world: Surroundings, wanted: Wanted) -> list[Row]:
    table = world.client.table(wanted.table)
    found = [table.get(key) for key in _keys(wanted)]
    return _rows_of_python([row for row in found if row is not None], wanted.schema)


def _lookup(world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_arrow(world.client.table(wanted.table).lookup(_keys(wanted)), wanted.schema)


def _lookup_few(world: Surroundings, wanted: Wanted) -> list[Row]:
    """Looks up so few keys at once that the client encodes each by itself."""
    keys, table = _keys(wanted), world.client.table(wanted.table)
    found = [table.lookup(keys[start : start + 50]) for start in range(0, len(keys), 50)]
    return rows_of_arrow(pa.concat_tables(found), wanted.schema)


def _scan_command(world: Surroundings, wanted: Wanted, format_: str) -> bytes:
    columns = ",".join(wanted.schema.names)
    return world.run("scan", wanted.table, "--format", format_, "--columns", columns, "--where", wanted.where)


def rows_of_csv(data: bytes, schema: pa.Schema) -> list[Row]:
    """Returns CSV with a header as rows of the model."""
    header, *rows = parse_csv(data.decode())
    assert header == schema.names
    return [{f.name: of_field(text, f.type) for f, text in zip(schema, row, strict=True)} for row in rows]


def rows_of_json_lines(data: bytes, schema: pa.Schema) -> list[Row]:
    """Returns lines of JSON objects as rows of the model."""
    struct = pa.struct(list(schema))
    return [of_json(parse_json(line), struct) for line in data.split(b"\n")[:-1]]


def _csv(world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_csv(_scan_command(world, wanted, "csv"), wanted.schema)


def _json_lines(world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_json_lines(_scan_command(world, wanted, "jsonl"), wanted.schema)


def _parquet(world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_arrow(parquet.read_table(io.BytesIO(_scan_command(world, wanted, "parquet"))), wanted.schema)


def _arrow_file(world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_arrow(pa.ipc.open_stream(_scan_command(world, wanted, "arrow")).read_all(), wanted.schema)


ARROW: Final = WayOut("arrow", _arrow)

_NOT_IN_PYTHON: Final = dict.fromkeys(
    ("year before 1", "year after 9999", "nanoseconds of a day", "NaT of nanoseconds"), "Python has no such value"
)
_NOT_IN_POLARS: Final = dict.fromkeys(("negative scale", "zone +05:30"), "Polars cannot hold")
_TOO_MANY_SECONDS: Final = {"more seconds than milliseconds": "beyond the range of milliseconds"}

WAYS_OUT: Final = (
    ARROW,
    WayOut("dicts", _dicts, refused_values=_NOT_IN_PYTHON),
    WayOut("get", _get, refused_values=_NOT_IN_PYTHON, needs_all_columns=True, is_examined=False, step=8),
    WayOut("lookup", _lookup, needs_all_columns=True, is_examined=False),
    WayOut("lookup of few", _lookup_few, needs_all_columns=True, is_examined=False),
    WayOut("pandas", _pandas),
    WayOut("polars", _polars, _NOT_IN_POLARS, _TOO_MANY_SECONDS),
    WayOut("lazy polars", _lazy_polars, _NOT_IN_POLARS, _TOO_MANY_SECONDS),
    WayOut("scan csv", _csv),
    WayOut("scan jsonl", _json_lines),
    WayOut("scan parquet", _parquet, {"negative scale": "Parquet cannot hold"}, _TOO_MANY_SECONDS),
    WayOut("scan arrow", _arrow_file),
)
