"""Concurrent gets, which share calls, equal single ones in rows, errors and cancellation, while the table changes."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, DeadlineExceeded, Unavailable, UsageError, connect
from aio_client.testing import Fault, FaultProxy
from scankv.model.errors import RequestTooLarge, ScanKvError
from scankv.model.limits import MAX_REQUEST_BYTES
from tests.support.examples import seeds
from tests.support.noted import noted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aio_client import Client
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

Row: TypeAlias = dict[str, Any]
Outcome: TypeAlias = Row | tuple[type[ScanKvError], str] | None
Call: TypeAlias = "Callable[..., Awaitable[Row | None]]"
MOST_TURNS: Final = 40
"""As many turns of the event loop as a call takes, and some more."""


async def outcome_of(call: Call, *arguments: Any) -> Outcome:
    """Returns the row, or type and message of the error."""
    try:
        return await call(*arguments)
    except ScanKvError as error:
        return type(error), str(error)


async def pass_turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(0, MOST_TURNS, 3))
@pytest.mark.represented_by("0", "39")
async def test_gets_work_after_all_callers_were_cancelled(client: Client, name: str, turns: int) -> None:
    table = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"])
    await table.upsert(pa.table({"key": range(300)}))
    tasks = [asyncio.create_task(table.get(key)) for key in range(300)]
    await pass_turns(turns)
    for task in tasks:
        task.cancel()
    # One that asks in the same turn must neither wait for the cancelled nor be cancelled with them.
    assert await table.get(7) == {"key": 7}
    await asyncio.wait(tasks)
    assert all(task.cancelled() or task.result() == {"key": key} for key, task in enumerate(tasks))
    assert await asyncio.gather(*(table.get(key) for key in range(300))) == [{"key": key} for key in range(300)]


KEYS: Final = 30


@pytest.mark.breadth
async def test_rows_that_do_not_fit_into_one_answer_are_got_concurrently(client: Client, name: str) -> None:
    schema = pa.schema([("key", pa.int64()), ("blob", pa.binary())])
    table = await client.create_table(name, schema, primary_key=["key"], buckets=2)
    rows = [{"key": key, "blob": bytes([key]) * (MAX_REQUEST_BYTES // 4)} for key in range(6)]
    for row in rows:
        await table.upsert([row])
    assert await asyncio.gather(*(table.get(key) for key in range(7))) == [*rows, None]
    with pytest.raises(RequestTooLarge):
        await table.upsert([{"key": 7, "blob": bytes(MAX_REQUEST_BYTES)}])


async def test_a_table_with_other_keys_refuses_concurrent_gets_as_single_lookups(client: Client, name: str) -> None:
    """The table was created again with another key, of which the callers know nothing."""
    before = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"], buckets=3)
    await before.upsert([{"key": 1}])
    assert await before.get(1) == {"key": 1}
    await client.drop_table(name)
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    after = await client.create_table(name, schema, primary_key=["a", "b"], bucket_key=["b"], buckets=3)
    await after.upsert([{"a": "1", "b": "1"}])

    async def look_up(key: int) -> Row | None:
        rows: list[Row] = (await before.lookup([key])).to_pylist()
        return rows[0] if rows else None

    outcomes = await asyncio.gather(*(outcome_of(before.get, key) for key in range(20)))
    assert outcomes == [await outcome_of(look_up, key) for key in range(20)]


@pytest.mark.parametrize("callers", [1, 2, 50])
async def test_closing_the_client_ends_concurrent_gets_as_it_ends_single_ones(
    shared_server: ServerProcess, name: str, callers: int
) -> None:
    for turns in range(0, 12, 2):
        async with connect(shared_server.url) as client:
            table = await client.create_table(f"{name}{turns}", pa.schema([("key", pa.int64())]), primary_key=["key"])
            tasks = [asyncio.create_task(outcome_of(table.get, key)) for key in range(callers)]
            await pass_turns(turns)
        await asyncio.wait(tasks)
        # No caller has cancelled these tasks, so none of them is cancelled.
        for outcome in (task.result() for task in tasks):
            assert outcome is None or (isinstance(outcome, tuple) and outcome[0] is UsageError), outcome


@seeds(2)
async def test_under_random_faults_a_get_has_its_row_or_the_error_of_the_connection(
    client: Client, shared_server: ServerProcess, name: str, seed: int
) -> None:
    random = Random(seed)
    table = await client.create_table(name, pa.schema([("key", pa.int64()), ("n", pa.int64())]), primary_key=["key"])
    await table.upsert(pa.table({"key": range(KEYS), "n": [key * key for key in range(KEYS)]}))
    with noted(f"seed {seed}"):
        async with FaultProxy(shared_server.url) as proxy, connect(proxy.address, attempt_timeout=10) as through:
            behind = await through.table(name)

            async def get(key: int) -> bool:
                for _ in range(30):
                    outcome = await outcome_of(behind.get, key)
                    if isinstance(outcome, tuple):
                        assert issubclass(outcome[0], Unavailable | ConnectionFailed | DeadlineExceeded), outcome
                    else:
                        assert outcome == ({"key": key, "n": key * key} if key < KEYS else None)
                return True

            for _ in range(3):
                proxy.on_next(Fault(random.choice(["cut", "reset", "half_close"]), random.randrange(20_000)))
                assert all(await asyncio.gather(*(get(key) for key in range(KEYS + 3))))
            await through.wait_ready()
            assert await behind.get(5) == {"key": 5, "n": 25}


@pytest.mark.parametrize("column", [pa.field("more", pa.int64()), pa.field("more", pa.list_(pa.int64()))], ids=str)
async def test_a_table_that_was_opened_before_a_column_was_added_learns_of_it_by_its_first_read(
    client: Client, name: str, column: pa.Field
) -> None:
    schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    before = await client.create_table(name, schema, primary_key=["key"])
    await before.upsert([{"key": 1, "n": 2}])
    await client.alter_table(name, add_columns=pa.schema([column]))
    row = {"key": 1, "n": 2, "more": None}
    assert await asyncio.gather(*(before.get(1) for _ in range(50))) == [row] * 50
    assert (await before.lookup([1])).to_pylist() == [row]
    # Rows to write must have all columns of the table's schema, so reads do not change it.
    assert before.schema.names == ["key", "n"]
    await before.upsert(pa.Table.from_pylist([{"key": 2, "n": 3}], schema))


async def test_a_lookup_of_missing_keys_has_the_columns_that_were_added(client: Client, name: str) -> None:
    before = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"])
    await client.alter_table(name, add_columns=pa.schema([("more", pa.int64())]))
    assert (await before.lookup([7])).schema.names == ["key", "more"]
    assert (await before.lookup([7], missing="null")).to_pylist() == [{"key": 7, "more": None}]


async def test_a_get_in_flight_decodes_with_its_own_columns_when_a_write_learns_of_another_table(
    client: Client, name: str
) -> None:
    """The rows of both tables have the same length and the same schema id."""
    before = await client.create_table(name, pa.schema([("key", pa.int64()), ("v", pa.int64())]), primary_key=["key"])
    await client.drop_table(name)
    after = await client.create_table(name, pa.schema([("key", pa.int64()), ("w", pa.int64())]), primary_key=["key"])
    await after.upsert([{"key": 1, "w": 5}])
    gets = [asyncio.create_task(before.get(1)) for _ in range(30)]
    written = asyncio.create_task(before.upsert([{"key": 2}]))
    assert await asyncio.gather(*gets) == [{"key": 1, "w": 5}] * 30
    await written
