from __future__ import annotations

import csv
import io
import json
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pytest

from scankv.formats.csv_text import csv_header, csv_lines
from scankv.formats.exact_floats import InexactNumberError
from scankv.formats.json_text import json_lines, read_json_lines
from scankv.formats.text import from_text, to_text

COLUMNS = {
    "int8": pa.array([1, -128, None], pa.int8()),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "int64": pa.array([-(2**63), 2**63 - 1, None]),
    "half": pa.array([np.float16(1.5), np.float16("inf"), None], pa.float16()),
    "float": pa.array([0.1, float("-inf"), None], pa.float32()),
    "double": pa.array([5e-324, 1e300, None]),
    "decimal": pa.array([Decimal("1.50"), Decimal("-0.01"), None], pa.decimal128(38, 10)),
    "hundreds": pa.array([Decimal(100), Decimal(0), None], pa.decimal128(10, -2)),
    "bool": pa.array([True, False, None]),
    "string": pa.array(["", 'a"b\\c,\r\n\x00\x1f/é😀', None]),
    "binary": pa.array([b"\x00\xff", b"", None]),
    "date": pa.array([date.min, date.max, None]),
    "time_s": pa.array([0, 86_399, None], pa.time32("s")),
    "time_ns": pa.array([1, 86_399_999_999_999, None], pa.time64("ns")),
    "timestamp_s": pa.array([0, -1, None], pa.timestamp("s")),
    "timestamp_ns": pa.array([0, -1, None], pa.timestamp("ns")),
    "instant": pa.array([0, -1, None], pa.timestamp("us", "UTC")),
    "berlin": pa.array([0, -1, None], pa.timestamp("ms", "Europe/Berlin")),
    "offset": pa.array([0, -1, None], pa.timestamp("ns", "+05:30")),
    "list": pa.array([[b"\x01", None], [], None], pa.list_(pa.binary())),
    "struct": pa.array(
        [{"a": 1, "b": [{"c": date(2013, 1, 1)}]}, {"a": None, "b": None}, None],
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.date32())])))]),
    ),
    "map": pa.array([[(1, [("x", 7)]), (2, None)], [], None], pa.map_(pa.int64(), pa.map_(pa.string(), pa.int8()))),
}
SLICES = [slice(0, 3), slice(1, 3), slice(1, 2), slice(2, 3), slice(0, 0)]


@pytest.mark.parametrize("part", SLICES, ids=str)
@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_comes_back_from_its_text(name: str, part: slice) -> None:
    column = COLUMNS[name][part]
    back = from_text(to_text(column), column.type)
    back.validate(full=True)
    assert back.equals(column)


@pytest.mark.parametrize("part", SLICES[:-1], ids=str)
def test_every_type_comes_back_from_json_lines(part: slice) -> None:
    rows = pa.record_batch(COLUMNS).slice(part.start, part.stop - part.start)
    back = read_json_lines(json_lines(rows), rows.schema)
    back.validate(full=True)
    assert back.equals(rows)


def test_json_lines_are_what_python_writes() -> None:
    rows = pa.record_batch(
        {
            "n": [1, None],
            'quoted "name"': ['line\nbreak\t"\\\x01', "ü"],
            "list": [[1.5, None], []],
            "struct": [{"deep": ["x"]}, None],
            "bool": [True, False],
        }
    )
    assert [json.loads(line) for line in json_lines(rows).to_pybytes().splitlines()] == rows.to_pylist()


def test_floats_without_a_json_number_come_back() -> None:
    values = pa.array([float("nan"), float("inf"), float("-inf"), -0.0])
    text = json_lines(pa.record_batch({"f": values})).to_pybytes()
    assert text.split() == [b'{"f":NaN}', b'{"f":Infinity}', b'{"f":-Infinity}', b'{"f":-0}']
    back = read_json_lines(text, pa.schema([("f", pa.float64())])).column("f")
    assert [str(value) for value in back.to_pylist()] == ["nan", "inf", "-inf", "-0.0"]


