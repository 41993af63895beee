"""Texts with characters of every plane of Unicode come back from published tables, and filters find them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo

from aio_client import LakeDamaged
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from scankv.lake.sources.sources import open_source
from tests.support.lake_readers import IcebergReader, live_rows, read_delta, read_with_polars, sorted_rows

if TYPE_CHECKING:
    from aio_client import Client, Table
    from scankv.lake.publisher import PublishReport

pytestmark = pytest.mark.asyncio
COLUMN = "na\U00020bb7me"
SCHEMA = pa.schema([("city", pa.string()), ("name", pa.string()), (COLUMN, pa.string())])
TEXTS = [
    "a",
    "\x00\x1f\x7f\x85\u2028",
    "\ud7ff\ue000\uffff",
    "\U0001f600",
    "\U00020bb7\U000fffff",
    "\U0010fffd\U0010ffff",
    # Iceberg's bounds have at most 16 characters, and Parquet's are cut by some writers.
    "b" * 15 + "\U00020bb7c",
    "b" * 15 + "\U0010ffffc",
    "b" * 15 + "\ud7ffc",
    "\U0010ffff" * 20,
]
EACH_ALONE = PublishOptions(file_rows=1)
"""Each row is in a file of its own, so the bounds of a file are those of a text."""


async def create(client: Client, name: str, **options: Any) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["city", "name"], buckets=2, **options)
    await table.upsert([{"city": text, "name": text, COLUMN: text} for text in TEXTS])
    return table


def delta_rows(uri: str, text: str, column: str) -> list[dict[str, Any]]:
    quoted = text.replace("'", "''")
    query = f"""SELECT * FROM published WHERE "{column}" = '{quoted}'"""
    published = deltalake.QueryBuilder().register("published", deltalake.DeltaTable(uri))
    return sorted_rows(pa.table(published.execute(query)), ["city", "name"])


def with_escapes(uri: str) -> None:
    """Writes the log of a Delta table as releases before this one did, and as other programs may."""
    for path in Path(uri, "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_bytes().splitlines()]
        for action in actions:
            metadata = action.get("metaData", {})
            properties = metadata.get("configuration", {})
            properties.pop("scankv.log_text", None)
            fields = ("schemaString", "stats", "scankv.schemas", "scankv.partition_by")
            for values in (metadata, properties, action.get("add", {})):
                values |= {field: json.dumps(json.loads(values[field])) for field in fields if field in values}
        path.write_text("\n".join(json.dumps(action) for action in actions))


@pytest.mark.parametrize("partition_by", [[], ["city"]])
@pytest.mark.represented_by("partition_by0")
async def test_filters_of_delta_readers_find_texts_of_every_plane(
    client: Client, name: str, uri: str, partition_by: list[str]
) -> None:
    table = await create(client, name, partition_by=partition_by)
    options = PublishOptions(file_rows=1, masks=True)
    await publish(client, name, open_lake_table(uri), options)
    await table.upsert([{"city": TEXTS[4], "name": TEXTS[5], COLUMN: TEXTS[4]}])
    await table.delete([{"city": TEXTS[0], "name": TEXTS[0]}])
    await publish(client, name, open_lake_table(uri), options)
    expected = await live_rows(table)
    for found in (read_delta(uri), read_with_polars(uri)):
        assert sorted_rows(found, ["city", "name"]) == expected
    for text in TEXTS[1:]:
        for column in SCHEMA.names:
            assert delta_rows(uri, text, column) == [row for row in expected if row[column] == text], ascii(text)
    deltalake.DeltaTable(uri).create_checkpoint()
    assert [len(delta_rows(uri, text, "city")) for text in TEXTS] == [0, 1, 1, 1, 2, *[1] * 5]
    copy = await client.bootstrap(f"{name}_copy", uri, primary_key=["city", "name"], partition_by=partition_by)
    assert await live_rows(copy) == expected


@pytest.mark.breadth
async def test_filters_of_iceberg_readers_find_texts_of_every_plane(client: Client, name: str, uri: str) -> None:
    table = await create(client, name, partition_by=["city"])
    await publish(client, name, open_lake_table(uri, "iceberg"), EACH_ALONE)
    expected = await live_rows(table)
    with IcebergReader(uri).open() as published:
        for text in TEXTS:
            for column in SCHEMA.names:
                condition = EqualTo(column, text)  # type: ignore[arg-type, call-arg]  # mypy takes it for a plain model
                found = published.scan(condition).to_arrow().to_pylist()
                assert found == [row for row in expected if row[column] == text], ascii(text)
    copy = await client.bootstrap(f"{name}_copy", uri, primary_key=["city", "name"])
    assert await live_rows(copy) == expected


async def test_filters_find_texts_of_every_plane_in_published_changes(client: Client, name: str, uri: str) -> None:
    await create(client, name)
    options = PublishOptions(file_rows=1, content="changes")
    await publish(client, name, open_lake_table(uri), options)
    assert [len(delta_rows(uri, text, "name")) for text in TEXTS] == [1] * len(TEXTS)


@pytest.mark.represented_by("True-changes")
@pytest.mark.parametrize("content", ["rows", "changes"])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_bounds_that_an_earlier_release_has_published_are_corrected_by_the_next_commit(
    client: Client, name: str, uri: str, content: Any, checkpoint: bool
) -> None:
    table = await create(client, name)
    options = PublishOptions(file_rows=1, content=content)
    await publish(client, name, open_lake_table(uri), options)
    with_escapes(uri)
    assert not delta_rows(uri, TEXTS[4], "name")
    if checkpoint:
        deltalake.DeltaTable(uri).create_checkpoint()
    await table.upsert([{"city": "z", "name": "z"}])
    report = await publish(client, name, open_lake_table(uri), options)
    assert (report.mode, report.rows) == ("changes", 1)
    assert [len(delta_rows(uri, text, "name")) for text in TEXTS] == [1] * len(TEXTS)


@pytest.mark.breadth
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_partitions_that_an_earlier_release_has_published_are_written_again(
    client: Client, name: str, uri: str, checkpoint: bool
) -> None:
    table = await create(client, name, partition_by=["city"])
    await publish(client, name, open_lake_table(uri), EACH_ALONE)
    with_escapes(uri)
    if checkpoint:
        deltalake.DeltaTable(uri).create_checkpoint()
    with pytest.raises(LakeDamaged, match=r'partition column "city" .* --full'):
        await client.bootstrap(f"{name}_copy", uri, primary_key=["city", "name"])

    async def publish_again() -> PublishReport:
        return await publish(client, name, open_lake_table(uri), EACH_ALONE)

    report = await publish_again()
    assert (report.mode, report.rows) == ("full", len(TEXTS))
    assert "earlier release" in (report.reason or "")
    assert (await publish_again()).mode == "unchanged"
    assert [len(delta_rows(uri, text, "city")) for text in TEXTS] == [1] * len(TEXTS)
    copy = await client.bootstrap(f"{name}_copy", uri, primary_key=["city", "name"], partition_by=["city"])
    assert await live_rows(copy) == await live_rows(table)


async def test_a_partition_value_that_the_reader_of_delta_tables_takes_for_another_is_refused(
    client: Client, name: str, uri: str
) -> None:
    rows = pa.table({"city": ["a", "\U00020bb7"], "id": [1, 2]})
    deltalake.write_deltalake(uri, rows, partition_by=["city"])
    copy = await client.bootstrap(name, uri, primary_key=["city", "id"])
    assert await live_rows(copy) == rows.to_pylist()
    with_escapes(uri)
    with pytest.raises(LakeDamaged, match='partition column "city" has the value "\U00020bb7"'):
        await client.bootstrap(f"{name}_2", uri, primary_key=["city", "id"])
    deltalake.DeltaTable(uri).delete("id = 2")
    copy = await client.bootstrap(f"{name}_2", uri, primary_key=["city", "id"])
    assert await copy.count() == 1


@pytest.mark.parametrize("plane", range(1, 17))
async def test_partition_values_with_escapes_are_refused_only_if_they_are_read_as_others(uri: str, plane: int) -> None:
    text = f"a{chr(plane << 16 | 0xBB7)}"
    rows = pa.table({"city": [text], "id": [1]})
    deltalake.write_deltalake(uri, rows, partition_by=["city"])
    with_escapes(uri)
    is_right = deltalake.DeltaTable(uri).partitions() == [{"city": text}]
    assert is_right == (plane % 2 == 1)
    if is_right:
        assert open_source(uri).reader.read_all().select(rows.schema.names).to_pylist() == rows.to_pylist()
    else:
        with pytest.raises(LakeDamaged, match=f'partition column "city" has the value "{text}"'):
            open_source(uri)
