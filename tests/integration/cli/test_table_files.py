"""`scankv create -f` creates a table from a file, and `describe` writes the same file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from aio_client import sync
from tests.support.command_line import CommandLine
from tests.support.definitions import RandomDefinition, definitions
from tests.support.examples import examples

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

AGGREGATE = """
table = "TABLE"
schema = "carrier string, day date, flights int64, worst int32, airports list<string>, note string"
key = ["carrier", "day"]
bucket_key = "carrier"
buckets = 2
indexes = ["flights", ["worst", "day"]]

[options]
merge_engine = "aggregate"
columnar_base = "eager"
row_deduplicate = true

[aggregators]
flights = "count"
worst = { function = "max", ignore_retract = true }
airports = { function = "collect", distinct = true }
note = { function = "listagg", delimiter = "; " }
"""
GROUPS = """
table = "TABLE"
schema = "k int64, s int64, t int64, a int64, b int64"
key = "k"
options = { merge_engine = "partial_update", delete_behavior = "ignore" }
aggregators = { b = "sum" }

[[sequence_groups]]
sequence = ["s", "t"]
columns = ["a", "b"]
"""


def test_a_table_of_a_file_is_described_as_it_was_written(scankv: CommandLine, table: str, tmp_path: Path) -> None:
    file = tmp_path / "table.toml"
    file.write_text(AGGREGATE.replace("TABLE", table))
    assert scankv("create", "-f", str(file)).text == f"created {table}\n"
    described = scankv("describe", table, "--json").json
    assert described["aggregators"] == {
        "flights": {"function": "count"},
        "worst": {"function": "max", "ignore_retract": "true"},
        "airports": {"function": "collect", "distinct": "true"},
        "note": {"function": "listagg", "delimiter": "; "},
    }
    assert described["options"] == {"merge_engine": "aggregate", "columnar_base": "eager"}
    assert (described["primary_key"], described["bucket_key"]) == (["carrier", "day"], ["carrier"])
    assert described["indexes"] == [["flights"], ["worst", "day"]]
    shown = scankv("describe", table).text
    for text in ("agg.count()", "agg.max(ignore_retract=True)", "agg.listagg(delimiter='; ')"):
        assert text in shown


def test_sequence_groups_of_several_columns_can_be_written_in_a_file(
    scankv: CommandLine, table: str, tmp_path: Path
) -> None:
    file = tmp_path / "table.toml"
    file.write_text(GROUPS.replace("TABLE", table))
    scankv("create", "--file", str(file))
    described = scankv("describe", table, "--json").json
    assert described["sequence_groups"] == [{"sequence": ["s", "t"], "columns": ["a", "b"]}]
    assert "agg.sum() by s, t" in scankv("describe", table).text


@pytest.mark.breadth
@examples(8)
@given(definitions())
def test_a_described_table_is_created_again_with_the_same_definition(
    shared_server: ServerProcess, made: RandomDefinition
) -> None:
    scankv, name = CommandLine(shared_server.url), "cli.described"
    with sync.connect(shared_server.url) as client, tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "table.toml")
        made.create(client, name)
        before = definition(scankv, name)
        file.write_bytes(scankv("describe", name, "--toml").stdout)
        client.drop_table(name)
        try:
            scankv("create", "-f", str(file))
            assert definition(scankv, name) == before
            assert scankv("describe", name, "--toml").stdout == file.read_bytes()
        finally:
            client.drop_table(name)


def definition(scankv: CommandLine, table: str) -> dict[str, Any]:
    """Returns the definition of a table, without the state of its rows."""
    said = scankv("describe", table, "--json").json
    return {name: value for name, value in said.items() if name not in ("stats", "index_status", "disk_use")}


def test_a_definition_is_printed_in_one_form(scankv: CommandLine, scores: str) -> None:
    assert scankv("describe", scores, "--toml").text == (
        f'table = "{scores}"\nschema = "player string not null, score int64"\nkey = ["player"]\nbuckets = 2\n'
    )
    assert "give one of them" in scankv.fails("describe", scores, "--toml", "--json")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("table = [", "not valid TOML"),
        ('tabel = "a.b"', 'unknown field "tabel"; did you mean "table" or "tablets"?'),
        ('table = "a.b"\nkey = "k"', 'the field "schema" is missing'),
        ('table = "a.b"\nschema = "k int64"\nkey = 5', 'the field "key" must be a list'),
        ('table = "a.b"\nschema = "k int64, v int64"\nkey = "k"\naggregators = { v = 5 }', 'the aggregator of "v"'),
        ('table = "a.b"\nschema = "k int64"\nkey = "k"\noptions = 5', '"options" must be a section'),
        (
            'table = "a.b"\nschema = "k int64"\nkey = "k"\noptions = { buckets = 5 }',
            '"buckets" is not a table option: ',
        ),
        ('table = "a.b"\nschema = "k int64"\nkey = "k"\noptions = { changelog = [] }', 'option "changelog" must be'),
        ('table = "a.b"\nschema = "k int64"\nkey = "k"\nindexes = [5]', "an index must be a list of columns"),
        ('table = "a.b"\nschema = "k int64"\nkey = "k"\nsequence_groups = { s = ["a"] }', "[[sequence_groups]]"),
        ('table = "a.b"\nschema = "k int64"\nkey = "k"\nversion_column = 5', '"version_column" must be a string'),
    ],
)
def test_a_file_that_says_no_table_is_refused(scankv: CommandLine, tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "table.toml"
    file.write_text(text)
    assert complaint in scankv.fails("create", "-f", str(file))


def test_a_file_and_options_together_are_refused(scankv: CommandLine, tmp_path: Path) -> None:
    assert "leave out all other options of the table" in scankv.fails("create", "a.b", "-f", str(tmp_path / "none"))
    assert "cannot be read" in scankv.fails("create", "-f", str(tmp_path / "none"))
    assert "--schema and --key" in scankv.fails("create", "a.b")
