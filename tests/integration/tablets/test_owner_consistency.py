"""Scans with the consistency `owner`: the rows of each worker are of one instant, and no other writers are paused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from operator import add
from typing import TYPE_CHECKING

import pytest

from aio_client import sync
from scankv.model.errors import InvalidRequest
from scankv.model.scans.consistency import CONSISTENCIES
from scankv.v1 import scan_pb2
from tests.support.players import player_in
from tests.support.tables import SCORES
from tests.support.tablet_twins import TabletTwins
from tests.support.waiting import wait_until
from tests.support.wire import Wire
from tests.support.workers import freeze, names_of_workers, processes_of, rows_of, sample_of, wait_for_worker

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

WORKERS, BUCKETS, TABLETS = 2, 6, 3
HOME, OTHER = 0, 1
"""The worker that owns the table, its first tablet and its third one, and the worker that owns its second one."""

pytestmark = [pytest.mark.timeout(120), pytest.mark.parametrize("server", [WORKERS], indirect=True)]


def create(client: sync.Client, database: str, tablets: int = TABLETS) -> sync.Table:
    """Creates a table that the first worker owns."""
    (name,) = names_of_workers(WORKERS, database)[HOME]
    return client.create_table(name, SCORES, primary_key=["player"], buckets=BUCKETS, tablets=tablets)


def holds(client: sync.Client) -> tuple[int, ...]:
    """Returns how often each worker has paused the writers of a tablet. A hold is counted when its call has ended."""
    labels = 'code="CANCELLED",method="TabletService/HoldTablet"'
    return tuple(int(sample_of(client, "scankv_call_seconds_count", number, labels)) for number in range(WORKERS))


def wait_for_holds(client: sync.Client, before: tuple[int, ...], further: tuple[int, ...]) -> None:
    """Waits until each worker has paused writers so many times more than before."""
    expected = tuple(map(add, before, further))
    wait_until(lambda: holds(client) == expected, f"the holds are {expected}")


@pytest.mark.breadth
def test_a_transaction_is_complete_or_absent_in_the_rows_of_each_owner(
    client: sync.Client, server: ServerProcess
) -> None:
    table = create(client, "instants")
    first, second, third = keys = [player_in(bucket, BUCKETS) for bucket in range(0, BUCKETS, BUCKETS // TABLETS)]
    table.upsert([{"player": key, "score": 0} for key in keys])
    stop = threading.Event()

    def write() -> None:
        with sync.connect(server.url) as other:
            own = other.table(table.name)
            for number in count(1):
                with other.transaction() as transaction:
                    transaction.upsert(own, [{"player": key, "score": number} for key in keys])
                if stop.is_set():
                    return

    scan = table.scan().consistency("owner")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            seen: set[int] = set()
            while len(seen) < 100:
                scanned = scan.ordered() if len(seen) % 2 else scan
                found = {row["player"]: row["score"] for row in scanned.to_pylist()}
                assert sorted(found) == sorted(keys)
                assert found[first] == found[third]
                seen |= {found[first], found[second]}
        finally:
            stop.set()
        writing.result()


def test_writers_are_paused_only_at_an_owner_of_several_tablets(client: sync.Client) -> None:
    table = create(client, "paused")
    table.upsert(rows_of(1000))
    before = holds(client)
    assert table.scan().consistency("owner").to_arrow().num_rows == 1000
    wait_for_holds(client, before, (2, 0))
    assert table.scan().to_arrow().num_rows == 1000
    wait_for_holds(client, before, (4, 1))
    # A tablet of each owner.
    some = table.scan().with_buckets(0, BUCKETS // TABLETS)
    assert 0 < some.consistency("owner").to_arrow().num_rows == some.to_arrow().num_rows < 1000
    wait_for_holds(client, before, (5, 2))


def test_a_scan_that_waits_for_a_frozen_owner_lets_the_others_write(client: sync.Client, server: ServerProcess) -> None:
    table = create(client, "frozen", tablets=WORKERS)
    table.upsert(rows_of(1000))
    before = holds(client)
    with ThreadPoolExecutor(1) as pool, Wire(server.url) as wire:
        with freeze(processes_of(server)[OTHER]):
            request = scan_pb2.ScanKvRequest(table=table.name, consistency=scan_pb2.CONSISTENCY_OWNER)
            scanning = pool.submit(lambda: list(wire.scans.ScanKv(request, timeout=60)))
            for number in range(50):
                table.upsert([{"player": player_in(0, BUCKETS), "score": number}])
            assert not scanning.done()
        assert scanning.result()[-1].trailer.rows_returned in (1000, 1001)
    wait_for_worker(server, OTHER)
    assert table.scan().to_arrow().num_rows == 1001
    # The last scan alone has paused writers.
    wait_for_holds(client, before, (1, 1))


def test_explain_says_of_how_many_instants_a_scan_is(client: sync.Client) -> None:
    table, whole = create(client, "explained"), create(client, "explained_whole", tablets=1)
    scan = table.scan().consistency("owner")
    assert scan.explain().instants == WORKERS
    assert f"view      {WORKERS} instants, one for each owner of the buckets" in str(scan.explain()).splitlines()
    for other in (table.scan(), scan.with_buckets(0), whole.scan().consistency("owner")):
        assert other.explain().instants == 1
        assert "view " not in str(other.explain())


def test_an_unchanged_scan_is_recognized_whatever_its_consistency(client: sync.Client) -> None:
    table = create(client, "unchanged")
    table.upsert(rows_of(100))
    with table.scan().consistency("owner").stream() as stream:
        assert (sum(rows.num_rows for rows in stream), stream.consistency) == (100, "owner")
        version = stream.version
    for consistency in CONSISTENCIES:
        again = table.scan().consistency(consistency).if_changed_since(version)
        with again.stream() as stream:
            assert stream.unchanged
        table.upsert(rows_of(1, f"other {consistency}"))
        with again.stream() as stream:
            assert not stream.unchanged
            assert sum(rows.num_rows for rows in stream) > 100
            version = stream.version


def test_what_is_of_one_instant_by_itself_is_refused(client: sync.Client, server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        twins = TabletTwins.create(client, wire, "refused.twins", SCORES, ["player"])
        snapshots = {table.name: table.snapshot(ttl=60).id for table in twins}

        def read(name: str, *, changes: bool) -> list[scan_pb2.ScanKvResponse]:
            request = scan_pb2.ScanKvRequest(table=name, consistency=scan_pb2.CONSISTENCY_OWNER)
            if changes:
                request.log.latest.SetInParent()
            else:
                request.snapshot.snapshot_id = snapshots[name]
            return list(wire.scans.ScanKv(request))

        for changes in (False, True):
            plain, divided = twins.both(partial(read, changes=changes))
            assert plain == divided
            assert plain[1] == InvalidRequest.reason
            assert "consistency" in plain[2]
