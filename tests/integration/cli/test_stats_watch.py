"""`scankv stats --watch` on a terminal and in a pipe, while the server works, and while it is away."""

from __future__ import annotations

import json
import re
import signal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aio_client import sync
from tests.support.command_line import CommandLine
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import subprocess

    from tests.support.server_process import ServerProcess

WATCH = ("stats", "--watch", "--interval", "0.1")
ROWS = 1000


def load(url: str, table: str) -> sync.Table:
    with sync.connect(url) as client:
        found = client.create_table(table, pa.schema([("k", pa.int64())]), primary_key=["k"])
        found.upsert(pa.table({"k": range(ROWS)}))
        assert len(found.scan().to_arrow()) == ROWS
    return found


def line_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def test_json_lines_have_the_values_and_what_happened_per_second(server: ServerProcess) -> None:
    with CommandLine(server.url).start(*WATCH, "--json") as process:
        first = line_of(process)
        assert first["per_second"] is None
        load(server.url, "cli.rates")
        found = [first]
        while found[-1]["stats"]["rows_scanned"] < ROWS:
            found.append(line_of(process))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    for before, now in pairwise(found):
        seconds = now["stats"]["uptime"] - before["stats"]["uptime"]
        for name, rate in now["per_second"].items():
            assert abs(rate * seconds - (now["stats"][name] - before["stats"][name])) < 0.01, name
    rates = [line["per_second"] for line in found[1:]]
    assert all(
        set(each) >= {"calls", "rows_scanned", "rows_written", "bytes_returned", "stalled_scans"} for each in rates
    )
    assert max(each["rows_scanned"] for each in rates) > 0
    assert max(each["calls"] for each in rates) > 0


def test_a_terminal_shows_values_and_rates_in_place(server: ServerProcess) -> None:
    def shown(label: str) -> str:
        match = re.search(rf"^{label} {{2,}}(\S+)", terminal.screen, re.MULTILINE)
        return "" if match is None else match[1]

    with Terminal(CommandLine(server.url), *WATCH, height=80) as terminal:
        wait_until(lambda: shown("tables") == "0" and shown("calls per second"), "the statistics with rates")
        load(server.url, "cli.shown")
        wait_until(lambda: shown("rows scanned") == "1,000", "the rows of the scan")
        assert terminal.interrupt() == 0
        assert shown("tables") == "1"


def test_a_pipe_gets_one_block_for_each_interval(server: ServerProcess) -> None:
    with CommandLine(server.url).start(*WATCH) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while sum(line.startswith("calls per second ") for line in lines) < 2:
            lines.append(process.stdout.readline().decode().rstrip())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert re.fullmatch(r"\d\d:\d\d:\d\d", lines[0])
    block = lines[: lines.index("", lines.index("") + 1)]
    assert any(line.startswith("version ") for line in block)
    assert "\x1b" not in "".join(lines)


def test_a_watch_survives_a_restart_and_says_that_the_server_is_away(server: ServerProcess) -> None:
    with CommandLine(server.url).start(*WATCH, "--json") as process:
        before = line_of(process)["stats"]["incarnation"]
        server.kill()
        while "error" not in (line := line_of(process)):
            pass
        assert server.url in line["error"]
        server.restart()
        while "stats" not in (line := line_of(process)):
            pass
        assert line["stats"]["incarnation"] != before
        assert line["per_second"] is None
        process.kill()


def test_wrong_usage_is_refused(scankv: CommandLine) -> None:
    assert "--interval is an option of --watch: add --watch" in scankv.fails("stats", "--interval", "2")
