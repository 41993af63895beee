"""Publishers die, compete, and meet full disks: no version is skipped, repeated or incomplete."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from aio_client import LakeConflict, LakeUnavailable, LogOffsets, connect
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.dying_publisher import publish_and_die
from tests.support.lake_readers import live_rows, read_delta, sorted_rows
from tests.support.small_disk import small_disk

if TYPE_CHECKING:
    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
SMALL = PublishOptions(file_rows=50)


async def create(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(pa.table({"id": list(range(200)), "value": [0] * 200}, SCHEMA))
    return table


def published(uri: str) -> list[dict[str, Any]]:
    return sorted_rows(read_delta(uri), ["id"])


def files_in(uri: str) -> set[str]:
    return {path.name for path in Path(uri).rglob("*") if path.is_file()}


def offsets_of_versions(uri: str) -> list[dict[int, int]]:
    """Returns the log offsets of all versions. Fails if one is missing."""
    versions = range(deltalake.DeltaTable(uri).version() + 1)
    properties = [deltalake.DeltaTable(uri, version=version).metadata().configuration for version in versions]
    return [dict(LogOffsets.from_json(each["scankv.log_offsets"])) for each in properties]


def assert_ascending(offsets: list[dict[int, int]]) -> None:
    """Fails if two versions show the same, or a later one shows less."""
    for before, after in itertools.pairwise(offsets):
        assert before != after
        assert all(after[bucket] >= before[bucket] for bucket in before)


@pytest.mark.parametrize("masks", [False, True])
async def test_a_kill_at_any_step_leaves_the_version_before_or_after(
    shared_server: ServerProcess, tmp_path: Path, masks: bool
) -> None:
    name, uri = f"lake.killed{masks}", str(tmp_path / "published")
    options: dict[str, Any] = {"file_rows": 50, "masks": masks}
    async with connect(shared_server.url) as client:
        table = await create(client, name)
        await publish(client, name, open_lake_table(uri), SMALL)
        before = await live_rows(table)
        for step in itertools.count():
            await table.upsert([{"id": step, "value": step + 1}, {"id": 300 + step, "value": 1}])
            after = await live_rows(table)
            died = await asyncio.to_thread(publish_and_die, shared_server.url, name, uri, step, **options)
            assert published(uri) in ((before, after) if died else (after,))
            await publish(client, name, open_lake_table(uri), PublishOptions(**options))
            assert published(uri) == after
            before = after
            if not died:
                break
    assert step >= 6, "the data files, the commit and their syncs are steps"
    offsets = offsets_of_versions(uri)
    assert len(offsets) == step + 2
    assert_ascending(offsets)
    left = files_in(uri)
    open_lake_table(uri, keep_seconds=3600).expire(orphan_seconds=0)
    assert files_in(uri) < left, "the files of dead publishers are gone"
    assert published(uri) == after
    assert not any(name.startswith(".scankv-") for name in files_in(uri))


async def test_publishers_at_once_commit_each_change_once(shared_server: ServerProcess, tmp_path: Path) -> None:
    name, uri = "lake.competing", str(tmp_path / "published")
    commits = conflicts = 0
    async with connect(shared_server.url) as client:
        table = await create(client, name)
        for number in range(15):
            await table.upsert([{"id": number, "value": number + 1}])
            passes = [publish(client, name, open_lake_table(uri), SMALL) for _ in range(3)]
            for result in await asyncio.gather(*passes, return_exceptions=True):
                if isinstance(result, LakeConflict):
                    conflicts += 1
                    continue
                assert not isinstance(result, BaseException), result
                commits += result.mode != "unchanged"
            assert published(uri) == await live_rows(table)
    assert conflicts > 0
    offsets = offsets_of_versions(uri)
    assert commits == len(offsets) == 15
    assert_ascending(offsets)


async def test_a_full_location_is_reported_and_publishing_continues_with_space(
    shared_server: ServerProcess, tmp_path: Path
) -> None:
    name = "lake.full"
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        uri = str(disk.path / "published")
        async with connect(shared_server.url) as client:
            table = await create(client, name)
            await publish(client, name, open_lake_table(uri), SMALL)
            before = await live_rows(table)
            await table.upsert(pa.table({"id": list(range(200)), "value": [1] * 200}, SCHEMA))
            for spare_bytes in (0, 1 << 12, 1 << 13, 1 << 14):
                with disk.full(spare_bytes):
                    try:
                        await publish(client, name, open_lake_table(uri), SMALL)
                    except LakeUnavailable as error:
                        assert "see to its space" in error.message  # noqa: PT017  # with enough space, it succeeds
                        assert published(uri) == before
                    else:
                        assert spare_bytes > 0
                        before = await live_rows(table)
            await publish(client, name, open_lake_table(uri), SMALL)
            assert published(uri) == await live_rows(table)
            assert await table.count() == 200
