from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


def test_a_table_is_created_with_indexes_and_described_with_their_states(scankv: CommandLine, table: str) -> None:
    schema = ("--schema", "player string, league string, score int64", "--key", "player")
    scankv("create", table, *schema, "--index", "score", "--index", "league, score")
    described = scankv("describe", table, "--json").json
    assert described["indexes"] == [["score"], ["league", "score"]]
    done = {"ready": True, "rows_done": 0, "rows": 0, "failure": None}
    assert described["index_status"] == [{"columns": ["score"], **done}, {"columns": ["league", "score"], **done}]
    lines = [line.split() for line in scankv("describe", table).text.splitlines()]
    assert ["index", "state"] in lines
    assert ["score", "ready"] in lines
    assert ["league,", "score", "ready"] in lines


def test_an_index_is_added_and_dropped(scankv: CommandLine, scores: str) -> None:
    assert scankv("indexes", "add", scores, "score, player").text == f"built the index on (score, player) of {scores}\n"
    assert scankv("describe", scores, "--json").json["indexes"] == [["score", "player"]]
    assert "already has an index on (score, player)" in scankv.fails("indexes", "add", scores, "score,player")
    dropped = scankv("indexes", "drop", scores, "score,player").text
    assert dropped == f"dropped the index on (score, player) of {scores}\n"
    assert scankv("describe", scores, "--json").json["indexes"] == []
    assert "has no index on (score); its indexes: none" in scankv.fails("indexes", "drop", scores, "score")
    assert 'did you mean "score"' in scankv.fails("indexes", "add", scores, "scroe")
    scankv("indexes", "add", scores, code=2)


def test_an_index_may_be_left_to_the_server(scankv: CommandLine, scores: str) -> None:
    said = scankv("indexes", "add", scores, "score", "--no-wait").text
    assert said == f"the index on (score) of {scores} is being built; see: scankv describe {scores}\n"
    assert scankv("describe", scores, "--json").json["indexes"] == [["score"]]


def test_an_index_that_cannot_be_built_is_a_failure_that_says_how_to_get_rid_of_it(
    scankv: CommandLine, table: str
) -> None:
    scankv("create", table, "--schema", "k int64, text string", "--key", "k")
    scankv("put", table, "k=1", f"text={'x' * 20_000}")
    message = scankv.fails("indexes", "add", table, "text")
    assert "cannot be built" in message
    assert f"scankv indexes drop {table} text" in message
    assert "not used, drop it: " in scankv("describe", table).text
    scankv("indexes", "drop", table, "text")
    assert scankv("describe", table, "--json").json["index_status"] == []
