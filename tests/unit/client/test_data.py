"""Rows are accepted in all documented forms with equal results, and errors name the invalid row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from aio_client import SchemaMismatch, UsageError
from aio_client._input.data import rows_of
from scankv.model.types.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = parse_schema("player string not null, score int64, tags list<item: string>")
ROWS = [{"player": "ann", "score": 1, "tags": ["a"]}, {"player": "bob", "score": None, "tags": None}]
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA)


class ExportsAnArray:
    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


class ExportsAStream:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


FORMS: dict[str, Callable[[], object]] = {
    "RecordBatch": lambda: TABLE.to_batches()[0],
    "Table": lambda: TABLE,
    "Table with its columns in another order": lambda: TABLE.select(["tags", "score", "player"]),
    "Table of chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "RecordBatchReader": lambda: TABLE.to_reader(),
    "list of dictionaries": lambda: ROWS,
    "tuple of dictionaries": lambda: tuple(ROWS),
    "dictionaries without their nulls": lambda: [ROWS[0], {"player": "bob"}],
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas of Arrow types": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas with the key as its index": lambda: pd.DataFrame(ROWS).set_index("player"),
    "pandas with an index of rows that are left": lambda: pd.DataFrame([{"player": "x"}, *ROWS])[1:],
    "Polars": lambda: pl.DataFrame(ROWS),
    "DuckDB": lambda: duckdb.from_arrow(TABLE),
    "an object with __arrow_c_array__": ExportsAnArray,
    "an object with __arrow_c_stream__": ExportsAStream,
}


def read(data: object, schema: pa.Schema = SCHEMA) -> pa.Table:
    rows = rows_of(data)
    rows.check_names(schema)
    return pa.Table.from_batches(rows.batches(schema), schema=schema)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(form: str) -> None:
    assert read(FORMS[form]()).equals(TABLE)


@pytest.mark.parametrize("form", ["RecordBatchReader", "an object with __arrow_c_stream__", "DuckDB"])
def test_a_stream_is_not_taken_to_be_in_memory(form: str) -> None:
    assert not rows_of(FORMS[form]()).in_memory


@pytest.mark.parametrize("form", ["Table", "list of dictionaries", "pandas", "Polars", "RecordBatch"])
def test_data_in_memory_is_known_to_be_so(form: str) -> None:
    assert rows_of(FORMS[form]()).in_memory


@pytest.mark.parametrize("form", ["Table", "list of dictionaries", "pandas", "Polars", "RecordBatchReader"])
def test_an_unknown_column_is_named_with_the_near_ones(form: str) -> None:
    schema = parse_schema("player string, scores int64, tags list<item: string>")
    with pytest.raises(SchemaMismatch, match='no column "score"; did you mean "scores"') as caught:
        rows_of(FORMS[form]()).check_names(schema)
    assert caught.value.details["column"] == "score"


def test_an_unknown_key_of_a_dictionary_is_named_with_its_row() -> None:
    with pytest.raises(SchemaMismatch, match='row 1: there is no column "scor"') as caught:
        rows_of([{"player": "a"}, {"player": "b", "scor": 1}]).check_names(SCHEMA)
    assert caught.value.details == {"column": "scor", "row": "1"}


@pytest.mark.parametrize("form", ["Table", "pandas", "Polars", "RecordBatchReader"])
def test_a_missing_column_is_named(form: str) -> None:
    schema = pa.schema([*SCHEMA, pa.field("team", pa.string())])
    with pytest.raises(SchemaMismatch, match='column "team" is missing'):
        read(FORMS[form](), schema)


@pytest.mark.parametrize(
    ("data", "column", "row"),
    [
        ([ROWS[0], {"player": "b", "score": "many"}], "score", "1"),
        ([ROWS[0], {"player": None}], "player", "1"),
        ([ROWS[0], {"score": 1}], "player", "1"),
        (pd.DataFrame({"player": ["a", "b"], "score": [1, 1.5], "tags": [None, None]}), "score", "1"),
        (pd.DataFrame({"player": ["a", "b", 3], "score": [1, 2, 3], "tags": [None] * 3}), "player", "2"),
        (pl.DataFrame({"player": ["a", "b"], "score": [1.0, 1.5], "tags": [None, None]}), "score", "1"),
        (pa.table({"player": ["a", None], "score": [1, 2], "tags": [None, None]}), "player", "1"),
    ],
)
def test_a_bad_value_is_named_with_column_and_row(data: object, column: str, row: str) -> None:
    with pytest.raises(SchemaMismatch, match=f'column "{column}", row {row}') as caught:
        read(data)
    assert caught.value.details == {"column": column, "row": row}


def test_rows_are_counted_over_all_batches_of_a_reader() -> None:
    batches = [pa.record_batch({"n": [1.0, 2.0]}), pa.record_batch({"n": [3.0, 4.5]})]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    with pytest.raises(SchemaMismatch, match='column "n", row 3'):
        read(reader, parse_schema("n int64"))


def test_nan_is_null_in_pandas_only() -> None:
    schema = parse_schema("n double")
    assert read(pd.DataFrame({"n": [1.0, np.nan]}), schema).column("n").null_count == 1
    assert read(pd.DataFrame({"n": [1.0, np.nan]}, dtype=object), schema).column("n").null_count == 1
    assert read([{"n": 1.0}, {"n": np.nan}], schema).column("n").null_count == 0
    assert read(pl.DataFrame({"n": [1.0, np.nan]}), schema).column("n").null_count == 0


def test_a_pandas_column_that_is_float_because_of_its_nulls_becomes_integer() -> None:
    frame = pd.DataFrame({"n": [1.0, np.nan, 3.0]})
    assert read(frame, parse_schema("n int64")).to_pylist() == [{"n": 1}, {"n": None}, {"n": 3}]


def test_a_pandas_column_of_objects_is_taken_value_by_value() -> None:
    frame = pd.DataFrame({"m": [{"k": 1}, [("k", 2)], None]}, dtype=object)
    expected = [{"m": [("k", 1)]}, {"m": [("k", 2)]}, {"m": None}]
    assert read(frame, parse_schema("m map<string, int64>")).to_pylist() == expected


@pytest.mark.parametrize(
    ("dtype", "text", "values"),
    [
        (pl.Categorical, "string", ["b", None, "a"]),
        (pl.Enum(["a", "b"]), "string", ["b", None, "a"]),
        (pl.List(pl.Categorical), "list<string>", [["b", None], None, []]),
        (pl.Array(pl.Enum(["a", "b"]), 2), "list<string>", [["b", "a"], None, ["a", None]]),
        (pl.Struct({"x": pl.Categorical}), "struct<x: string>", [{"x": "b"}, {"x": None}]),
        (pl.Null, "int8", [None, None]),
        (pl.Time, "time64[us]", [dt.time(1, 2, 3, 4), None]),
        (pl.Decimal(38, 2), "decimal(6, 2)", [Decimal("1.50"), None]),
        (pl.UInt64, "uint64", [2**64 - 1, None]),
        (pl.Date, "date", [dt.date(1, 1, 1), None]),
        (pl.Float16, "float16", [0.5, None]),
    ],
    ids=str,
)
def test_a_polars_column_keeps_its_values(dtype: Any, text: str, values: list[Any]) -> None:
    frame = pl.DataFrame({"c": values}, schema={"c": dtype})
    assert read(frame, parse_schema(f"c {text}"))["c"].to_pylist() == values
    assert read(frame.tail(1), parse_schema(f"c {text}"))["c"].to_pylist() == values[-1:]


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (pl.Int128, 1, "int64"),
        (pl.UInt128, 1, "uint64"),
        (pl.Object, object(), "binary"),
        (pl.List(pl.Int128), [1], "list<int64>"),
        (pl.Struct({"x": pl.Int128}), {"x": 1}, "struct<x: int64>"),
        (pl.Duration, dt.timedelta(1), "int64"),
    ],
    ids=["int128", "uint128", "object", "list", "struct", "duration"],
)
def test_a_polars_column_without_an_arrow_type_is_refused_by_name(dtype: Any, value: Any, text: str) -> None:
    frame = pl.DataFrame({"k": [1], "c": [value]}, schema={"k": pl.Int64, "c": dtype})
    with pytest.raises(SchemaMismatch, match='column "c"') as caught:
        read(frame, parse_schema(f"k int64, c {text}"))
    assert caught.value.details["column"] == "c"
    assert [batch.to_pylist() for batch in rows_of(frame).batches(parse_schema("k int64"))] == [[{"k": 1}]]


@pytest.mark.parametrize(
    ("series", "text", "values"),
    [
        (pd.Series([2**53 + 1, None], dtype="Int64"), "int64", [2**53 + 1, None]),
        (pd.Series([2**64 - 1, None], dtype="UInt64"), "uint64", [2**64 - 1, None]),
        (pd.Series([True, None], dtype="boolean"), "bool", [True, None]),
        (pd.Series(["a", None], dtype="string"), "string", ["a", None]),
        (pd.Series(pd.Categorical(["b", None, "a"])), "string", ["b", None, "a"]),
        (pd.Series(pd.Categorical([2**53 + 1, 3])), "int64", [2**53 + 1, 3]),
        (pd.Series([2**64 - 1, None], dtype=object), "uint64", [2**64 - 1, None]),
        (pd.Series([[2**53 + 1, None]], dtype=object), "list<int64>", [[2**53 + 1, None]]),
        (pd.Series([2.0**53 - 1, np.nan]), "int64", [2**53 - 1, None]),
        (pd.Series([2.0**60, np.nan]), "double", [2.0**60, None]),
    ],
    ids=str,
)
def test_a_pandas_column_keeps_its_values(series: pd.Series[Any], text: str, values: list[Any]) -> None:
    assert read(pd.DataFrame({"c": series}), parse_schema(f"c {text}"))["c"].to_pylist() == values


@pytest.mark.parametrize(
    ("series", "text", "message"),
    [
        (pd.Series([1.0, np.nan, 2.0**53]), "int64", r'column "c", row 2: 9007199254740992\.0 cannot be'),
        (pd.Series([-(2.0**60)]), "int64", "row 0: .* give an integer type, in pandas such as Int64"),
        (pd.Series([2.0**63]), "uint64", "floats round integers from 9,007,199,254,740,992 on"),
        (pd.Series([2.0**24], dtype="float32"), "int32", "floats round integers from 16,777,216 on"),
        (pd.Series([1.5]), "int64", r'column "c", row 0: 1\.5 cannot be cast'),
        (pd.Series([1j]), "double", 'column "c" is complex128 in pandas, which Arrow does not have'),
        (pd.Series(pd.period_range("2020", periods=2, freq="D")), "int64", r'column "c" is period\[D\] in pandas'),
        (pd.Series(pd.interval_range(0, 2)), "struct<left: int64, right: int64>", 'column "c" is interval'),
        (pd.Series([1.0, np.nan]), "decimal(6, 2)", "different kinds"),
    ],
    ids=str,
)
def test_a_pandas_column_that_may_have_lost_values_is_refused_by_name(
    series: pd.Series[Any], text: str, message: str
) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        read(pd.DataFrame({"c": series}), parse_schema(f"c {text}"))


@pytest.mark.parametrize("data", [[], pa.table({"player": []}).slice(0, 0), pd.DataFrame({"player": []})])
def test_no_rows_are_no_rows(data: object) -> None:
    assert read(data, parse_schema("player string")).num_rows == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"player": "ann", "score": 1}, "put a single row into a list"),
        ("ann", "list of dictionaries, .*, not str"),
        (None, "list of dictionaries, .*, not NoneType"),
        (7, "list of dictionaries, .*, not int"),
        ((row for row in ROWS), "list of dictionaries, .*, not generator"),
        ([ROWS[0], "bob"], "row 1 is a str, not a dictionary"),
        (TABLE.to_batches(), "row 0 is a RecordBatch, not a dictionary"),
        (pl.Series("player", ["ann"]), "rows cannot be read from a Series"),
        (pa.array([1]), "rows cannot be read from"),
    ],
)
def test_what_has_no_rows_is_refused_with_what_is_expected(data: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rows_of(data)


def test_a_column_there_twice_is_named() -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["player", "player"])
    with pytest.raises(SchemaMismatch, match='"player" is given twice'):
        read(twice, parse_schema("player string"))
