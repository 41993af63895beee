from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.formats import jsonl_reader
from scankv.formats.files import BadFile
from scankv.formats.jsonl_reader import read_lines
from scankv.model.types.types import parse_schema
from tests.support.waiting import in_time
from tests.unit.cli.reading import infer, read

if TYPE_CHECKING:
    from pathlib import Path

SCORES = parse_schema("player string not null, score int64")
BAD_LINES = {
    "{": "Missing a name",
    "[1]": "the line is a JSON array, not an object",
    "5": "the line is a JSON number, not an object",
    '{"player": "ann", "score": "x"}': 'column "score" is string, not int64',
    '{"player": "ann", "score": 1.5}': 'column "score" is double, not int64',
    '{"player": "ann", "scores": 1}': 'the table has no column "scores"; did you mean "score"?',
    '{"score": 1}': 'column "player": player is null, but it is NOT NULL',
    '{"player": null, "score": 1}': 'column "player": player is null, but it is NOT NULL',
}


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    return tmp_path / "scores.jsonl"


def test_a_field_that_is_not_there_is_null_and_order_does_not_matter(jsonl: Path) -> None:
    jsonl.write_text('{"score": 1, "player": "ann"}\n\n{"player": "bob"}')
    assert read(jsonl, SCORES).rows.to_pylist() == [{"player": "ann", "score": 1}, {"player": "bob", "score": None}]


def test_an_empty_file_is_no_rows(jsonl: Path) -> None:
    for text in ("", "\n\n"):
        jsonl.write_text(text)
        assert read(jsonl, SCORES).rows.num_rows == 0


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_stops_with_its_number_and_reason(jsonl: Path, line: str) -> None:
    jsonl.write_text(f'{{"player": "ann"}}\n\n{line}\n{{"player": "bob"}}\n')
    with pytest.raises(BadFile) as raised:
        read(jsonl, SCORES)
    assert raised.value.message.startswith("file: line 3: ")
    assert BAD_LINES[line] in raised.value.message


def test_bad_lines_are_skipped_with_their_numbers(jsonl: Path) -> None:
    good = [json.dumps({"player": f"p{number}", "score": number}) for number in range(1000)]
    jsonl.write_text("\n".join([*good[:500], *BAD_LINES, *good[500:], "x"]))
    reading = read(jsonl, SCORES, skip=True)
    assert reading.rows.column("score").to_pylist() == list(range(1000))
    lines = [int(report.partition(":")[0].removeprefix("line ")) for report in reading.reported]
    assert lines == [*range(501, 501 + len(BAD_LINES)), 1000 + len(BAD_LINES) + 1]


def test_objects_larger_than_a_block_are_read(jsonl: Path) -> None:
    players = ["x" * size for size in (5_000_000, 10, 9_000_000)]
    jsonl.write_text("\n".join(json.dumps({"player": player}) for player in players))
    assert read(jsonl, SCORES).rows.column("player").to_pylist() == players


WRONG_VALUES = {
    '"t": "25:00"': 'column "t": "25:00" is not time64[us]',
    '"t": 12': 'column "t" is int64, not time64[us]',
    '"at": "2020-13-01"': 'column "at": "2020-13-01" is not timestamp[us, tz=UTC]',
    '"at": "2020-01-01"': 'column "at": "2020-01-01" is not timestamp[us, tz=UTC]',
    '"small": 300': 'column "small": 300 is not int8',
    '"small": "2020-01-01"': 'column "small" is string, not int8',
    '"times": ["10:00", "x"]': 'column "times": ["10:00", "x"] is not list<item: time64[us]>',
    '"f": -1e39': 'column "f": -1e39 is beyond the range of float',
    '"f": 1e400': 'column "f": 1e400 is beyond the range of float',
    '"deep": [{"d": 1}, {"d": 2e308}]': 'column "deep": 2e308 is beyond the range of double',
}


@pytest.mark.parametrize("field", WRONG_VALUES)
def test_a_value_that_its_column_cannot_hold_is_shown(jsonl: Path, field: str) -> None:
    schema = parse_schema(
        "t time64[us], at timestamptz, small int8, times list<time64[us]>, f float, deep list<struct<d: double>>"
    )
    jsonl.write_text(f'{{"t": "10:00"}}\n{{{field}}}\n')
    with pytest.raises(BadFile) as raised:
        read(jsonl, schema)
    assert raised.value.message.startswith("file: line 2: ")
    assert WRONG_VALUES[field] in raised.value.message


