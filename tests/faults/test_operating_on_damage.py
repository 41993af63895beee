"""What an operator sees and can do with damaged tables and transactions, by the client and the command line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aio_client import DataLoss, TransactionLost
from aio_client.sync import connect
from tests.faults.test_transaction_blast_radius import ONE, OTHER, PLAYERS, TWO, stuck_in
from tests.support.command_line import CommandLine
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


def test_damaged_tables_are_listed_with_the_reason_and_can_be_checked_and_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = asyncio.run(stuck_in(tmp_path, monkeypatch, lambda *_: False, expected=False))
    (data / "tables" / "game" / "one" / "table.json").write_bytes(b"nonsense")
    (data / "tables" / "game" / "two" / "buckets" / "0001" / "CURRENT").write_bytes(b"nonsense")
    with ServerProcess(data) as server, connect(server.url) as client:
        scankv = CommandLine(server.url)
        assert [table.name for table in client.tables()] == [TWO]
        (damaged,) = client.damaged_tables()
        assert (damaged.name, damaged.partial) == (ONE, False)
        with pytest.raises(DataLoss, match=r"table\.json.*restore it from a copy .* or drop the table") as error:
            client.table(ONE)
        assert error.value.message == damaged.reason
        with pytest.raises(DataLoss, match=r"bucket 1 of game\.two is damaged"):
            client.table(TWO).scan().to_arrow()
        one, two = client.damaged_tables()
        assert (one, two.name, two.partial) == (damaged, TWO, True)
        assert "of its 3 buckets, 1 cannot be used: bucket 1 of game.two is damaged" in two.reason
        assert scankv("tables", "--json").json[0] == {"name": ONE, "state": "damaged", "damage": one.reason}
        assert scankv("tables", "--json").json[1]["state"] == "partly damaged"
        header, _, *lines = scankv("tables").text.splitlines()
        assert header.split() == ["table", "key", "columns", "buckets", "state"]
        assert [line.split() for line in lines] == [[ONE, "damaged"], [TWO, "player", "2", "3", "partly", "damaged"]]
        assert f"{ONE}: table {ONE} cannot be used" in scankv("tables").stderr
        assert f"{ONE}: table {ONE} cannot be used" in scankv("check", code=1).stderr
        assert "confirm it with --yes" in scankv.fails("drop", ONE)
        assert scankv("drop", ONE, "--yes").text == f"dropped {ONE}\n"
        assert scankv("drop", TWO, "--yes").text == f"dropped {TWO}\n"
        assert not client.damaged_tables()
        assert "there are no tables yet" in scankv("tables").stderr


def test_a_stuck_transaction_is_listed_and_can_be_given_up_after_a_confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = asyncio.run(stuck_in(tmp_path, monkeypatch, lambda *_: True))
    (part,) = data.glob("transactions/*/0.part")
    part.write_bytes(part.read_bytes()[:100])
    token = part.parent.name
    with ServerProcess(data) as server, connect(server.url) as client:
        scankv = CommandLine(server.url)
        (stuck,) = client.transactions()
        assert (stuck.token, stuck.id, stuck.tables, stuck.rows) == (token, "job:2", (ONE, TWO), 2 * len(PLAYERS))
        assert f"scankv transactions give-up {token}" in stuck.stuck
        with pytest.raises(DataLoss, match=f"scankv transactions give-up {token}"):
            client.table(TWO).get(PLAYERS[0])
        assert [each.name for each in client.damaged_tables()] == [ONE, TWO]
        (listed,) = scankv("transactions", "--json").json
        assert (listed["token"], listed["stuck"]) == (token, stuck.stuck)
        assert "the transaction is committed" in scankv.fails("transactions", "abort", "job:2")
        assert "no stuck transaction" in scankv.fails("transactions", "give-up", "job:1", "--yes")
        assert "confirm it with --yes" in scankv.fails("transactions", "give-up", "job:2")
        assert client.transactions()[0].stuck == stuck.stuck
        lost = scankv("transactions", "give-up", "job:2", "--yes", "--json").json
        assert [(each["table"], each["bucket"]) for each in lost] == [
            (name, b) for name in (ONE, TWO) for b in range(3)
        ]
        assert {each["rows"] for each in lost} == {None}
        assert not client.transactions()
        assert not client.damaged_tables()
        assert client.table(ONE).count() == client.table(TWO).count() == len(PLAYERS)
        assert client.table(TWO).get(PLAYERS[0]) == {"player": PLAYERS[0], "score": 1}
        with pytest.raises(TransactionLost):
            client.give_up_transaction(token)
        assert f"the transaction {token} (id 'job:2') is given up" in server.log
        with client.transaction(id="job:3") as tx:
            tx.upsert(client.table(ONE), [{"player": PLAYERS[0], "score": 7}])
        assert client.table(ONE).get(PLAYERS[0]) == {"player": PLAYERS[0], "score": 7}
    assert OTHER not in server.log
