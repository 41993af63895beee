from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aio_client import TransactionLost, sync

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


def test_transactions_are_listed_and_aborted(scankv: CommandLine, scores: str) -> None:
    with sync.connect(scankv.url) as client:
        tx = client.transaction(id=f"{scores} job:1", conflict="abort", ttl=600, lock="keys")
        tx.upsert(client.table(scores), [{"player": "zoe", "score": 1}])
        (listed,) = [each for each in scankv("transactions", "--json").json if each["id"] == tx.id]
        assert (listed["token"], listed["conflict"], listed["tables"]) == (tx.token, "abort", [scores])
        assert (listed["rows"], listed["ttl"], listed["committing"]) == (1, 600, False)
        assert (listed["locked_keys"], listed["waits_for"]) == (1, [])
        header, _, *lines = scankv("transactions").text.splitlines()
        assert header.split() == ["token", "id", "tables", "rows", "bytes", "locks", "age", "left", "principal"]
        assert any(line.startswith(tx.token) for line in lines)
        assert scankv("transactions", "abort", tx.id).text == f"aborted {tx.id}\n"
        assert "no open transaction" in scankv.fails("transactions", "abort", tx.id)
        with pytest.raises(TransactionLost):
            tx.commit()
        assert client.table(scores).get("zoe") is None
