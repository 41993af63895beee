"""`scankv sql`: queries over live tables and files, in the formats of `scankv scan`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest

from aio_client import sync
from tests.integration.cli.test_terminal import on_terminal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine
    from tests.support.server_process import ServerProcess


def test_a_query_prints_its_rows(scankv: CommandLine, scores: str) -> None:
    query = f"select player, score * 2 as twice from {scores} where score > 1 order by player"
    assert scankv("sql", query).text == "player,twice\nann,62\nbob,54\n"
    assert scankv("sql", "-", stdin=query + ";\n").text == "player,twice\nann,62\nbob,54\n"
    assert scankv("sql", query, "--format", "jsonl").text.splitlines()[0] == '{"player":"ann","twice":62}'
    assert scankv("sql", query, "--format", "table").text.splitlines()[2:] == ["ann         62", "bob         54"]


def test_values_are_given_as_parameters(scankv: CommandLine, scores: str) -> None:
    query = f"select score from {scores} where player = $who and score > $least::int"
    assert scankv("sql", query, "--param", "who=ann", "--param", "least=30").text == "score\n31\n"
    wrong = scankv("sql", query, "--param", "who", code=1).stderr
    assert "--param must be NAME=VALUE, as in --param least=10, not 'who'" in wrong


def test_a_query_joins_a_file_and_writes_one(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    (tmp_path / "teams.csv").write_text("player,team\nann,red\n")
    query = f"select team, score from {scores} join '{tmp_path}/teams.csv' using (player)"
    assert scankv("sql", query, "-o", str(tmp_path / "found.parquet")).text == ""
    assert pyarrow.parquet.read_table(tmp_path / "found.parquet").to_pylist() == [{"team": "red", "score": 31}]


def test_an_error_names_the_place(scankv: CommandLine, scores: str) -> None:
    assert 'syntax error at or near "cli"' in scankv("sql", f"select * form {scores}", code=1).stderr
    assert "did you mean" in scankv("sql", f"select * from {scores}x", code=1).stderr
    assert "SQL only reads here: begin the statement with select" in scankv("sql", "set threads = 1", code=1).stderr


def test_a_statement_that_writes_prints_one_line(scankv: CommandLine, scores: str) -> None:
    assert scankv("sql", f"insert into {scores} values ('dan', $n::int)", "--param", "n=5").text == "1 row inserted\n"
    assert scankv("sql", f"update {scores} set score = score + 1 where player = 'dan'").text == "1 row updated\n"
    assert scankv("sql", f"select score from {scores} where player = 'dan'").text == "score\n6\n"
    assert scankv("sql", f"delete from {scores} where player = 'dan'").text == "1 row deleted\n"
    refused = scankv("sql", f"delete from {scores}", "--format", "jsonl", code=1).stderr
    assert "a statement that writes has no rows: leave out --format and -o" in refused
    assert "and --explain" in scankv("sql", "--explain", f"delete from {scores}", code=1).stderr


def test_a_query_is_explained(scankv: CommandLine, scores: str) -> None:
    shown = scankv("sql", "--explain", f"select count(*) from {scores} where score > 30").text
    assert shown.startswith(f"computed  count(player)\nsource    {scores}, live\n")
    assert 'filter    col("score") > 30' in shown
    assert "DuckDB\n" in shown
    shown = scankv("sql", "--explain", f"select score from {scores} where player = 'ann' and score % 2 = 1").text
    assert "keys      1 looked up: player = 'ann'" in shown
    assert "computed" not in shown


def test_a_terminal_gets_a_shell(
    scankv: CommandLine, scores: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    typed = [
        *(
            ".tables",
            f".columns {scores}",
            "select player, score",
            f"from {scores}",
            "order by player;",
            ".format jsonl",
        ),
        *(f"select max(score) m from {scores};", "select nothing;", ".explain select 1;", ".format xml", ".nothing"),
        *(".timing off", "select 7 as seven;", f"select player from {scores} order by sc\t limit 1;", ".quit"),
    ]
    code, shown = on_terminal(scankv, "sql", typed="".join(f"{line}\n" for line in typed), width=120)
    assert code == 0
    assert f"\n{scores}\n" in shown
    assert "\nplayer string not null\nscore int64\n" in shown
    assert "\nann         31\nbob         27\ncem       null\n3 rows\n" in shown
    assert '\n{"m":31}\n1 row\n' in shown
    assert "DuckDB: Binder Error: " in shown
    assert "order by score limit 1;\n" in shown
    assert '\n{"player":"bob"}\n1 row\nscankv> ' in shown
    assert ".format takes table, csv or jsonl, not 'xml'" in shown
    assert ".nothing is no command of the shell: .help lists them" in shown
    assert shown.rstrip().endswith(".quit")
    history = tmp_path / "scankv" / "sql_history"
    assert "select max(score) m" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.soak)])
def test_a_command_that_abandons_its_scan_ends_cleanly(server: ServerProcess, times: int) -> None:
    with sync.connect(server.url) as client:
        rows = pyarrow.table({"k": range(100_000)})
        client.create_table("sql.many", rows.schema, primary_key=["k"]).upsert(rows)
        command = (sys.executable, "-m", "scankv", "sql", "select k from sql.many limit 10", "--url", server.url)
        for _ in range(times):
            # A process of its own: what goes on reading in a thread shows when the interpreter ends.
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert (done.returncode, len(done.stdout.splitlines()), done.stderr) == (0, 11, "")
        wait_until(lambda: client.stats().live_scans == 0, "the scans ended")