def test_no_rows_are_no_lines() -> None:
    rows = pa.record_batch({"a": pa.array([], pa.int64())})
    assert json_lines(rows).to_pybytes() == csv_lines(rows).to_pybytes() == b""


def test_csv_quotes_what_needs_it_and_tells_an_empty_string_from_null() -> None:
    rows = pa.record_batch({"a,b": ["plain", "", None, 'say "x"', "two\nlines", " spaced", "a,b"], "n": range(7)})
    assert csv_header(rows.schema.names) == b'"a,b",n\n'
    assert csv_lines(rows).to_pybytes().decode() == (
        'plain,0\n"",1\n,2\n"say ""x""",3\n"two\nlines",4\n" spaced",5\n"a,b",6\n'
    )


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_csv_quotes_formulas_for_spreadsheets_of_each_delimiter(type_: pa.DataType) -> None:
    texts = ["=1", "x;=1;y", "x\t+1", "x|@y", "x\n=1\ny", 'x; "=1', "x,-1", "a;b", "a=1", "", None]
    rows = pa.record_batch({"n": pa.array(range(11)), "t": pa.array(texts, type_)})
    text = csv_lines(rows, quote_formulas=True).to_pybytes().decode()
    assert text == (
        '0,\'=1\n1,"x;\'=1;y"\n2,"x\t\'+1"\n3,"x|\'@y"\n4,"x\n\'=1\ny"\n5,"x;\' ""=1"\n6,"x,-1"\n7,"a;b"\n'
        '8,a=1\n9,""\n10,\n'
    )
    # Whichever delimiter a spreadsheet takes, and whether or not it takes the quotes for such.
    readers = [
        *(csv.reader(io.StringIO(text), delimiter=each) for each in ",;\t|"),
        *(csv.reader(io.StringIO(text), delimiter=each, quoting=csv.QUOTE_NONE) for each in ";\t|"),
    ]
    cells = [cell for reader in readers for row in reader for cell in row]
    assert not [cell for cell in cells if cell.strip('" ').startswith(("=", "+", "-", "@"))]
    plain = csv_lines(rows).to_pybytes().decode()
    assert plain.startswith("0,=1\n1,x;=1;y\n2,x\t+1\n")


