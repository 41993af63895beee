"""`scankv check --offline` reads a complete data directory, finds every kind of damage, and changes nothing."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import PositionOutOfRange, StartFrom, StopAt, sync
from streaming_server.storage.files.checked_json import read_checked_json, write_checked_json
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_options import RocksResources
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
        wait_until(lambda: [each for each in client.stats().bases if each.bases == 2], "bases are built")
        client.create_table("a.unused", SCHEMA, primary_key=["k"])
        log = client.create_table("a.log", SCHEMA, primary_key=[], buckets=1)
        # More than a stop leaves in the write-ahead log.
        log.append(pa.table({"k": range(100_000), "v": range(100_000)}, schema=SCHEMA))
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
@pytest.mark.represented_by("clock")
def test_damage_is_found_and_what_to_do_is_said(prepared: Path, tmp_path: Path, part: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    DAMAGES[part](data)
    problems = [each for each in check(data, code=1) if each["problem"]]
    assert problems
    assert any(part in each["part"] for each in problems)
    assert all(each["advice"] for each in problems)
    assert "To do:" in scankv("check", "--offline", str(data), code=1).stderr


@pytest.mark.parametrize("left", ["manifest.json", "leases"])
def test_a_snapshot_that_a_crash_has_left_unfinished_is_no_damage(prepared: Path, tmp_path: Path, left: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    (view,) = (_table(data) / "snapshots").iterdir()
    for path in [view / left] if left == "manifest.json" else (view / left).iterdir():
        path.unlink()
    before = digests(data / "tables")
    assert not [each for each in check(data) if each["problem"]]
    assert digests(data / "tables") == before


@pytest.mark.breadth
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


def recover(data: Path, code: int = 0) -> list[dict[str, Any]]:
    found = scankv("check", "--offline", str(data), "--recover", "--json", code=code).json
    return [each for each in found if each["problem"]]


RECOVERED = ["clock", "bucket 0", "consumer job", "snapshot view"]


@pytest.mark.parametrize("part", RECOVERED)
@pytest.mark.represented_by("clock")
def test_what_can_be_done_without_is_set_aside(prepared: Path, tmp_path: Path, part: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    rows = {each["part"]: each["count"] for each in check(data) if each["table"] == "a.full"}
    before = digests(data)
    DAMAGES[part](data)
    problems = recover(data)
    assert all(each["recovered"] for each in problems)
    assert not [each for each in check(data) if each["problem"]]
    if part != "bucket 0":
        # Everything else is as it was, and the damaged file is kept.
        kept = {path.name for path in (data / "damaged").rglob("*")}
        gone = {path for path in before if not (data / path).exists()}
        assert {path.rpartition("/")[2] for path in gone} <= kept
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        lost = rows["bucket 0"] if part == "bucket 0" else 0
        assert client.table("a.full").count() == 2001 - lost
        assert client.table("a.full").upsert([{"k": 5000, "v": 1}]).rows == 1
        assert all(bucket.is_consistent for bucket in client.check_table("a.full"))


@pytest.mark.parametrize("damage", ["a byte", "the end"])
@pytest.mark.represented_by("a byte")
def test_a_damaged_write_ahead_log_is_replayed_up_to_the_damage(tmp_path: Path, damage: str) -> None:
    data = tmp_path / "data"
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        table = client.create_table("a.b", SCHEMA, primary_key=["k"], buckets=1, indexes=["v"])
        for number in range(100):
            table.upsert([{"k": number, "v": number}])
        offsets = table.log_offsets()
        server.kill()
    (log,) = [path for path in (data / "tables/a/b/buckets/0000").glob("*.log") if path.stat().st_size]
    if damage == "a byte":
        flip(log, log.stat().st_size // 2)
    else:
        log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    content = log.read_bytes()
    (problem,) = recover(data)
    assert "acknowledged changes are lost" in problem["recovered"]
    lost = int(problem["recovered"].split()[0])
    assert 30 < lost < 70
    assert not [each for each in check(data) if each["problem"]]
    assert content in [path.read_bytes() for path in (data / "damaged").rglob("*.log")]
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        table = client.table("a.b")
        rows = sorted(table.scan().to_arrow()["k"].to_pylist())
        assert rows == list(range(100 - lost))
        assert all(bucket.is_consistent for bucket in client.check_table("a.b"))
        table.upsert([{"k": number, "v": -number} for number in range(100)])
        # A position after the lost changes does not mean others.
        with pytest.raises(PositionOutOfRange):
            table.changes(StartFrom.offsets(offsets), StopAt.LATEST).to_arrow()


def test_an_index_that_differs_is_built_again(prepared: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    resources = RocksResources.of_sizes(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    store = RocksStore(_table(data) / "buckets" / "0000", "bucket", compression="lz4", resources=resources)
    batch = store.batch()
    batch.delete_entry_range(b"", b"\xff" * 20)
    store.write(batch)
    batch.release()  # It keeps the lock of the store.
    store.close()
    (problem,) = recover(data)
    assert (problem["part"], problem["recovered"]) == ("index (v) of bucket 0", "the server builds it again")
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        wait_until(
            lambda: all(each.ready for bucket in client.check_table("a.full") for each in bucket.indexes), "built again"
        )
        assert all(bucket.is_consistent for bucket in client.check_table("a.full"))


def test_entries_of_an_index_whose_id_another_index_has_are_found(prepared: Path, tmp_path: Path) -> None:
    """As in a directory that an earlier version restored as of an instant before the index on `v` was added."""
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    file = _table(data) / "table.json"
    definition = read_checked_json(file)
    write_checked_json(file, {**definition, "indexes": [], "last_index_id": 0})
    assert {each["problem"].partition(" has ")[2] for each in check(data, code=1) if each["problem"]} == {
        f"{count:,} entries of indexes that the table does not have" for count in entries_by_bucket(prepared)
    }
    write_checked_json(file, {**definition, "indexes": [{"id": 1, "columns": ["k"]}]})
    with ServerProcess(data) as server:
        online = CommandLine(server.url)("check", "a.full", "--json", code=1)
        assert "differs from the rows" in online.text + online.stderr
    parts = [(each["part"], each["problem"], bool(each["advice"])) for each in check(data, code=1) if each["problem"]]
    assert parts == [(f"index (k) of bucket {number}", "differs from the rows", True) for number in range(2)]


def entries_by_bucket(data: Path) -> list[int]:
    return [each["count"] for each in check(data) if each["part"].startswith("index (v) of bucket")]


def test_what_cannot_be_recovered_is_left_as_it_is(prepared: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    DAMAGES["definition"](data)
    next((_table(data).parent / "log" / "buckets" / "0000").glob("*.sst")).unlink()
    before = {path: digest for path, digest in digests(data / "tables").items() if not path.endswith(("LOG", "LOCK"))}
    problems = recover(data, code=1)
    assert len(problems) == 2
    assert not any(each["recovered"] for each in problems)
    assert digests(data / "tables").items() >= before.items()
    assert "needs --offline" in scankv.fails("check", "--recover")
