from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import CommandLine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess


def test_a_created_table_is_described_as_it_was_created(scankv: CommandLine, table: str) -> None:
    created = scankv(
        *("create", table, "--schema", "day date, name string, score decimal(10, 2), tags list<string>"),
        *("--key", "day, name", "--bucket-key", "name", "--buckets", "3"),
        *("--set", "compression=zstd", "--set", "row_deduplicate=false"),
    )
    assert created.text == f"created {table}\n"
    described = scankv("describe", table, "--json").json
    assert [bucket["bucket"] for bucket in described.pop("stats")] == [0, 1, 2]
    assert described.pop("index_status") == []
    assert described.pop("disk_use")["changelog"] == 0
    assert described == {
        "name": table,
        "primary_key": ["day", "name"],
        "bucket_key": ["name"],
        "partition_by": [],
        "buckets": 3,
        "tablets": 1,
        "columns": [
            {"name": "day", "type": "date32[day]", "nullable": False},
            {"name": "name", "type": "string", "nullable": False},
            {"name": "score", "type": "decimal128(10, 2)", "nullable": True},
            {"name": "tags", "type": "list<item: string>", "nullable": True},
        ],
        "options": {"compression": "zstd", "row_deduplicate": "false"},
        "indexes": [],
        "version_column": None,
        "sequence_column": [],
        "sequence_groups": [],
        "aggregators": {},
    }
    assert described in scankv("tables", "--json").json


def test_descriptions_are_readable_too(scankv: CommandLine, scores: str) -> None:
    described = scankv("describe", scores).text
    assert f"table       {scores}" in described
    assert "rows        3" in described
    assert "player   string   not null" in described
    (line,) = [line for line in scankv("tables").text.splitlines() if line.split()[0] == scores]
    assert line.split() == [scores, "player", "2", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schema", "a string", "--key", "b"], '"b"'),
        (["--schema", "a string", "--key", "a", "--set", "compresion=zstd"], 'did you mean "compression"?'),
        (["--schema", "a string", "--key", "a", "--set", "compression=rar"], '"rar"'),
    ],
)
@pytest.mark.represented_by('arguments0-"b"')
def test_an_impossible_table_is_refused(scankv: CommandLine, table: str, arguments: list[str], message: str) -> None:
    assert message in scankv.fails("create", table, *arguments)
    assert table not in [each["name"] for each in scankv("tables", "--json").json]


def test_a_table_is_created_once(scankv: CommandLine, scores: str) -> None:
    assert scores in scankv.fails("create", scores, "--schema", "a string", "--key", "a")


def test_a_name_without_database_is_refused(scankv: CommandLine) -> None:
    assert "database.table" in scankv.fails("create", "scores", "--schema", "a string", "--key", "a")


@pytest.mark.parametrize("command", ["describe", "count", "scan", "drop"])
def test_a_table_that_is_not_there_is_named_with_the_near_one(scankv: CommandLine, scores: str, command: str) -> None:
    wrong = scores + "x"
    message = scankv.fails(command, wrong)
    assert f'"{wrong}"' in message
    assert f'"{scores}"' in message


def test_dropping_has_to_be_confirmed(scankv: CommandLine, scores: str) -> None:
    assert "confirm it with --yes" in scankv.fails("drop", scores)
    assert scankv("count", scores).text == "3\n"
    assert scankv("drop", scores, "--yes").text == f"dropped {scores}\n"
    assert scores in scankv.fails("count", scores)


def test_a_server_without_tables_says_so(server: ServerProcess) -> None:
    scankv = CommandLine(server.url)
    assert scankv("tables", "--json").json == []
    finished = scankv("tables")
    assert finished.text == ""
    assert "there are no tables yet" in finished.stderr


def test_options_are_altered_and_columns_added(scankv: CommandLine, scores: str) -> None:
    altered = scankv(
        *("alter", scores, "--set", "log_retention_seconds=3600", "--set", "columnar_base=off"),
        *("--add-columns", "team string, since date"),
    )
    assert altered.text == f"altered {scores}\n"
    described = scankv("describe", scores, "--json").json
    assert described["options"] == {"columnar_base": "off", "log_retention_seconds": "3600"}
    assert [column["name"] for column in described["columns"]][-2:] == ["team", "since"]
    scankv("alter", scores, "--reset", "columnar_base")
    assert scankv("describe", scores, "--json").json["options"] == {"log_retention_seconds": "3600"}


