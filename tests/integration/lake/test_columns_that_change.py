"""Columns may swap their names at any moment of a pass or a read: values never get under the names of others."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import sync
from scankv.lake import table_view
from scankv.lake.formats import FORMATS, open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from scankv.lake.union import plan
from tests.support.lake_readers import reader, sorted_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
OFTEN = [("delta", False, "before", 2), ("delta", True, "after", 1), ("iceberg", False, "before", 2)]


async def create(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    await table.upsert([{"k": k, "a": 1, "b": 2} for k in range(300)])
    return table


async def swap(client: Client, name: str) -> None:
    """Swaps the names of two columns. Names, types and their order are the same as before."""
    await client.alter_table(name, rename_columns={"a": "b", "b": "a"}, column_order=["k", "a", "b"])


async def live(client: Client, name: str) -> list[dict[str, Any]]:
    return sorted_rows(await (await client.table(name)).scan().to_arrow(), ["k"])


def published(uri: str, format_: str) -> list[dict[str, Any]]:
    return sorted_rows(reader(format_, uri).read().select(SCHEMA.names), ["k"])


async def read_union(client: Client, name: str, uri: str) -> list[dict[str, Any]]:
    return sorted_rows(await (await client.table(name)).scan().read_path("lake", uri).to_arrow(), ["k"])


@pytest.fixture
def swap_at(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Makes the next pass swap the names before or after it looks at the columns for the n-th time."""
    view_of_changes = table_view._view_of_changes

    def begin(number: int, when: str) -> None:
        calls = 0

        async def look(*args: Any) -> table_view.TableView | None:
            nonlocal calls
            calls += 1
            if calls == number and when == "before":
                await swap(client, name)
            view = await view_of_changes(*args)
            if calls == number and when == "after":
                await swap(client, name)
            return view

        monkeypatch.setattr(table_view, "_view_of_changes", look)

    return begin


MOMENTS = [
    pytest.param(
        format_, masks, when, number, marks=[] if (format_, masks, when, number) in OFTEN else pytest.mark.soak
    )
    for format_, masks, when, number in itertools.product(FORMATS, [False, True], ["before", "after"], [1, 2])
]


@pytest.mark.parametrize(("format_", "masks", "when", "number"), MOMENTS)
@pytest.mark.represented_by("delta-False-before-2")
async def test_a_pass_publishes_values_under_the_columns_that_have_them(
    client: Client,
    name: str,
    uri: str,
    swap_at: Callable[[int, str], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    format_: str,
    masks: bool,
    when: str,
    number: int,
) -> None:
    options = PublishOptions(file_rows=50, masks=masks)
    table = await create(client, name)
    for value in range(2):
        before = await live(client, name)
        swap_at(number, when)
        await publish(client, name, open_lake_table(uri, format_), options)
        monkeypatch.undo()
        # Whether the pass shows the table before the swap or after it: of one instant.
        assert published(uri, format_) in (before, await live(client, name))
        assert await read_union(client, name, uri) == await live(client, name)
        await table.upsert([{"k": 5 + value, "a": 3, "b": 4}])
        assert await read_union(client, name, uri) == await live(client, name)
    for _ in range(2):
        await publish(client, name, open_lake_table(uri, format_), options)
        assert published(uri, format_) == await read_union(client, name, uri) == await live(client, name)
        await table.upsert([{"k": 9, "a": 5, "b": 6}])


@pytest.mark.parametrize("step", ["_read_header", "_read_changes", "_make_plan"])
@pytest.mark.represented_by("_read_header")
async def test_a_union_read_returns_values_under_the_columns_that_have_them(
    client: Client, shared_server: ServerProcess, name: str, uri: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    schema = SCHEMA.set(1, pa.field("a", pa.int64(), nullable=False))
    table = await client.create_table(name, schema, primary_key=["k"], buckets=2)
    await table.upsert([{"k": k, "a": 1, "b": None} for k in range(300)])
    await publish(client, name, open_lake_table(uri), PublishOptions(file_rows=50))
    await table.upsert([{"k": 5, "a": 3, "b": None}])
    expected = [await live(client, name)]
    original = getattr(plan, step)

    def swap_first(*args: Any) -> Any:
        monkeypatch.undo()
        sync_client.alter_table(name, rename_columns={"a": "b", "b": "a"}, column_order=["k", "a", "b"])
        return original(*args)

    with sync.connect(shared_server.url) as sync_client:
        monkeypatch.setattr(plan, step, swap_first)
        async with table.scan().read_path("lake", uri).stream() as stream:
            batches = [rows async for rows in stream]
    found = pa.Table.from_batches(batches, stream.schema)
    found.validate(full=True)
    expected.append(await live(client, name))
    assert sorted_rows(found, ["k"]) in expected
    assert all(field.nullable or not found[field.name].null_count for field in found.schema)


async def test_changes_are_published_under_the_columns_that_had_them(
    client: Client, name: str, uri: str, swap_at: Callable[[int, str], None]
) -> None:
    await create(client, name)
    swap_at(1, "after")
    await publish(client, name, open_lake_table(uri), PublishOptions(content="changes"))
    assert {(row["a"], row["b"]) for row in published(uri, "delta")} == {(1, 2)}
