from __future__ import annotations

import json
import re
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

import scankv as scankv_module

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine


def test_a_row_is_found_by_its_key(scankv: CommandLine, scores: str) -> None:
    assert scankv("get", scores, "ann", "--format", "jsonl").json == {"player": "ann", "score": 31}
    assert [line.split() for line in scankv("get", scores, "bob", "cem").text.splitlines()] == [
        ["player", "score"],
        ["─" * 14],
        ["bob", "27"],
        ["cem", "null"],
    ]


def test_several_keys_are_one_line_each_and_a_missing_one_is_named(scankv: CommandLine, scores: str) -> None:
    finished = scankv("get", scores, "cem", "zoe", "ann", "--format", "jsonl", code=1)
    assert [json.loads(line)["player"] for line in finished.text.splitlines()] == ["cem", "ann"]
    assert finished.stderr == f"scankv: error: {scores} has no row with the key zoe\n"


def test_a_key_of_several_columns_is_written_with_commas(scankv: CommandLine, table: str) -> None:
    scankv("create", table, "--schema", "day date, name string, n int64", "--key", "day,name")
    scankv("put", table, "day=2013-01-01", "name=a,b", "n=1")
    assert scankv("get", table, '2013-01-01,"a,b"', "--format", "jsonl").json == {
        "day": "2013-01-01",
        "name": "a,b",
        "n": 1,
    }
    assert "must have 2 parts, not 1: day,name" in scankv.fails("get", table, "2013-01-01")
    assert '"today" is not date32' in scankv.fails("get", table, "today,x")
    assert scankv("delete", table, '2013-01-01,"a,b"').text == "deleted 1 row\n"
    assert scankv("count", table).text == "0\n"


def test_rows_are_deleted_by_a_predicate_and_all_at_once(scankv: CommandLine, scores: str) -> None:
    assert scankv("delete", scores, "--where", "score > 30").text == "deleted 1 row\n"
    assert scankv("count", scores).text == "2\n"
    assert scankv("delete", scores, "--where", "player < 'c'", "--no-track-changes").text == "deleted 1 row\n"
    assert "exactly one range of keys (player)" in scankv.fails(
        "delete", scores, "--where", "score = 1", "--no-track-changes"
    )
    assert scankv("truncate", scores, "--no-track-changes").text == "deleted 1 row\n"
    assert scankv("truncate", scores).text == "deleted 0 rows\n"
    assert scankv("count", scores).text == "0\n"


def test_rows_are_replaced_by_those_of_a_file(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    low = tmp_path / "low.csv"
    low.write_text("player;score\nbob;1\ndan;n/a\n")
    given = ("replace", scores, str(low), "--delimiter", ";", "--null", "n/a")
    # dan has no score, so he does not match; nothing is changed.
    assert "row 1 of the data is outside" in scankv.fails(*given, "--where", "score < 30")
    assert scankv("count", scores).text == "3\n"
    low.write_text("player;score\nbob;1\ndan;2\n")
    assert scankv(*given, "--where", "score < 30").text.endswith("that match by 2 rows\n")
    lines = map(json.loads, scankv("scan", scores, "--format", "jsonl").text.splitlines())
    rows = {each["player"]: each["score"] for each in lines}
    assert rows == {"ann": 31, "bob": 1, "dan": 2, "cem": None}
    low.write_text("player;score\nbob;seven\n")
    assert "seven" in scankv.fails(*given)
    assert scankv("count", scores).text == "4\n"
    for format_, text in (("csv", "player,score\nann,1\n"), ("jsonl", '{"player": "ann"}')):
        finished = scankv("replace", scores, "-", "--format", format_, stdin=text)
        assert finished.text == f"replaced the rows of {scores} by 1 row\n"
    assert "truncate" in scankv.fails("replace", scores, "-", "--format", "jsonl", stdin="\n")
    assert scankv("count", scores).text == "1\n"
    (tmp_path / "none.csv").write_text("player,score\n")
    assert scankv("replace", scores, str(tmp_path / "none.csv")).text == f"replaced the rows of {scores} by 0 rows\n"
    assert scankv("count", scores).text == "0\n"


@pytest.mark.parametrize("given", [[], ["ann", "--where", "score = 1"]], ids=["nothing", "both"])
def test_a_delete_takes_keys_or_a_predicate(scankv: CommandLine, scores: str, given: list[str]) -> None:
    assert "select the rows with --where; not both" in scankv.fails("delete", scores, *given)
    assert "is for deletes with --where" in scankv.fails("delete", scores, "ann", "--no-track-changes")
    assert scankv("count", scores).text == "3\n"


def test_put_inserts_and_replaces_rows(scankv: CommandLine, scores: str) -> None:
    assert scankv("put", scores, "player=dan", "score=5").text == "wrote 1 row\n"
    scankv("put", scores, "player=ann", "score=")
    assert scankv("put", scores, '{"player":"eve","score":1}', '{"score":null,"player":"fay"}').text == "wrote 2 rows\n"
    rows = [json.loads(line) for line in scankv("scan", scores, "--format", "jsonl").text.splitlines()]
    assert {row["player"]: row["score"] for row in rows} == {
        "ann": None,
        "bob": 27,
        "cem": None,
        "dan": 5,
        "eve": 1,
        "fay": None,
    }


def test_put_of_some_columns_is_refused_where_a_table_takes_whole_rows(scankv: CommandLine, table: str) -> None:
    columns = ["--schema", "player string, score int64, league string not null", "--key", "player"]
    scankv("create", table, *columns)
    assert '"league" is NOT NULL' in scankv.fails("put", table, "player=ann", "score=1")
    scankv("create", table + "_first", *columns, "--set", "merge_engine=first_row")
    assert "takes only complete rows" in scankv.fails("put", table + "_first", "player=ann", "league=a")
    for each in (table, table + "_first"):
        assert scankv("count", each).text == "0\n"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["player=dan", "score=five"], '"five" is not int64'),
        (["score=5"], '"player"'),
    ],
)
def test_a_bad_row_is_refused_and_changes_nothing(
    scankv: CommandLine, scores: str, values: list[str], message: str
) -> None:
    assert message in scankv.fails("put", scores, *values)
    assert scankv("count", scores).text == "3\n"


