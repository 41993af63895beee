"""A client asks the owner of a tablet for its rows directly, and the owner of the table if that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aio_client import InvalidRequest, sync
from scankv.v1 import lookup_pb2
from tests.support.players import first_player, key_of_player, tablet_of_player
from tests.support.tables import SCORES
from tests.support.wire import refusal
from tests.support.workers import (
    freeze,
    kill_worker,
    names_of_workers,
    processes_of,
    rows_of,
    sample_of,
    wait_for_worker,
)

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess
    from tests.support.wire import Wire

WORKERS, BUCKETS, TABLETS = 2, 6, 2
HOME, OTHER = 0, 1
"""The worker that owns the table and its first tablet, and the worker that owns the second one."""

pytestmark = [pytest.mark.timeout(120), pytest.mark.parametrize("server", [WORKERS], indirect=True)]


def create(client: sync.Client, database: str, buckets: int = BUCKETS, tablets: int = TABLETS) -> sync.Table:
    """Creates a table that the first worker owns."""
    (name,) = names_of_workers(WORKERS, database)[HOME]
    return client.create_table(name, SCORES, primary_key=["player"], buckets=buckets, tablets=tablets)


def key_in(tablet: int) -> str:
    """Returns a key of a tablet."""
    return first_player(lambda player: tablet_of_player(player, BUCKETS, TABLETS) == tablet)


def lookups(client: sync.Client) -> list[int]:
    """Returns how many lookups each worker has answered."""
    return [
        int(sample_of(client, "scankv_call_seconds_count", worker, 'code="OK",method="LookupService/Lookup"'))
        for worker in (HOME, OTHER)
    ]


@pytest.mark.parametrize("tablet", [HOME, OTHER])
def test_the_owner_of_the_tablet_answers_alone(client: sync.Client, tablet: int) -> None:
    table = create(client, f"alone{tablet}")
    key = key_in(tablet)
    table.upsert([{"player": key, "score": 1}])
    before = lookups(client)
    assert table.get(key) == {"player": key, "score": 1}
    assert table.lookup([key, key]).num_rows == 2
    before[tablet] += 2
    assert lookups(client) == before


def test_keys_of_several_tablets_are_found_together(client: sync.Client) -> None:
    table = create(client, "several")
    table.upsert(rows_of(50))
    keys = [row["player"] for row in rows_of(60)]
    assert table.lookup(keys).to_pylist() == rows_of(50)
    assert [table.get(key) for key in keys] == [*rows_of(50), *[None] * 10]


def test_a_table_that_is_created_again_is_read_by_its_new_buckets(client: sync.Client, server: ServerProcess) -> None:
    old = create(client, "again")
    key = first_player(_is_elsewhere)
    assert old.get(key) is None
    with sync.connect(server.url) as other:
        other.drop_table(old.name)
        create(other, "again", buckets=8).upsert([{"player": key, "score": 8}])
        assert old.get(key) == {"player": key, "score": 8}
        other.drop_table(old.name)
        create(other, "again", tablets=1).upsert([{"player": key, "score": 1}])
    assert old.get(key) == {"player": key, "score": 1}


def _is_elsewhere(player: str) -> bool:
    """Whether a key is in another tablet if the table has 8 buckets."""
    return tablet_of_player(player, BUCKETS, TABLETS) != tablet_of_player(player, 8, TABLETS)


def test_only_keys_of_a_dead_or_frozen_owner_wait(client: sync.Client, server: ServerProcess) -> None:
    table = create(client, "absent")
    there, absent = key_in(OTHER), key_in(HOME)
    table.upsert([{"player": there, "score": 1}, {"player": absent, "score": 2}])
    assert table.get(there) is not None
    with freeze(processes_of(server)[HOME]):
        assert table.get(there) == {"player": there, "score": 1}
    kill_worker(server, HOME)
    assert table.get(there) == {"player": there, "score": 1}
    assert table.get(absent) == {"player": absent, "score": 2}
    wait_for_worker(server, HOME)


def test_a_tablet_takes_nothing_but_few_encoded_keys(client: sync.Client, wire: Wire) -> None:
    table = create(client, "refused")
    for tablet in range(TABLETS):
        own, others = (key_of_player(key_in(each)) for each in (tablet, 1 - tablet))
        name = f"{table.name}#{tablet}"
        assert wire.lookups.Lookup(lookup_pb2.LookupRequest(table=name, encoded_keys=[own])).found == b"\0"
        of_another_tablet = lookup_pb2.LookupRequest(table=name, encoded_keys=[others])
        assert "ask for it by the name of the table" in refusal(wire.lookups.Lookup, of_another_tablet).message
        in_arrow = lookup_pb2.LookupRequest(table=name, keys=b"keys")
        assert "is not a table name" in refusal(wire.lookups.Lookup, in_arrow).message
        assert "is not a table name" in refusal(wire.lookups.Count, lookup_pb2.CountRequest(table=name)).message
    with pytest.raises(InvalidRequest):
        client.table(f"{table.name}#0")
