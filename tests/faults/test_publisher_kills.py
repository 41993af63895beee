"""Publishers die, compete, and meet full disks: no version is skipped, repeated or incomplete."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, LakeConflict, LakeUnavailable, LogOffsets, StartFrom, StopAt, connect
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from scankv.lake.schedule import publish_every
from tests.support.dying_publisher import publish_and_die
from tests.support.lake_readers import live_rows, read_delta, reader, sorted_rows
from tests.support.small_disk import small_disk

if TYPE_CHECKING:
    from aio_client import Client, ScanKvError, Table
    from scankv.lake.publisher import PublishReport
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
SMALL = PublishOptions(file_rows=50)
FORMATS = ["delta", "parquet", "iceberg"]


async def create(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(pa.table({"id": list(range(200)), "value": [0] * 200}, SCHEMA))
    return table


def published(format_: str, uri: str) -> list[dict[str, Any]]:
    return sorted_rows(reader(format_, uri).read(), ["id"])


def files_in(uri: str) -> set[str]:
    return {path.name for path in Path(uri).rglob("*") if path.is_file()}


def offsets_of_versions(format_: str, uri: str) -> list[dict[int, int]]:
    """Returns the log offsets of all versions. Fails if one is missing."""
    found = reader(format_, uri)
    versions = found.versions()
    assert versions == list(range(found.first_version, found.first_version + len(versions)))
    properties = [found.properties(version) for version in versions]
    return [dict(LogOffsets.from_json(each["scankv.log_offsets"])) for each in properties]


def assert_ascending(offsets: list[dict[int, int]]) -> None:
    """Fails if two versions show the same, or a later one shows less."""
    for before, after in itertools.pairwise(offsets):
        assert before != after
        assert all(after[bucket] >= before[bucket] for bucket in before)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("format_", "masks", "stride"),
    [
        ("delta", False, 1),
        ("delta", True, 1),
        ("parquet", False, 1),
        ("iceberg", False, 4),  # whose imports take seconds in each process
        pytest.param("iceberg", False, 1, marks=pytest.mark.soak),
    ],
)
@pytest.mark.breadth
async def test_a_kill_at_any_step_leaves_the_version_before_or_after(
    shared_server: ServerProcess, tmp_path: Path, format_: str, masks: bool, stride: int
) -> None:
    name, uri = f"lake.killed_{format_}{masks}{stride}", str(tmp_path / "published")
    options: dict[str, Any] = {"file_rows": 50, "masks": masks}
    async with connect(shared_server.url) as client:
        table = await create(client, name)
        await publish(client, name, open_lake_table(uri, format_), SMALL)
        before = await live_rows(table)
        for step in itertools.count(step=stride):
            await table.upsert([{"id": step, "value": step + 1}, {"id": 300 + step, "value": 1}])
            after = await live_rows(table)
            died = await asyncio.to_thread(publish_and_die, shared_server.url, name, format_, uri, step, **options)
            assert published(format_, uri) in ((before, after) if died else (after,))
            await publish(client, name, open_lake_table(uri, format_), PublishOptions(**options))
            assert published(format_, uri) == after
            before = after
            if not died:
                break
    assert step >= 6, "the data files, the commit and their syncs are steps"
    offsets = offsets_of_versions(format_, uri)
    assert len(offsets) == step // stride + 2
    assert_ascending(offsets)
    left = files_in(uri)
    open_lake_table(uri, format_, keep_seconds=3600).expire(orphan_seconds=0)
    assert files_in(uri) < left, "the files of dead publishers are gone"
    assert published(format_, uri) == after
    assert not any(name.startswith(".scankv-") for name in files_in(uri))


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.breadth
async def test_publishers_at_once_commit_each_change_once(
    shared_server: ServerProcess, tmp_path: Path, format_: str
) -> None:
    name, uri = f"lake.competing_{format_}", str(tmp_path / "published")
    commits = conflicts = 0
    async with connect(shared_server.url) as client:
        table = await create(client, name)
        for number in range(15):
            await table.upsert([{"id": number, "value": number + 1}])
            passes = [publish(client, name, open_lake_table(uri, format_), SMALL) for _ in range(3)]
            for result in await asyncio.gather(*passes, return_exceptions=True):
                if isinstance(result, LakeConflict):
                    conflicts += 1
                    continue
                assert not isinstance(result, BaseException), result
                commits += result.mode != "unchanged"
            assert published(format_, uri) == await live_rows(table)
    assert conflicts > 0
    offsets = offsets_of_versions(format_, uri)
    assert commits == len(offsets) == 15
    assert_ascending(offsets)


@pytest.mark.breadth
@pytest.mark.parametrize("masks", [False, True])
async def test_versions_beside_a_writer_show_the_table_at_their_offsets(
    shared_server: ServerProcess, tmp_path: Path, masks: bool
) -> None:
    name, uri = f"lake.written{masks}", str(tmp_path / "published")
    written = asyncio.Event()
    async with connect(shared_server.url) as client:
        table = await create(client, name)

        async def write() -> None:
            for number in itertools.count():
                await table.upsert([{"id": number * 7 % 300, "value": number}, {"id": number % 11, "value": number}])
                await table.delete([number * 5 % 300])
                written.set()

        writer = asyncio.create_task(write())
        for _ in range(8):
            written.clear()
            await written.wait()
            await publish(client, name, open_lake_table(uri), PublishOptions(file_rows=50, masks=masks))
        writer.cancel()
        await asyncio.wait([writer])
        final = await live_rows(table)
        for version in range(deltalake.DeltaTable(uri).version() + 1):
            properties = deltalake.DeltaTable(uri, version=version).metadata().configuration
            offsets = LogOffsets.from_json(properties["scankv.log_offsets"])
            rows = {row["id"]: row for row in read_delta(uri, version).to_pylist()}
            for change in await table.changes(StartFrom.offsets(offsets), StopAt.LATEST).to_pylist():
                row = {column: change[column] for column in SCHEMA.names}
                if change["_change_type"] in ("-U", "-D"):
                    assert rows.pop(row["id"]) == row
                else:
                    assert row["id"] not in rows
                    rows[row["id"]] = row
            assert sorted(rows.values(), key=lambda row: row["id"]) == final
    assert_ascending(offsets_of_versions("delta", uri))


async def test_publishing_continues_after_the_server_was_killed(server: ServerProcess, tmp_path: Path) -> None:
    name, uri = "lake.restarted", str(tmp_path / "published")
    reports: asyncio.Queue[PublishReport] = asyncio.Queue()
    failures: asyncio.Queue[ScanKvError] = asyncio.Queue()
    async with connect(server.url, operation_timeout=1) as client:
        table = await create(client, name)
        publishing = asyncio.create_task(
            publish_every(
                client,
                name,
                open_lake_table(uri),
                0.05,
                options=SMALL,
                on_report=reports.put_nowait,
                on_failure=failures.put_nowait,
            )
        )
        assert (await reports.get()).version == 0
        server.kill()
        assert isinstance(await failures.get(), ConnectionFailed)
        server.restart()
        await table.upsert([{"id": 5, "value": 5}])
        while (await reports.get()).version == 0:
            pass
        publishing.cancel()
        await asyncio.wait([publishing])
        await publish(client, name, open_lake_table(uri), SMALL)
        assert published("delta", uri) == await live_rows(table)
    assert_ascending(offsets_of_versions("delta", uri))


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.represented_by("delta")
async def test_a_full_location_is_reported_and_publishing_continues_with_space(
    shared_server: ServerProcess, tmp_path: Path, format_: str
) -> None:
    name = f"lake.full_{format_}"
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        uri = str(disk.path / "published")
        async with connect(shared_server.url) as client:
            table = await create(client, name)
            await publish(client, name, open_lake_table(uri, format_), SMALL)
            before = await live_rows(table)
            await table.upsert(pa.table({"id": list(range(200)), "value": [1] * 200}, SCHEMA))
            for spare_bytes in (0, 1 << 12, 1 << 13, 1 << 14):
                with disk.full(spare_bytes):
                    try:
                        await publish(client, name, open_lake_table(uri, format_), SMALL)
                    except LakeUnavailable as error:
                        assert "see to its space" in error.message  # noqa: PT017  # with enough space, it succeeds
                        assert published(format_, uri) == before
                    else:
                        assert spare_bytes > 0
                        before = await live_rows(table)
            await publish(client, name, open_lake_table(uri, format_), SMALL)
            assert published(format_, uri) == await live_rows(table)
            assert await table.count() == 200