def test_rows_are_deleted_by_key_and_counted(scankv: CommandLine, scores: str) -> None:
    finished = scankv("delete", scores, "ann", "zoe", "ann", "yan")
    assert finished.text == "deleted 1 row\n"
    assert finished.stderr == f"scankv: {scores} has no row with the key zoe or yan\n"
    assert scankv("count", scores, "--json").json == {"table": scores, "rows": 2}
    assert scankv("delete", scores, "ann").text == "deleted 0 rows\n"
    finished = scankv("delete", scores, "bob", "cem")
    assert (finished.text, finished.stderr) == ("deleted 2 rows\n", "")


def test_a_delete_says_how_many_rows_it_has_deleted_in_tables_of_any_kind(scankv: CommandLine, table: str) -> None:
    for number, options in enumerate(["changelog=none", "delete_behavior=ignore", "merge_engine=first_row"]):
        name = f"{table}_{number}"
        scankv("create", name, "--schema", "k int64, n int64", "--key", "k", "--set", options)
        scankv("put", name, '{"k": 1, "n": 1}', '{"k": 2, "n": 1}')
        finished = scankv("delete", name, "1", "3")
        left = int(scankv("count", name).text)
        assert finished.text == f"deleted {'1 row' if left == 1 else '0 rows'}\n"
        assert finished.stderr == f"scankv: {name} has no row with the key 3\n"


def test_a_server_that_is_not_there_is_named(scankv: CommandLine) -> None:
    for command in (["tables"], ["count", "a.b"], ["scan", "a.b"], ["stats"], ["wait", "--timeout", "0.2"]):
        message = scankv.fails(*command, "--url", "127.0.0.1:1")
        assert "127.0.0.1:1" in message


def test_wrong_usage_has_exit_code_2(scankv: CommandLine) -> None:
    scankv("scan", code=2)
    scankv("scan", "a.b", "--limit", "-1", code=2)
    scankv("scan", "a.b", "--format", "xml", code=2)
    scankv("no-such-command", code=2)


def test_an_address_that_is_none_is_refused(scankv: CommandLine) -> None:
    assert "host:port" in scankv.fails("tables", "--url", "nowhere")


def test_statistics_are_figures(scankv: CommandLine, scores: str) -> None:
    figures = scankv("stats", "--json").json
    assert figures["tables"] >= 1
    assert figures["rows_written"] >= 3
    assert figures["damaged_buckets"] == []
    assert (figures["clock_jumps"], abs(figures["clock_offset"]) < 60) == (0, True)
    shown = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in scankv("stats").text.splitlines()[:30])
    assert int(shown["rows written"].replace(",", "")) >= 3
    assert re.fullmatch(r"[\d.]+ (ms|s)|\d+ (min|h)( \d+ (s|min))?", shown["uptime"])
    assert re.fullmatch(r"[\d.]+ (kB|MB|GB)", shown["memory"])
    assert re.fullmatch(r"[\d.]+ (bytes|kB|MB|GB)", shown["returned by scans"])
    assert scankv("count", scores).code == 0


def test_count_and_top_answer_about_the_rows_for_which_something_is_true(scankv: CommandLine, scores: str) -> None:
    assert scankv("count", scores, "--where", "score > 30").text == "1\n"
    assert scankv("count", scores, "--where", "score IS NULL", "--json").json == {"table": scores, "rows": 1}
    assert "did you mean" in scankv.fails("count", scores, "--where", "scroe > 30")


