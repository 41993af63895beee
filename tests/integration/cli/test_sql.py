"""`scankv sql`: queries over live tables and files, in the formats of `scankv scan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet

from aio_client import sync
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
    assert (
        "SQL only reads: for this, use table.delete_where(where)"
        in scankv("sql", f"delete from {scores}", code=1).stderr
    )


def test_a_query_that_is_abandoned_leaves_no_scan(scankv: CommandLine, server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        rows = pyarrow.table({"k": range(100_000)})
        client.create_table("sql.many", rows.schema, primary_key=["k"]).upsert(rows)
        for _ in range(3):
            done = scankv("sql", "select k from sql.many limit 10", "--url", server.url)
            assert (len(done.text.splitlines()), done.stderr) == (11, "")
        wait_until(lambda: client.stats().live_scans == 0, "the scans ended")
