from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from scankv.formats.files import BadFile
from scankv.model.types.types import parse_schema
from tests.unit.cli.reading import read

if TYPE_CHECKING:
    from pathlib import Path

SCORES = parse_schema("player string not null, score int64")
BAD_LINES = {
    "{": "Missing a name",
    "[1]": "",
    "5": "",
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
