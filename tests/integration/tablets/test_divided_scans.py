"""Scans of tables with tablets show one instant. Owners of tablets send rows directly to readers that ask for that."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import count
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from aio_client import Resume, SlowCall, sync
from scankv.model.errors import ScanInterrupted, ScanKvError
from scankv.model.scans.consistency import CONSISTENCIES
from scankv.v1 import scan_pb2
from tests.support.players import player_in
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal
from tests.support.workers import freeze, names_of_workers, processes_of

if TYPE_CHECKING:
    from pathlib import Path

    from scankv.model.scans.consistency import Consistency

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

ROWS, BUCKETS, TABLETS = 20_000, 6, 3


def create(client: sync.Client, name: str) -> sync.Table:
    table = client.create_table(name, SCORES, primary_key=["player"], buckets=BUCKETS, tablets=TABLETS)
    table.upsert(pa.table({"player": [f"p{n}" for n in range(ROWS)], "score": list(range(ROWS))}, schema=SCORES))
    return table


def test_all_rows_come_in_the_order_of_their_buckets(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = create(client, "order.scores")
        buckets, scores = [], []
        with table.scan().stream() as stream:
            for rows in stream:
                assert stream.bucket is not None
                buckets.append(stream.bucket)
                scores += rows["score"].to_pylist()
            assert sorted(stream.log_offsets) == list(range(BUCKETS))
            assert stream.stats().rows_returned == ROWS
        assert buckets == sorted(buckets)
        assert set(buckets) == set(range(BUCKETS))
        assert sorted(scores) == list(range(ROWS))
        some = table.scan().with_buckets(1, 4).to_arrow()
        assert 0 < some.num_rows < ROWS
        assert table.scan(where="score < 10").to_arrow().num_rows == 10


@pytest.mark.represented_by("two_workers-owner")
@pytest.mark.parametrize("consistency", CONSISTENCIES)
def test_a_scan_continues_from_every_token_without_the_rows_before(
    server: ServerProcess, consistency: Consistency
) -> None:
    with sync.connect(server.url) as client:
        table = create(client, f"resumed.{consistency}")
        scan = table.scan().with_chunk(rows=3000).consistency(consistency)
        tokens, seen, before = [], [], 0
        with scan.stream() as stream:
            for rows in stream:
                before += rows.num_rows
                seen.append(before)
                assert stream.resume_token is not None
                tokens.append(stream.resume_token)
        assert before == ROWS
        for token, rows_before in zip(tokens, seen, strict=True):
            with scan.resume_from(token).stream() as stream:
                assert sum(rows.num_rows for rows in stream) == ROWS - rows_before
                (resumption,) = stream.resumptions
                assert sorted(resumption.from_log_offsets) == list(range(BUCKETS))


@pytest.mark.breadth
def test_a_scan_shows_one_instant_of_all_tablets(server: ServerProcess) -> None:
    """A writer sets one key after another to each number, so at any instant they differ by at most one, in order."""
    with sync.connect(server.url) as client:
        table = create(client, "instant.scores")
        keys = [player_in(bucket, BUCKETS) for bucket in range(BUCKETS)]
        table.upsert([{"player": key, "score": 0} for key in keys])
        stop = threading.Event()

        def write() -> None:
            with sync.connect(server.url) as other:
                own = other.table("instant.scores")
                for number in count(1):
                    for key in keys:
                        own.upsert([{"player": key, "score": number}])
                    if stop.is_set():
                        return

        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_until(lambda: (table.get(keys[0]) or {}).get("score", 0) > 1, "the writer writes")
            for _ in range(20):
                rows = table.scan(where="player < 'l'").to_arrow()
                found = dict(zip(rows["player"].to_pylist(), rows["score"].to_pylist(), strict=True))
                scores = [found[key] for key in keys]
                assert scores == sorted(scores, reverse=True)
                assert scores[0] - scores[-1] <= 1
        finally:
            stop.set()
            writer.join()


@pytest.mark.breadth
def test_a_part_that_waits_for_its_reader_waits_for_the_client(tmp_path: Path) -> None:
    """A client that claims the parts late, and then takes nothing for a while, makes no slow calls."""
    name, player = "waiting.scores", "p" * 500
    with (
        ServerProcess(tmp_path / "data", "--workers", "2", "--set", "slow_request_seconds=0.000001") as server,
        sync.connect(server.url) as client,
        Wire(server.url) as wire,
    ):
        table = client.create_table(name, SCORES, primary_key=["player"], buckets=BUCKETS, tablets=TABLETS)
        table.upsert(pa.table({"player": [f"{player}{n}" for n in range(ROWS)], "score": range(ROWS)}, schema=SCORES))

        def hold_back_until(age: float) -> float:
            began = time.perf_counter()
            wait_until(lambda: any(scan.age > age for scan in client.live_scans()), "the scan is old enough")
            return time.perf_counter() - began

        opening = wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=name, divided=True), timeout=60)
        parts = next(opening).header.parts
        before_claims = hold_back_until(2.0)
        streams = [
            wire.scans.ScanKv(
                scan_pb2.ScanKvRequest(
                    table=part.tablet, claim=scan_pb2.ScanClaim(ticket=part.ticket, token_head=part.token_head)
                ),
                timeout=60,
                metadata=(("x-request-id", "claim"),),
            )
            for part in parts
        ]
        assert all(next(stream).HasField("chunk") for stream in streams)
        while_reading = hold_back_until(2.5)
        assert all([*stream][-1].HasField("trailer") for stream in streams)
        assert next(opening).HasField("trailer")

        def scans() -> list[SlowCall] | None:
            found = [call for call in client.slow_calls() if call.method == "ScanService/ScanKv"]
            return found if len(found) == 2 * TABLETS else None

        calls = wait_until(scans, "the calls that open and read the parts are logged")
        assert calls is not None
        claims = [call for call in calls if call.request_id == "claim"]
        assert len(claims) == TABLETS
        for call in calls:
            # The server works in some of this time, but not much.
            assert call.waited > 0.75 * (while_reading if call in claims else before_claims)


def test_a_part_is_read_once_and_ends_with_its_scan(server: ServerProcess) -> None:
    with sync.connect(server.url) as client, Wire(server.url) as wire:
        create(client, "parts.scores")
        call = wire.scans.ScanKv(scan_pb2.ScanKvRequest(table="parts.scores", divided=True))
        header = next(call).header
        assert [part.number for part in header.parts] == list(range(TABLETS))
        claims = [
            scan_pb2.ScanKvRequest(
                table=part.tablet, claim=scan_pb2.ScanClaim(ticket=part.ticket, token_head=part.token_head)
            )
            for part in header.parts
        ]
        messages = list(wire.scans.ScanKv(claims[0]))
        assert messages[-1].HasField("trailer")
        assert not any(message.HasField("header") for message in messages)
        for claim in (claims[0], scan_pb2.ScanKvRequest(table=claims[1].table, claim=claims[0].claim)):
            assert "has ended" in refusal(wire.scans.ScanKv, claim).message
        call.cancel()
        wait_until(lambda: not client.live_scans(), "the other parts end")
        assert "has ended" in refusal(wire.scans.ScanKv, claims[1]).message


@pytest.mark.represented_by("False")
@pytest.mark.parametrize("knows_table", [True, False])
def test_rows_of_a_snapshot_come_from_the_owner_of_their_tablet(tmp_path: Path, knows_table: bool) -> None:
    """The owner of the table is frozen while they are read, so it cannot pass them on."""
    home = names_of_workers(2, "pinned")[0][0]
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, sync.connect(server.url) as client:
        table = create(client, home)
        # The second tablet is of the other worker.
        (part,) = table.scan().as_of(table.snapshot()).with_buckets(2, 3).splits(1)
        expected = part.to_arrow()
        scan = part if knows_table else client.scan(part.spec)
        with scan.stream() as stream:
            batches: list[pa.RecordBatch] = []
            with freeze(processes_of(server)[0]):
                while sum(rows.num_rows for rows in batches) < expected.num_rows:
                    batches.append(next(stream))
            batches += stream
        assert pa.Table.from_batches(batches) == expected


def test_what_a_divided_scan_cannot_do_is_refused(server: ServerProcess) -> None:
    with sync.connect(server.url) as client, Wire(server.url) as wire:
        create(client, "refused.scores")
        for fields in ({"limit": 5}, {"ordered": True}):
            request = scan_pb2.ScanKvRequest(table="refused.scores", divided=True, **fields)
            assert "is not divided" in refusal(wire.scans.ScanKv, request).message
        # The client does not divide these.
        table = client.table("refused.scores")
        assert table.scan().limit(5).to_arrow().num_rows == 5


@pytest.mark.breadth
@pytest.mark.parametrize("consistency", CONSISTENCIES)
def test_a_scan_of_a_killed_worker_ends_with_an_error_or_continues(tmp_path: Path, consistency: Consistency) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server:
        with sync.connect(server.url, read_ahead_bytes=65536, operation_timeout=60) as client:
            table = create(client, "killed.scores")
            scan = table.scan().with_chunk(rows=500).consistency(consistency)
            _kill_within(server, 0, scan.resume(Resume.LATEST), is_resumed=True)
            with pytest.raises((ScanInterrupted, ScanKvError)):
                _kill_within(server, 1, scan, is_resumed=False)


def _kill_within(server: ServerProcess, number: int, scan: sync.Scan, *, is_resumed: bool) -> None:
    """Kills a worker while a scan of all rows reads its first rows. Asserts that it returns all rows if it ends."""
    wait_until(lambda: len(processes_of(server)) == 2, "both workers run")
    workers = processes_of(server)
    seen: list[int] = []
    with scan.stream() as stream:
        for rows in stream:
            if not seen:
                os.kill(workers[number], signal.SIGKILL)
            seen += rows["score"].to_pylist()
        assert bool(stream.resumptions) is is_resumed
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.breadth
@pytest.mark.parametrize("divided", [False, True])
def test_a_scan_is_listed_once_and_can_be_cancelled(server: ServerProcess, divided: bool) -> None:
    name = f"listed{divided}.scores".lower()
    with sync.connect(server.url) as client, Wire(server.url) as wire:
        large = pa.schema([("player", pa.string()), ("data", pa.string())])
        table = client.create_table(name, large, primary_key=["player"], buckets=BUCKETS, tablets=TABLETS)
        table.upsert([{"player": f"p{n}", "data": "x" * 100_000} for n in range(60)])
        call = wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=name, divided=divided))
        header = next(call).header
        (scan,) = [scan for scan in client.live_scans() if scan.table == name]
        assert scan.scan_id == header.scan_id
        assert list(scan.buckets) == list(range(BUCKETS))
        client.cancel_scan(scan.scan_id)
        with pytest.raises(grpc.RpcError, match="cancelled the scan") as caught:
            list(call)
        assert "#" not in str(caught.value)
        assert not [scan for scan in client.live_scans() if scan.table == name]
