"""Tables without a primary key on the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine

SCHEMA = "at int64 not null, line string"


def test_a_table_without_a_key_is_created_filled_and_shown(scankv: CommandLine, table: str, tmp_path: Path) -> None:
    scankv("create", table, "--schema", SCHEMA, "--no-key", "--buckets", "2")
    scankv("put", table, "at=1", "line=one")
    scankv("put", table, "at=1")
    file = tmp_path / "lines.csv"
    file.write_text("at,line\n2,two\n3,three\n")
    scankv("load", table, str(file))
    assert scankv("count", table).text.strip() == "4"
    assert "none: rows are only appended" in scankv("describe", table).text
    listed = {each["name"]: each for each in json.loads(scankv("tables", "--json").text)}
    assert (listed[table]["primary_key"], listed[table]["bucket_key"]) == ([], [])
    found = [json.loads(line) for line in scankv("scan", table, "--format", "jsonl").text.splitlines()]
    assert sorted(found, key=str) == sorted(
        [{"at": 1, "line": "one"}, {"at": 1, "line": None}, {"at": 2, "line": "two"}, {"at": 3, "line": "three"}],
        key=str,
    )
    tail = scankv("tail", table, "--from", "full", "--until", "latest", "--format", "debezium-jsonl").text.splitlines()
    assert [json.loads(line)["op"] for line in tail] == ["c"] * 4


def test_the_definition_of_a_table_without_a_key_is_copied_and_restored(
    scankv: CommandLine, table: str, tmp_path: Path
) -> None:
    scankv("create", table, "--schema", SCHEMA, "--no-key", "--bucket-key", "line")
    scankv("put", table, "at=1", "line=one")
    definition = scankv("describe", table, "--toml").text
    assert "key = []" in definition
    file = tmp_path / "table.toml"
    file.write_text(definition.replace(table, f"{table}b"))
    scankv("create", "-f", str(file))
    scankv("create", f"{table}c", "--like", table)
    for copy in (f"{table}b", f"{table}c"):
        assert scankv("describe", copy, "--toml").text == definition.replace(table, copy)
    exported = tmp_path / "exported.parquet"
    scankv("scan", table, "--output", str(exported))
    scankv("load", f"{table}d", str(exported), "--create", "--no-key")
    assert scankv("count", f"{table}d").text.strip() == "1"


def test_what_needs_a_key_is_refused(scankv: CommandLine, table: str, tmp_path: Path) -> None:
    assert "--no-key for a table to which rows are only appended" in scankv.fails("create", table, "--schema", SCHEMA)
    both = ("create", table, "--schema", SCHEMA, "--key", "at", "--no-key")
    assert "exclude each other" in scankv.fails(*both)
    scankv("create", table, "--schema", SCHEMA, "--no-key")
    for command in ("get", "delete"):
        assert f"table {table} has no primary key: " in scankv.fails(command, table, "1")
    file = tmp_path / "lines.csv"
    file.write_text("at,line\n2,two\n")
    for option in (("--mode", "overwrite"), ("--no-track-changes",)):
        assert "has no primary key" in scankv.fails("load", table, str(file), *option)
    assert "or --no-key" in scankv.fails("load", f"{table}b", str(file), "--create")
