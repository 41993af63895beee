"""`scankv check --offline` reads a complete data directory, finds every kind of damage, and changes nothing."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import sync
from tests.support.command_line import CommandLine
from tests.support.prepared import flip
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
scankv = CommandLine("")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one of everything."""
    data = tmp_path_factory.mktemp("offline") / "data"
    settings = ("--set", "base_min_rows=1", "--set", "base_maintenance_seconds=0.05")
    with ServerProcess(data, *settings) as server, sync.connect(server.url) as client:
        table = client.create_table(
            "a.full", SCHEMA, primary_key=["k"], buckets=2, indexes=["v"], columnar_base="eager"
        )
        table.upsert(pa.table({"k": range(2000), "v": range(2000)}, schema=SCHEMA))
        table.snapshot(ttl=3600)
        with table.changes().with_consumer_id("job").stream() as stream:
            next(iter(stream))
            stream.commit()
        table.upsert(pa.table({"k": range(50), "v": [0] * 50}, schema=SCHEMA), track_changes=False)
        wait_until(lambda: [each for each in client.server_stats().bases if each.bases == 2], "bases are built")
        client.create_table("a.unused", SCHEMA, primary_key=["k"])
        log = client.create_table("a.log", SCHEMA, primary_key=[], buckets=1)
        log.append(pa.table({"k": range(10), "v": range(10)}, schema=SCHEMA))
        transaction = client.transaction()
        transaction.upsert(table, [{"k": -1, "v": -1}])
        with client.transaction(id="job:1") as other:
            other.upsert(table, [{"k": -2, "v": -2}])
        assert server.stop() == 0
    return data


def check(data: Path, code: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scankv("check", "--offline", str(data), "--json", code=code).json
    return found


def digests(data: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in data.rglob("*") if path.is_file()}


def test_a_sound_directory_is_read_completely_and_not_changed(prepared: Path) -> None:
    before = digests(prepared)
    found = check(prepared)
    assert not [each for each in found if each["problem"]]
    rows = [each["count"] for each in found if each["part"].startswith("bucket ") and each["table"] == "a.full"]
    assert sum(rows) == 2001
    parts = " ".join(each["part"] for each in found)
    for part in (
        "clock",
        "transaction log",
        "transaction ",
        "index (v)",
        "changelog of",
        "snapshot view",
        "consumer job",
    ):
        assert part in parts
    after = digests(prepared)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} <= {
        str(prepared / "LOCK")
    }
    assert "all consistent" in scankv("check", "--offline", str(prepared)).text


def _table(data: Path) -> Path:
    return data / "tables" / "a" / "full"


DAMAGES: dict[str, Callable[[Path], None]] = {
    "clock": lambda data: flip(data / "clock.json", 30),
    "transaction log": lambda data: flip(next((data / "transactions").glob("log-*[0-9]")), 40),
    "definition": lambda data: flip(_table(data) / "table.json", 60),
    "bucket 0": lambda data: shutil.rmtree(_table(data) / "buckets" / "0000"),
    "consumer job": lambda data: flip(_table(data) / "consumers" / "job.json", 60),
    "snapshot view": lambda data: flip(next((_table(data) / "snapshots").glob("*/manifest.json")), 60),
}


@pytest.mark.parametrize("part", DAMAGES)
def test_damage_is_found_and_what_to_do_is_said(prepared: Path, tmp_path: Path, part: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    DAMAGES[part](data)
    problems = [each for each in check(data, code=1) if each["problem"]]
    assert problems
    assert any(part in each["part"] for each in problems)
    assert all(each["advice"] for each in problems)
    assert "To do:" in scankv("check", "--offline", str(data), code=1).stderr


def test_damage_in_every_table_file_is_found(prepared: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    for file in sorted((_table(data) / "buckets" / "0000").glob("*.sst")):
        content = file.read_bytes()
        flip(file, 20)  # in the first data block
        assert [each for each in check(data, code=1) if each["problem"]], file
        file.write_bytes(content)
    assert not [each for each in check(data) if each["problem"]]


def test_a_directory_in_use_and_a_wrong_one_are_refused(prepared: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    with ServerProcess(data):
        assert "in use by the server" in scankv.fails("check", "--offline", str(data))
    assert "missing" in scankv.fails("check", "--offline", str(tmp_path / "missing"))
    (tmp_path / "foreign").mkdir()
    assert "not a ScanKV data directory" in scankv.fails("check", "--offline", str(tmp_path / "foreign"))
    assert "leave out the table" in scankv.fails("check", "a.full", "--offline", str(data))
