from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import StopAt, sync

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


@pytest.fixture
def consumed(scankv: CommandLine, scores: str) -> str:
    """Makes the table `scores`, read by the consumer `billing`; then changes two rows."""
    with sync.connect(scankv.url) as client:
        table = client.table(scores)
        with table.changes(stop=StopAt.LATEST, consumer_id="billing").stream() as stream:
            for _ in stream:
                pass
            stream.commit()
        with table.changes(consumer_id="audit").stream():
            pass
        table.upsert([{"player": "ann", "score": 32}, {"player": "dan", "score": 1}])
    return scores


def listed(scankv: CommandLine, *arguments: str) -> list[dict[str, Any]]:
    consumers: list[dict[str, Any]] = scankv("consumers", "list", *arguments, "--json").json
    return consumers


def test_consumers_are_listed_with_how_far_they_are_behind(scankv: CommandLine, consumed: str) -> None:
    audit, billing = listed(scankv, consumed)
    assert (audit["id"], audit["phase"], audit["lag"], audit["committed_at"]) == ("audit", "rows", 3, None)
    assert (billing["id"], billing["phase"], billing["lag"], billing["live"]) == ("billing", "changes", 3, False)
    assert billing["committed_at"].endswith("+00:00")
    assert sum(billing["log_offsets"].values()) == 3
    assert 600_000 < billing["remaining"] <= 604_800
    assert listed(scankv, consumed, "audit") == [audit | {"remaining": pytest.approx(604_800, abs=60)}]
    header, _, *lines = scankv("consumers", "list", consumed).text.splitlines()
    assert header.split()[:3] == ["consumer", "lag", "reads"]
    assert [line.split()[:4] for line in lines] == [
        ["audit", "3", "rows", "never"],
        ["billing", "3", "changes", billing["committed_at"][:10]],
    ]
    assert "no consumer nobody" in scankv.fails("consumers", "list", consumed, "nobody")


def test_a_consumer_is_reset(scankv: CommandLine, consumed: str) -> None:
    assert scankv("consumers", "reset", consumed, "billing", "--to", "latest", "--json").json["id"] == "billing"
    assert listed(scankv, consumed, "billing")[0]["lag"] == 0
    text = scankv("consumers", "reset", consumed, "billing", "--to", "0=0,1=0").text
    assert text == f"reset billing of {consumed} to 0=0,1=0\n"
    assert listed(scankv, consumed, "billing")[0]["lag"] == 6
    for place, lag in (("earliest", 6), ("last:2", 2), ("2001-01-01T00:00:00Z", 6), ("full", 0)):
        scankv("consumers", "reset", consumed, "billing", "--to", place)
        assert listed(scankv, consumed, "billing")[0]["lag"] == lag
    assert listed(scankv, consumed, "billing")[0]["phase"] == "rows"
    assert "--to" in scankv.fails("consumers", "reset", consumed, "billing", "--to", "yesterday")
    assert "does not exist in its changelog" in scankv.fails(
        "consumers", "reset", consumed, "billing", "--to", "0=99,1=99"
    )
    scankv("consumers", "reset", consumed, "billing", "--to", "0=99,1=99", "--clamp")
    assert 'no consumer "nobody"' in scankv.fails("consumers", "reset", consumed, "nobody", "--to", "full")


def test_offsets_of_a_listing_are_taken_for_the_same_table_alone(scankv: CommandLine, consumed: str) -> None:
    place = json.dumps(listed(scankv, consumed, "billing")[0])
    assert scankv("consumers", "reset", consumed, "billing", "--to", place, "--json").json["table_incarnation"]
    for start, stop in ((place, "latest"), ("0=0,1=0", place)):
        found = scankv("tail", consumed, "--from", start, "--until", stop, "--format", "jsonl")
        assert len(found.text.splitlines()) == 3
    scankv("drop", consumed, "--yes")
    scankv("create", consumed, "--schema", "player string, score int64", "--key", "player", "--buckets", "2")
    for arguments in (["--from", place], ["--until", place], ["--from", "full", "--until", place]):
        assert "dropped and created again" in scankv.fails("tail", consumed, *arguments)
    assert "LogOffsets" in scankv.fails("tail", consumed, "--from", "{}")


def test_consumers_are_deleted_and_those_that_are_not_there_named(scankv: CommandLine, consumed: str) -> None:
    finished = scankv("consumers", "delete", consumed, "audit", "nobody", "billing", code=1)
    assert finished.text == f"deleted audit of {consumed}\ndeleted billing of {consumed}\n"
    assert 'no consumer "nobody"' in finished.stderr
    assert scankv("consumers", "list", consumed, "--json").json == []
    assert "the table has no consumers" in scankv("consumers", "list", consumed).stderr


def test_consumers_are_listed_and_deleted_by_pattern(scankv: CommandLine, consumed: str) -> None:
    assert [each["id"] for each in listed(scankv, consumed, "a*")] == ["audit"]
    assert "no consumer nobody-*" in scankv.fails("consumers", "list", consumed, "nobody-*")
    finished = scankv("consumers", "delete", consumed, "?illing", "nobody-*", "*", code=1)
    assert finished.text == f"deleted billing of {consumed}\ndeleted audit of {consumed}\n"
    assert 'no consumer "nobody-*"' in finished.stderr
