"""What a call about a table with tablets has decided holds for all of them: columns, TTL, incarnation and time."""

from __future__ import annotations

import asyncio
import datetime as dt
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scankv
from scankv.model.errors import SnapshotLost, TableRecreated
from tests.support.altered_tables import LENGTHS, TABLETS, WORKERS, Story, skewed_server
from tests.support.workers import processes_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aio_client._client.transaction import LockMode
    from scankv.model.scans.consistency import Consistency
    from tests.support.altered_tables import Read
    from tests.support.server_process import ServerProcess

ROWS = 2000

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300), pytest.mark.parametrize("seconds", LENGTHS)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, id="one_process", marks=pytest.mark.breadth), pytest.param(WORKERS, id="two_workers")],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose processes have different wall clocks."""
    with skewed_server(tmp_path_factory.mktemp("points") / "data", request.param) as server:
        yield server


async def values_of_stream(table: scankv.Table, column: str, consistency: Consistency = "table") -> set[object]:
    found: set[object] = set()
    async for rows in table.scan(columns=[column]).consistency(consistency).stream():
        found |= set(rows[column].to_pylist())
    return found


async def values_of_snapshot(table: scankv.Table, column: str) -> set[object]:
    async with table.snapshot(ttl=60) as snapshot:
        return set((await table.scan(columns=[column]).as_of(snapshot).to_arrow())[column].to_pylist())


async def extremes(table: scankv.Table) -> set[object]:
    found = await table.aggregate({"a": ["min", "max"]})
    return {found["a_min"][0].as_py(), found["a_max"][0].as_py()}


async def looked_up(table: scankv.Table) -> set[object]:
    return set((await table.lookup(list(range(0, ROWS, 50))))["a"].to_pylist())


async def counted(table: scankv.Table) -> set[object]:
    return {await table.count("a = 1")}


async def first_rows(table: scankv.Table) -> set[object]:
    rows = await table.top_n(50, order_by="k", columns=["a"])
    return set(rows["a"].to_pylist())


@pytest.mark.represented_by("two_workers-failing-short")
@pytest.mark.parametrize("fails", [False, True], ids=["running", "failing"])
async def test_no_answer_has_the_columns_of_two_versions(server: ServerProcess, seconds: float, fails: bool) -> None:
    if fails and not processes_of(server):
        return  # One process has no workers to kill.
    name = f"swap.t{seconds:g}{fails}"
    schema = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    async with scankv.connect(server.url) as client:
        table = await client.create_table(name, schema, primary_key=["k"], buckets=TABLETS, tablets=TABLETS)
        await table.upsert([{"k": k, "a": 1, "b": 2} for k in range(ROWS)])
    reads: dict[str, Read] = {
        "to_arrow": lambda table: values_of_arrow(table, "a"),
        "stream": lambda table: values_of_stream(table, "a"),
        "owner": lambda table: values_of_stream(table, "a", "owner"),
        "ordered": ordered_values,
        "aggregate": extremes,
        "count": counted,
        "lookup": looked_up,
        "top_n": first_rows,
        "snapshot": lambda table: values_of_snapshot(table, "a"),
    }
    story = Story(server, name, seconds, fails=fails)

    async def swap(client: scankv.Client, _: int) -> None:
        await client.alter_table(name, rename_columns={"a": "b", "b": "a"})

    right: list[set[object]] = [{1}, {2}, {0}, {ROWS}]
    changes = await story.run(swap, reads, lambda answer: answer in right)
    assert changes > 1
    story.check(reads)


async def values_of_arrow(table: scankv.Table, column: str) -> set[object]:
    return set((await table.scan(columns=[column]).to_arrow())[column].to_pylist())


async def ordered_values(table: scankv.Table) -> set[object]:
    return set((await table.scan(columns=["k", "a"]).ordered().to_arrow())["a"].to_pylist())


async def rows_of_arrow(table: scankv.Table) -> object:
    return (await table.scan(columns=["k"]).to_arrow()).num_rows


async def rows_of_stream(table: scankv.Table, consistency: Consistency = "table") -> int:
    return sum([rows.num_rows async for rows in table.scan().consistency(consistency).stream()])


async def rows_of_snapshot(table: scankv.Table) -> tuple[int, int]:
    async with table.snapshot(ttl=60) as snapshot:
        return (await table.scan(columns=["k"]).as_of(snapshot).to_arrow()).num_rows, await table.count(as_of=snapshot)


async def found_keys(table: scankv.Table) -> object:
    return (await table.lookup(list(range(64)))).num_rows


async def found_for_update(client: scankv.Client, lock: LockMode | None, table: scankv.Table) -> object:
    transaction = await client.transaction(lock=lock)
    try:
        rows = await transaction.get_for_update(table, list(range(64)))
        return rows.num_rows
    finally:
        await transaction.abort()


ROW_COUNTS: dict[str, Read] = {
    "to_arrow": rows_of_arrow,
    "stream": rows_of_stream,
    "owner": lambda table: rows_of_stream(table, "owner"),
    "count": lambda table: table.count(),
    "where": lambda table: table.count("k >= 0"),
    "snapshot": rows_of_snapshot,
}


@pytest.mark.breadth
async def test_a_change_of_the_ttl_applies_to_all_tablets_at_once(server: ServerProcess, seconds: float) -> None:
    name = f"ttl.t{seconds:g}"
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    old = dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)
    async with scankv.connect(server.url) as client:
        table = await client.create_table(name, schema, primary_key=["k"], buckets=TABLETS, tablets=TABLETS)
        await table.upsert([{"k": k, "at": old} for k in range(ROWS)])
    story = Story(server, name, seconds)

    async def toggle(client: scankv.Client, number: int) -> None:
        if number % 2:
            await client.alter_table(name, ttl_seconds=None, ttl_column=None)
        else:
            # Nothing of it is removed: a pass of the sweep begins after a minute.
            await client.alter_table(name, ttl_seconds=3600, ttl_column="at")

    right = [0, ROWS, (0, 0), (ROWS, ROWS)]
    assert await story.run(toggle, ROW_COUNTS, lambda answer: answer in right) > 1
    story.check(ROW_COUNTS)


@pytest.mark.breadth
async def test_the_rows_of_a_transaction_expire_at_once(server: ServerProcess, seconds: float) -> None:
    name = f"expiry.t{seconds:g}"
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    async with scankv.connect(server.url) as client:
        await client.create_table(
            name,
            schema,
            primary_key=["k"],
            buckets=2 * TABLETS,
            tablets=TABLETS,
            ttl_seconds=1,
            ttl_column="at",
        )
    story = Story(server, name, 2 * seconds)

    commits = [0, 0]

    async def write(client: scankv.Client, _: int) -> None:
        table = await client.table(name)
        at = dt.datetime.now(dt.UTC).replace(microsecond=0)
        commits[0] += 1
        async with client.transaction() as transaction:
            await transaction.upsert(table, [{"k": k, "at": at} for k in range(64)])
        commits[1] += 1
        await asyncio.sleep(1.2)

    async def between_commits(read: Read, table: scankv.Table) -> object:
        """Each owner has an instant of its own, so a commit may be seen at one of them alone."""
        before = commits[1]
        rows = await read(table)
        return rows if before == commits[0] else 0

    async with scankv.connect(server.url) as reading:
        reads: dict[str, Read] = {
            **ROW_COUNTS,
            "lookup": found_keys,
            "owner": partial(between_commits, ROW_COUNTS["owner"]),
            "for update": partial(between_commits, partial(found_for_update, reading, None)),
            "locked": partial(between_commits, partial(found_for_update, reading, "keys")),
        }
        right = [0, 64, (0, 0), (64, 64)]
        await story.run(write, reads, lambda answer: answer in right)
    story.check(reads)


@pytest.mark.breadth
async def test_no_answer_has_the_rows_of_two_incarnations(server: ServerProcess, seconds: float) -> None:
    name = f"again.t{seconds:g}"
    schema = pa.schema([("k", pa.int64()), ("life", pa.int64())])
    story = Story(server, name, seconds, expected=(SnapshotLost,))  # a drop ends the snapshots of its table

    async def create(client: scankv.Client, number: int) -> None:
        rows = pa.table({"k": range(ROWS), "life": [number] * ROWS}).to_batches()
        table = await client.create_table(name, schema, primary_key=["k"], buckets=TABLETS, tablets=TABLETS)
        await table.upsert(pa.Table.from_batches(rows))

    async def create_again(client: scankv.Client, number: int) -> None:
        await client.drop_table(name)
        await create(client, number + 1)

    async with scankv.connect(server.url) as client:
        await create(client, 0)
    reads: dict[str, Read] = {
        "to_arrow": lambda table: values_of_arrow(table, "life"),
        "stream": lambda table: values_of_stream(table, "life"),
        "owner": lambda table: values_of_stream(table, "life", "owner"),
        "snapshot": lambda table: values_of_snapshot(table, "life"),
    }
    assert await story.run(create_again, reads, lambda answer: isinstance(answer, set) and len(answer) <= 1) >= 1
    story.check(reads)


@pytest.mark.parametrize("tablets", [1, TABLETS])
async def test_columns_of_an_earlier_table_of_the_name_are_no_columns_to_wait_for(
    server: ServerProcess, seconds: float, tablets: int
) -> None:
    name = f"earlier.t{tablets}_{seconds:g}"
    schema = pa.schema([("k", pa.int64()), ("a", pa.int64())])
    rows = pa.table({"k": range(500), "a": range(500)})
    async with scankv.connect(server.url) as client:
        table = await client.create_table(name, schema, primary_key=["k"], buckets=TABLETS, tablets=tablets)
        table = await client.alter_table(name, add_columns=pa.schema([("b", pa.int64())]))
        await client.drop_table(name)
        again = await client.create_table(name, schema, primary_key=["k"], buckets=TABLETS, tablets=tablets)
        with pytest.raises(TableRecreated, match="no schema version 2, so it was restored"):
            await table.upsert(rows.append_column("b", pa.nulls(500, pa.int64())))
        await again.upsert(rows)
        assert await again.count() == 500


@pytest.mark.breadth
@pytest.mark.parametrize("fails", [False, True], ids=["running", "failing"])
async def test_clients_that_know_added_columns_write_them_wherever_a_worker_is_behind(
    server: ServerProcess, seconds: float, fails: bool
) -> None:
    if fails and not processes_of(server):
        return  # One process has no workers to kill.
    name, most = f"added.t{seconds:g}{fails}", 60
    schema = pa.schema([("k", pa.int64()), ("c0", pa.int64())])
    async with scankv.connect(server.url) as client:
        await client.create_table(name, schema, primary_key=["k"], buckets=TABLETS, tablets=TABLETS)
    story, written = Story(server, name, seconds, fails=fails), dict[int, dict[str, int]]()

    async def add(client: scankv.Client, number: int) -> None:
        if number < most:
            await client.alter_table(name, add_columns=pa.schema([(f"c{number + 1}", pa.int64())]))
        else:
            await asyncio.sleep(0.1)

    async with scankv.connect(server.url) as writing:

        async def write(first: int) -> str:
            """Writes rows with all columns that the table has now: one row alone, then some at once."""
            table = await writing.table(name)
            value = len(written) + 1
            for keys in ([first], range(first, first + 40)):
                rows = [{"k": k, **dict.fromkeys(table.schema.names[1:], value)} for k in keys]
                await table.upsert(rows)
                written.update({row["k"]: row for row in rows})
            return "written"

        writes: dict[str, Read] = {f"writer {n}": partial(_call, write, 100 * n) for n in range(3)}
        assert await story.run(add, writes, lambda answer: answer == "written") > 1
        story.check(writes)
        table = await writing.table(name)
        found = {row["k"]: row for row in (await table.scan().to_arrow()).to_pylist()}
    assert {k: {c: found[k][c] for c in row} for k, row in written.items()} == written


async def _call(write: Callable[[int], Awaitable[object]], first: int, _: scankv.Table) -> object:
    return await write(first)