@pytest.mark.parametrize("type_", [pa.list_(pa.string()), pa.struct([("a", pa.string())])])
def test_csv_quotes_formulas_within_nested_values(type_: pa.DataType) -> None:
    value = [";=1", "1,-1"] if pat.is_list(type_) else {"a": ";=1,-1"}
    rows = pa.record_batch({"n": [1], "t": pa.array([value], type_)})
    text = csv_lines(rows, quote_formulas=True).to_pybytes()
    assert b";'=1" in text
    assert b"1,-1" in text


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("1.5", pa.int64()),
        ("300", pa.uint8()),
        ("abc", pa.float64()),
        ("1.505", pa.decimal128(5, 2)),
        ("abc", pa.binary()),
        ("0g", pa.binary()),
        ("2013-13-01", pa.date32()),
        ("25:00:00", pa.time64("us")),
        ("2013-01-01", pa.timestamp("us", "UTC")),
        ("2013-01-01T00:00:00Z", pa.timestamp("us")),
        ("[1", pa.list_(pa.int64())),
        ("[1]} {", pa.list_(pa.int64())),
        ('1}\n{"value":2', pa.list_(pa.int64())),
        ('{"other":1}', pa.struct([("a", pa.int64())])),
    ],
)
def test_a_text_of_another_type_is_refused(text: str, type_: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_text(pa.array([text]), type_)


def test_white_space_around_a_value_is_passed_over_except_in_strings() -> None:
    assert from_text(pa.array([" 7 "]), pa.int64()).to_pylist() == [7]
    assert from_text(pa.array([" 7 "]), pa.string()).to_pylist() == [" 7 "]


FAR = {
    "date": (pa.date32(), {2_932_897: "+10000-01-01", -719_529: "-0001-12-31", 2**31 - 1: "+5881580-07-11"}),
    "seconds": (
        pa.timestamp("s"),
        {
            253_402_300_800: "+10000-01-01T00:00:00",
            2**40: "+36812-02-20T00:36:16",
            -62_167_219_201: "-0001-12-31T23:59:59",
            2**63 - 1: "+292277026596-12-04T15:30:07",
            -(2**63): "-292277022657-01-27T08:29:52",
        },
    ),
    "millis": (pa.timestamp("ms"), {-(2**63): "-292275055-05-16T16:47:04.192"}),
    "micros": (pa.timestamp("us"), {2**63 - 1: "+294247-01-10T04:00:54.775807"}),
    "nanos": (pa.timestamp("ns"), {2**63 - 1: "2262-04-11T23:47:16.854775807"}),
    "instant": (pa.timestamp("us", "UTC"), {2**60: "+38504-08-17T21:30:06.846976Z"}),
    "berlin": (pa.timestamp("ms", "Europe/Berlin"), {2**50: "+37648-05-06T22:07:22.624Z"}),
}
"""Values outside the years that pyarrow prints and parses, with their texts."""


@pytest.mark.parametrize("name", FAR)
def test_times_of_any_year_have_a_text_and_come_back_from_it(name: str) -> None:
    type_, texts = FAR[name]
    integers = pa.int32() if type_ == pa.date32() else pa.int64()
    values = pa.array([None, *texts, 0], integers).view(type_)
    found = to_text(values)
    assert found.to_pylist()[:-1] == [None, *texts.values()]
    assert from_text(found, type_).equals(values)
    rows = pa.record_batch({"v": values, "in": pa.array([[value] for value in values], pa.list_(type_))})
    assert read_json_lines(json_lines(rows), rows.schema).equals(rows)


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("+10000-02-30", pa.date32()),
        ("+10000-01-01T00:00:00", pa.date32()),
        ("+6000000-01-01", pa.date32()),
        ("+10000-01-01T24:00:00", pa.timestamp("s")),
        ("+10000-01-01T00:00:00.5", pa.timestamp("s")),
        ("+10000-01-01T00:00:00Z", pa.timestamp("s")),
        ("+10000-01-01T00:00:00", pa.timestamp("s", "UTC")),
        ("+292278-01-01T00:00:00", pa.timestamp("ns")),
        ("+294247-01-10T04:00:54.775808", pa.timestamp("us")),
        ("+1-01-01", pa.date32()),
    ],
)
def test_a_text_that_is_no_time_of_a_far_year_is_refused(text: str, type_: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"^\w"):
        from_text(pa.array([text]), type_)


@pytest.mark.parametrize(
    ("text", "type_"),
    [("1e400", pa.float64()), ("-1e400", pa.float64()), ("1e39", pa.float32()), ("70000", pa.float16())],
)
def test_a_number_beyond_a_float_type_is_refused_and_infinity_is_not(text: str, type_: pa.DataType) -> None:
    words = ["inf", "-Infinity", "+INF"]
    assert from_text(pa.array([*words, None, "1"]), type_).to_pylist()[:3] == [np.inf, -np.inf, np.inf]
    with pytest.raises(InexactNumberError, match="is beyond the range of"):
        from_text(pa.array(["1", text, "inf"]), type_)
    lines = b'{"f":Infinity,"s":"Inf -Infinity"}\n{"f":-Infinity}\n{"f":null}\n'
    schema = pa.schema([("f", type_), ("s", pa.string())])
    assert read_json_lines(lines, schema).column("s").to_pylist() == ["Inf -Infinity", None, None]
    with pytest.raises(InexactNumberError, match="beyond the range of"):
        read_json_lines(lines + f'{{"f":{text}}}\n'.encode(), schema)
    with pytest.raises(InexactNumberError, match="beyond the range of"):
        from_text(pa.array([f'[{{"a":{text}}}]']), pa.list_(pa.struct([("a", type_)])))
