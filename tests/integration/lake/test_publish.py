"""A published table shows the table at its log offsets, and keeps the files whose rows have not changed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import pyarrow as pa
import pytest

from aio_client import LakeConflict, LakeDamaged, LakeUnavailable, LogOffsets, StartFrom, StopAt, UsageError
from scankv.lake import table_view
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import live_rows, read_delta, read_with_polars, sorted_rows

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client, Table
    from scankv.lake.publisher import PublishReport

SCORES = pa.schema([("player", pa.int64()), ("score", pa.int64()), ("league", pa.string())])
pytestmark = pytest.mark.asyncio
SMALL = PublishOptions(file_rows=50)


def rows_of(players: range, score: int = 1, league: str = "a") -> pa.Table:
    return pa.table(
        {"player": list(players), "score": [score] * len(players), "league": [league] * len(players)}, SCORES
    )


async def create(client: Client, name: str, players: range = range(1000), changelog: str = "full") -> Table:
    table = await client.create_table(name, SCORES, primary_key=["player"], buckets=3, changelog=changelog)
    await table.upsert(rows_of(players))
    return table


async def publish_and_compare(client: Client, name: str, uri: str, options: PublishOptions = SMALL) -> PublishReport:
    """Publishes, and checks that readers which know nothing of ScanKV see the rows of the table."""
    report = await publish(client, name, open_lake_table(uri), options)
    table = await client.table(name)
    expected = await live_rows(table)
    for found in (read_delta(uri), read_with_polars(uri)):
        assert sorted_rows(found, table.primary_key) == expected
    return report


async def test_the_first_version_has_all_rows(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    report = await publish_and_compare(client, name, uri)
    assert (report.version, report.mode, report.rows, report.files_removed) == (0, "full", 1000, 0)
    assert report.log_offsets == await table.log_offsets()


async def test_duckdb_reads_a_version_as_arrow_data(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(10, 30), score=5))
    await publish_and_compare(client, name, uri, PublishOptions(file_rows=50, masks=True))
    published = read_delta(uri)
    found = duckdb.from_arrow(published).aggregate("count(*), sum(score), max(player)").fetchall()
    assert found == [(1000, 1080, 999)]


async def test_an_empty_table_is_published(client: Client, name: str, uri: str) -> None:
    await create(client, name, range(0))
    assert (await publish_and_compare(client, name, uri)).rows == 0
    assert read_delta(uri).schema.names == SCORES.names


async def test_nothing_is_committed_if_nothing_has_changed(client: Client, name: str, uri: str) -> None:
    await create(client, name)
    await publish_and_compare(client, name, uri)
    report = await publish_and_compare(client, name, uri)
    assert (report.mode, report.version, report.files_added) == ("unchanged", 0, 0)
    assert deltalake.DeltaTable(uri).version() == 0


async def test_only_files_with_changed_rows_are_replaced(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    before = await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(5), score=9))
    await table.delete([7])
    report = await publish_and_compare(client, name, uri)
    assert report.mode == "changes"
    assert 1 <= report.files_removed <= 3
    assert report.files_kept == before.files_added - report.files_removed
    assert report.rows <= 3 * SMALL.file_rows


@pytest.mark.soak
async def test_rows_that_arrive_in_key_order_leave_complete_files_alone(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    for start in range(1000, 1500, 10):
        await table.upsert(rows_of(range(start, start + 10)))
        report = await publish_and_compare(client, name, uri)
        assert report.mode == "changes"
        assert report.rows <= 3 * SMALL.file_rows
    assert len(deltalake.DeltaTable(uri).file_uris()) <= 2 * 1500 / SMALL.file_rows + 3


@pytest.mark.breadth
async def test_a_range_deleted_at_once_replaces_its_files(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.delete(where="player < 300", track_changes=False)
    await table.upsert(rows_of(range(250, 260), score=3))
    report = await publish_and_compare(client, name, uri)
    assert report.mode == "changes"
    assert report.files_kept > 0


@pytest.mark.breadth
async def test_changes_that_are_not_known_publish_all_rows(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(100), score=2), track_changes=False)
    await table.delete(list(range(50)))
    report = await publish_and_compare(client, name, uri)
    assert report.mode == "full"
    assert report.reason is not None
    assert "track_changes=False" in report.reason


async def test_a_table_without_a_changelog_is_published_completely_each_time(
    client: Client, name: str, uri: str
) -> None:
    table = await create(client, name, changelog="none")
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(1), score=2))
    report = await publish_and_compare(client, name, uri)
    assert (report.mode, report.reason) == ("full", 'the table has no changelog (changelog="none")')


@pytest.mark.breadth
@pytest.mark.parametrize("changelog", ["upsert", "input"])
async def test_other_changelogs_are_followed(client: Client, name: str, uri: str, changelog: str) -> None:
    table = await create(client, name, changelog=changelog)
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(3, 6), score=2))
    await table.delete([4, 900])
    report = await publish_and_compare(client, name, uri)
    assert report.mode == "changes"
    assert report.files_kept > 0


@pytest.mark.breadth
async def test_a_recreated_table_replaces_the_rows_of_the_earlier_one(client: Client, name: str, uri: str) -> None:
    await create(client, name)
    await publish_and_compare(client, name, uri)
    await client.drop_table(name)
    await create(client, name, range(5))
    report = await publish_and_compare(client, name, uri)
    assert (report.mode, report.reason) == ("full", "the table was restored, or dropped and created again")


async def test_every_version_shows_the_table_at_its_log_offsets(client: Client, name: str, uri: str) -> None:
    table = await create(client, name, range(20))
    for score in range(2, 6):
        await publish_and_compare(client, name, uri)
        await table.upsert(rows_of(range(score, score + 4), score=score))
    for version in range(4):
        properties = deltalake.DeltaTable(uri, version=version).metadata().configuration
        offsets = LogOffsets.from_json(properties["scankv.log_offsets"])
        rows = {row["player"]: row for row in read_delta(uri, version).to_pylist()}
        changes = await table.changes(StartFrom.offsets(offsets), StopAt.LATEST).to_pylist()
        for change in changes:
            key = change["player"]
            if change["_change_type"] in ("-U", "-D"):
                assert rows.pop(key)["score"] == change["score"]
            else:
                rows[key] = {column: change[column] for column in SCORES.names}
        assert sorted(rows.values(), key=lambda row: row["player"]) == await live_rows(table)


async def test_of_two_publishers_one_commits(client: Client, name: str, uri: str) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    slow = open_lake_table(uri)
    base = slow.load()
    await table.upsert(rows_of(range(10), score=4))
    assert (await publish_and_compare(client, name, uri)).version == 1
    slow.load = lambda: base  # type: ignore[method-assign]  # it has read the version before
    with pytest.raises(LakeConflict, match="another program has committed"):
        await publish(client, name, slow, SMALL)
    assert deltalake.DeltaTable(uri).version() == 1
    listed = {file for file in os.listdir(uri) if file.endswith(".parquet")}
    known = {path.rpartition("/")[2] for v in (0, 1) for path in deltalake.DeltaTable(uri, version=v).file_uris()}
    assert listed == known
    assert (await publish_and_compare(client, name, uri)).mode == "unchanged"


async def test_another_table_is_not_published_over_it(client: Client, name: str, uri: str) -> None:
    await create(client, name)
    await create(client, f"{name}_other")
    await publish_and_compare(client, name, uri)
    with pytest.raises(LakeDamaged, match="was published from the rows of table"):
        await publish(client, f"{name}_other", open_lake_table(uri))


async def test_a_table_of_another_program_is_left_alone(client: Client, name: str, uri: str) -> None:
    await create(client, name)
    deltalake.write_deltalake(uri, rows_of(range(3)))
    with pytest.raises(LakeDamaged, match="ScanKV has not published"):
        await publish(client, name, open_lake_table(uri))
    assert deltalake.DeltaTable(uri).version() == 0


@pytest.mark.parametrize("change", ["compact", "delete some", "delete all"])
@pytest.mark.breadth
async def test_files_that_another_program_has_changed_are_replaced(
    client: Client, name: str, uri: str, change: str
) -> None:
    await create(client, name)
    await publish_and_compare(client, name, uri)
    foreign = deltalake.DeltaTable(uri)
    if change == "compact":
        foreign.optimize.compact()
    else:
        foreign.delete("player < 10" if change == "delete some" else None)
    report = await publish_and_compare(client, name, uri)
    assert report.mode == "full"
    assert report.reason is not None
    assert "another program" in report.reason


@pytest.mark.breadth
async def test_a_damaged_log_is_reported(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(3), score=2))
    await publish_and_compare(client, name, uri)
    log = tmp_path / "published/_delta_log"
    content = (log / f"{1:020}.json").read_bytes()
    (log / f"{1:020}.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(LakeDamaged, match=f"{1:020}.json"):
        await publish(client, name, open_lake_table(uri))
    (log / f"{1:020}.json").write_bytes(content)
    (log / f"{0:020}.json").unlink()
    with pytest.raises(LakeDamaged, match="is missing"):
        await publish(client, name, open_lake_table(uri))


async def test_a_location_that_cannot_be_written_is_reported(client: Client, name: str, tmp_path: Path) -> None:
    table = await create(client, name)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LakeUnavailable, match="see to its space"):
        await publish(client, name, open_lake_table(str(tmp_path / "file/published")))
    assert await table.count() == 1000


async def test_a_location_with_credentials_is_refused() -> None:
    with pytest.raises(UsageError, match="contains credentials") as refused:
        open_lake_table("s3://key:secret@bucket/table")
    assert "secret" not in refused.value.message


@pytest.mark.breadth
async def test_old_files_are_deleted_and_others_are_not(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(1000), score=2))
    await publish_and_compare(client, name, uri)
    orphan = tmp_path / f"published/scankv-00000-{'0' * 32}.parquet"
    foreign = tmp_path / "published/scankv-notes.parquet"
    for path in (orphan, foreign):
        path.write_bytes(b"")
    assert open_lake_table(uri, keep_seconds=3600).expire(orphan_seconds=3600) == 0
    assert open_lake_table(uri, keep_seconds=3600).expire(orphan_seconds=0) == 1
    assert not orphan.exists()
    assert len(read_delta(uri, version=0)) == 1000
    assert open_lake_table(uri, keep_seconds=0).expire(orphan_seconds=0) > 0
    assert foreign.exists()
    assert sorted_rows(read_delta(uri), ["player"]) == await live_rows(table)


@pytest.mark.soak
async def test_checkpoints_keep_what_the_next_pass_needs(client: Client, name: str, uri: str, tmp_path: Path) -> None:
    table = await create(client, name)
    for score in range(2, 24):
        await publish_and_compare(client, name, uri)
        await table.upsert(rows_of(range(score), score=score))
    log = tmp_path / "published/_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    # Later versions are read from the checkpoint alone.
    for version in range(int(checkpoint.name[:20]) + 1):
        (log / f"{version:020}.json").unlink()
    report = await publish_and_compare(client, name, uri)
    assert report.mode == "changes"
    assert report.files_kept > 0


async def test_the_properties_name_the_instant(client: Client, name: str, uri: str) -> None:
    await create(client, name)
    report = await publish_and_compare(client, name, uri)
    (entry,) = deltalake.DeltaTable(uri).history()
    assert entry["scankv.view_time"] == report.taken_at
    assert LogOffsets.from_json(entry["scankv.log_offsets"]) == report.log_offsets
    statistics = pa.table(deltalake.DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()
    assert sum(each["num_records"] for each in statistics) == 1000
    assert all(each["min.player"] <= each["max.player"] for each in statistics)
    assert json.loads(deltalake.DeltaTable(uri).schema().to_json())["fields"][0]["nullable"] is False


async def test_a_location_that_cannot_be_created_is_reported(client: Client, name: str, tmp_path: Path) -> None:
    await create(client, name)
    (tmp_path / "file").write_text("not a directory")
    for uri in ("/proc/published", str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        with pytest.raises((LakeUnavailable, LakeDamaged)):
            await publish(client, name, open_lake_table(uri))
    assert (tmp_path / "file").read_text() == "not a directory"


@pytest.mark.parametrize("masks", [False, True], ids=["files", "vectors"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before the view", "after the view"])
@pytest.mark.represented_by("before the view-files")
async def test_a_table_that_loses_its_changelog_during_a_pass_is_written_again(
    client: Client, name: str, uri: str, monkeypatch: pytest.MonkeyPatch, is_before: bool, masks: bool
) -> None:
    table = await create(client, name)
    await publish_and_compare(client, name, uri)
    await table.upsert(rows_of(range(5), score=2))
    view_of_changes = table_view._view_of_changes

    async def lose_changelog(*args: Any) -> table_view.TableView | None:
        monkeypatch.undo()
        view = None if is_before else await view_of_changes(*args)
        await client.alter_table(name, changelog="none")
        return await view_of_changes(*args) if is_before else view

    monkeypatch.setattr(table_view, "_view_of_changes", lose_changelog)
    report = await publish(client, name, open_lake_table(uri), PublishOptions(masks=masks))
    assert (report.mode, report.reason) == ("full", 'the table has no changelog (changelog="none")')
    assert (await publish_and_compare(client, name, uri)).mode == "full"
