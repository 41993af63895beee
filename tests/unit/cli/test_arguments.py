from __future__ import annotations

from datetime import date

import pytest

from scankv.cli.arguments import parse_rows
from scankv.cli.options import settings_of, split_names
from scankv.formats.key_text import parse_keys
from scankv.model.errors import ScanKvError, UsageError
from scankv.model.types.types import parse_schema

KEY = parse_schema("day date32 not null, name string not null")
ROW = parse_schema("name string not null, score int64, tags list<item: string>, data binary")


def test_a_key_of_one_column_is_taken_as_it_is() -> None:
    schema = parse_schema("name string not null")
    assert parse_keys(["a,b", '"x"', ""], schema).column(0).to_pylist() == ["a,b", '"x"', ""]


def test_a_key_of_several_columns_is_a_line_of_csv() -> None:
    keys = parse_keys(["2013-01-01,ann", '2013-01-02,"a,b"'], KEY)
    assert keys.schema == KEY
    assert keys.to_pylist() == [{"day": date(2013, 1, 1), "name": "ann"}, {"day": date(2013, 1, 2), "name": "a,b"}]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("2013-01-01", 'the key "2013-01-01" must have 2 parts, not 1: day,name'),
        ("2013-01-01,a,b", 'the key "2013-01-01,a,b" must have 2 parts, not 3: day,name'),
        ("today,ann", 'column "day": "today" is not date32'),
    ],
)
def test_a_key_that_is_none_is_refused(argument: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_keys([argument], KEY)
    assert message in raised.value.message


def test_a_row_is_given_by_its_columns_and_has_no_others() -> None:
    rows = parse_rows(["name=a=b", "score= 7", 'tags=["x","y"]', "data=00ff"], ROW)
    assert rows.schema == ROW
    assert rows.to_pylist() == [{"name": "a=b", "score": 7, "tags": ["x", "y"], "data": b"\x00\xff"}]
    assert parse_rows(["score=", "name="], ROW).to_pylist() == [{"name": "", "score": None}]


def test_rows_are_given_as_json() -> None:
    rows = parse_rows(['{"name": "ann",\n "score": 1}', ' {"score": null, "name": "bob"}'], ROW)
    assert rows.to_pylist() == [{"name": "ann", "score": 1}, {"name": "bob", "score": None}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["name"], '"name" is neither column=value nor a JSON object'),
        (["name=ann", "scores=1"], 'the table has no column "scores"; did you mean "score"?'),
        (["name=ann", "score=x"], 'column "score": "x" is not int64'),
        (["name=ann", "score=1", "name=bob"], 'column "name" is given twice: the arguments are one row'),
        (['{"name": "ann", "score": "x"}'], 'column "score" is string, not int64'),
        (['{"name": "ann"'], "the rows given: line 1"),
        (['{"name": "ann", "scores": 1}'], 'the table has no column "scores"; did you mean "score"?'),
        (['{"name": null}'], 'column "name"'),
        (['{"name": "ann"}', '{"name": "bob", "score": 1}'], "different columns, (name) and (name, score): give each"),
        (['{"name": "ann"}', "[1]"], "the rows given"),
    ],
)
def test_a_row_that_is_none_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ScanKvError) as raised:
        parse_rows(arguments, ROW)
    assert message in raised.value.message


def test_lists_and_settings_are_read() -> None:
    assert split_names("a, b") == ["a", "b"]
    assert split_names(None) == []
    assert settings_of(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(UsageError, match='--set "a" has no value'):
        settings_of(["a"])
