"""After a kill at any moment of a pin or release, exactly the acknowledged snapshots exist, and all are complete."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from scankv.v1 import snapshot_pb2, write_pb2
from tests.support.snapshots import pinned_rows, tables_in, views_on_disk
from tests.support.tables import ipc_stream
from tests.support.wire import Wire, refusal_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

NAME = "test.pinned"
SCHEMA = pa.schema([("k", pa.int64()), ("generation", pa.int64())])
KEYS = range(40)


@dataclass
class Pinner:
    """Writes a generation of all rows, pins it, and releases some pins, until the server stops answering.

    Attributes:
        generations: The generation in each acknowledged snapshot.
        in_doubt: The ids of an unacknowledged pin or release, and the generation of the snapshot.
        written: The last generation acknowledged.
    """

    rng: random.Random
    generations: dict[str, int] = field(default_factory=dict)
    in_doubt: dict[str, int] = field(default_factory=dict)
    written: int = 0

    def work_until_broken(self, url: str, round_: int) -> None:
        """Makes calls until the server is killed."""
        with Wire(url) as wire:
            with pytest.raises(grpc.RpcError) as broken:
                self._work(wire, round_)
            assert refusal_of(broken.value).code == "UNAVAILABLE"

    def _work(self, wire: Wire, round_: int) -> None:
        for number in itertools.count():
            # The interrupted write may have been applied. Another write makes the rows known again.
            self._pin(wire, f"{round_}-{number}", writes=number == 0 or self.rng.random() < 0.7)
            if len(self.generations) > 4 or self.rng.random() < 0.3:
                self._release(wire, self.rng.choice(list(self.generations)))

    def _pin(self, wire: Wire, lease_id: str, *, writes: bool) -> None:
        if writes:
            rows = pa.record_batch({"k": KEYS, "generation": [self.written + 1] * len(KEYS)}, schema=SCHEMA)
            request = write_pb2.UpsertRequest(table=NAME, rows=ipc_stream(SCHEMA, rows))
            wire.writes.Upsert(request, timeout=60)
            self.written += 1
        self.in_doubt = {lease_id: self.written}
        wire.pin(NAME, lease_id=lease_id)
        self.generations |= self.in_doubt
        self.in_doubt = {}

    def _release(self, wire: Wire, lease_id: str) -> None:
        self.in_doubt = {lease_id: self.generations.pop(lease_id)}
        wire.snapshots.ReleaseSnapshot(snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=lease_id), timeout=60)
        self.in_doubt = {}

    async def check(self, data_dir: Path) -> None:
        """Restarts the killed server, and reads every snapshot."""
        async with tables_in(data_dir) as tables:
            listed = tables.snapshots.list_snapshots()
            ids = {info.snapshot_id for info in listed}
            assert self.generations.keys() <= ids <= self.generations.keys() | self.in_doubt.keys()
            assert {path.name for path in views_on_disk(data_dir)} == {info.view_id for info in listed}
            assert list((data_dir / "trash").iterdir()) == []
            known = self.generations | self.in_doubt
            for snapshot_id in ids:
                rows = (await pinned_rows(tables.snapshots, snapshot_id, NAME)).to_pydict()
                assert sorted(rows["k"]) == list(KEYS)
                assert set(rows["generation"]) == {known[snapshot_id]}
            self.generations = {snapshot_id: known[snapshot_id] for snapshot_id in ids}
            self.in_doubt = {}


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.soak)])
async def test_every_acknowledged_snapshot_survives_kills_at_any_moment_of_a_pin(
    server: ServerProcess, kills: int
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    pinner = Pinner(rng)
    doubts = 0
    try:
        with Wire(server.url) as wire:
            wire.create(NAME, SCHEMA, buckets=4)
            rows = pa.record_batch({"k": KEYS, "generation": [0] * len(KEYS)}, schema=SCHEMA)
            wire.writes.Upsert(write_pb2.UpsertRequest(table=NAME, rows=ipc_stream(SCHEMA, rows)), timeout=60)
        for round_ in itertools.count():
            if round_ >= kills and doubts > 0:
                break  # on a slow machine, the first kills may all miss the pins
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.to_thread(pinner.work_until_broken, server.url, round_))
                await asyncio.sleep(rng.uniform(0.05, 0.5))
                await asyncio.to_thread(server.kill)
            doubts += bool(pinner.in_doubt)
            await pinner.check(server.data_dir)
            server.restart()
        assert "DATA_LOSS" not in server.log
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