def test_rows_expire_as_options_say_and_no_longer_without_them(scankv: CommandLine, scores: str) -> None:
    scankv("alter", scores, "--add-columns", "seen timestamp[us, tz=UTC]")
    scankv("put", scores, '{"player": "ann", "seen": "2001-01-01T00:00:00Z"}')
    rows = int(scankv("count", scores).text)
    scankv("alter", scores, "--set", "ttl_seconds=3600", "--set", "ttl_column=seen")
    assert int(scankv("count", scores).text) == rows - 1
    assert "set both or neither" in scankv.fails("alter", scores, "--reset", "ttl_seconds")
    scankv("alter", scores, "--set", "ttl_seconds=3000000000")
    assert int(scankv("count", scores).text) == rows
    scankv("alter", scores, "--reset", "ttl_seconds", "--reset", "ttl_column")
    assert not scankv("describe", scores, "--json").json["options"].keys() & {"ttl_seconds", "ttl_column"}


def test_columns_are_changed(scankv: CommandLine, scores: str) -> None:
    scankv(
        *("alter", scores, "--rename", "score=points", "--add-columns", "team string, level int32, old int8"),
        *("--default", "team=red", "--default", "level=1", "--comment", "points=in all games = total"),
    )
    scankv("alter", scores, "--drop-columns", "old", "--widen", "level int64", "--order", "player,team,level,points")
    described = scankv("describe", scores, "--json").json
    assert described["columns"] == [
        {"name": "player", "type": "string", "nullable": False},
        {"name": "team", "type": "string", "nullable": True, "default": "red"},
        {"name": "level", "type": "int64", "nullable": True, "default": 1},
        {"name": "points", "type": "int64", "nullable": True, "comment": "in all games = total"},
    ]
    shown = scankv("describe", scores).text
    assert "default red" in shown
    assert "in all games = total" in shown
    rows = [json.loads(line) for line in scankv("scan", scores, "--format", "jsonl").text.splitlines()]
    assert {row["team"] for row in rows} == {"red"}
    assert "--rename must be OLD=NEW" in scankv.fails("alter", scores, "--rename", "points")
    assert "given twice with --comment" in scankv.fails("alter", scores, "--comment", "team=a", "--comment", "team=b")
    assert 'no column "x"' in scankv.fails("alter", scores, "--default", "x=1")


def test_alter_says_what_cannot_change_and_what_is_missing(scankv: CommandLine, scores: str) -> None:
    assert 'table option "compression" cannot change' in scankv.fails("alter", scores, "--set", "compression=zstd")
    assert "there is nothing to alter" in scankv.fails("alter", scores)
    assert "--set is for table options" in scankv.fails("alter", scores, "--set", "buckets=8")
    both = scankv.fails("alter", scores, "--set", "columnar_base=auto", "--reset", "columnar_base")
    assert "give one of them" in both


def test_a_table_like_another_has_its_definition_and_no_rows(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    table = f"{scores}_like"
    scankv("indexes", "add", scores, "score")
    scankv("alter", scores, "--set", "log_retention_bytes=1000")
    assert scankv("create", table, "--like", scores).text == f"created {table}\n"
    scores_toml, table_toml = (scankv("describe", each, "--toml").text for each in (scores, table))
    assert table_toml == scores_toml.replace(scores, table)
    assert scankv("count", table).text.strip() == "0"
    other = f"{scores}_other"
    scankv("create", other, "--like", scores, "--buckets", "7", "--set", "compression=zstd")
    described = scankv("describe", other, "--json").json
    assert described["buckets"] == 7
    assert described["options"] == {"compression": "zstd", "log_retention_bytes": "1000"}
    # The printed definition can be given back.
    path = tmp_path / "table.toml"
    path.write_text(table_toml.replace(table, f"{scores}_third"))
    scankv("create", "--file", str(path))
    assert scankv("describe", f"{scores}_third", "--toml").text == path.read_text()


def test_like_takes_no_other_definition(scankv: CommandLine, scores: str) -> None:
    table = f"{scores}_like"
    message = "--like takes the name of the new table, --buckets and --set, and no other option"
    assert message in scankv.fails("create", table, "--like", scores, "--key", "player")
    assert message in scankv.fails("create", "--like", scores)
    assert "does not exist" in scankv.fails("create", table, "--like", "test.nowhere")
