"""A transaction over tables of several workers is applied everywhere and once, or nowhere, whatever dies when."""

from __future__ import annotations

import signal
from contextlib import suppress
from functools import partial
from itertools import count, cycle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, agg, sync
from tests.support.crashing_worker import crashing_workers
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import has_ended, names_of_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)  # each kill is followed by a start

WORKERS = 2
PLAIN = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KINDS = ("append", "write", "prepare", "notify")
SOME = ("0 append 1 after", "1 append 1 after", "1 append 2 before")
"""The steps at which `make test` kills; `make soak` kills at every step. Around them, a share is in doubt."""

at_steps = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])


class DividedLedger:
    """Tables of all workers, to which every transaction writes: each adds the same number to a sum in all of them.

    Attributes:
        totals: What the sums are, after all transactions that are known to be committed.
        expected: Their sum.
    """

    def __init__(self, client: sync.Client) -> None:
        self.names = [name for (name,) in names_of_workers(WORKERS, "ledger")]
        for name in self.names:
            client.create_table(
                name, PLAIN, primary_key=["k"], buckets=2, merge_engine="aggregate", aggregators={"v": agg.sum()}
            )
        self.expected = 0

    def check(self, client: sync.Client, id_: str, added: int) -> None:
        """Checks that the transaction of an id is applied in all tables, or in none, and takes it into account."""
        again = client.transaction(id=id_)
        committed = again.result is not None
        if again.result is not None:
            assert set(again.result.log_offsets) == set(self.names)
            self.expected += added
        else:
            again.abort()
        for name in self.names:
            found = sum(row["v"] for row in client.table(name).scan().to_pylist())
            assert found == self.expected, (name, found, self.expected, id_, committed)

    def stage(self, client: sync.Client, id_: str, added: int) -> sync.Transaction:
        """Begins a transaction that adds to the sums, in several buckets."""
        transaction = client.transaction(id=id_)
        for name in self.names:
            transaction.upsert(client.table(name), [{"k": key, "v": 1} for key in range(added)])
        return transaction


def steps(*moments: str) -> Iterator[Iterator[str]]:
    """Yields for each worker and kind of step the points at which to die, to take until one does not occur."""
    for worker in range(WORKERS):
        for kind in KINDS:
            yield (f"{worker} {kind} {number} {moment}" for number in count(1) for moment in moments)


@pytest.mark.breadth
@at_steps
@pytest.mark.parametrize("how", ["", "-frozen"])
def test_the_commit_goes_on_when_a_worker_dies_or_freezes_at_any_step(tmp_path: Path, every: bool, how: str) -> None:
    armed = tmp_path / "points"
    settings = ("--workers", str(WORKERS), "--set", "worker_timeout_seconds=5")
    kills = 0
    with (
        ServerProcess(tmp_path / "data", *settings, wrapper=crashing_workers(armed)) as server,
        sync.connect(server.url, operation_timeout=60) as client,
    ):
        ledger = DividedLedger(client)
        for points in steps("before", "after") if every else [iter(SOME)]:
            for point in points:
                transaction = ledger.stage(client, point, 6)
                armed.write_text(f"{point}{how}")
                # It is repeated while the worker starts again.
                transaction.commit()
                ledger.check(client, point, 6)
                if armed.exists():
                    armed.unlink()
                    break
                kills += 1
        assert client.transactions() == []
        assert server.stop() == 0
    assert kills >= (24 if every else len(SOME))


@pytest.mark.breadth
@at_steps
@pytest.mark.parametrize("how", ["all", "drain"])
def test_a_transaction_is_whole_when_the_server_ends_at_any_step_and_has_another_number_of_workers(
    tmp_path: Path, every: bool, how: str
) -> None:
    armed, data = tmp_path / "points", tmp_path / "data"
    numbers = cycle(["1", "3", "2"])
    kills = 0
    with ServerProcess(data, "--workers", str(WORKERS)) as server, sync.connect(server.url) as client:
        ledger = DividedLedger(client)
    for points in steps(f"before-{how}", f"after-{how}") if every else [iter([f"{point}-{how}" for point in SOME[:2]])]:
        for point in points:
            with (
                ServerProcess(data, "--workers", str(WORKERS), wrapper=crashing_workers(armed)) as server,
                sync.connect(server.url, operation_timeout=5) as client,
            ):
                transaction = ledger.stage(client, point, 6)
                armed.write_text(point)
                with suppress(ConnectionFailed):
                    transaction.commit()
                if armed.exists():
                    armed.unlink()
                    ledger.check(client, point, 6)
                    break
                wait_until(partial(has_ended, server.process.pid), "the processes ended")
                assert server.process.wait() == (0 if how == "drain" else -signal.SIGKILL)
            kills += 1
            with ServerProcess(data, "--workers", next(numbers)) as server, sync.connect(server.url) as client:
                ledger.check(client, point, 6)
    assert kills >= (24 if every else 2)
