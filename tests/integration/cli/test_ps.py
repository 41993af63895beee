from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ScanCancelled, sync
from tests.support.command_line import CommandLine
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stream(scankv: CommandLine, table: str) -> Iterator[sync.ScanStream]:
    """Starts a scan of `table`, and reads no further."""
    with sync.connect(scankv.url) as client:
        schema = pa.schema([("k", pa.int64()), ("text", pa.string())])
        made = client.create_table(table, schema, primary_key=["k"], buckets=12)
        # 16 MB, which nothing between server and client can hold.
        made.upsert(pa.table({"k": range(4000), "text": ["x" * 4000] * 4000}, schema))
        with made.scan().with_chunk(rows=10).stream() as stream:
            next(stream)
            yield stream


def test_live_scans_are_listed(scankv: CommandLine, table: str, stream: sync.ScanStream) -> None:
    (listed,) = (scan for scan in scankv("ps", "--json").json if scan["table"] == table)
    assert listed["scan_id"] == stream.scan_id
    assert listed["buckets"] == list(range(12))
    assert listed["snapshot_id"] is None
    assert listed["rows"] >= 10
    assert 0 <= listed["idle"] <= listed["age"]
    header, _, *lines = scankv("ps").text.splitlines()
    assert header.split() == ["scan", "table", "buckets", "age", "idle", "rows", "bytes", "peer", "snapshot"]
    (line,) = (line for line in lines if table in line)
    assert line.split()[:2] == [stream.scan_id, table]
    assert "0,1,2,3,4,5,6,7,… (12)" in line


def test_a_scan_is_ended_by_the_beginning_of_its_id(scankv: CommandLine, table: str, stream: sync.ScanStream) -> None:
    ended = scankv("cancel", stream.scan_id[:6]).text
    assert ended.startswith(f"ended scan {stream.scan_id} of {table} by ")
    assert table not in scankv("ps").text
    with pytest.raises(ScanCancelled):
        list(stream)
    assert f"no live scan has the id {stream.scan_id}" in scankv.fails("cancel", stream.scan_id)


def test_slow_calls_are_listed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "slow_request_seconds=0.000001") as server:
        scankv = CommandLine(server.url)
        scankv("create", "a.slow", "--schema", "k int64", "--key", "k")
        scankv("scan", "a.slow")
        (listed,) = (call for call in scankv("slow", "--json").json if call["method"] == "ScanService/ScanKv")
        assert (listed["table"], listed["code"]) == ("a.slow", "OK")
        assert 0 <= listed["waited"] <= listed["elapsed"]
        (line,) = (line for line in scankv("slow").text.splitlines() if listed["request_id"] in line)
        assert "ScanService/ScanKv" in line
        assert listed["plan"] in line


def test_a_server_without_slow_calls_says_so(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        scankv = CommandLine(server.url)
        assert scankv("slow", "--json").json == []
        assert (
            scankv("slow").stderr
            == "no slow calls are remembered; those of a worker are forgotten when it is started again\n"
        )


def test_a_scan_that_is_not_there_does_not_keep_the_others(
    scankv: CommandLine, table: str, stream: sync.ScanStream
) -> None:
    finished = scankv("cancel", "nowhere", stream.scan_id, code=1)
    assert "no live scan has the id nowhere; it may have ended: list live scans with scankv ps" in finished.stderr
    assert stream.scan_id in finished.text
    assert table not in scankv("ps").text


def test_too_little_of_an_id_ends_nothing(scankv: CommandLine, table: str, stream: sync.ScanStream) -> None:
    assert "give at least 6 characters" in scankv.fails("cancel", stream.scan_id[:5])
    assert "give at least 6 characters" in scankv.fails("cancel", "")
    assert table in scankv("ps").text
    scankv("cancel", code=2)


def test_no_live_scan_is_said_so(scankv: CommandLine) -> None:
    # Scans of other tests may still be ending.
    wait_until(lambda: scankv("ps", "--json").json == [], "no live scan")
    finished = scankv("ps")
    assert (finished.text, finished.stderr) == ("", "no scan is live\n")


def test_statistics_show_what_scans_and_snapshots_hold(
    scankv: CommandLine, table: str, stream: sync.ScanStream
) -> None:
    snapshot = scankv("snapshots", "create", table).text.strip()
    figures = scankv("stats", "--json").json
    assert figures["open_cursors"] >= 1
    assert figures["snapshot_views"] >= 1
    assert figures["snapshot_leases"] >= 1
    assert figures["open_files"] > 0
    assert figures["tasks"] > 0
    assert "kept on disk by snapshots" in scankv("stats").text
    scankv("snapshots", "release", snapshot)
