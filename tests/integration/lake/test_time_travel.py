"""A scan with `as_of` returns the rows that the table had at the instant of a published version."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    LakeDamaged,
    LakeUnavailable,
    LakeVersionNotFound,
    SchemaMismatch,
    TableRecreated,
    UsageError,
    connect,
)
from scankv.lake.formats import FORMATS, open_lake_table
from scankv.lake.location import LakeLocation
from scankv.lake.publisher import PublishOptions, PublishReport, publish
from scankv.lake.versions import find_version
from tests.support.lake_readers import sorted_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("score", pa.uint64()), ("team", pa.string())])
FIRST = datetime(2020, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.asyncio


def rows_of(ids: range, score: int = 1) -> pa.Table:
    return pa.table({"id": ids, "score": [score] * len(ids), "team": ["a"] * len(ids)}, SCHEMA)


async def publish_to(client: Client, name: str, uri: str, format_: str = "delta", **options: Any) -> PublishReport:
    lake = open_lake_table(uri, format_, options.pop("keep_seconds", 3600))
    return await publish(client, name, lake, PublishOptions(file_rows=50, **options))


async def make_versions(client: Client, name: str, uri: str, format_: str = "delta", *, masks: bool = False) -> Table:
    """Publishes three versions: of 200 rows, with changed, deleted and new rows, and without any row."""
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    await table.upsert(rows_of(range(200)))
    await publish_to(client, name, uri, format_, masks=masks)
    await table.upsert(rows_of(range(10, 20), score=2**64 - 1))
    await table.delete([0, 199])
    await table.upsert(rows_of(range(500, 505), score=3))
    await publish_to(client, name, uri, format_, masks=masks)
    await table.truncate()
    await publish_to(client, name, uri, format_, masks=masks)
    return table


def commit_file(uri: str, version: int) -> Path:
    return Path(uri, "_delta_log", f"{version:020}.json")


def delete_data_files(uri: str) -> None:
    for path in Path(uri).glob("*.parquet"):
        path.unlink()


def second_version() -> list[dict[str, Any]]:
    scores = (
        dict.fromkeys(range(1, 199), 1) | dict.fromkeys(range(10, 20), 2**64 - 1) | dict.fromkeys(range(500, 505), 3)
    )
    return [{"id": id_, "score": score, "team": "a"} for id_, score in scores.items()]


@pytest.mark.parametrize(("format_", "masks"), [*((each, False) for each in FORMATS), ("delta", True)])
@pytest.mark.represented_by("delta-False")
async def test_versions_and_times_have_the_rows_of_their_instants(
    client: Client, name: str, uri: str, format_: str, masks: bool
) -> None:
    table = await make_versions(client, name, uri, format_, masks=masks)
    lake = open_lake_table(uri, format_)
    numbers = lake.versions()
    instants = [datetime.fromisoformat(lake.view_time(number) or "") for number in numbers]
    expected = [[{"id": n, "score": 1, "team": "a"} for n in range(200)], second_version(), []]
    assert len(numbers) == 3
    for number, instant, rows in zip(numbers, instants, expected, strict=True):
        offsets = lake.load_version(number).state.log_offsets
        for as_of in (number, instant, instant.astimezone(), instant + timedelta(microseconds=1)):
            async with table.scan().as_of(as_of).read_path("lake", uri).stream() as stream:
                found = pa.Table.from_batches([batch async for batch in stream], stream.schema)
                assert stream.log_offsets == offsets
                assert stream.consistency == "lake"
                assert stream.lake_fallback is None
            assert found.schema == (await table.scan().to_arrow()).schema
            assert sorted_rows(found, ["id"]) == rows
    assert await table.scan().as_of(datetime.now(UTC)).read_path("lake", uri).to_pylist() == []


async def test_columns_predicates_buckets_keys_and_limits_are_those_of_the_scan(
    client: Client, name: str, uri: str
) -> None:
    table = await make_versions(client, name, uri, masks=True)
    scan = table.scan().as_of(1).read_path("lake", uri)
    rows = second_version()
    for found, expected in (
        (scan.select("score").where("score > 1"), [{"score": row["score"]} for row in rows if row["score"] > 1]),
        (scan.select("id").key_range(5, 15), [{"id": id_} for id_ in range(5, 16)]),
        (scan.with_chunk(rows=7), rows),
    ):
        columns = list(expected[0])
        assert sorted_rows(await found.to_arrow(), columns) == sorted(expected, key=lambda row: [*row.values()])
    halves = [await scan.with_shard(index, 2).to_arrow() for index in range(2)]
    assert all(half.num_rows for half in halves)
    assert sorted_rows(pa.concat_tables(halves), ["id"]) == rows
    assert (await scan.limit(30).to_arrow()).num_rows == 30
    assert (await scan.select([]).to_arrow()).num_rows == len(rows)


async def test_an_earlier_version_has_the_columns_that_the_table_has_now(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    await table.upsert(rows_of(range(3)))
    await publish_to(client, name, uri)
    table = await client.alter_table(
        name,
        drop_columns=["team"],
        rename_columns={"score": "points"},
        add_columns=pa.schema([("team", pa.int64()), ("league", pa.string())]),
        column_defaults={"league": "new"},
    )
    await table.delete([1])
    await publish_to(client, name, uri)
    found = await table.scan(where="points = 1").as_of(0).read_path("lake", uri).to_arrow()
    assert sorted_rows(found, ["id"]) == [{"id": n, "points": 1, "team": None, "league": "new"} for n in range(3)]
    with pytest.raises(SchemaMismatch, match="score"):
        await table.scan(["score"]).as_of(0).read_path("lake", uri).to_arrow()


async def test_explain_names_the_version_its_instant_and_its_offsets(client: Client, name: str, uri: str) -> None:
    table = await make_versions(client, name, uri)
    state = open_lake_table(uri).load_version(1).state
    explanation = await table.scan().as_of(1).read_path("lake", uri).explain()
    assert (explanation.source, explanation.read_path) == ("lake", "lake")
    assert explanation.read_path_reason == (
        f"version 1 in {uri}, which shows the table as of {state.view_time}, at the log offsets "
        f"{dict(state.log_offsets)}"
    )
    assert f"{name}, published version" in str(explanation)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.represented_by("delta")
async def test_a_version_that_does_not_exist_is_an_error_that_names_those_that_do(
    client: Client, name: str, uri: str, format_: str
) -> None:
    table = await make_versions(client, name, uri, format_)
    lake = open_lake_table(uri, format_)
    numbers = lake.versions()
    oldest, newest = lake.view_time(numbers[0]), lake.view_time(numbers[-1])
    for as_of, reason in ((FIRST, "no version is as old as 2020-01-01T00:00:00"), (77, "no version 77 exists")):
        with pytest.raises(LakeVersionNotFound, match=reason) as caught:
            await table.scan().as_of(as_of).read_path("lake", uri).to_arrow()
        assert caught.value.details == {"oldest": oldest, "newest": newest}
        assert f"version {numbers[0]}, as of {oldest}, to version {numbers[-1]}, as of {newest}" in str(caught.value)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.breadth
async def test_an_expired_version_is_an_error_that_names_the_oldest_one_left(
    client: Client, name: str, uri: str, format_: str
) -> None:
    table = await make_versions(client, name, uri, format_)
    await table.upsert(rows_of(range(5)))
    await publish_to(client, name, uri, format_, keep_seconds=0)
    lake = open_lake_table(uri, format_, keep_seconds=0)
    first = lake.versions()[0]
    lake.expire(orphan_seconds=0)
    left = open_lake_table(uri, format_).versions()
    with pytest.raises(LakeVersionNotFound) as caught:
        await table.scan().as_of(first).read_path("lake", uri).to_arrow()
    assert caught.value.details["newest"] == lake.view_time(left[-1])
    assert (await table.scan().as_of(left[-1]).read_path("lake", uri).to_arrow()).num_rows == 5
    # Those without rows need no files.
    oldest = datetime.fromisoformat(caught.value.details["oldest"])
    assert await table.scan().as_of(oldest).read_path("lake", uri).to_pylist() in ([], (await rows_now(table)))


async def rows_now(table: Table) -> list[dict[str, Any]]:
    return await table.scan().to_pylist()


async def test_what_is_not_a_version_of_the_table_is_an_error(
    client: Client, name: str, uri: str, tmp_path: Path
) -> None:
    table = await make_versions(client, name, uri)
    with pytest.raises(LakeVersionNotFound, match="nothing was published in"):
        await table.scan().as_of(0).read_path("lake", str(tmp_path / "nothing")).to_arrow()
    await publish_to(client, name, str(tmp_path / "changes"), content="changes")
    with pytest.raises(LakeDamaged, match=f"has the changes of table {name}, not its rows"):
        await table.scan().as_of(0).read_path("lake", str(tmp_path / "changes")).to_arrow()
    other = await client.create_table(f"{name}2", SCHEMA, primary_key=["id"])
    with pytest.raises(LakeDamaged, match=f"was published from table {name}"):
        await other.scan().as_of(0).read_path("lake", uri).to_arrow()
    commit_file(uri, 1).write_bytes(b"{")
    with pytest.raises(LakeDamaged):
        await table.scan().as_of(2).read_path("lake", uri).to_arrow()
    await client.drop_table(name)
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    with pytest.raises(TableRecreated):
        await table.scan().as_of(0).read_path("lake", uri).to_arrow()


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.represented_by("delta")
async def test_versions_that_expire_during_a_search_are_passed_over(
    client: Client, name: str, uri: str, format_: str
) -> None:
    await make_versions(client, name, uri, format_)

    class ExpiresAfterListing(type(open_lake_table(uri, format_))):  # type: ignore[misc]
        """A published table whose earlier versions expire after the first list of them."""

        def versions(self) -> Sequence[int]:
            found: Sequence[int] = super().versions()
            open_lake_table(uri, format_, keep_seconds=0).expire(0)
            return found

    numbers = open_lake_table(uri, format_).versions()
    lake = ExpiresAfterListing(LakeLocation(uri), 3600)
    assert find_version(lake, datetime.now(UTC) + timedelta(days=1)).version == numbers[-1]
    with pytest.raises(LakeVersionNotFound, match=f"choose one from version {numbers[-1]}"):
        find_version(lake, numbers[0])


async def test_a_damaged_file_is_an_error_and_no_short_answer(client: Client, name: str, uri: str) -> None:
    table = await make_versions(client, name, uri)
    scan = table.scan().as_of(0).read_path("lake", uri)
    async with scan.stream() as stream:
        delete_data_files(uri)
        with pytest.raises(LakeUnavailable, match="is gone"):
            [rows async for rows in stream]


@pytest.mark.breadth
async def test_a_version_of_another_program_is_passed_over(client: Client, name: str, uri: str) -> None:
    table = await make_versions(client, name, uri)
    action = '{"commitInfo":{"timestamp":1,"operation":"OPTIMIZE"}}\n{"txn":{"appId":"other","version":1}}'
    commit_file(uri, 3).write_text(action)
    await table.upsert(rows_of(range(7)))
    report = await publish_to(client, name, uri)
    assert report.version == 4
    lake = open_lake_table(uri)
    assert [lake.view_time(number) is None for number in range(5)] == [False, False, False, True, False]
    before = datetime.fromisoformat(report.taken_at) - timedelta(microseconds=1)
    assert await table.scan().as_of(before).read_path("lake", uri).to_pylist() == []
    assert len(await table.scan().as_of(4).read_path("lake", uri).to_pylist()) == 7


@pytest.mark.parametrize("as_of", [True, -1, "2026-01-01", datetime(2026, 1, 1)])
async def test_as_of_takes_times_with_a_zone_and_versions(client: Client, name: str, as_of: Any) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    with pytest.raises(UsageError, match="as_of must be a datetime with a time zone, or the number of a version"):
        table.scan().as_of(as_of)


async def test_as_of_needs_the_lake_and_goes_with_no_other_instant(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    scan = table.scan().as_of(0)
    with pytest.raises(UsageError, match="say where the table is published"):
        await scan.to_arrow()
    with pytest.raises(UsageError, match="say where the table is published"):
        await scan.explain()
    refused: list[tuple[str, tuple[object, ...]]] = [
        ("ordered", ()),
        ("reverse", ()),
        ("as_of", ("some snapshot",)),
        ("resume_from", (b"token",)),
        ("if_changed_since", (b"version",)),
    ]
    for method, arguments in refused:
        with pytest.raises(UsageError, match="cannot be used with as_of"):
            getattr(scan, method)(*arguments)
    with pytest.raises(UsageError, match="changes_follow cannot be used with as_of"):
        table.scan().as_of(0, changes_follow=True)
    for instant in (0, "some snapshot"):
        with pytest.raises(UsageError, match="as_of is not for a scan of the changelog"):
            table.changes().as_of(instant)


@pytest.mark.breadth
async def test_rows_of_a_table_without_a_key_and_rows_that_expire_are_read(client: Client, name: str, uri: str) -> None:
    log = await client.create_table(name, SCHEMA, primary_key=[])
    await log.append(rows_of(range(100)))
    await publish_to(client, name, uri)
    await log.append(rows_of(range(100)))
    await publish_to(client, name, uri)
    assert [(await log.scan().as_of(n).read_path("lake", uri).to_arrow()).num_rows for n in range(2)] == [100, 200]
    expiring = await client.create_table(f"{name}2", SCHEMA, primary_key=["id"], ttl_seconds=3600)
    await expiring.upsert(rows_of(range(10)))
    await publish_to(client, f"{name}2", f"{uri}2")
    await expiring.truncate()
    assert (await expiring.scan().as_of(0).read_path("lake", f"{uri}2").to_arrow()).num_rows == 10


@pytest.mark.breadth
async def test_a_version_is_read_while_the_server_is_dead(server: ServerProcess, uri: str) -> None:
    async with connect(server.url) as client:
        table = await make_versions(client, "lake.dead", uri)
        async with table.scan().as_of(1).read_path("lake", uri).stream() as stream:
            server.kill()
            found = pa.Table.from_batches([rows async for rows in stream], stream.schema)
        assert sorted_rows(found, ["id"]) == second_version()
