from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.formats import csv_rows
from scankv.formats.csv_dialect import parse_delimiter
from scankv.formats.csv_text import csv_header, csv_lines
from scankv.formats.files import BadFile
from scankv.model.errors import UsageError
from scankv.model.types.types import parse_schema
from tests.unit.cli.reading import read

if TYPE_CHECKING:
    from pathlib import Path

SCORES = parse_schema("player string not null, score int64")


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "scores.csv"


def test_columns_are_matched_by_name_and_read_as_their_types(csv: Path) -> None:
    csv.write_text("score,player\n1,ann\n2,007\n")
    assert read(csv, SCORES).rows.to_pylist() == [{"player": "ann", "score": 1}, {"player": "007", "score": 2}]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_what_separates_fields_is_found_out(csv: Path, delimiter: str) -> None:
    schema = parse_schema('player string, "league, old" string, score int64')
    lines = [["player", '"league, old"', "score"], ["ann", '"a;b|c\nd"', "1"], ["bob", "x y", "2"]]
    csv.write_text("".join(delimiter.join(line) + "\n" for line in lines))
    expected = [("ann", "a;b|c\nd", 1), ("bob", "x y", 2)]
    for given in (None, delimiter):
        rows = read(csv, schema, delimiter=given).rows
        assert [tuple(row.values()) for row in rows.to_pylist()] == expected


def test_a_header_that_several_characters_divide_is_judged_by_the_rows(csv: Path) -> None:
    csv.write_text("a;b;c,d\n1;2;3\n4,5\n6,7\n")
    assert read(csv, parse_schema('"a;b;c" string, d int64'), skip=True).rows.column("d").to_pylist() == [5, 7]
    csv.write_text("a;b;c,d\n1,5;2;3\n4,1;2;5\n")
    assert read(csv, parse_schema('a string, b int64, "c,d" int64')).rows.column("a").to_pylist() == ["1,5", "4,1"]


def test_names_with_other_delimiters_are_read_as_they_were_written(csv: Path) -> None:
    rows = pa.record_batch({"a;b;c": ["x"], "d|e": [None]}, pa.schema([("a;b;c", pa.string()), ("d|e", pa.string())]))
    csv.write_bytes(csv_header(rows.schema.names) + csv_lines(rows).to_pybytes())
    assert read(csv, rows.schema).rows.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [("tab", "\t"), ("\\t", "\t"), ("TAB", "\t"), (";", ";"), ("semicolon", ";"), (None, None), (" ", " ")],
)
def test_a_delimiter_is_a_character_or_its_name(text: str | None, delimiter: str | None) -> None:
    assert parse_delimiter(text) == delimiter


@pytest.mark.parametrize("text", ["", '"', ";;", "\n", "é", "\x00"])
def test_what_cannot_separate_fields_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--delimiter"):
        parse_delimiter(text)


def test_an_empty_field_is_null_and_a_quoted_one_an_empty_string(csv: Path) -> None:
    csv.write_text('a,b\n,\n"",""\nNA,NA\nnull, NULL \n')
    rows = read(csv, parse_schema("a string, b int64")).rows
    assert rows.column("a").to_pylist() == [None, "", "NA", "null"]
    assert rows.column("b").to_pylist() == [None, None, None, None]


def test_further_null_texts_hold_in_every_column_unless_quoted(csv: Path) -> None:
    csv.write_text('a,b\nNA,-\n"NA",1\n')
    rows = read(csv, parse_schema("a string, b int64"), null=["NA", "-"]).rows
    assert rows.to_pylist() == [{"a": None, "b": None}, {"a": "NA", "b": 1}]