def test_top_shows_the_first_rows_by_a_column(scankv: CommandLine, scores: str) -> None:
    assert [line.split() for line in scankv("top", scores, "--order-by", "score").text.splitlines()[2:]] == [
        ["ann", "31"],
        ["bob", "27"],
        ["cem", "null"],
    ]
    least = scankv(
        "top", scores, "--order-by", "score", "-n", "1", "--ascending", "--columns", "score", "--format", "jsonl"
    )
    assert least.text == '{"score":27}\n'
    best = scankv("top", scores, "--order-by", "score", "--where", "player <> 'ann'", "--format", "jsonl").text
    assert best == '{"player":"bob","score":27}\n{"player":"cem","score":null}\n'
    assert '"scroe"' in scankv.fails("top", scores, "--order-by", "scroe")
    text = scankv("top", scores, "--order-by", "score", "-n", "3", "--ascending", "--explain").text
    told = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert (told["keys"], told["limit"]) == ("all keys", "3 rows")
    assert told["order"] == "ascending by score, nulls last; equal rows ascending by key"
    assert "exclude each other" in scankv.fails("top", scores, "--order-by", "score", "--explain", "--watch")
    scankv("top", scores, "--order-by", "score", "-n", "0", code=2)


def test_tail_shows_ranges_of_keys_that_were_deleted_at_once(scankv: CommandLine, scores: str) -> None:
    before = scankv("tail", scores, "--from", "earliest", "--until", "latest", "--format", "jsonl").text.splitlines()
    scankv("delete", scores, "--where", "player >= 'b'", "--no-track-changes")
    arguments = ("tail", scores, "--from", "earliest", "--until", "latest", "--untracked", "rescan")
    *changes, deleted = scankv(*arguments, "--format", "jsonl").text.splitlines()
    assert changes == before
    shown = json.loads(deleted)
    assert isinstance(shown.pop("_log_offset"), int)
    assert shown == {"_change_type": "-D", "_bucket": 0, "_deleted": "player >= 'b'"}
    line = scankv(*arguments, "--format", "table").text.splitlines()[-1]
    assert line.endswith("rows deleted at once: player >= 'b'")
    for format_, options in (("debezium-jsonl", arguments), ("jsonl", arguments[:-2])):
        assert "deleted" in scankv.fails(*options, "--format", format_)


def test_limits_have_one_name(scankv: CommandLine, scores: str) -> None:
    for limit in ("--limit", "-n"):
        assert scankv("scan", scores, limit, "2").text.count("\n") == 3
        assert scankv("top", scores, "--order-by", "score", limit, "2", "--format", "jsonl").text.count("\n") == 2
        arguments = ("--from", "earliest", "--until", "latest", "--format", "jsonl")
        assert scankv("tail", scores, *arguments, limit, "2").text.count("\n") == 2


def test_the_version_is_that_of_the_distribution(scankv: CommandLine) -> None:
    assert scankv("--version").text == f"scankv {metadata.version('scankv')}\n"
    assert scankv_module.__version__ == metadata.version("scankv") == scankv("stats", "--json").json["version"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_options(
    scankv: CommandLine, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("_SCANKV_COMPLETE", f"source_{shell}")
    assert "_SCANKV_COMPLETE=complete_" in scankv().text
    monkeypatch.setenv("_SCANKV_COMPLETE", f"complete_{shell}")
    for typed, completed in (("scankv sn", "snapshot"), ("scankv load --delim", "--delimiter")):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        assert completed in scankv().text


def test_changes_since_a_time_that_retention_has_removed_are_refused_unless_clamped(
    scankv: CommandLine, scores: str
) -> None:
    for changelog in ("none", "full"):  # This removes all changes.
        scankv("alter", scores, "--set", f"changelog={changelog}")
    scankv("put", scores, "player=eve", "score=5")
    arguments = ("tail", scores, "--from", "2020-01-01T00:00:00Z", "--until", "latest", "--format", "jsonl")
    assert "changes since 2020-01-01T00:00:00+00:00 are no longer in its changelog" in scankv.fails(*arguments)
    assert '"eve"' in scankv(*arguments, "--clamp").text


def test_an_error_in_a_predicate_has_its_caret_on_a_line_of_its_own_in_a_pipe(scankv: CommandLine, scores: str) -> None:
    first, text, caret, *_ = scankv.fails("count", scores, "--where", "score > 0 AND score == 1").splitlines()
    assert first.endswith('expected AND, OR or the end, found "=="')
    assert caret.strip() == "^"
    assert text[caret.index("^") :] == "== 1"
