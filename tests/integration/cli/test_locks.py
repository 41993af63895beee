from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aio_client import sync

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


def test_column_locks_are_listed_and_released(scankv: CommandLine, scores: str) -> None:
    with sync.connect(scankv.url) as client:
        lock = client.table(scores).lock_columns(["score"], owner="job-1", ttl=600)
        expected = {
            "id": lock.id,
            "table": scores,
            "owner": "job-1",
            "columns": ["score"],
            "ttl": 600,
            "remaining": pytest.approx(600, abs=300),
            "principal": None,
        }
        assert scankv("locks", "--json", "--table", scores).json == [expected]
        assert expected in scankv("locks", "--json").json
        header, _, line = scankv("locks", "--table", scores).text.splitlines()
        assert header.split() == ["lock", "table", "owner", "columns", "ttl", "left", "principal"]
        assert line.split()[:6] == [lock.id, scores, "job-1", "score", "10", "min"]
        assert scankv("locks", "release", lock.id).text == f"released {lock.id}\n"
        assert "no column lock" in scankv.fails("locks", "release", lock.id)
        assert "no column locks" in scankv("locks", "--table", scores).stderr
        client.table(scores).upsert([{"player": "ann", "score": 1}])