def test_line_breaks_quotes_byte_order_mark_and_carriage_returns_are_read(csv: Path) -> None:
    csv.write_bytes(b'\xef\xbb\xbf"player" , score\r\n"a\r\n""b""",1\r\n\r\nc,2')
    assert read(csv, SCORES).rows.to_pylist() == [{"player": 'a\r\n"b"', "score": 1}, {"player": "c", "score": 2}]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_rows_end_as_on_any_system(csv: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    rows = ["player;score", '"a\r\nb\rc\nd";1', "bob;2", "", "cem;3"]
    expected = ["a\r\nb\rc\nd", "bob", "cem"]
    csv.write_bytes(end.join(rows).encode())
    for block_bytes in (csv_rows._BLOCK_BYTES, *range(1, 12)):
        monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", block_bytes)
        if block_bytes > 11:
            assert read(csv, SCORES).rows.column("player").to_pylist() == expected
        stream: io.BufferedReader = io.BufferedReader(io.BytesIO(csv.read_bytes().split(end.encode(), 1)[1]))
        assert b"".join(csv_rows.read_rows(stream, ";")) == end.join(rows[1:]).encode()
    csv.write_bytes(b"player,score\rann,1\nbob,2\r\ncem,3\rdan,x\r")
    with pytest.raises(BadFile, match=r'row 5: column "score": "x" is not int64'):
        read(csv, SCORES)


def test_columns_that_are_not_in_the_header_have_their_defaults(csv: Path) -> None:
    schema = parse_schema("player string not null, score int64, tags list<string>")
    defaults = {"score": pa.scalar(7), "tags": pa.scalar(["new"], pa.list_(pa.string()))}
    csv.write_text("score,player\n,ann\n1,bob\n")
    rows = read(csv, schema, defaults=defaults).rows.to_pylist()
    assert [(row["score"], row["tags"]) for row in rows] == [(None, ["new"]), (1, ["new"])]
    csv.write_text("score\n1\n")
    with pytest.raises(BadFile, match='the file has no column "player"'):
        read(csv, schema, defaults=defaults)


def test_a_header_alone_is_no_rows(csv: Path) -> None:
    for text in ("player,score", "player,score\n"):
        csv.write_text(text)
        assert read(csv, SCORES).rows.num_rows == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no header row"),
        ("\n\n", "there is no header row"),
        ("player,score,score\n", 'the header has the column "score" twice'),
        ("player,scores\n", 'the table has no column "scores"; did you mean "score"?'),
        ("player\n", 'the file has no column "score"'),
        ("player:score\nann:1\n", 'the single column "player:score", which is not a column of the table'),
        ('"player,score\nann,1', "a quote in the header is not closed"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(csv: Path, text: str, message: str) -> None:
    csv.write_text(text)
    with pytest.raises(BadFile, match=r"scores\.csv: ") as raised:
        read(csv, SCORES)
    assert message in raised.value.message


BAD_ROWS = {
    "ann,x": 'column "score": "x" is not int64',
    "ann,1.5": 'column "score": "1.5" is not int64',
    ",1": 'column "player": player is null, but it is NOT NULL',
    "ann": "1 fields instead of 2",
    "ann,1,2": "3 fields instead of 2",
}


@pytest.mark.parametrize("line", BAD_ROWS)
def test_a_bad_row_stops_with_its_number_and_reason(csv: Path, line: str) -> None:
    csv.write_text(f"player,score\nbob,1\n{line}\ncem,2\n")
    with pytest.raises(BadFile) as raised:
        read(csv, SCORES)
    assert raised.value.message.startswith("file: row 3: ")
    assert BAD_ROWS[line] in raised.value.message


def test_bad_rows_are_skipped_with_their_numbers(csv: Path) -> None:
    good = [f"p{number},{number}" for number in range(1000)]
    lines = ["player,score", *good[:500], *BAD_ROWS, *good[500:], "last"]
    csv.write_bytes("\n".join(lines).encode() + b"\n\xff,1\n")
    reading = read(csv, SCORES, skip=True)
    assert reading.rows.column("score").to_pylist() == list(range(1000))
    assert reading.bad_rows == len(BAD_ROWS) + 2
    rows = {report.partition(":")[0] for report in reading.reported}
    assert rows == {f"row {number}" for number in [*range(502, 502 + len(BAD_ROWS)), 1007, 1008]}


def test_many_bad_rows_are_counted_but_only_some_reported(csv: Path) -> None:
    csv.write_text("player,score\n" + "ann,x\n" * 100)
    reading = read(csv, SCORES, skip=True)
    assert reading.bad_rows == 100
    assert len(reading.reported) == 21
    assert reading.reported[-1] == "more than 20 bad rows: the rest are counted but not shown"


def test_rows_larger_than_a_block_are_read(csv: Path) -> None:
    players = ["x" * 5_000_000, "b", "c\n" * 5_000_000]
    csv.write_text("player,score\n" + "".join(f'"{player}",1\n' for player in players))
    assert read(csv, SCORES).rows.column("player").to_pylist() == players


def test_rows_before_one_of_a_wrong_length_are_read_first(csv: Path) -> None:
    csv.write_text("player,score\nann,1\nbob,x\ncem\n")
    with pytest.raises(BadFile, match="row 3"):
        read(csv, SCORES)


def test_rows_keep_their_numbers_over_many_blocks(csv: Path) -> None:
    lines = [f"player-{number:0100},{number}" for number in range(100_000)]
    lines[90_000] = "bad,x"
    csv.write_text("player,score\n" + "\n".join(lines))
    reading = read(csv, SCORES, skip=True)
    assert reading.reported == ['row 90002: column "score": "x" is not int64']
    assert pa.compute.sum(reading.rows.column("score")).as_py() == sum(range(100_000)) - 90_000