@pytest.mark.parametrize("line", [b'{"player": {"x\x98": 1}}', b'{"x\x98": 1}'])
def test_a_file_that_is_not_utf8_is_refused_with_what_to_do(jsonl: Path, line: bytes) -> None:
    jsonl.write_bytes(b'{"player": "ann"}\n' + line + b"\n")
    for attempt in (lambda: read(jsonl, SCORES), lambda: infer(jsonl)):
        with pytest.raises(BadFile, match="is not UTF-8: convert the file to UTF-8"):
            attempt()


@pytest.mark.parametrize("start", ["[", " \n[\n", "[ "])
def test_a_json_array_is_refused_with_what_to_do(tmp_path: Path, start: str) -> None:
    for name in ("rows.json", "rows"):
        path = tmp_path / name
        path.write_text(start + '{"player": "ann"}, {"player": "bob"}]')
        with pytest.raises(BadFile, match=r"JSON array, not one object per line: .*jq"):
            read(path, SCORES)
        with pytest.raises(BadFile, match=r"JSON array, not one object per line: .*jq"):
            infer(path)


def test_a_line_of_many_blocks_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_reader, "_BLOCK_BYTES", 1 << 10)

    def seconds(size: int) -> float:
        data = b'{"a": "' + b"x" * size + b'"}\n'
        began = time.process_time()
        assert [lines.data for lines in read_lines(io.BufferedReader(io.BytesIO(data)))] == [data]
        return time.process_time() - began

    # 8,192 blocks of a kilobyte, and 1,024. With a copy of the line for each block, 64 times as much is copied.
    in_time(lambda: seconds(8 << 20) / seconds(1 << 20), 16, tries=10)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_end_as_on_any_system(jsonl: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    jsonl.write_bytes(end.join(['{"player":\t"a\\rb"}', "", '{"player": "bob"}', '{"score": 5}']).encode())
    for block_bytes in (1, 7, 4 << 20):
        monkeypatch.setattr(jsonl_reader, "_BLOCK_BYTES", block_bytes)
        with pytest.raises(BadFile, match='line 4: column "player"'):
            read(jsonl, SCORES)
        assert read(jsonl, SCORES, skip=True).rows.column("player").to_pylist() == ["a\rb", "bob"]


@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_field_that_is_not_there_has_its_default_and_null_stays_null(jsonl: Path, ascii_only: bool) -> None:
    inner = pa.struct([("größe", pa.int64()), ("b", pa.string())])
    defaults = {
        "größe": pa.scalar(7),
        "half": pa.scalar(1.5, pa.float16()),
        "at": pa.scalar(0, pa.timestamp("us", "UTC")),
        "inner": pa.scalar({"größe": 1, "b": "x"}, inner),
        "list": pa.scalar([{"größe": None, "b": "x"}], pa.list_(inner)),
        "map": pa.scalar([("a", 1)], pa.map_(pa.string(), pa.int64())),
        "bool": pa.scalar(True),
        "a/b.c": pa.scalar(b"x"),
        'text "\\\n': pa.scalar("d"),
    }
    schema = pa.schema([("k", pa.int64()), *((name, each.type) for name, each in defaults.items())])
    rows: list[dict[str, Any]] = [
        {"k": 0},
        dict.fromkeys(schema.names),
        {"k": 2, "inner": {"größe": None}, "list": [{"größe": None}, None], "größe": 5},
        {"k": 3, "map": [{"key": '"größe": null', "value": None}], 'text "\\\n': '"größe": null, '},
    ]
    lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    jsonl.write_text("\n".join(lines).replace("/", "\\/" if ascii_only else "/"), "utf-8")
    full = pa.RecordBatch.from_pylist(rows, schema).to_pylist()
    expected = [
        {name: value if name in row else defaults[name].as_py() for name, value in complete.items()}
        for row, complete in zip(rows, full, strict=True)
    ]
    assert read(jsonl, schema, defaults=defaults).rows.to_pylist() == expected
