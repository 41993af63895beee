"""The changes of a table are published as a table that only grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import LakeDamaged, RangeNotTracked, StartFrom, StopAt, UsageError
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import read_delta

if TYPE_CHECKING:
    from aio_client import Client, Table
    from scankv.lake.publisher import PublishReport

pytestmark = pytest.mark.asyncio
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
CHANGES = PublishOptions(file_rows=20, content="changes")


def in_order(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (each["_bucket"], each["_log_offset"], each["_change_type"], each["id"], each["value"]) for each in changes
    )


async def publish_changes(client: Client, table: Table, uri: str, full: bool = False) -> PublishReport:
    """Publishes the changes, and checks that they are all of those that the table has."""
    options = PublishOptions(file_rows=20, content="changes", is_full=full)
    report = await publish(client, table.name, open_lake_table(uri), options)
    expected = await table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_pylist()
    assert in_order(read_delta(uri).to_pylist()) == in_order(expected)
    return report


async def test_each_version_adds_the_changes_since_the_last_one(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"], buckets=2)
    assert (await publish_changes(client, table, uri)).mode == "full"
    for number in range(12):
        await table.upsert([{"id": id_, "value": number} for id_ in range(number, number + 3)])
        await table.delete([number])
        report = await publish_changes(client, table, uri)
        assert report.mode == "changes"
    assert (await publish_changes(client, table, uri)).mode == "unchanged"
    await client.alter_table(name, add_columns=pa.schema([("note", pa.string())]), column_defaults={"note": "-"})
    await (await client.table(name)).upsert([{"id": 3, "value": 9, "note": "x"}])
    assert (await publish_changes(client, table, uri)).mode == "changes"
    assert {"x", None} <= set(read_delta(uri)["note"].to_pylist())


async def test_rows_and_changes_are_not_mixed(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    await publish_changes(client, table, uri)
    with pytest.raises(LakeDamaged, match="from the changes of table"):
        await publish(client, name, open_lake_table(uri))


async def test_published_changes_are_never_dropped_without_being_asked(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    await table.upsert([{"id": 1, "value": 1}])
    await publish_changes(client, table, uri)
    await client.drop_table(name)
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    with pytest.raises(UsageError, match="dropped and created again"):
        await publish(client, name, open_lake_table(uri), CHANGES)
    assert read_delta(uri).num_rows == 1
    await publish_changes(client, table, uri, full=True)
    assert read_delta(uri).num_rows == 0


async def test_changes_that_are_not_in_the_changelog_are_an_error(client: Client, name: str, uri: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["id"])
    await publish_changes(client, table, uri)
    await table.upsert([{"id": 1, "value": 1}], track_changes=False)
    with pytest.raises(RangeNotTracked):
        await publish(client, name, open_lake_table(uri), CHANGES)
    without = await client.create_table(f"{name}_none", SCHEMA, primary_key=["id"], changelog="none")
    with pytest.raises(UsageError, match="no changes to publish"):
        await publish(client, without.name, open_lake_table(f"{uri}_none"), CHANGES)
