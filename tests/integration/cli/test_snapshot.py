from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine


@pytest.fixture
def snapshot(scankv: CommandLine, scores: str) -> str:
    """Takes a snapshot of `scores`, then changes the table."""
    created = scankv("snapshots", "create", scores, "--ttl", "2h")
    assert created.stderr == ""
    (snapshot_id,) = created.text.splitlines()
    scankv("put", scores, "player=ann", "score=99")
    return snapshot_id


def listed(scankv: CommandLine, table: str) -> list[dict[str, Any]]:
    snapshots: list[dict[str, Any]] = scankv("snapshots", "list", table, "--json").json
    return snapshots


def test_a_snapshot_is_scanned_as_of_its_pin(scankv: CommandLine, scores: str, snapshot: str) -> None:
    assert sorted(scankv("scan", scores, "--as-of", snapshot).text.splitlines()[1:]) == ["ann,31", "bob,27", "cem,"]
    assert "ann,99" in scankv("scan", scores).text


def test_snapshots_are_listed(scankv: CommandLine, scores: str, snapshot: str) -> None:
    (found,) = listed(scankv, scores)
    assert (found["id"], found["table"], found["rows"], found["ttl"]) == (snapshot, scores, 3, 7200)
    assert 7000 < found["remaining"] <= 7200
    assert sorted(found["log_offsets"]) == ["0", "1"]
    assert found["taken_at"].endswith("+00:00")
    header, _, line = scankv("snapshots", "list", scores).text.splitlines()
    assert header.split()[:3] == ["snapshot", "table", "rows"]
    assert line.split()[:3] == [snapshot, scores, "3"]
    assert " 2 h " in line
    assert snapshot in scankv("snapshots", "list").text


def test_a_snapshot_is_taken_for_a_principal(scankv: CommandLine, scores: str) -> None:
    taken = scankv("snapshots", "create", scores, "--principal", "etl").text.strip()
    assert [(found["id"], found["principal"]) for found in listed(scankv, scores)] == [(taken, "etl")]
    header, _, line = scankv("snapshots", "list", scores).text.splitlines()
    assert header.split()[-2:] == ["principal", "view"]
    assert line.split()[-2] == "etl"


def test_a_snapshot_is_renewed(scankv: CommandLine, scores: str, snapshot: str) -> None:
    assert scankv("snapshots", "renew", snapshot).text == f"renewed {snapshot} for 2 h\n"
    assert scankv("snapshots", "renew", snapshot, "--ttl", "90s").text == f"renewed {snapshot} for 1 min 30 s\n"
    assert listed(scankv, scores)[0]["ttl"] == 90


def test_snapshots_are_released_and_those_that_are_not_there_named(
    scankv: CommandLine, scores: str, snapshot: str
) -> None:
    other = scankv("snapshots", "create", scores).text.strip()
    assert {found["ttl"] for found in listed(scankv, scores)} == {600, 7200}
    finished = scankv("snapshots", "release", snapshot, "nowhere", other, code=1)
    assert finished.text == f"released {snapshot}\nreleased {other}\n"
    assert "no snapshot has the id nowhere; it was released or has expired" in finished.stderr
    assert listed(scankv, scores) == []
    assert f"no snapshot has the id {snapshot}" in scankv.fails("snapshots", "renew", snapshot)
    assert snapshot in scankv.fails("scan", scores, "--as-of", snapshot)


def test_a_table_without_snapshots_says_so(scankv: CommandLine, scores: str) -> None:
    finished = scankv("snapshots", "list", scores)
    assert finished.text == ""
    assert "there are no snapshots; take one with: scankv snapshots create" in finished.stderr


def test_a_table_that_is_not_there_has_no_snapshots(scankv: CommandLine, scores: str) -> None:
    for command in (["create", scores + "x"], ["list", scores + "x"]):
        assert f'"{scores}x"' in scankv.fails("snapshots", *command)


def test_wrong_usage_of_snapshots_has_exit_code_2(scankv: CommandLine) -> None:
    for command in (["create"], ["renew"], ["release"], ["no-such-command"], ["list", "--nothing"]):
        scankv("snapshots", *command, code=2)


def test_a_named_snapshot_is_found_by_its_name_in_every_command(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    created = scankv("snapshots", "create", scores, "--name", "nightly").text.strip()
    scankv("put", scores, "player=ann", "score=99")
    (found,) = listed(scankv, scores)
    assert (found["id"], found["name"]) == (created, "nightly")
    assert " nightly " in scankv("snapshots", "list", scores).text
    assert f"with the id {created}" in scankv.fails("snapshots", "create", scores, "--name", "nightly")
    label = f"{scores}@nightly"
    assert "ann,31" in scankv("scan", scores, "--as-of", label).text
    assert "exported 3 rows" in scankv("snapshots", "export", label, str(tmp_path / "rows.parquet")).text
    assert scankv("snapshots", "renew", label, "--ttl", "2h").text == f"renewed {created} for 2 h\n"
    assert scankv("snapshots", "release", label).text == f"released {label}\n"
    assert f"no snapshot of {scores} has the name nightly" in scankv.fails("scan", scores, "--as-of", label)
