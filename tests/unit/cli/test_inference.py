from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.formats.files import BadFile
from scankv.formats.inference import ColumnGuess, Fallback
from tests.unit.cli.reading import infer, read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FAR = 11_000
"""Rows that fill more than one block."""


@pytest.mark.parametrize(
    ("first", "last", "type_"),
    [
        ("1", "2", pa.int64()),
        ("1", "", pa.int64()),
        ("", "1", pa.int64()),
        ("", "", pa.string()),
        ("NA", "1", pa.int64()),
        ("1", "1.5", pa.float64()),
        ("1.5", "1", pa.float64()),
        ("1", "x", pa.string()),
        ("1.5", "x", pa.string()),
        ("1", "007", pa.string()),
        ("9007199254740993", "1.5", pa.string()),
        ("1.5", "9007199254740993", pa.string()),
        ("1", "9223372036854775808", pa.string()),
        ("1e300", "1", pa.float64()),
        ("true", "false", pa.bool_()),
        ("true", "yes", pa.string()),
        ("1", "true", pa.string()),
        ("2013-01-01", "2013-12-31", pa.date32()),
        ("2013-01-01", "2013-01-01 10:00:00", pa.timestamp("us")),
        ("2013-01-01T10:00:00", "2013-01-01T10:00:00.123456789", pa.timestamp("ns")),
        ("2013-01-01T10:00:00Z", "2013-01-01T10:00:00+01:00", pa.timestamp("us", "UTC")),
        ("2013-01-01T10:00:00Z", "2013-01-01T10:00:00", pa.string()),
        ("10:00:00", "23:59:59.5", pa.time64("us")),
    ],
)
@pytest.mark.represented_by("1-2-type_0", "10:00:00-23:59:59.5-type_22")
def test_the_whole_csv_file_decides_the_type(tmp_path: Path, first: str, last: str, type_: pa.DataType) -> None:
    path = tmp_path / "late.csv"
    _write_csv(path, [*[first] * FAR, last])
    assert infer(path) == pa.schema([("id", pa.int64()), ("value", type_), ("filler", pa.string())])


def test_every_row_can_be_read_with_the_inferred_schema(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    _write_csv(path, [*["1"] * FAR, "1.5", "", "NA"])
    reading = read(path, infer(path))
    assert reading.rows.num_rows == FAR + 3
    assert reading.rows.column("value").to_pylist()[-4:] == [1.0, 1.5, None, None]


def test_rows_of_a_wrong_length_stop_or_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("a,b\n1,2\nx\n3,4\n")
    with pytest.raises(BadFile, match="row 3: 1 fields instead of 2"):
        infer(path)
    assert infer(path, skip=True) == pa.schema([("a", pa.int64()), ("b", pa.int64())])


@pytest.mark.parametrize(
    ("first", "last", "type_"),
    [
        (1, 2, pa.int64()),
        (None, 1, pa.int64()),
        (1, 1.5, pa.float64()),
        (None, None, pa.string()),
        ("2013-01-01", "no date", pa.string()),
        ("2013-01-01", "2013-01-02", pa.string()),
        ([], [1], pa.list_(pa.int64())),
        ([1], [None, 1.5], pa.list_(pa.float64())),
        ([None], None, pa.list_(pa.string())),
        ({"a": 1}, {"b": "x"}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([{"a": [1]}], [{"a": [1.5]}], pa.list_(pa.struct([("a", pa.list_(pa.float64()))]))),
    ],
)
@pytest.mark.represented_by("1-2-type_0", "first10-last10-type_10")
def test_the_whole_json_lines_file_decides_the_type(
    tmp_path: Path, first: object, last: object, type_: pa.DataType
) -> None:
    path = tmp_path / "late.jsonl"
    _write_jsonl(path, [*[first] * FAR, last])
    schema = infer(path)
    assert schema == pa.schema([("id", pa.int64()), ("value", type_), ("filler", pa.string())])
    assert read(path, schema).rows.num_rows == FAR + 1


def test_a_json_field_may_appear_late(tmp_path: Path) -> None:
    path = tmp_path / "late.jsonl"
    _write_jsonl(path, [*[1] * FAR])
    with path.open("a") as file:
        file.write('{"late": true}\n')
    assert infer(path).field("late").type == pa.bool_()


@pytest.mark.breadth
@pytest.mark.parametrize(("first", "last"), [(1, "x"), ([1], 1), ({"a": 1}, [1]), (True, 1)])
def test_json_values_that_no_type_holds_together_are_named_with_their_line(
    tmp_path: Path, first: object, last: object
) -> None:
    path = tmp_path / "mixed.jsonl"
    _write_jsonl(path, [*[first] * FAR, last, first])
    message = f'line {FAR + 1}: the field "value" is .* in this line and .* in the lines before'
    with pytest.raises(BadFile, match=message):
        infer(path)
    assert infer(path, skip=True).names == ["id", "value", "filler"]


def test_a_file_without_rows_has_no_columns_to_infer(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    with pytest.raises(BadFile, match="the file has no rows to infer columns from"):
        infer(path)


def _write_csv(path: Path, values: Sequence[str]) -> None:
    filler = "x" * 400
    lines = [f"{number},{value},{filler}" for number, value in enumerate(values)]
    path.write_text("id,value,filler\n" + "\n".join(lines) + "\n")


def _write_jsonl(path: Path, values: Sequence[object]) -> None:
    filler = "x" * 400
    rows = ({"id": number, "value": value, "filler": filler} for number, value in enumerate(values))
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([["1", "2", "x"]], (2, "x", pa.int64())),
        ([["1", None], [None, "0.5"], ["7", "x", "y"]], (1, "x", pa.float64())),
        ([["7", "007"]], None),
        ([["0.5"], ["01234"]], None),
        ([["2024-01-31"], ["01/31/2024"]], (0, "01/31/2024", pa.date32())),
        ([["true", "maybe"]], (1, "maybe", pa.bool_())),
        ([[None, "x", "1"]], None),
        ([["x", "1"], ["2"]], None),
        ([["1"], ["2", None]], None),
        ([["1"], ["x"], ["y"]], (0, "x", pa.int64())),
    ],
)
def test_the_value_that_makes_a_column_text_is_found(
    blocks: list[list[str | None]], expected: tuple[int, str, pa.DataType] | None
) -> None:
    guess = ColumnGuess()
    found = [guess.add(pa.array(block, pa.string()).cast(pa.binary())) for block in blocks]
    assert [each for each in found if each] == ([] if expected is None else [Fallback(*expected)])


def test_the_forms_of_values_that_the_guide_lists_have_the_types_that_it_lists(tmp_path: Path) -> None:
    path = tmp_path / "forms.csv"
    path.write_text(
        "date|stamp|stamp_t|instant|zone|time|flag|code|german|empty|words\n"
        "2024-01-31|2024-01-31 12:30:00.5|2024-01-31T12:30:00|2024-01-31T12:30:00Z|2024-01-31T12:30:00+02:00|12:30:00"
        "|true|007|31.01.2024||1\n"
        '2024-02-01|""|NA||2024-02-01T12:30:00-01:00|00:00:01|false|8|01.02.2024||NULL\n'
    )
    assert infer(path).types == [
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us", "UTC"),
        pa.time64("us"),
        pa.bool_(),
        pa.string(),
        pa.string(),
        pa.string(),
        pa.int64(),
    ]
