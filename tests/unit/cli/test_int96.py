"""Timestamps of Parquet files in the type INT96 are read without a change of value, in every year and at any depth."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from scankv.formats.files import BadFile
from tests.unit.cli.reading import infer, read

if TYPE_CHECKING:
    from pathlib import Path

MICROS, NANOS = pa.timestamp("us"), pa.timestamp("ns")
FAR = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(9999, 12, 31, 23, 59, 59), None]
ROWS = 70_000
"""Rows that fill more than one batch."""


def nested(type_: pa.DataType) -> dict[str, pa.DataType]:
    """Returns columns with a type at different depths."""
    return {
        "plain": type_,
        "list": pa.list_(type_),
        "struct": pa.struct([("n", pa.int64()), ("t", type_)]),
        "map": pa.map_(pa.string(), type_),
        "deep": pa.list_(pa.struct([("ts", pa.list_(type_))])),
    }


def values_of(values: list[Any]) -> dict[str, list[Any]]:
    return {
        "plain": values,
        "list": [[value, value] for value in values[:-1]] + [None],
        "struct": [{"n": 1, "t": value} for value in values[:-1]] + [None],
        "map": [[("a", value)] for value in values[:-1]] + [None],
        "deep": [[{"ts": [value]}, None, {"ts": None}] for value in values[:-1]] + [[]],
    }


def write(path: Path, columns: dict[str, pa.Array]) -> None:
    parquet.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True, row_group_size=40_000)


@pytest.mark.parametrize("column", nested(MICROS))
def test_int96_of_every_year_is_read_as_microseconds(tmp_path: Path, column: str) -> None:
    type_, values = nested(MICROS)[column], values_of(FAR)[column]
    written = pa.array(values * (ROWS // 4), type_)
    write(tmp_path / "far.parquet", {"id": pa.array(range(ROWS)), column: written})
    assert str(infer(tmp_path / "far.parquet").field(column).type).count("timestamp[us]") == 1
    schema = pa.schema([("id", pa.int64()), (column, type_)])
    found = read(tmp_path / "far.parquet", schema).rows
    assert found.column(column).combine_chunks().equals(written)
    assert found.column("id").to_pylist() == list(range(ROWS))


@pytest.mark.parametrize("column", nested(NANOS))
def test_int96_is_exact_in_a_column_with_nanoseconds(tmp_path: Path, column: str) -> None:
    limits = [pa.scalar(2**63 - 1, NANOS), pa.scalar(1 - 2**63, NANOS), pa.scalar(-1, NANOS), pa.scalar(1, NANOS), None]
    written = pa.array(values_of(limits)[column], nested(NANOS)[column])
    write(tmp_path / "fine.parquet", {column: written})
    assert (
        read(tmp_path / "fine.parquet", pa.schema([(column, written.type)])).rows.column(0).combine_chunks() == written
    )


@pytest.mark.parametrize("column", nested(NANOS))
def test_int96_beyond_nanoseconds_is_refused_with_its_row_and_value(tmp_path: Path, column: str) -> None:
    values = [*[dt.datetime(2026, 1, 1)] * 1000, *FAR[2:]]
    write(tmp_path / "far.parquet", {column: pa.array(values_of(values)[column], nested(MICROS)[column])})
    schema = pa.schema([(column, nested(NANOS)[column])])
    message = f'row 1001: column "{column}": 9999-12-31 23:59:59.000000 does not fit a timestamp in nanoseconds'
    with pytest.raises(BadFile, match=message):
        read(tmp_path / "far.parquet", schema)
    reading = read(tmp_path / "far.parquet", schema, skip=True)
    assert (reading.rows.num_rows, reading.bad_rows) == (1001, 1)


@pytest.mark.parametrize("nanos", [1, -1, 2**62 + 999, -(2**62) + 1])
def test_int96_with_nanoseconds_is_refused_by_a_column_with_microseconds(tmp_path: Path, nanos: int) -> None:
    write(tmp_path / "fine.parquet", {"t": pa.array([0, nanos], NANOS)})
    assert infer(tmp_path / "fine.parquet").field("t").type == MICROS
    with pytest.raises(
        BadFile, match=rf'row 2: column "t": .*\.\d{{6}}{nanos % 1000:03} does not fit a timestamp in micro'
    ):
        read(tmp_path / "fine.parquet", pa.schema([("t", MICROS)]))
