from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import sync

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine


STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_terminal(scankv: CommandLine, *arguments: str, typed: str = "", width: int = 60) -> tuple[int, str]:
    """Runs a command on its own terminal; returns its exit code and all text that the terminal shows."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    os.write(controller, typed.encode())
    with scankv.start(*arguments, stdin=terminal, stdout=terminal, stderr=terminal, terminal=True) as process:
        os.close(terminal)
        shown = b""
        try:
            while data := os.read(controller, 65_536):
                shown += data
        except OSError:
            # This is how reading from a terminal ends.
            pass
        process.wait(60)
    os.close(controller)
    return process.returncode, STYLES.sub("", shown.decode().replace("\r\n", "\n"))


def test_a_scan_is_a_table_that_stops_after_100_rows(scankv: CommandLine, table: str) -> None:
    scankv("load", table, "-", "--create", "--key", "n", stdin="n\n" + "\n".join(map(str, range(150))) + "\n")
    code, shown = on_terminal(scankv, "scan", table)
    assert code == 0
    assert len([line for line in shown.splitlines() if line.strip().isdigit()]) == 100
    assert "100 rows, and there are more; --limit shows them" in shown
    code, shown = on_terminal(scankv, "scan", table, "--limit", "120")
    assert len([line for line in shown.splitlines() if line.strip().isdigit()]) == 120
    assert "120 rows\n" in shown


def test_columns_that_do_not_fit_are_named(scankv: CommandLine, table: str) -> None:
    names = [f"column_{number}" for number in range(10)]
    scankv("load", table, "-", "--create", "--key", "column_0", stdin=",".join(names) + "\n" + "1," * 9 + "1\n")
    code, shown = on_terminal(scankv, "scan", table)
    assert code == 0
    assert shown.splitlines()[0].split() == names[:5]
    assert "not enough width for: column_5, column_6" in shown
    code, shown = on_terminal(scankv, "scan", table, width=200)
    assert shown.splitlines()[0].split() == names


def test_a_listing_on_a_narrow_terminal_wraps_because_its_ids_are_to_be_copied(
    scankv: CommandLine, scores: str
) -> None:
    snapshot = scankv("snapshots", "create", scores).text.strip()
    code, shown = on_terminal(scankv, "snapshots", "list", scores, width=60)
    assert code == 0
    header, _, line = shown.splitlines()
    assert header.split()[:2] == ["snapshot", "table"]
    assert line.split()[:2] == [snapshot, scores]
    assert len(line) < 200
    scankv("snapshots", "release", snapshot)


def test_control_characters_do_not_reach_the_terminal(scankv: CommandLine, scores: str) -> None:
    scankv("put", scores, '{"player": "\\u001b[31mred\\u0007"}')
    _, shown = on_terminal(scankv, "scan", scores, "--columns", "player")
    assert "·[31mred·" in shown


def test_binary_formats_are_not_for_a_terminal(scankv: CommandLine, scores: str) -> None:
    code, shown = on_terminal(scankv, "scan", scores, "--format", "parquet", width=200)
    assert code == 1
    assert "scankv: error: parquet cannot be shown on a terminal" in shown


def test_dropping_asks_first(scankv: CommandLine, scores: str) -> None:
    code, shown = on_terminal(scankv, "drop", scores, typed="n\n")
    assert code == 1
    assert f"Drop {scores} with its 3 rows?" in shown
    assert scankv("count", scores).text == "3\n"
    code, _ = on_terminal(scankv, "drop", scores, typed="y\n")
    assert code == 0
    assert scores in scankv.fails("count", scores)


@pytest.mark.breadth
def test_loading_shows_how_far_it_is(scankv: CommandLine, scores: str, tmp_path: object) -> None:
    path = f"{tmp_path}/more.csv"
    with open(path, "w") as file:
        file.write("player,score\n" + "".join(f"p{number},{number}\n" for number in range(300_000)))
    code, shown = on_terminal(scankv, "load", scores, path, width=200)
    assert code == 0, shown
    assert "rows/s" in shown
    assert f"loaded 300,000 rows into {scores}" in shown


@pytest.mark.breadth
def test_building_an_index_and_checking_show_how_far_they_are(scankv: CommandLine, scores: str) -> None:
    scankv("load", scores, "-", stdin="player,score\n" + "".join(f"p{number},{number}\n" for number in range(20_000)))
    code, shown = on_terminal(scankv, "indexes", "add", scores, "score", width=200)
    assert code == 0, shown
    assert "of 20,003 rows" in shown
    assert f"built the index on (score) of {scores}" in shown
    code, shown = on_terminal(scankv, "check", scores, width=200)
    assert code == 0, shown
    assert "2 of 2 buckets  20,003 rows" in shown
    assert "all consistent" in shown


@pytest.mark.breadth
def test_an_error_in_a_predicate_shows_its_place_below_the_text(scankv: CommandLine, table: str) -> None:
    scankv("load", table, "-", "--create", "--key", "n", stdin="n\n1\n")
    code, shown = on_terminal(scankv, "count", table, "--where", "n > 0 AND n == 1", width=200)
    assert code == 1
    first, text, caret, *_ = shown.splitlines()
    assert first.endswith('line 1, column 13: expected AND, OR or the end, found "=="')
    assert text[caret.index("^") :] == "== 1"


HOSTILE = "\x1b]0;owned\x07\x9b2J\u202etxt"


@pytest.mark.parametrize(
    "arguments",
    [
        ["scan", "TABLE"],
        ["scan", "TABLE", "--format", "csv"],
        ["scan", "TABLE", "--format", "jsonl"],
        ["scan", "TABLE", "--explain", "--where", f"v = '{HOSTILE}'"],
        ["get", "TABLE", "1"],
        ["get", "TABLE", "1", "--format", "jsonl"],
        ["top", "TABLE", "--order-by", "k"],
        ["top", "TABLE", "--order-by", "k", "--format", "jsonl"],
        ["tail", "TABLE", "--from", "full", "--until", "latest"],
        ["tail", "TABLE", "--from", "full", "--until", "latest", "--format", "jsonl"],
        ["tail", "TABLE", "--from", "full", "--until", "latest", "--format", "debezium-jsonl"],
        ["scan", "TABLE", "--columns", f"no{HOSTILE}"],
    ],
)
@pytest.mark.represented_by("arguments0", "arguments11")
def test_stored_values_and_names_do_not_steer_the_terminal(
    scankv: CommandLine, table: str, arguments: list[str]
) -> None:
    with sync.connect(scankv.url) as client:
        schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.list_(pa.string()))])
        created = client.create_table(table, schema, primary_key=["k"])
        created.upsert([{"k": 1, "v": f"a{HOSTILE}", "n": [HOSTILE]}])
    _, shown = on_terminal(scankv, *(table if each == "TABLE" else each for each in arguments), width=200)
    assert "owned" in shown
    steering = set(re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]", shown))
    assert steering == set(), shown


def test_a_pipe_and_a_file_get_every_byte(scankv: CommandLine, table: str, tmp_path: Path) -> None:
    with sync.connect(scankv.url) as client:
        created = client.create_table(table, pa.schema([("k", pa.int64()), ("v", pa.string())]), primary_key=["k"])
        created.upsert([{"k": 1, "v": HOSTILE}])
    line = f"1,{HOSTILE}\n"
    assert scankv("scan", table, "--format", "csv").text == f"k,v\n{line}"
    code, _ = on_terminal(scankv, "scan", table, "-o", str(tmp_path / "rows.csv"))
    assert code == 0
    assert (tmp_path / "rows.csv").read_text() == f"k,v\n{line}"
