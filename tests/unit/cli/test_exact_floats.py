"""Numbers in files never become others: the type holds them, or they are refused with their line and a remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.formats.exact_floats import InexactNumberError
from scankv.formats.files import BadFile
from scankv.formats.text import from_text, to_text
from tests.unit.cli.reading import infer, read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FAR = 3_000
"""Lines that fill more than one block."""

LARGE = "9007199254740993"
F16, F32, F64 = pa.float16(), pa.float32(), pa.float64()
CHANGED = [
    (F64, LARGE, "9007199254740992", "int64"),
    (F64, f"-{LARGE}", "-9007199254740992", "int64"),
    (F64, f"{LARGE}.0", "9007199254740992", "int64"),
    (F64, "9007199254740994.25", "9007199254740994", "decimal128(38, 2)"),
    (F64, "90071992547409930e-1", "9007199254740992", "int64"),
    (F64, "9223372036854775809", "9223372036854775808", "decimal128(38, 0)"),
    (F64, "18446744073709551615", "18446744073709551616", "decimal128(38, 0)"),
    (F64, "1" * 39, "1.111111111111111e+38", "string"),
    (F64, "1" * 400, "inf", "string"),
    # Python's decimals have no such exponent.
    (F64, "1e9999999999999999999", "inf", "string"),
    (F32, "16777217", "16777216", "int64"),
    (F32, "8589973000", "8589973504", "int64"),
    (F32, "1e39", "inf", "string"),
    (F16, "2049", "2048", "int64"),
    (F16, "70000", "inf", "int64"),
]
KEPT = [
    *((F64, each) for each in ("9007199254740994", "9223372036854775808", "12345678901234567000", "1e300", "0.1")),
    *(
        (F64, each)
        for each in (
            "1.2345678901234568e+19",
            "9.007199254740993e15",
            "1.234567890123456717e+19",
            "0.12345678901234567890",
            "-0.0",
        )
    ),
    (F64, "0.1e-9999999999999999999"),
    *((F32, each) for each in ("16777218", "0.1", "1e30")),
    *((F16, each) for each in ("2050", "0.1")),
]


def nested(type_: pa.DataType, value: str) -> list[tuple[pa.DataType, str]]:
    """Returns a value at different depths of JSON, with the types."""
    struct = pa.struct([("n", pa.int64()), ("f", type_)])
    return [
        (type_, value),
        (pa.list_(type_), f"[1, null, {value}]"),
        (struct, f'{{"n": {LARGE}, "f": {value}}}'),
        (pa.map_(pa.string(), type_), f'[{{"key": "{LARGE}", "value": {value}}}]'),
        (pa.list_(pa.struct([("s", struct)])), f'[{{"s": {{"f": {value}}}}}, null, {{"s": null}}]'),
    ]


def write_json(path: Path, values: Sequence[str]) -> None:
    filler = "x" * 1500
    lines = (f'{{"id": {number}, "v": {value}, "filler": "{filler}"}}' for number, value in enumerate(values))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("type_", "text", "changed", "remedy"), CHANGED)
def test_a_number_that_a_float_changes_is_refused_in_every_format(
    tmp_path: Path, type_: pa.DataType, text: str, changed: str, remedy: str
) -> None:
    what = "is beyond the range of " if changed == "inf" else f"would become {changed} as "
    message = re.escape(what) + f".*{re.escape(f'such as {remedy}')}$"
    path = tmp_path / "file"
    for column, value in nested(type_, text):
        path.write_text(f'{{"v": null}}\n{{"v": {value}}}\n')
        with pytest.raises(BadFile, match=f'^file: line 2: column "v": .*{message}'):
            read(path, pa.schema([("v", column)]))
        quoted = '"' + value.replace('"', '""') + '"'
        path.write_text(f"v\nNA\n{quoted}\n")
        with pytest.raises(BadFile, match=f'^file: row 3: column "v": .*{message}'):
            read(path, pa.schema([("v", column)]))
    with pytest.raises(InexactNumberError):
        from_text(pa.array(["1", f" {text} "]), type_)


@pytest.mark.parametrize(("type_", "text"), KEPT)
def test_a_number_that_a_float_is_or_rounds_is_read(tmp_path: Path, type_: pa.DataType, text: str) -> None:
    expected = pa.array([float(text)]).cast(type_)
    for column, value in nested(type_, text):
        path = tmp_path / "kept.jsonl"
        path.write_text(f'{{"v": {value}}}\n')
        assert text in value
        read(path, pa.schema([("v", column)]))
    assert from_text(pa.array([text]), type_) == expected


def test_a_changed_number_is_found_among_rows_with_other_numbers_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "several.jsonl"
    several = [nested(F64, each) for each in ("0.5", "1e300", LARGE, "0.1")]
    for (type_, small), (_, large), (_, changed), (_, last) in zip(*several, strict=True):
        write_json(path, ["null", small, large, changed, large, last])
        schema = pa.schema([("id", pa.int64()), ("v", type_), ("filler", pa.string())])
        with pytest.raises(BadFile, match=rf'^file: line 4: column "v": .*{LARGE}'):
            read(path, schema)
        assert read(path, schema, skip=True).rows["id"].to_pylist() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_nested_json_in_csv_may_have_line_breaks(tmp_path: Path, line_break: str) -> None:
    path = tmp_path / "nested.csv"
    schema = pa.schema([("v", pa.struct([("a", F32)]))])
    value = '"{""a"":' + line_break + " %s" + line_break + '}"'
    path.write_bytes(("v\n" + value % "0.5" + "\n" + value % "17000000" + "\n").encode())
    assert read(path, schema).rows.to_pylist() == [{"v": {"a": 0.5}}, {"v": {"a": 17_000_000.0}}]
    path.write_bytes(("v\n" + value % "17000001" + "\n").encode())
    with pytest.raises(BadFile, match=r"(?s)^file: row 2: .* has 17000001, which would become 17000000 as "):
        read(path, schema)


@pytest.mark.parametrize("type_", [F16, F32, F64])
@pytest.mark.parametrize("text", ["inf", "-Infinity", "NaN"])
def test_infinity_is_a_float_where_it_is_meant(type_: pa.DataType, text: str) -> None:
    assert str(from_text(pa.array([text]), type_)[0].as_py()) == str(float(text))


@given(st.integers(1, 10**15 - 1), st.integers(0, 285))
def test_a_number_of_few_digits_is_read_however_large_it_is(number: int, zeros: int) -> None:
    for type_, digits, most in ((F16, 3, 1), (F32, 6, 32), (F64, 15, 285)):
        text = str(number)[:digits] + "0" * min(zeros, most)
        assert from_text(pa.array([text]), type_)[0].is_valid


@given(st.floats())
def test_every_float_is_read_as_it_is_printed(number: float) -> None:
    for type_ in (F32, F64):
        value = pa.array([number]).cast(type_, safe=False)
        assert to_text(from_text(to_text(value), type_)) == to_text(value)
    assert str(from_text(pa.array([repr(number)]), F64)[0].as_py()) == str(number)


@pytest.mark.parametrize(
    "large",
    [LARGE, "9223372036854775808", *(pytest.param(each, marks=pytest.mark.soak) for each in (f"-{LARGE}", f"{2**64}"))],
)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.breadth
def test_large_integers_and_fractions_of_one_field_are_refused_before_a_table_is_made(
    tmp_path: Path, large: str, late: bool
) -> None:
    path = tmp_path / "mixed.jsonl"
    for (_, first), (_, last) in zip(nested(F64, large)[:3], nested(F64, "0.5")[:3], strict=True):
        values = ["null", *[first, last][:: -1 if late else 1]]
        # The others are nested.
        values[2:2] = ["null"] * (FAR if first == large else 1)
        write_json(path, values)
        line = len(values) if late else 2
        message = rf'^file: line {line}: the field "v" has {large}, .* such as decimal128\(38, 2\)'
        with pytest.raises(BadFile, match=message):
            infer(path)
        reported = read(path, infer(path, skip=True), skip=True).reported
        # Powers of 2 are doubles.
        assert len(reported) == (LARGE in large)
        assert all(each.startswith(f'line {line}: column "v": {large} would become') for each in reported)


@pytest.mark.parametrize("text", ["9223372036854775808", "18446744073709551615", "1" * 400])
def test_integers_beyond_int64_are_refused_without_fractions_too(tmp_path: Path, text: str) -> None:
    write_json(tmp_path / "wide.jsonl", ["1", text])
    with pytest.raises(BadFile, match=f'line 2: the field "v" has {text}'):
        infer(tmp_path / "wide.jsonl")


def test_integers_that_a_type_holds_are_inferred_as_before(tmp_path: Path) -> None:
    path = tmp_path / "held.jsonl"
    write_json(path, [LARGE, "1", str(-(2**63))])
    assert infer(path).field("v").type == pa.int64()
    write_json(path, ["1700000000000000", "0.5", "1.2345678901234567e+20", "12.345678901234567890"])
    assert infer(path).field("v").type == pa.float64()
    assert read(path, infer(path)).bad_rows == 0


@pytest.mark.parametrize("large", [f"+{LARGE}", f"{LARGE}.0", f"{LARGE}.5", "1e400", "1e9999999999999999999"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.represented_by("False-+9007199254740993", "True-1e9999999999999999999")
def test_a_csv_column_with_a_number_that_double_changes_is_text(tmp_path: Path, large: str, late: bool) -> None:
    path = tmp_path / "mixed.csv"
    filler = "x" * 1500
    values = ["0.5", large] if late else [large, "0.5"]
    values[1:1] = [""] * FAR
    path.write_text("v,filler\n" + "".join(f"{value},{filler}\n" for value in values))
    assert infer(path).field("v").type == pa.string()


def test_a_field_may_be_named_like_the_path_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "brackets.jsonl"
    write_json(path, [f'{{"[]": {LARGE}}}', '{"[]": 1.5}'])
    with pytest.raises(BadFile, match=f'line 1: the field "v" has {LARGE}'):
        infer(path)
    path.write_text(f'{{"k": 1, "[]": {LARGE}}}\n{{"[]": 1.5}}\n')
    with pytest.raises(BadFile, match=rf'line 1: the field "\[\]" has {LARGE}'):
        infer(path)
