"""What one principal may hold in the engine: its share also at once, and repeated or replaced things are not new."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import InvalidRequest, TooManyLocks, TooManySnapshots, TooManyWriters
from streaming_server.access.callers import CallerIdentity
from streaming_server.access.grants import Grants
from streaming_server.access.owners import CALLER, NAMED_OWNER
from streaming_server.engine.tables.owners import assign_owner
from tests.support.clocks import FakeClocks
from tests.support.snapshots import TABLE, new_table, tables_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.engine.tables.tables import Tables

pytestmark = pytest.mark.asyncio


@contextmanager
def calls_of(principal: str, grant: str = "write:*") -> Iterator[None]:
    """Makes the calls of the block those of a principal with a grant."""
    token = CALLER.set(CallerIdentity(principal, Grants([grant])))
    try:
        yield
    finally:
        CALLER.reset(token)


@contextmanager
def named_owner(principal: str) -> Iterator[None]:
    """Has the calls of the block name an owner."""
    token = NAMED_OWNER.set(principal)
    try:
        yield
    finally:
        NAMED_OWNER.reset(token)


async def test_pins_at_the_same_time_take_no_more_than_the_share(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_snapshot_leases=40, max_caller_share=0.05) as tables:
        pinnings = [(await new_table(tables, f"game.t{number}", buckets=1)).pinning for number in range(6)]
        with calls_of("mine"):
            pins = await asyncio.gather(*map(tables.snapshots.pin, pinnings), return_exceptions=True)
        assert sum(isinstance(each, TooManySnapshots) for each in pins) == 4
        assert tables.snapshots.leases == 2


async def test_a_writer_without_a_greater_epoch_is_refused(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        writes = (await new_table(tables)).writes
        assert await writes.open_writer("worn-out", 2**32 - 1) == (2**32 - 1, 0)
        with pytest.raises(InvalidRequest, match="open a writer with another id"):
            await writes.open_writer("worn-out")


async def test_stale_shared_snapshots_of_others_make_place_at_the_reserve_of_admins(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_snapshot_leases=20, max_caller_share=0.75) as tables:
        pinning = (await new_table(tables)).pinning
        with calls_of("others"):
            await tables.snapshots.pin(pinning, lease_id="stale", ttl=500, shared=True)
            for number in range(14):
                await tables.snapshots.pin(pinning, lease_id=f"held{number}", ttl=500)
        with calls_of("mine"):
            for _ in range(4):
                await tables.snapshots.pin(pinning)
            with pytest.raises(TooManySnapshots, match="are for admins"):
                await tables.snapshots.pin(pinning)
            tables.snapshots.lease("stale").expires -= 70
            await tables.snapshots.pin(pinning)
        assert "stale" not in {each.snapshot_id for each in tables.snapshots.list_snapshots()}


async def test_who_pins_for_another_principal_ends_its_shared_snapshots_only_in_own_tables(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_snapshot_leases=20, max_caller_share=0.5) as tables:
        pinnings = {name: (await new_table(tables, name, buckets=1)).pinning for name in ("a.mine", "b.theirs")}
        with calls_of("victim"):
            for number in range(5):
                await tables.snapshots.pin(pinnings["b.theirs"], lease_id=f"s{number}", ttl=500, shared=True)
                tables.snapshots.lease(f"s{number}").expires -= 70
        with calls_of("mallory", "admin:a.*"), named_owner("victim"):
            with pytest.raises(TooManySnapshots, match="gives it 5"):
                await tables.snapshots.pin(pinnings["a.mine"], ttl=500)
            assert tables.snapshots.leases == 5
        with calls_of("victim"):
            await tables.snapshots.pin(pinnings["a.mine"], lease_id="stale", ttl=500, shared=True)
            tables.snapshots.lease("stale").expires -= 65
        with calls_of("mallory", "admin:a.*"), named_owner("victim"):
            with pytest.raises(TooManySnapshots, match="gives it 5"):
                await tables.snapshots.pin(pinnings["a.mine"], ttl=500)
        assert {each.snapshot_id for each in tables.snapshots.list_snapshots()} == {f"s{number}" for number in range(5)}


async def test_a_repeated_or_replaced_column_lock_is_no_new_one_at_the_share(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())]
    )
    async with tables_in(tmp_path, max_caller_share=0.01) as tables:
        await tables.create(TABLE, schema, primary_key=["k"], bucket_key=(), buckets=1, options={})
        table = tables.table(TABLE)
        locks = table.writes.locks
        with calls_of("mine"):
            await locks.lock(lambda: table.definition, ["a"], "job", "first", None)
        await locks.lock(lambda: table.definition, ["c"], "job", "given", None)
        assert await locks.assign("", "mine") == 1
        with calls_of("mine"):
            await locks.lock(lambda: table.definition, ["a"], "job", "first", None)
            await locks.lock(lambda: table.definition, ["a"], "job", "second", None, take_over=True)
            with pytest.raises(TooManyLocks, match='the principal "mine" has 2 column locks'):
                await locks.lock(lambda: table.definition, ["b"], "job", "third", None, take_over=True)
        assert [(lock.lock_id, lock.principal) for lock in locks.live()] == [("given", "mine"), ("second", "mine")]


async def test_the_writers_of_a_principal_are_counted_after_a_restart_and_when_they_are_assigned(
    tmp_path: Path,
) -> None:
    limits = {"max_writers_per_bucket": 20, "max_caller_share": 0.1}
    async with tables_in(tmp_path, **limits) as tables:
        writes = (await new_table(tables)).writes
        with calls_of("mine"):
            assert [await writes.open_writer(name) for name in ("a", "a", "b")] == [(1, 0), (2, 0), (1, 0)]
            with pytest.raises(TooManyWriters, match=r'the principal "mine" has 2 writers in a bucket of .* 2 of 20'):
                await writes.open_writer("c")
        with calls_of("other"):
            await writes.open_writer("c")
    async with tables_in(tmp_path, **limits) as tables:
        writes = tables.table(TABLE).writes
        with calls_of("mine"):
            with pytest.raises(TooManyWriters, match="max_caller_share"):
                await writes.open_writer("d")
            assert await writes.open_writer("b") == (2, 0)
            assert await writes.assign_writers("mine", "third") == {"a", "b"}
            await writes.open_writer("d")
        with calls_of("third"), pytest.raises(TooManyWriters, match="max_caller_share"):
            await writes.open_writer("e")


async def test_assignments_at_the_same_time_give_no_more_than_half_of_the_share(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_snapshot_leases=20, max_caller_share=0.5) as tables:
        held = [await new_table(tables, f"a.t{number}", buckets=1) for number in range(2)]
        for table in held:
            with calls_of("before"):
                for _ in range(3):
                    await tables.snapshots.pin(table.pinning)
        with calls_of("mallory", "admin:a.*"):
            given = await asyncio.gather(
                *(assign_owner(tables, table, "before", "victim") for table in held), return_exceptions=True
            )
        assert sorted(type(each).__name__ for each in given) == ["AssignedThings", "TooManySnapshots"]
        assert sum(each.principal == "victim" for each in tables.snapshots.list_snapshots()) == 3


async def test_expired_writers_make_place_in_the_share_of_a_principal_after_a_minute(tmp_path: Path) -> None:
    machine = FakeClocks()
    limits = {"max_writers_per_bucket": 20, "max_caller_share": 0.1, "log_maintenance_seconds": 3600}
    async with tables_in(tmp_path, machine, writer_ttl_seconds=600, **limits) as tables:
        writes = (await new_table(tables)).writes
        with calls_of("mine"):
            await writes.open_writer("a")
            await writes.open_writer("b")
            machine.pass_time(580)
            with pytest.raises(TooManyWriters, match="max_caller_share"):
                await writes.open_writer("c")
            machine.pass_time(30)
            with pytest.raises(TooManyWriters, match="max_caller_share"):
                await writes.open_writer("c")
            machine.pass_time(30)
            await writes.find_writer("c", may_be_new=True)
            await writes.open_writer("c")


async def test_owners_stay_in_memory_and_on_disk_if_the_disk_fails_when_they_are_assigned(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        with calls_of("mine"):
            await tables.snapshots.pin(table.pinning, lease_id="pinned")
            await table.writes.locks.lock(lambda: table.definition, ["score"], "job", "locked", None)
        blocked = partial_files(tmp_path)
        for path in blocked:
            path.mkdir()
        with pytest.raises(IsADirectoryError):
            await tables.snapshots.assign(TABLE, "mine", "other")
        with pytest.raises(IsADirectoryError):
            await table.writes.locks.assign("mine", "other")
        assert held_by(tables) == {"mine"}
        for path in blocked:
            path.rmdir()
        assert await tables.snapshots.assign(TABLE, "mine", "other") == 1
        assert await table.writes.locks.assign("mine", "other") == 1
        assert held_by(tables) == {"other"}
    async with tables_in(tmp_path) as tables:
        assert held_by(tables) == {"other"}


def held_by(tables: Tables) -> set[str]:
    """Returns the principals that have a snapshot or a column lock of the table."""
    locks = {each.principal for each in tables.table(TABLE).writes.locks.live()}
    return locks | {each.principal for each in tables.snapshots.list_snapshots()}


def partial_files(data_dir: Path) -> list[Path]:
    """Returns under which names the files of the snapshot and of the locks are written first."""
    found = [next(data_dir.rglob(name)) for name in ("pinned.json", "column-locks.json")]
    return [path.with_name(f"{path.name}.partial") for path in found]
