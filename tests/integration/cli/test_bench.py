from __future__ import annotations

import re
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from aio_client import sync
from tests.support.bases import SOON
from tests.support.command_line import CommandLine
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ("--rows", "500", "--calls", "4", "--in-flight", "2", "--rounds", "1")
NAMES = [
    "no-op call",
    "load",
    "first scan",
    "third scan",
    "get",
    "get, 2 in flight",
    "durable one-row upsert",
    "durable one-row upsert, 2 in flight",
]


@pytest.fixture
def own_server(server: ServerProcess) -> CommandLine:
    """A server without other tests' tables, so that every table is one of `bench`."""
    return CommandLine(server.url)


def table_names(scankv: CommandLine) -> list[str]:
    with sync.connect(scankv.url) as client:
        return [table.name for table in client.tables() if table.name.startswith("scankv_bench.")]


@pytest.mark.breadth
def test_a_server_is_measured_with_a_table_that_is_dropped(own_server: CommandLine) -> None:
    found = own_server("bench", *SMALL, "--buckets", "2", "--json").json
    assert {name: found[name] for name in ("rows", "calls", "in_flight", "rounds", "buckets")} == {
        "rows": 500,
        "calls": 4,
        "in_flight": 2,
        "rounds": 1,
        "buckets": 2,
    }
    measurements = {each["name"]: each for each in found["measurements"]}
    assert list(measurements) == NAMES
    assert {name for name, each in measurements.items() if each["unit"] == "rows"} == {
        "load",
        "first scan",
        "third scan",
    }
    for each in measurements.values():
        assert 0 < each["least"] <= each["per_second"] <= each["greatest"]
    no_op = measurements["no-op call"]
    assert no_op["per_no_op_call"] == 1
    assert measurements["get"]["per_no_op_call"] == measurements["get"]["per_second"] / no_op["per_second"]
    assert found["bases"]["seconds"] == [None]
    assert "base_min_rows" in found["bases"]["unused_reason"]
    assert table_names(own_server) == []


@pytest.mark.breadth
def test_the_table_shows_ratios_to_a_no_op_call(own_server: CommandLine) -> None:
    header, _, *lines, bases = own_server("bench", *SMALL).text.splitlines()
    assert header.split("  ")[0] == "measured"
    assert header.endswith("in the time of a no-op call")
    assert [line.partition("  ")[0].rpartition(", ")[0] for line in lines] == NAMES
    assert "The third scan read no columnar base: it has fewer than" in bases


def test_the_third_scan_reads_the_bases_that_the_first_one_asked_for(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *SOON, "--set=base_min_rows=100") as server:
        scankv = CommandLine(server.url)
        *_, bases = scankv("bench", *SMALL, "--buckets=2").text.splitlines()
        assert re.match(
            r"Columnar bases were there [\d.]+ \(.+\) s after the first scan, and the third scan was [\d.]+ ", bases
        )


@pytest.mark.parametrize(("ended_by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.represented_by("2-130")
def test_an_early_end_drops_the_table(own_server: CommandLine, ended_by: signal.Signals, code: int) -> None:
    with own_server.start("bench", "--rows", "5000000", "--calls", "1") as process:
        wait_until(lambda: table_names(own_server), "a table of the benchmark")
        process.send_signal(ended_by)
        assert process.wait(60) == code
        assert process.stdout is not None
        assert process.stdout.read() == b""
    assert table_names(own_server) == []


def test_an_error_ends_it_with_one_message(own_server: CommandLine) -> None:
    with own_server.start("bench", "--rows", "5000000", "--calls", "1") as process:
        (name,) = wait_until(lambda: table_names(own_server), "a table of the benchmark")
        with sync.connect(own_server.url) as client:
            client.drop_table(name)
        assert process.wait(60) == 1
        assert process.stderr is not None
        (line,) = process.stderr.read().decode().splitlines()
    assert name in line


def test_an_absent_server_is_reported_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{unused.getsockname()[1]}"
        assert url in CommandLine(url).fails("bench", *SMALL)


@pytest.mark.parametrize("arguments", [("--rows", "0"), ("--in-flight", "5000"), ("--rounds", "many")])
def test_wrong_numbers_are_refused(own_server: CommandLine, arguments: tuple[str, str]) -> None:
    assert f"Invalid value for '{arguments[0]}'" in own_server("bench", *arguments, code=2).stderr


def test_a_table_that_the_server_refuses_is_an_error(own_server: CommandLine) -> None:
    assert "buckets" in own_server.fails("bench", *SMALL, "--buckets", "1000000")
    assert table_names(own_server) == []
