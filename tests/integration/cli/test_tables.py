from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import CommandLine

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


def test_a_created_table_is_described_as_it_was_created(scankv: CommandLine, table: str) -> None:
    created = scankv(
        *("create", table, "--schema", "day date, name string, score decimal(10, 2), tags list<string>"),
        *("--key", "day, name", "--bucket-key", "name", "--buckets", "3"),
        *("--set", "compression=zstd", "--set", "row_deduplicate=false"),
    )
    assert created.text == f"created {table}\n"
    described = scankv("describe", table, "--json").json
    assert [bucket["bucket"] for bucket in described.pop("bucket_statistics")] == [0, 1, 2]
    assert described.pop("index_status") == []
    assert described.pop("disk_use")["changelog"] == 0
    assert described == {
        "name": table,
        "primary_key": ["day", "name"],
        "bucket_key": ["name"],
        "buckets": 3,
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
        "aggregates": {},
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
        (["--schema", "a strin", "--key", "a"], "strin"),
        (["--schema", "a string", "--key", "a", "--set", "compresion=zstd"], 'did you mean "compression"?'),
        (["--schema", "a string", "--key", "a", "--set", "compression=rar"], '"rar"'),
        (["--schema", "a string", "--key", "a", "--set", "compression"], "no value"),
        (["--schema", "a string", "--key", "a", "--buckets", "5000"], "between 1 and 1,024 buckets, not 5,000"),
        (["--schema", "a list<string>", "--key", "a"], '"a"'),
    ],
)
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
