"""`changelog="input"`: the changelog has what was written, as it came, and whatever needs merged rows is refused."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    Client,
    InvalidOption,
    InvalidRequest,
    StartFrom,
    StopAt,
    Table,
    TransactionConflict,
    WriteConflict,
    agg,
    connect,
)
from aio_client.mirror import mirror
from tests.support.bases import SOON, await_bases
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("text", pa.string())])
WITH_TYPES = SCHEMA.append(pa.field("_change_type", pa.string(), nullable=False))

ENGINES: dict[str, dict[str, Any]] = {
    "last_row": {},
    "indexed": {"indexes": ["v"]},
    "sequence_column": {"sequence_column": "v"},
    "first_row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": "versioned", "version_column": "v"},
    "aggregate": {
        "merge_engine": "aggregate",
        "aggregators": {"v": agg.sum(), "text": agg.last_value()},
        "delete_behavior": "allow",
    },
    "average": {"merge_engine": "aggregate", "aggregators": {"v": agg.max(ignore_retract=True)}},
    "partial_update": {"merge_engine": "partial_update", "delete_behavior": "allow"},
    "retract": {
        "merge_engine": "partial_update",
        "delete_behavior": "retract",
        "sequence_groups": {"v": ["text"]},
    },
}

Change = tuple[str, int, Any, Any]


async def recorded(table: Table, start: StartFrom = StartFrom.EARLIEST) -> list[Change]:
    """Returns what the changelog has, each change as its kind and its row."""
    stream = table.changes(start, StopAt.LATEST)
    return [
        (each["_change_type"], each["k"], each["v"], each["text"])
        for each in await stream.with_chunk(rows=7).to_pylist()
    ]


def by_key(changes: list[Change]) -> dict[int, list[Change]]:
    found: dict[int, list[Change]] = defaultdict(list)
    for each in changes:
        found[each[1]].append(each)
    return dict(found)


class InputHistory:
    """Writes the same rows to a table and to its twin with complete changes, and remembers what was written."""

    def __init__(self, table: Table, twin: Table, chance: random.Random) -> None:
        self.table, self.twin, self._chance = table, twin, chance
        self.written: list[Change] = []

    def _rows(self, count: int) -> list[dict[str, Any]]:
        return [
            {
                "k": self._chance.randrange(60),
                "v": self._chance.choice([None, *range(9)]),
                "text": self._chance.choice([None, "a", "b"]),
            }
            for _ in range(count)
        ]

    async def upsert(self) -> None:
        """Writes some rows, with several of one key."""
        rows = self._rows(self._chance.choice([1, 1, 3, 40, 400]))
        for each in (self.table, self.twin):
            await each.upsert(pa.Table.from_pylist(rows, schema=SCHEMA))
        self.written += [("+U", row["k"], row["v"], row["text"]) for row in rows]

    async def upsert_row(self) -> None:
        """Writes one row as clients do that write row by row."""
        (row,) = self._rows(1)
        for each in (self.table, self.twin):
            await each.upsert([row])
        self.written.append(("+U", row["k"], row["v"], row["text"]))

    async def upsert_with_types(self) -> None:
        """Writes rows with change types, some of which may have no effect."""
        rows = self._rows(self._chance.choice([1, 5, 200]))
        kinds = (
            ["+I", "+U", "-U"] if self.table.options.get("delete_behavior") == "disable" else ["+I", "+U", "-U", "-D"]
        )
        for row in rows:
            row["_change_type"] = self._chance.choice(kinds)
        for each in (self.table, self.twin):
            await each.upsert(pa.Table.from_pylist(rows, schema=WITH_TYPES))
        self.written += [(row["_change_type"], row["k"], row["v"], row["text"]) for row in rows]

    async def delete(self) -> None:
        """Deletes some keys, with or without rows."""
        keys = self._chance.sample(range(60), self._chance.choice([1, 20]))
        for each in (self.table, self.twin):
            await each.delete(keys)
        self.written += [("-D", key, None, None) for key in keys]

    async def delete_what_matches(self) -> None:
        """Deletes the rows that match a predicate, rarely all."""
        where = self._chance.choice(["k < 20", "k = 7", "v >= 5", "text IS NULL", None])
        keys = [row["k"] for row in await self.twin.scan(columns=["k"], where=where).to_pylist()]
        for each in (self.table, self.twin):
            result = await (each.truncate() if where is None else each.delete(where=where))
            assert result.rows == len(keys)
        self.written += [("-D", key, None, None) for key in keys]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.breadth
async def test_every_written_row_is_recorded_as_it_came_and_the_table_is_as_with_another_changelog(
    client: Client, name: str, engine: str
) -> None:
    chance = random.Random(engine)
    options = {"primary_key": ["k"], "buckets": 2, **ENGINES[engine]}
    table = await client.create_table(name, SCHEMA, changelog="input", **options)
    twin = await client.create_table(f"{name}_twin", SCHEMA, **options)
    inputs = InputHistory(table, twin, chance)
    steps = [inputs.upsert, inputs.upsert_row, inputs.upsert_with_types]
    if options.get("delete_behavior") == "allow" or engine in ("last_row", "indexed", "sequence_column"):
        steps += [inputs.delete, inputs.delete_what_matches]
    for _ in range(25):
        await chance.choice(steps)()
    assert by_key(await recorded(table)) == by_key(inputs.written)
    rows = sorted(await table.scan().to_pylist(), key=lambda row: row["k"])
    assert rows == sorted(await twin.scan().to_pylist(), key=lambda row: row["k"])
    assert await table.count() == len(rows)
    assert all(bucket.is_consistent for bucket in await client.check_table(name))


async def test_rows_that_are_retracted_keep_their_change_types(client: Client, name: str) -> None:
    table = await client.create_table(
        name, SCHEMA, primary_key=["k"], changelog="input", merge_engine="aggregate", aggregators={"v": agg.sum()}
    )
    rows = [
        {"k": 1, "v": 5, "text": "a", "_change_type": "+I"},
        {"k": 1, "v": 2, "text": "b", "_change_type": "-U"},
        {"k": 1, "v": 4, "text": "c", "_change_type": "+U"},
    ]
    await table.upsert(pa.Table.from_pylist(rows, schema=WITH_TYPES))
    assert await recorded(table) == [("+I", 1, 5, "a"), ("-U", 1, 2, "b"), ("+U", 1, 4, "c")]
    assert (await table.get(1) or {})["v"] == 7


async def test_columns_that_are_not_named_are_null_where_null_means_nothing(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], changelog="input", merge_engine="partial_update")
    await table.upsert([{"k": 1, "v": 1, "text": "a"}])
    await table.upsert([{"k": 1, "v": 2}], ["k", "v"])
    assert await recorded(table) == [("+U", 1, 1, "a"), ("+U", 1, 2, None)]
    assert await table.get(1) == {"k": 1, "v": 2, "text": "a"}


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], changelog="input", buckets=1)
    await table.upsert([{"k": key, "v": 1, "text": "a"} for key in range(5)])
    return table


async def test_writes_that_cannot_be_recorded_are_refused_and_change_nothing(client: Client, table: Table) -> None:
    row = {"k": 1, "v": 2, "text": "b"}
    before = await table.log_offsets()
    with pytest.raises(InvalidRequest, match="name some columns only"):
        await table.upsert([{"k": 1, "v": 2}], ["k", "v"])
    with pytest.raises(InvalidRequest, match="track_changes=False"):
        await table.upsert([row], track_changes=False)
    with pytest.raises(InvalidRequest, match="deletes of some columns"):
        await table.delete([1], columns=["v"])
    with pytest.raises(InvalidRequest, match="transactions merge their rows"):
        async with client.transaction() as tx:
            await tx.upsert(table, [row])
    with pytest.raises(InvalidRequest, match=r"transactions merge their rows.*delete the rows that match a predicate"):
        async with client.transaction() as tx:
            await tx.delete(table, [1])
    with pytest.raises(InvalidRequest, match="transactions merge their rows"):
        await table.replace([row])
    for leaves_out in (table.truncate(track_changes=False), table.delete(where="k = 1", track_changes=False)):
        with pytest.raises(InvalidRequest, match=r"deletions without tracking of changes .*: track the changes"):
            await leaves_out
    with pytest.raises(InvalidRequest, match="nothing can be undone"):
        await table.undo("job", before)
    assert await table.log_offsets() == before


async def test_readers_that_need_merged_rows_are_refused(table: Table) -> None:
    inputs = table.changes(StartFrom.EARLIEST, StopAt.LATEST)
    for refused, why in [
        (table.changes(StartFrom.FULL, StopAt.LATEST), "cannot begin with all rows"),
        (inputs.with_catch_up("net"), "no net changes"),
        (inputs.with_untracked("rescan"), "cannot take the place of changes"),
        (table.changes(StartFrom.EARLIEST, StopAt.LATEST, where="v > 0"), 'can use the key .* but not "v"'),
        (
            table.changes(StartFrom.EARLIEST, StopAt.LATEST, where="v > 0").with_unmatched("delete"),
            'can use the key .* but not "v"',
        ),
    ]:
        with pytest.raises(InvalidRequest, match=f'has changelog="input".*{why}'):
            await refused.to_arrow()
    with pytest.raises(InvalidRequest, match="cannot begin with all rows"):
        async with mirror(table):
            pass
    of_key = await table.changes(StartFrom.EARLIEST, StopAt.LATEST, where="k > 2").to_pylist()
    assert [row["k"] for row in of_key] == [3, 4]


async def test_a_consumer_follows_what_is_written(table: Table) -> None:
    read = table.changes(StartFrom.EARLIEST, consumer_id="c1")
    async with read.stream() as stream:
        assert (await anext(aiter(stream))).num_rows == 5
        await stream.commit()
    await table.upsert([{"k": 1, "v": 1, "text": "a"}, {"k": 1, "v": 1, "text": "a"}])
    async with read.stream() as stream:
        assert (await anext(aiter(stream))).column("_change_type").to_pylist() == ["+U", "+U"]


@pytest.mark.one_process
async def test_conditions_see_every_written_key(client: Client, table: Table) -> None:
    before = await table.log_offsets()
    await table.upsert([{"k": 1, "v": 1, "text": "a"}])
    with pytest.raises(WriteConflict):
        await table.upsert([{"k": 1, "v": 2, "text": "b"}], if_version=before)
    await table.upsert([{"k": 2, "v": 2, "text": "b"}], if_version=before)
    assert (await table.get(2) or {})["v"] == 2
    other = await client.create_table(f"{table.name}_other", SCHEMA, primary_key=["k"])
    tx = await client.transaction()
    await tx.get_for_update(table, 3)
    await tx.upsert(other, [{"k": 3, "v": 3, "text": "c"}])
    await table.delete([3])
    with pytest.raises(TransactionConflict):
        await tx.commit()


@pytest.mark.parametrize("changelog", ["full", "upsert", "none"])
async def test_the_value_does_not_change_in_either_direction(client: Client, table: Table, changelog: str) -> None:
    with pytest.raises(InvalidOption, match=f'from "input" to "{changelog}", because .* another order'):
        await client.alter_table(table.name, changelog=changelog)
    other = await client.create_table(f"{table.name}_other", SCHEMA, primary_key=["k"], changelog=changelog)
    with pytest.raises(InvalidOption, match=f'from "{changelog}" to "input", because .* another order'):
        await client.alter_table(other.name, changelog="input")


@pytest.mark.breadth
async def test_a_repeated_request_is_recorded_once(table: Table) -> None:
    rows = pa.table({"k": [n % 9000 for n in range(20_000)], "v": range(20_000), "text": ["x"] * 20_000}, schema=SCHEMA)
    async with table.writer(id="job") as writer:
        await writer.upsert(rows)
        await writer.flush()
    found = by_key(await recorded(table, StartFrom.offsets({0: 5})))
    assert [[change[2] for change in found[key]] for key in (0, 8999)] == [[0, 9000, 18_000], [8999, 17_999]]
    assert sum(map(len, found.values())) == 20_000


async def test_a_base_is_not_made_from_what_was_written(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *SOON) as server:
        async with connect(server.url) as client:
            table = await client.create_table(
                "test.b",
                SCHEMA,
                primary_key=["k"],
                buckets=1,
                columnar_base="eager",
                changelog="input",
                sequence_column="v",
            )
            await table.upsert([{"k": key, "v": 5, "text": "new"} for key in range(100)])
            await await_bases(table)
            # They come too late to have an effect.
            await table.upsert([{"k": key, "v": 1, "text": "old"} for key in range(100)])
        server.kill()
        server.restart()
        async with connect(server.url) as client:
            table = await client.table("test.b")
            assert {row["text"] for row in await table.scan().to_pylist()} == {"new"}
            await await_bases(table)
            assert {row["text"] for row in await table.scan().to_pylist()} == {"new"}
