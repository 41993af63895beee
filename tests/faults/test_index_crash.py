"""A server that is killed while it builds, updates and drops indexes uses no partial index and leaves none behind."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from scankv.v1 import admin_pb2, table_pb2, write_pb2
from tests.support.offline import check_entries, offline_table
from tests.support.tables import ipc_stream
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

NAME = "test.indexed"
SCHEMA = pa.schema([("k", pa.int64()), ("score", pa.int64()), ("league", pa.string())])
ROWS = 200_000


def put(wire: Wire, keys: range, seed: int = 0) -> None:
    """Upserts rows whose values depend on key and seed."""
    columns = [pa.array(keys), pa.array([key * 31 % 997 + seed for key in keys]), pa.array([f"l{k % 7}" for k in keys])]
    data = ipc_stream(SCHEMA, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    wire.writes.Upsert(write_pb2.UpsertRequest(table=NAME, rows=data), timeout=60)


def alter(wire: Wire, *, add: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> None:
    """Adds or drops one index."""
    wire.tables.AlterTable(
        table_pb2.AlterTableRequest(
            name=NAME,
            add_indexes=[table_pb2.IndexColumns(columns=add)] if add else [],
            drop_indexes=[table_pb2.IndexColumns(columns=drop)] if drop else [],
        ),
        timeout=60,
    )


def statuses(wire: Wire) -> list[table_pb2.IndexStatus]:
    """Returns the status of each index."""
    request = table_pb2.GetTableRequest(name=NAME, statistics=True)
    return list(wire.tables.GetTable(request, timeout=60).indexes)


def assert_sound(wire: Wire) -> None:
    """Waits until every index is ready, and asserts that a check of the table finds nothing wrong."""
    wait_until(lambda: all(status.ready for status in statuses(wire)), "all indexes ready", timeout=60)
    for checked in wire.admin.CheckTable(admin_pb2.CheckTableRequest(table=NAME), timeout=60):
        assert checked.problem == ""
        assert [(index.ready, index.problem) for index in checked.indexes] == [(True, "")] * len(checked.indexes)


@pytest.mark.breadth
def test_a_killed_index_build_continues_where_it_was_and_is_not_used_before_its_end(server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        wire.create(NAME, SCHEMA, buckets=1)
        put(wire, range(ROWS))
        alter(wire, add=("score", "league"))
        before = wait_until(lambda: [s for s in statuses(wire) if s.rows_done], "a part of the build done")[0]
        put(wire, range(0, ROWS, 50), seed=1)
    server.kill()
    with offline_table(server.data_dir, NAME) as (bucket,):
        check_entries(bucket)
        assert not before.ready
        assert bucket.bucket.state.ready_indexes == (), "the build was over before the server was killed"
        position = bucket.bucket.builds[1].rows
        assert before.rows_done <= position < ROWS
    server.restart()
    with Wire(server.url) as wire:
        (after,) = statuses(wire)
        assert after.rows_done >= position
        assert_sound(wire)
    assert server.stop() == 0
    with offline_table(server.data_dir, NAME) as (bucket,):
        check_entries(bucket)
        assert bucket.bucket.state.ready_indexes == (1,)


def test_an_index_dropped_right_before_a_kill_stays_dropped_and_leaves_no_entries(server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        wire.create(NAME, SCHEMA, buckets=3)
        put(wire, range(20_000))
        alter(wire, add=("score",))
        assert_sound(wire)
        alter(wire, add=("league",))
        alter(wire, drop=("score",))
    server.kill()
    server.restart()
    with Wire(server.url) as wire:
        table = wire.tables.GetTable(table_pb2.GetTableRequest(name=NAME), timeout=60).table
        assert [(index.id, tuple(index.columns)) for index in table.indexes] == [(2, ("league",))]
        assert_sound(wire)
    assert server.stop() == 0
    with offline_table(server.data_dir, NAME) as buckets:
        for bucket in buckets:
            check_entries(bucket)
            assert bucket.bucket.state.indexes == (2,)


@dataclass
class Changer:
    """Adds and drops indexes until the server stops answering.

    Attributes:
        there: The columns of the indexes that were acknowledged and not dropped.
        in_doubt: The columns of the index whose addition or removal was not acknowledged.
    """

    rng: random.Random
    there: set[tuple[str, ...]] = field(default_factory=set)
    in_doubt: set[tuple[str, ...]] = field(default_factory=set)

    def work_until_broken(self, url: str) -> None:
        """Makes calls until the server is killed."""
        with Wire(url) as wire, suppress(grpc.RpcError):
            while True:
                self._change(wire, self.rng.choice([("score",), ("league", "score"), ("league",)]))

    def _change(self, wire: Wire, columns: tuple[str, ...]) -> None:
        self.in_doubt = {columns}
        if columns in self.there:
            self.there.discard(columns)
            alter(wire, drop=columns)
        else:
            alter(wire, add=columns)
            self.there.add(columns)
        self.in_doubt = set()

    def check(self, found: set[tuple[str, ...]]) -> None:
        """Compares the server's state with the acknowledged one, and continues with the server's state."""
        assert self.there - self.in_doubt <= found <= self.there | self.in_doubt
        self.there, self.in_doubt = found, set()


def write_until_broken(url: str, seed: int) -> None:
    """Upserts without pause."""
    with Wire(url) as wire, suppress(grpc.RpcError):
        for number in itertools.count(seed):
            put(wire, range(number % 97, 30_000, 97), seed=number)


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=pytest.mark.soak)])
async def test_indexes_agree_with_the_rows_after_kills_at_any_moment(server: ServerProcess, kills: int) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    changer = Changer(rng)
    try:
        with Wire(server.url) as wire:
            wire.create(NAME, SCHEMA, buckets=2)
            put(wire, range(30_000))
        for round_ in range(kills):
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.to_thread(changer.work_until_broken, server.url))
                group.create_task(asyncio.to_thread(write_until_broken, server.url, 1_000 * round_))
                await asyncio.sleep(rng.uniform(0.1, 1.0))
                await asyncio.to_thread(server.kill)
            with offline_table(server.data_dir, NAME) as buckets:
                changer.check({index.columns for index in buckets[0].definition.indexes})
                for bucket in buckets:
                    check_entries(bucket)
            server.restart()
        with Wire(server.url) as wire:
            assert_sound(wire)
        assert "DATA_LOSS" not in server.log
        assert "incident" not in server.log
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
