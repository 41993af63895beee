"""More ways into and out of a table for the round trips: HTTP, published tables and bootstraps."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import parquet

from tests.model.exact_text import of_json, parse_json
from tests.model.exact_values import without_null_items
from tests.model.ways_in import WayIn, WayRefusedError, arrow_table
from tests.model.ways_out import Wanted, WayOut, rows_of_arrow, rows_of_csv, rows_of_json_lines
from tests.support.lake_readers import IcebergReader, read_delta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.model.ways_in import Row, Surroundings
    from tests.support.gateway import HttpCaller

_numbers = itertools.count()


def _bootstrap(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    key = world.client.table(table).primary_key
    world.client.drop_table(table)
    world.client.bootstrap(table, arrow_table(schema, rows), primary_key=key)


def _bootstrap_file(world: Surroundings, table: str, schema: pa.Schema, rows: Sequence[Row]) -> None:
    key = world.client.table(table).primary_key
    world.client.drop_table(table)
    with TemporaryDirectory() as directory:
        parquet.write_table(arrow_table(schema, rows), Path(directory, "rows.parquet"))
        world.run("load", table, directory, "--bootstrap", "--key", ",".join(key))


BOOTSTRAPS: Final = (
    WayIn("bootstrap", _bootstrap),
    WayIn(
        "load --bootstrap of Parquet",
        _bootstrap_file,
        lacks=frozenset({"negative scale", "more seconds than milliseconds"}),
    ),
)


def _http(caller: HttpCaller, world: Surroundings, wanted: Wanted, format_: str) -> bytes:
    columns = ",".join(wanted.schema.names)
    path = f"/v1/tables/{wanted.table}/scan"
    answer = caller.get(path, format=format_, columns=columns, where=wanted.where)
    if answer.status != 200:
        raise WayRefusedError(answer.body.decode())
    return answer.body


def _http_arrow(caller: HttpCaller, world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_arrow(pa.ipc.open_stream(_http(caller, world, wanted, "arrow")).read_all(), wanted.schema)


def _http_csv(caller: HttpCaller, world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_csv(_http(caller, world, wanted, "csv"), wanted.schema)


def _http_json_lines(caller: HttpCaller, world: Surroundings, wanted: Wanted) -> list[Row]:
    return rows_of_json_lines(_http(caller, world, wanted, "jsonl"), wanted.schema)


def _http_json(caller: HttpCaller, world: Surroundings, wanted: Wanted) -> list[Row]:
    struct = pa.struct(list(wanted.schema))
    return [of_json(row, struct) for row in parse_json(_http(caller, world, wanted, "json"))["rows"]]


def http_ways(caller: HttpCaller) -> list[WayOut]:
    """Returns the ways to read through a gateway."""
    return [
        WayOut("http arrow", partial(_http_arrow, caller)),
        WayOut("http csv", partial(_http_csv, caller)),
        WayOut("http jsonl", partial(_http_json_lines, caller)),
        WayOut("http json", partial(_http_json, caller)),
    ]


def copy_of(world: Surroundings, wanted: Wanted) -> str:
    """Makes a table that has only what is wanted, for ways that take a table as a whole. Returns its name."""
    rows = world.client.table(wanted.table).scan(columns=wanted.schema.names, where=wanted.where).to_arrow()
    name = f"trips.copy{next(_numbers)}"
    world.client.create_table(name, wanted.schema, primary_key=["id"], buckets=1).upsert(rows)
    return name


def _published(world: Surroundings, wanted: Wanted, format_: str) -> list[Row]:
    name = copy_of(world, wanted)
    with TemporaryDirectory() as directory:
        world.run("publish", name, directory, "--once", "--format", format_)
        found = read_delta(directory) if format_ == "delta" else IcebergReader(directory).read()
    return rows_of_arrow(found, wanted.schema)


_NO_SUCH_TYPE: Final = {"timestamp[ns]": "not nanoseconds"}
_NOT_MICROSECONDS: Final = {"more than microseconds": "does not fit into .*timestamp.us"}

PUBLISHED: Final = (
    WayOut(
        "delta",
        partial(_published, format_="delta"),
        {**_NO_SUCH_TYPE, "time": "has no type for time", "negative scale": "scale of a decimal"},
        _NOT_MICROSECONDS,
    ),
    WayOut(
        "iceberg",
        partial(_published, format_="iceberg"),
        {**_NO_SUCH_TYPE, "time64[ns]": "not nanoseconds", "negative scale": "has no type for decimal"},
        _NOT_MICROSECONDS,
        # pyiceberg 0.12 reads a null list or map of structs as an empty one.
        returned=without_null_items,
    ),
)
