from __future__ import annotations

import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from aio_client import sync
from tests.support.command_line import CommandLine
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def large(shared_server: ServerProcess) -> str:
    """Makes a table as `create_large` does."""
    return create_large(shared_server.url)


def create_large(url: str) -> str:
    """Creates a table of 60 MiB, which exceeds the pipes and windows between a server and a reader."""
    ids = pa.array(range(120_000))
    rows = pa.table({"id": ids, "text": pa.array(["x" * 500] * len(ids))})
    with sync.connect(url) as client:
        table = client.create_table("cli.large", rows.schema, primary_key=["id"])
        table.upsert(rows)
    return table.name


@pytest.mark.breadth
def test_a_scan_that_breaks_off_says_what_to_do_in_a_shell(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        scankv = CommandLine(server.url)
        with scankv.start("scan", create_large(server.url), "--format", "csv") as process:
            assert process.stdout is not None
            assert process.stdout.read(10_000)
            server.kill()
            _, stderr = process.communicate(timeout=120)
    (line,) = stderr.decode().splitlines()
    assert re.match(r"scankv: error: the scan of cli\.large broke off after [\d,]+ rows, before its end: ", line)
    assert line.endswith("; start the scan again")
    assert process.returncode == 1


def test_rows_come_as_csv_into_a_pipe(scankv: CommandLine, scores: str) -> None:
    lines = scankv("scan", scores).text.splitlines()
    assert lines[0] == "player,score"
    assert sorted(lines[1:]) == ["ann,31", "bob,27", "cem,"]


def test_columns_and_limit_narrow_the_scan(scankv: CommandLine, scores: str) -> None:
    assert scankv("scan", scores, "--columns", "score, player", "--limit", "0").text == "score,player\n"
    assert len(scankv("scan", scores, "--columns", "score", "--limit", "2").text.splitlines()) == 3


def test_the_isolation_is_chosen(scankv: CommandLine, scores: str) -> None:
    committed, latest = (scankv("scan", scores, "--isolation", each).text for each in ("read_committed", "read_latest"))
    assert committed == latest
    wrong = scankv("scan", scores, "--isolation", "serializable", code=2).stderr
    assert "read_committed" in wrong


def test_the_consistency_is_chosen(scankv: CommandLine, scores: str) -> None:
    of_table, of_owners = (scankv("scan", scores, "--consistency", each).text for each in ("table", "owner"))
    assert of_table == of_owners
    assert "owner" in scankv("scan", scores, "--consistency", "worker", code=2).stderr


def test_a_predicate_chooses_the_rows_and_a_wrong_one_says_where_it_is_wrong(scankv: CommandLine, scores: str) -> None:
    assert scankv("scan", scores, "--where", "score > 30 AND player LIKE 'a%'").text == "player,score\nann,31\n"
    assert scankv("scan", scores, "--where", "score > 30.5 AND player LIKE '%n_'").text == "player,score\nann,31\n"
    assert scankv("scan", scores, "--where", "score IS NULL", "--columns", "player").text == "player\ncem\n"
    said = scankv.fails("scan", scores, "--where", "scroe > 30")
    assert '"scroe"' in said
    assert 'did you mean "score"?' in said


def test_a_table_is_printed_when_asked(scankv: CommandLine, scores: str) -> None:
    lines = scankv("scan", scores, "--format", "table").text.splitlines()
    assert lines[0].split() == ["player", "score"]
    assert ["cem", "null"] in [line.split() for line in lines]


def test_an_empty_table_has_its_columns(scankv: CommandLine, table: str) -> None:
    scankv("create", table, "--schema", "a string, b int64", "--key", "a")
    assert scankv("scan", table).text == "a,b\n"
    assert scankv("scan", table, "--format", "jsonl").text == ""
    assert pa.ipc.open_stream(scankv("scan", table, "--format", "arrow").stdout).read_all().schema.names == ["a", "b"]


def test_a_column_that_is_not_there_is_named_with_the_near_one(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    message = scankv.fails("scan", scores, "--columns", "scor", "-o", str(tmp_path / "out.csv"))
    assert '"scor"; did you mean "score"?' in message
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out.csv"
    assert f"{path}: No such file or directory" in scankv.fails("scan", scores, "-o", str(path))
    for name, other in (("out.xlsx", "out.csv"), ("out.v2.parquet.gz", "out.v2.parquet")):
        assert scankv.fails("scan", scores, "-o", str(tmp_path / name)).endswith(f"name a file such as {other}")
        assert not (tmp_path / name).exists()
    assert "to write a file, not table" in scankv.fails("scan", scores, "-o", str(path), "--format", "table")


@pytest.mark.parametrize("format_", ["csv", "jsonl", "parquet", "arrow"])
@pytest.mark.breadth
def test_a_closed_pipe_ends_it_quietly_and_frees_the_iterator(scankv: CommandLine, large: str, format_: str) -> None:
    with scankv.start("scan", large, "--format", format_) as process:
        assert process.stdout is not None
        assert process.stdout.read(100)
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    wait_until(lambda: live_scans(scankv) == 0, "no live scan")


def test_ctrl_c_ends_it_quickly_and_frees_the_iterator(scankv: CommandLine, large: str) -> None:
    with scankv.start("scan", large) as process:
        assert process.stdout is not None
        # The output is not read any more: the command blocks in a write when it is interrupted.
        assert process.stdout.read(1)
        assert live_scans(scankv) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    wait_until(lambda: live_scans(scankv) == 0, "no live scan")


@pytest.mark.parametrize(("ended_by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_early_end_leaves_no_half_file(
    scankv: CommandLine, large: str, tmp_path: Path, ended_by: signal.Signals, code: int
) -> None:
    with scankv.start("scan", large, "-o", str(tmp_path / "out.csv"), stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: any(tmp_path.glob(".out.csv.*.part")), "a file in the making")
        process.send_signal(ended_by)
        # The command may have finished just before.
        assert process.wait(60) in (0, code)
    assert not list(tmp_path.glob(".out.csv.*"))


def live_scans(scankv: CommandLine) -> int:
    with sync.connect(scankv.url) as client:
        return client.stats().live_scans


def test_rows_come_in_key_order_where_that_is_asked_for(scankv: CommandLine, scores: str) -> None:
    assert scankv("scan", scores, "--ordered").text.splitlines()[1:] == ["ann,31", "bob,27", "cem,"]


def test_explain_prints_what_would_be_read(scankv: CommandLine, scores: str) -> None:
    text = scankv("scan", scores, "--where", "player >= 'b' AND score > 30", "--limit", "5", "--explain").text
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert lines["source"] == f"{scores}, live"
    assert lines["keys"] == "player >= 'b'"
    assert lines["filter"] == 'col("score") > 30'
    assert lines["read"] == "score"
    assert lines["returned"] == "player, score"
    assert lines["limit"] == "5 rows"
