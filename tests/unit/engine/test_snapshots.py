"""Pinned snapshots in the engine: which pins share a view, names, shared ids, limits, damage, and how a view ends."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from scankv.model.errors import (
    DataLoss,
    InvalidRequest,
    ScanKvError,
    ServerDraining,
    SnapshotExists,
    SnapshotLost,
    TableNotFound,
    TooManySnapshots,
)
from scankv.model.names import tablet_name
from scankv.model.tables.evolution import ColumnChanges
from streaming_server.engine.snapshots.part_ids import PartId
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.snapshots.ended_leases import MOST_IDS, EndedLeases
from tests.support.snapshots import EVERY_KEY, TABLE, new_table, pinned_scores, put, tables_in, views_on_disk
from tests.support.tables import SCORES
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streaming_server.engine.snapshots.pinned_view import SnapshotReader
    from streaming_server.engine.tables.tables import Tables

pytestmark = pytest.mark.asyncio

SCORES_THEN: dict[str, int | None] = {f"player {i}": i for i in range(100)}


@pytest_asyncio.fixture
async def tables(tmp_path: Path) -> AsyncIterator[Tables]:
    async with tables_in(tmp_path) as tables:
        await put(await new_table(tables), SCORES_THEN)
        yield tables


async def test_a_snapshot_has_the_columns_of_its_pin(tables: Tables) -> None:
    pinned = await tables.snapshots.pin(tables.table(TABLE).pinning)
    await tables.alter(TABLE, columns=ColumnChanges(add=pa.schema([("team", pa.string())])))
    assert await pinned_scores(tables.snapshots, pinned.snapshot_id) == SCORES_THEN
    later = await tables.snapshots.pin(tables.table(TABLE).pinning)
    assert later.view_id != pinned.view_id
    assert later.manifest.definition.schema.names == ("player", "score", "team")
    assert pinned.manifest.definition.schema.names == ("player", "score")


async def test_pins_at_the_same_time_share_one_view(tables: Tables) -> None:
    pins = await asyncio.gather(*(tables.snapshots.pin(tables.table(TABLE).pinning) for _ in range(20)))
    assert len({pin.view_id for pin in pins}) == 1


async def test_one_id_pinned_on_two_tables_at_once_is_of_one_of_them(tables: Tables) -> None:
    other = await new_table(tables, "game.other")
    both = await asyncio.gather(
        *(tables.snapshots.pin(table.pinning, lease_id="mine") for table in (tables.table(TABLE), other)),
        return_exceptions=True,
    )
    assert sorted(isinstance(result, InvalidRequest) for result in both) == [False, True]
    assert tables.snapshots.leases == 1


@pytest.mark.parametrize("ttl", [0.0, 0.999, -1.0, 7 * 24 * 3600.0 + 1, float("nan"), float("inf")])
async def test_a_time_to_live_out_of_range_is_refused(tables: Tables, ttl: float) -> None:
    with pytest.raises(InvalidRequest, match="between 1 and 604,800 s, not"):
        await tables.snapshots.pin(tables.table(TABLE).pinning, ttl=ttl)
    pinned = await tables.snapshots.pin(tables.table(TABLE).pinning)
    with pytest.raises(InvalidRequest, match="between 1 and 604,800 s, not"):
        await tables.snapshots.renew(pinned.snapshot_id, ttl)


async def assert_lost(tables: Tables, snapshot_id: str) -> None:
    """Checks that every call refuses the id."""
    snapshots = tables.snapshots
    with pytest.raises(SnapshotLost):
        await pinned_scores(snapshots, snapshot_id)
    with pytest.raises(SnapshotLost):
        await snapshots.renew(snapshot_id)
    with pytest.raises(SnapshotLost):
        await snapshots.release(snapshot_id)
    with pytest.raises(SnapshotLost):
        await snapshots.split(snapshot_id, 2, EVERY_KEY)
    assert snapshot_id not in {info.snapshot_id for info in snapshots.list_snapshots()}


async def test_a_name_is_taken_once_in_a_table_until_its_snapshot_ends(tables: Tables) -> None:
    pinning, other = tables.table(TABLE).pinning, await new_table(tables, "game.other")
    first = await tables.snapshots.pin(pinning, name="nightly")
    with pytest.raises(SnapshotExists, match=f'named "nightly", with the id {first.snapshot_id}'):
        await tables.snapshots.pin(pinning, name="nightly")
    assert (await tables.snapshots.pin(other.pinning, name="nightly")).name == "nightly"
    await tables.snapshots.release(first.snapshot_id)
    assert (await tables.snapshots.pin(pinning, name="nightly")).snapshot_id != first.snapshot_id


async def test_of_pins_with_one_name_at_the_same_time_one_succeeds(tables: Tables) -> None:
    pins = (tables.snapshots.pin(tables.table(TABLE).pinning, name="nightly") for _ in range(10))
    ends = await asyncio.gather(*pins, return_exceptions=True)
    (taken,) = [end for end in ends if not isinstance(end, BaseException)]
    refused = [end for end in ends if isinstance(end, SnapshotExists)]
    assert [error.details["snapshot"] for error in refused] == 9 * [taken.snapshot_id]


async def test_a_repeated_pin_keeps_its_view_and_its_name_also_after_a_write(tables: Tables) -> None:
    pinning = tables.table(TABLE).pinning
    first = await tables.snapshots.pin(pinning, lease_id="mine", name="nightly")
    await put(tables.table(TABLE), {"player 1": 1_000})
    again = await tables.snapshots.pin(pinning, lease_id="mine", name="nightly")
    assert (again.snapshot_id, again.view_id, again.name) == ("mine", first.view_id, "nightly")
    assert tables.snapshots.leases == 1
    with pytest.raises(InvalidRequest, match='the snapshot mine is named "nightly": its name cannot become "weekly"'):
        await tables.snapshots.pin(pinning, lease_id="mine", name="weekly")
    await tables.snapshots.pin(pinning, lease_id="unnamed")
    with pytest.raises(InvalidRequest, match="the snapshot unnamed has no name"):
        await tables.snapshots.pin(pinning, lease_id="unnamed", name="weekly")


@pytest.mark.parametrize("name", ["a b", "../up", "ä", "x" * 129, "a@b"])
async def test_a_name_with_other_characters_is_refused(tables: Tables, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not the name of a snapshot: it must be 1 to 128 of"):
        await tables.snapshots.pin(tables.table(TABLE).pinning, name=name)
    assert tables.snapshots.leases == 0


async def test_a_shared_snapshot_has_no_name(tables: Tables) -> None:
    with pytest.raises(InvalidRequest, match="a shared snapshot cannot have a name"):
        await tables.snapshots.pin(tables.table(TABLE).pinning, lease_id="all", shared=True, name="nightly")


async def test_a_name_survives_a_restart_also_after_a_renewal(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        pinned = await tables.snapshots.pin((await new_table(tables)).pinning, name="nightly", ttl=600)
        await tables.snapshots.renew(pinned.snapshot_id, ttl=700)
    async with tables_in(tmp_path) as tables:
        (found,) = tables.snapshots.list_snapshots(TABLE)
        assert (found.snapshot_id, found.name, found.ttl) == (pinned.snapshot_id, "nightly", 700)
        with pytest.raises(SnapshotExists):
            await tables.snapshots.pin(tables.table(TABLE).pinning, name="nightly")


async def is_lost(tables: Tables, snapshot_id: str) -> bool:
    return snapshot_id not in {info.snapshot_id for info in tables.snapshots.list_snapshots()}


@pytest.mark.breadth
async def test_a_shortened_lease_expires_at_its_new_time(tables: Tables) -> None:
    pinned = await tables.snapshots.pin(tables.table(TABLE).pinning, ttl=1000)
    await tables.snapshots.renew(pinned.snapshot_id, 1)
    await await_until(lambda: is_lost(tables, pinned.snapshot_id), "the lease expired")


@pytest.mark.breadth
async def test_the_id_and_the_name_of_an_expired_snapshot_are_free(tables: Tables) -> None:
    pinning = tables.table(TABLE).pinning
    first = await tables.snapshots.pin(pinning, lease_id="mine", name="nightly", ttl=1)
    await put(tables.table(TABLE), {"player 1": 1_000})
    await await_until(lambda: is_lost(tables, "mine"), "the lease expired")
    again = await tables.snapshots.pin(pinning, lease_id="mine", name="nightly")
    assert again.view_id != first.view_id
    assert (await pinned_scores(tables.snapshots, "mine"))["player 1"] == 1_000


@pytest.mark.breadth
async def test_a_shared_id_names_one_view_for_good_also_after_a_restart(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await put(table, SCORES_THEN)
        await tables.snapshots.pin(table.pinning, lease_id="expires", ttl=1, shared=True)
        await tables.snapshots.pin(table.pinning, lease_id="released", shared=True)
        lives = await tables.snapshots.pin(table.pinning, lease_id="lives", shared=True)
        await put(table, {"player 1": 1_000})
        await tables.snapshots.release("released")
        await await_until(lambda: is_lost(tables, "expires"), "the lease expired")
        for lease_id in ("expires", "released"):
            with pytest.raises(SnapshotLost):
                await tables.snapshots.pin(table.pinning, lease_id=lease_id, shared=True)
    for _ in range(2):
        async with tables_in(tmp_path) as tables:
            table = tables.table(TABLE)
            for lease_id in ("expires", "released"):
                with pytest.raises(SnapshotLost):
                    await tables.snapshots.pin(table.pinning, lease_id=lease_id, shared=True)
            assert (await tables.snapshots.pin(table.pinning, lease_id="lives", shared=True)).view_id == lives.view_id
    async with tables_in(tmp_path) as tables:
        await tables.snapshots.release("lives")
    async with tables_in(tmp_path) as tables:
        with pytest.raises(SnapshotLost):
            await tables.snapshots.pin(tables.table(TABLE).pinning, lease_id="lives", shared=True)


async def test_a_shared_id_of_a_dropped_table_is_free_for_the_next_one(tables: Tables) -> None:
    await tables.snapshots.pin(tables.table(TABLE).pinning, lease_id="ours", shared=True)
    await tables.snapshots.release("ours")
    await tables.drop(TABLE)
    table = await new_table(tables)
    await tables.snapshots.pin(table.pinning, lease_id="ours", shared=True)
    assert await pinned_scores(tables.snapshots, "ours") == {}


async def test_shared_leases_that_were_not_renewed_for_a_minute_make_place(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_snapshot_leases=3) as tables:
        table = await new_table(tables)
        snapshots = tables.snapshots
        await snapshots.pin(table.pinning, lease_id="held", ttl=50)
        await snapshots.pin(table.pinning, lease_id="older", ttl=500, shared=True)
        await snapshots.pin(table.pinning, lease_id="newer", ttl=500, shared=True)
        with pytest.raises(TooManySnapshots):
            await snapshots.pin(table.pinning, lease_id="next")
        for lease_id, seconds in (("older", 70), ("newer", 65), ("held", 90)):
            snapshots.lease(lease_id).expires -= seconds if lease_id != "held" else 40
        await snapshots.pin(table.pinning, lease_id="next")
        assert sorted(each.snapshot_id for each in snapshots.list_snapshots()) == ["held", "newer", "next"]
        with pytest.raises(SnapshotLost):
            await snapshots.pin(table.pinning, lease_id="older", shared=True)


async def test_parts_of_shared_snapshots_make_place_as_one_snapshot(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_snapshot_leases=2) as tables:
        await tables.create(TABLE, SCORES, primary_key=["player"], bucket_key=(), buckets=3, options={}, tablets=3)
        pinnings = [tables.table(tablet_name(TABLE, number)).pinning for number in range(3)]
        snapshots = tables.snapshots

        async def pin(lease_id: str, *, shared: bool) -> PartId:
            first = PartId.new(lease_id, 3, shared=shared)
            for pinning, part in zip(pinnings, first.all_parts.values(), strict=True):
                await snapshots.pin(pinning, lease_id=str(part), ttl=500)
            await snapshots.announce(first, shared=shared, name="")
            return first

        held, older = await pin("held", shared=False), await pin("older", shared=True)
        assert snapshots.leases == 2
        with pytest.raises(TooManySnapshots):
            await pin("next", shared=False)
        for part in (*held.all_parts.values(), *older.all_parts.values()):
            snapshots.lease(str(part)).expires -= 70
        following = await pin("next", shared=False)
        kept = {*map(str, held.all_parts.values()), *map(str, following.all_parts.values())}
        assert {each.snapshot_id for each in snapshots.list_snapshots()} == kept
        with pytest.raises(SnapshotLost):
            await snapshots.find_pinned(pinnings[0].table, "older", "")


@pytest.mark.breadth
@pytest.mark.parametrize("content", [b"\xff\x00", b"half-an-i", b"\n\n"])
async def test_ended_ids_that_cannot_be_read_keep_no_table_from_being_served(tmp_path: Path, content: bytes) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await tables.snapshots.pin(table.pinning, lease_id="first", shared=True)
        await tables.snapshots.release("first")
        ended = table.state.path / "ended_snapshots"
    ended.write_bytes(content + ended.read_bytes())
    async with tables_in(tmp_path) as tables:
        table = tables.table(TABLE)
        with pytest.raises(SnapshotLost):
            await tables.snapshots.pin(table.pinning, lease_id="first", shared=True)
        await tables.snapshots.pin(table.pinning, lease_id="second", shared=True)
        ended.unlink()
        ended.mkdir()
        await tables.snapshots.release("second")
        with pytest.raises(SnapshotLost):
            await tables.snapshots.pin(table.pinning, lease_id="second", shared=True)
    async with tables_in(tmp_path) as tables:
        await tables.snapshots.pin(tables.table(TABLE).pinning)


async def test_the_file_of_ended_ids_stays_small(tmp_path: Path) -> None:
    ended = EndedLeases(tmp_path)
    for number in range(5 * MOST_IDS):
        ended.add(f"{number:064}")
    for number in range(5 * MOST_IDS - 10, 5 * MOST_IDS):
        ended.write(f"{number:064}")
    path = tmp_path / "ended_snapshots"
    path.write_text("\n".join(f"{number:064}" for number in range(5 * MOST_IDS)))
    ended.write(f"{5 * MOST_IDS - 1:064}")
    assert path.stat().st_size <= MOST_IDS * 65
    again = EndedLeases(tmp_path)
    again.load()
    assert f"{4 * MOST_IDS:064}" in again
    assert f"{4 * MOST_IDS - 1:064}" not in again


async def test_a_scan_that_runs_while_its_lease_ends_reads_on_to_the_end(tables: Tables, tmp_path: Path) -> None:
    pinned = await tables.snapshots.pin(tables.table(TABLE).pinning)
    async with tables.snapshots.reading(pinned.snapshot_id, TABLE) as reader:
        before = {row["player"]: row["score"] for row in rows_of(reader, 0)}
        await tables.snapshots.release(pinned.snapshot_id)
        await assert_lost(tables, pinned.snapshot_id)
        assert len(views_on_disk(tmp_path)) == 1
        after = [row for bucket in (1, 2) for row in rows_of(reader, bucket)]
        assert before | {row["player"]: row["score"] for row in after} == SCORES_THEN

    async def gone() -> bool:
        return views_on_disk(tmp_path) == []

    await await_until(gone, "the view gone")


def open_cursor(reader: SnapshotReader, bucket: int) -> BucketCursor:
    return reader.cursor(bucket, reader.codec.decoder(), EVERY_KEY)


def rows_of(reader: SnapshotReader, bucket: int) -> list[dict[str, Any]]:
    cursor = open_cursor(reader, bucket)
    try:
        batch = cursor.next_batch(1000, 1 << 20)
        assert cursor.next_batch(1000, 1 << 20) is None
    finally:
        cursor.close()
    return [] if batch is None else list(batch.to_pylist())


async def test_a_damaged_manifest_is_data_loss_and_the_server_starts(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await put(table, SCORES_THEN)
        pinned = await tables.snapshots.pin(table.pinning)
    (view,) = views_on_disk(tmp_path)
    text = (view / "manifest.json").read_text()
    (view / "manifest.json").write_text(text.replace('"view_micros": 1', '"view_micros": 2'))
    async with tables_in(tmp_path) as tables:
        with pytest.raises(DataLoss, match=r"manifest\.json is damaged"):
            await pinned_scores(tables.snapshots, pinned.snapshot_id)
        with pytest.raises(DataLoss):
            await tables.snapshots.split(pinned.snapshot_id, 2, EVERY_KEY)
        assert tables.snapshots.list_snapshots() == []
        assert (await tables.snapshots.pin(tables.table(TABLE).pinning)).view_id != pinned.view_id
        await tables.snapshots.release(pinned.snapshot_id)
        assert not view.exists()


async def test_a_missing_checkpoint_is_data_loss_and_the_other_buckets_are_read(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await put(table, SCORES_THEN)
        pinned = await tables.snapshots.pin(table.pinning)
        (view,) = views_on_disk(tmp_path)
        (view / "buckets" / "0001").rename(view / "away")
        with pytest.raises(DataLoss):
            await pinned_scores(tables.snapshots, pinned.snapshot_id)
        found = await pinned_scores(tables.snapshots, pinned.snapshot_id, buckets=[0, 2])
        assert 0 < len(found) < len(SCORES_THEN)


class WatchedSource:
    """A source that uses a view, as a scan does."""

    def __init__(self, cursor: BucketCursor) -> None:
        self.cursor = cursor
        self.error: ScanKvError | None = None

    def abort(self, error: ScanKvError) -> None:
        self.error = error
        self.cursor.close()


@pytest.mark.parametrize("is_dropped", [True, False], ids=["dropped", "directory removed first"])
async def test_a_read_that_fails_because_its_view_is_gone_reports_no_damage(
    tables: Tables, is_dropped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pinned = await tables.snapshots.pin(tables.table(TABLE).pinning)
    async with tables.snapshots.reading(pinned.snapshot_id, TABLE, [0]) as reader:
        view = reader._view
        if is_dropped:
            await tables.drop(TABLE)
        else:
            view.directory.remove(tables.snapshots._views._trash)
            with pytest.raises(SnapshotLost, match=f"the snapshot view {view.view_id} is gone"):
                await view.open_buckets([1])
        reason = TableNotFound if is_dropped else SnapshotLost
        assert isinstance(reader.record_error(0, DataLoss("a file is missing")), reason)
        assert isinstance(reader.record_base_error([0], 0, DataLoss("a file is missing")), reason)
        assert view._damaged_bases == set()
    assert "DATA_LOSS" not in caplog.text
    assert "no longer read" not in caplog.text


async def test_a_drop_beside_pins_ends_all_of_them(tables: Tables, tmp_path: Path) -> None:
    table = tables.table(TABLE)
    pins = [asyncio.create_task(tables.snapshots.pin(table.pinning)) for _ in range(5)]
    await asyncio.sleep(0)
    await tables.drop(TABLE)
    for result in await asyncio.gather(*pins, return_exceptions=True):
        assert not isinstance(result, BaseException) or isinstance(result, TableNotFound)
    assert tables.snapshots.leases == tables.snapshots.views == 0
    assert views_on_disk(tmp_path) == []


async def test_a_scan_gets_server_draining_when_the_server_stops(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await put(table, SCORES_THEN)
        pinned = await tables.snapshots.pin(table.pinning)
        async with tables.snapshots.reading(pinned.snapshot_id, TABLE) as reader:
            source = WatchedSource(open_cursor(reader, 0))
            reader.watch(source)
            await tables.snapshots.close()
            assert isinstance(source.error, ServerDraining)


@pytest.mark.breadth
async def test_only_few_views_that_nobody_reads_stay_open(tables: Tables) -> None:
    pins = []
    for number in range(12):
        await put(tables.table(TABLE), {"player 1": number})
        pins.append(await tables.snapshots.pin(tables.table(TABLE).pinning))
    for number, pin in enumerate(pins):
        assert (await pinned_scores(tables.snapshots, pin.snapshot_id))["player 1"] == number

    async def few() -> bool:
        return sum(view.open_checkpoints > 0 for view in tables.snapshots._views) == 8

    await await_until(few, "eight views open")
    is_open = {view.view_id: view.open_checkpoints > 0 for view in tables.snapshots._views}
    assert [is_open[pin.view_id] for pin in pins] == [False] * 4 + [True] * 8
    for number, pin in enumerate(pins):
        assert (await pinned_scores(tables.snapshots, pin.snapshot_id))["player 1"] == number


async def test_no_file_of_a_view_stays_open_once_it_is_gone(tables: Tables, tmp_path: Path) -> None:
    first = await tables.snapshots.pin(tables.table(TABLE).pinning)
    await put(tables.table(TABLE), {"player 1": 1_000})
    second = await tables.snapshots.pin(tables.table(TABLE).pinning)
    (damaged,) = [view for view in views_on_disk(tmp_path) if view.name == second.view_id]
    (damaged / "buckets" / "0000" / "CURRENT").write_text("MANIFEST-999999\n")
    await pinned_scores(tables.snapshots, first.snapshot_id)
    await tables.snapshots.split(first.snapshot_id, 3, EVERY_KEY)
    assert open_files(first.view_id)
    with pytest.raises(DataLoss):
        await pinned_scores(tables.snapshots, second.snapshot_id)
    for pin in (first, second):
        await tables.snapshots.release(pin.snapshot_id)
        assert open_files(pin.view_id) == []
    assert BucketCursor.open_cursors == 0


def open_files(name: str) -> list[str]:
    """Returns the files that this process has open below directories with this name."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(link))
    return [file for file in found if name in file]


async def test_what_is_listed_has_the_oldest_view_first(tables: Tables) -> None:
    table = tables.table(TABLE)
    await tables.snapshots.pin(table.pinning, lease_id="z")
    await tables.snapshots.pin((await new_table(tables, "game.other")).pinning, lease_id="m")
    await put(table, {"player 1": 1_000})
    await tables.snapshots.pin(table.pinning, lease_id="a")
    assert [info.snapshot_id for info in tables.snapshots.list_snapshots()] == ["z", "m", "a"]
    assert [info.snapshot_id for info in tables.snapshots.list_snapshots(TABLE)] == ["z", "a"]
    assert tables.snapshots.list_snapshots("game.none") == []
