from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from tests.support.command_line import CommandLine
from tests.support.offline import bucket_path, offline_table
from tests.support.prepared import flip, prepared_table, rows_file, value_of
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

ROWS = "player,score\n" + "".join(f"p{number},{number}\n" for number in range(1000))


@pytest.fixture
def indexed(scankv: CommandLine, table: str) -> str:
    """Makes a table of 1,000 rows in two buckets with an index."""
    scankv("create", table, "--schema", "player string, score int64", "--key", "player", "--buckets", "2")
    scankv("indexes", "add", table, "score")
    scankv("load", table, "-", stdin=ROWS)
    return table


def test_a_table_that_agrees_is_said_so_by_bucket_and_index(scankv: CommandLine, indexed: str) -> None:
    header, _, *lines = scankv("check", indexed).text.splitlines()
    assert header.split() == ["table", "bucket", "part", "count", "result"]
    parts = [line.split() for line in lines[:-1]]
    counts = {bucket: [int(part[-2]) for part in parts if part[1] == bucket] for bucket in ("0", "1")}
    assert all(rows == entries for rows, entries in counts.values())
    assert sum(rows for rows, _ in counts.values()) == 1000
    assert [part[2:-2] for part in parts] == [["rows"], ["index", "score"]] * 2
    assert {part[-1] for part in parts} == {"consistent"}
    assert lines[-1] == "1 table, 2 buckets, 1,000 rows, 1,000 index entries: all consistent"


def test_a_check_as_json_has_all_figures(scankv: CommandLine, indexed: str) -> None:
    (checked,) = scankv("check", indexed, "--json").json
    assert (checked["table"], checked["is_consistent"]) == (indexed, True)
    assert [bucket["bucket"] for bucket in checked["buckets"]] == [0, 1]
    for bucket in checked["buckets"]:
        (index,) = bucket["indexes"]
        assert index == {"columns": ["score"], "entries": bucket["rows"], "ready": True, "problem": None}
        assert bucket["problem"] is None


def test_a_table_that_is_not_there_is_named(scankv: CommandLine, indexed: str) -> None:
    assert f'"{indexed}"' in scankv.fails("check", indexed + "x")


def take_an_entry(data_dir: Path, table: str) -> None:
    """Removes one index entry of a stopped server's table, directly in its storage."""
    with offline_table(data_dir, table) as (offline,):
        store = offline.bucket._store
        batch = store.batch()
        batch.delete_entries([cast("bytes", next(iter(store.index.items()))[0])])
        store.write(batch)
        store.sync()


def test_what_is_wrong_is_listed_and_the_exit_code_is_1(server: ServerProcess) -> None:
    scankv = CommandLine(server.url)
    scankv("create", "a.good", "--schema", "player string, score int64", "--key", "player", "--index", "score")
    scankv("create", "b.torn", "--schema", "player string, score int64", "--key", "player", "--buckets", "1")
    scankv("indexes", "add", "b.torn", "score")
    for table in ("a.good", "b.torn"):
        scankv("load", table, "-", stdin=ROWS)
    assert scankv("check").text.splitlines()[-1].endswith(": all consistent")
    server.stop()
    take_an_entry(server.data_dir, "b.torn")
    server.restart()
    finished = scankv("check", code=1)
    (problem,) = finished.stderr.splitlines()
    assert problem.startswith("scankv: error: b.torn, bucket 0, index (score): ")
    assert finished.text.splitlines()[-1] == "2 tables, 5 buckets, 2,000 rows, 1,999 index entries: 1 problem"
    assert scankv("check", "a.good").text.splitlines()[-1].endswith(": all consistent")
    good, torn = scankv("check", "--json", code=1).json
    assert (good["is_consistent"], torn["is_consistent"]) == (True, False)
    assert torn["buckets"][0]["indexes"][0]["entries"] == 999
    assert torn["buckets"][0]["indexes"][0]["problem"] in problem


def test_a_damaged_bucket_is_a_problem_and_the_others_are_checked(tmp_path: Path) -> None:
    prepared_table(tmp_path / "data", "test.damaged", 2000)
    file = rows_file(bucket_path(tmp_path / "data", "test.damaged", 0))
    keys = [number for number in range(2000) if value_of(number).encode() in file.read_bytes()]
    flip(file, file.read_bytes().find(value_of(keys[len(keys) // 2]).encode()) + 3)
    with ServerProcess(tmp_path / "data") as server:
        finished = CommandLine(server.url)("check", code=1)
    assert [line.split(": ")[2] for line in finished.stderr.splitlines()] == ["test.damaged, bucket 0"]
    (whole,) = [
        line.split() for line in finished.text.splitlines() if line.startswith("test.damaged ") and "consistent" in line
    ]
    assert whole[1:] == ["1", "rows", f"{2000 - len(keys):,}", "consistent"]
