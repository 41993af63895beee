"""Scans of columnar bases have the same rows, order, tokens and limits as scans of RocksDB, and are as current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import InvalidRequest, Resume, UsageError, col, connect, sync
from tests.support.bases import (
    ALL_THE_TIME,
    SOON,
    WHATEVER_IT_WRITES,
    await_bases,
    bases_on_disk,
    built_at,
    is_of_bases,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from aio_client import Client, Scan, Table

    ReadPath: TypeAlias = Literal["auto", "rocksdb", "columnar"]

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("league", pa.string()), ("player", pa.int64()), ("score", pa.float64()), ("name", pa.string())])
KEY = ["league", "player"]
TABLE = "test.based"
BUCKETS = 3
ROWS = 150_000
"""Two batches of a base in each bucket, and a part of a third."""
NEVER_ANEW = (*SOON, "--set", "base_changed_share=10")


def rows_of(players: range, version: int = 0) -> pa.Table:
    """Returns rows whose values follow from player and version; the score ascends with the key, except for nulls."""
    numbers = np.arange(players.start, players.stop, players.step)
    return pa.table(
        {
            "league": pa.array([f"l{number * 4 // ROWS}" for number in numbers.tolist()]),
            "player": numbers - ROWS // 2,
            "score": pa.array(numbers / 8 + version, mask=numbers % 5 == 0),
            "name": [f"n{version}-{number % 1000:03}" for number in numbers.tolist()],
        },
        schema=SCHEMA,
    )


def keys_of(players: range) -> list[tuple[str, int]]:
    """Returns the keys of the rows of some players."""
    rows = rows_of(players)
    return list(zip(rows["league"].to_pylist(), rows["player"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def based(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server whose bases are built once, with a table with bases, many later changes and a later column."""
    # Not before almost all rows are written.
    settings = (*NEVER_ANEW, "--set", "base_min_rows=49000")
    with ServerProcess(tmp_path_factory.mktemp("based") / "data", *settings) as server:
        with sync.connect(server.url) as client:
            table = client.create_table(TABLE, SCHEMA, primary_key=KEY, buckets=BUCKETS, columnar_base="auto")
            table.upsert(rows_of(range(ROWS)))
            for _ in table.scan():
                break  # which requests a base
            wait_until(lambda: is_of_bases(table.scan().explain()), "every bucket has a base")
            table.upsert(rows_of(range(0, ROWS, 97), version=1))
            table.delete(keys_of(range(20_000, 22_000)))
            table.upsert(rows_of(range(21_000, 21_500), version=2))
            table = client.alter_table(TABLE, add_columns=pa.schema([("note", pa.string())]))
            table.upsert(rows_of(range(ROWS, ROWS + 500), version=3).append_column("note", pa.array(["new"] * 500)))
        yield server


@pytest_asyncio.fixture
async def client(based: ServerProcess) -> AsyncIterator[Client]:
    async with connect(based.url) as client:
        yield client


@pytest_asyncio.fixture
async def table(client: Client) -> Table:
    table = await client.table(TABLE)
    await await_bases(table)
    return table


QUESTIONS: dict[str, Callable[[Scan], Scan]] = {
    "all": lambda scan: scan,
    "a column of the key": lambda scan: scan.select("player"),
    "columns in another order": lambda scan: scan.select("note", "name", "league"),
    "no column": lambda scan: scan.select([]),
    "descending": lambda scan: scan.reverse(),
    "a range": lambda scan: scan.key_range(("l1", -30_000), ("l3", 40_000)),
    "a range descending": lambda scan: scan.key_range(("l0", -60_000), "l1").reverse(),
    "a range of a few rows": lambda scan: scan.key_range(("l0", -54_100), ("l0", -53_900)),
    "a range without rows": lambda scan: scan.key_range("m", "z"),
    "a prefix": lambda scan: scan.prefix("l2"),
    "one bucket": lambda scan: scan.with_buckets(1),
    "buckets": lambda scan: scan.with_buckets(2, 0).reverse(),
    "a few of all": lambda scan: scan.where(col("name") == "n0-007"),
    "rows of one batch": lambda scan: scan.where(col("score") > 18_000.0),
    "no row": lambda scan: scan.where(col("score") < 0.0),
    "nulls": lambda scan: scan.where(col("score").is_null()),
    "changed rows": lambda scan: scan.where(col("name").starts_with("n1-")).select("player", "name"),
    "the column that came later": lambda scan: scan.where(col("note") == "new"),
    "all but that": lambda scan: scan.where(col("note").is_null()).reverse(),
    "a part of the key": lambda scan: scan.where(col("player") > 0),
    "a limit of few": lambda scan: scan.limit(10),
    "a limit within the first bucket": lambda scan: scan.limit(40_000),
    "a limit within the second": lambda scan: scan.limit(60_000).reverse(),
    "a limit of rows kept": lambda scan: scan.where(col("name") >= "n0-900").limit(3000),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.represented_by("all", "a limit of rows kept")
async def test_a_base_gives_the_rows_of_the_iterator_in_the_same_order(table: Table, question: str) -> None:
    scan = QUESTIONS[question](table.scan())
    assert [(await scan.read_path(read_path).explain()).read_path for read_path in ("columnar", "rocksdb")] == [
        "columnar",
        "rocksdb",
    ]
    rows, expected = await scan.read_path("columnar").to_arrow(), await scan.read_path("rocksdb").to_arrow()
    assert rows.schema == expected.schema
    assert rows.equals(expected)
    assert (expected.num_rows == 0) == ("without" in question or question == "no row")


@pytest.mark.parametrize("size", [{"rows": 1}, {"rows": 700}, {"rows": 50_000}, {"bytes": 30_000}])
async def test_chunks_out_of_a_base_are_no_larger_than_asked_for(table: Table, size: dict[str, int]) -> None:
    scan = table.scan().key_range(("l0", -60_000), ("l0", -59_500 if "rows" in size else -40_000)).with_chunk(**size)
    batches = [batch async for batch in scan.read_path("columnar").stream()]
    assert max(batch.num_rows for batch in batches) <= size.get("rows", 32_768)
    # The requested bytes are those of stored rows.
    assert max(batch.nbytes for batch in batches) <= 2 * size.get("bytes", 8 << 20)
    assert pa.Table.from_batches(batches).equals(await scan.read_path("rocksdb").to_arrow())


@pytest.mark.whole_tables  # A scan counts once for each tablet.
async def test_a_scan_over_bases_opens_no_rocksdb_cursor(based: ServerProcess, table: Table) -> None:
    async with connect(based.url, read_ahead_bytes=64 << 10) as client:
        held = {}
        for read_path in ("columnar", "rocksdb"):
            async with client.scan(table.scan().read_path(read_path).with_chunk(rows=500).spec).stream() as stream:
                await anext(stream)
                stats = await client.stats()
                held[read_path] = stats.live_scans, stats.open_cursors
        # The iterators of a bucket are created when it is read.
        assert held == {"columnar": (1, 0), "rocksdb": (1, 1)}
        stats = await client.stats()
        assert (stats.live_scans, stats.open_cursors) == (0, 0)


async def test_rows_scanned_are_those_read_without_batches_that_no_row_can_match_in(table: Table) -> None:
    scanned = {}
    for what, scan in {"all": table.scan(), "one batch": table.scan(where=col("score") > 18_000.0)}.items():
        for read_path in ("columnar", "rocksdb"):
            async with scan.read_path(read_path).stream() as stream:
                rows = sum([batch.num_rows async for batch in stream])
            scanned[what, read_path] = stream.stats().rows_scanned
            assert rows <= scanned[what, read_path]
    assert scanned["all", "rocksdb"] == scanned["one batch", "rocksdb"] == await table.count()
    # Deleted rows of the base may count.
    assert scanned["all", "rocksdb"] <= scanned["all", "columnar"] <= scanned["all", "rocksdb"] + 2000
    assert scanned["one batch", "columnar"] < scanned["all", "columnar"] / 2


async def test_the_server_chooses_the_base_but_for_a_few_rows_and_says_why(table: Table) -> None:
    async def chosen(scan: Scan) -> tuple[str, str]:
        explanation = await scan.explain()
        assert f"{explanation.read_path}: {explanation.read_path_reason}" in str(explanation)
        return explanation.read_path, explanation.read_path_reason

    assert await chosen(table.scan()) == ("columnar", "a range of many rows")
    assert await chosen(table.scan().read_path("columnar").limit(10)) == ("columnar", "asked for")
    assert await chosen(table.scan().read_path("rocksdb")) == ("rocksdb", "asked for")
    assert await chosen(table.scan().limit(10)) == ("rocksdb", "the limit is at most 1,000 rows")
    assert await chosen(table.scan().limit(1001)) == ("columnar", "a range of many rows")
    point = (col("league") == "l0") & (col("player") == 0)
    assert await chosen(table.scan(where=point)) == ("rocksdb", "single keys are looked up")
    assert await chosen(table.scan().ordered()) == ("columnar", "a range of many rows")


async def test_a_base_that_cannot_answer_is_refused_when_asked_for(table: Table) -> None:
    point = (col("league") == "l0") & (col("player") == 0)
    with pytest.raises(
        InvalidRequest,
        match='cannot be read with read_path "columnar": single keys are looked up; leave `read_path` out',
    ):
        await table.scan(where=point).read_path("columnar").to_arrow()


async def test_what_has_no_base_is_refused_when_a_base_is_asked_for(client: Client, table: Table) -> None:
    other = await client.create_table("test.baseless", SCHEMA, primary_key=KEY, buckets=1, columnar_base="off")
    # Nothing is left to read.
    assert (await other.scan().read_path("columnar").to_arrow()).num_rows == 0
    await other.upsert(rows_of(range(10)))
    with pytest.raises(InvalidRequest, match='bucket 0 cannot be read with read_path "columnar": it has none yet'):
        await other.scan().read_path("columnar").to_arrow()

    async def says_why() -> bool:
        reason = (await other.scan().explain()).read_path_reason
        return reason == "no bucket has a columnar base ready: the table has columnar_base=off"

    await await_until(says_why, "the reason in explain")
    with pytest.raises(UsageError, match="read_path must be 'auto' or 'rocksdb' or 'columnar' or 'lake', not 'x'"):
        table.scan().read_path("x")  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("changelog", ["full", "upsert", "none"])
@pytest.mark.represented_by("full")
async def test_bases_are_taken_up_after_a_start_with_the_changes_since(tmp_path: Path, changelog: str) -> None:
    with ServerProcess(tmp_path / "data", *NEVER_ANEW) as server:
        async with connect(server.url) as client:
            table = narrow = await client.create_table(
                TABLE, SCHEMA, primary_key=KEY, buckets=2, columnar_base="eager", changelog=changelog
            )
            await narrow.upsert(rows_of(range(3000)))
            await await_bases(table)
            built = built_at(server.data_dir, TABLE)
            for number, drains in enumerate([True, False]):
                await narrow.upsert(rows_of(range(100 * number, 100 * number + 200), version=number + 1))
                await table.delete(keys_of(range(1000 * number, 1000 * number + 50)))
                if number == 1:
                    await client.alter_table(TABLE, add_columns=pa.schema([("note", pa.string())]))
                expected = await table.scan().read_path("rocksdb").to_arrow()
                if drains:
                    assert server.stop() == 0
                else:
                    server.kill()
                server.restart()
                await client.wait_ready()
                table = await client.table(TABLE)
                await await_bases(table)
                rows = await table.scan().read_path("columnar").to_arrow()
                assert rows.equals(expected)
                assert rows.equals(await table.scan().read_path("rocksdb").to_arrow())
                await await_until(lambda: _only_one(server.data_dir), "nothing but the bases in use")
                found = built_at(server.data_dir, TABLE)
                if changelog == "none":
                    # The later writes are only in RocksDB.
                    assert all(found[bucket] > built[bucket] for bucket in built)
                    built = found
                assert found == built, "they were not taken up, but built again"


@pytest.mark.breadth
async def test_a_bucket_whose_changes_take_too_much_memory_is_read_by_the_iterator_and_says_so(tmp_path: Path) -> None:
    # Builds are slow, so that none makes the delta small before it is too large.
    settings = (*NEVER_ANEW, "--set", "base_total_delta_bytes=1000000", "--set", "base_cpu_share=0.02")
    with ServerProcess(tmp_path / "data", *settings) as server:
        async with connect(server.url) as client:
            table = await client.create_table(TABLE, SCHEMA, primary_key=KEY, buckets=1, columnar_base="eager")
            await table.upsert(rows_of(range(20_000)))
            await await_bases(table)
            await table.upsert(rows_of(range(0, 60_000, 2), version=1))
            seen = await table.scan().to_arrow()
            assert seen.equals(await table.scan().read_path("rocksdb").to_arrow())

            async def is_dropped() -> bool:
                explanation = await table.scan().explain()
                return "exceed their memory limit (base_total_delta_bytes is 1,000,000)" in explanation.read_path_reason

            await await_until(is_dropped, "a reason that names the setting")

            async def is_gone() -> bool:
                return bases_on_disk(server.data_dir, TABLE)[0] == []

            await await_until(is_gone, "no files of a base")
            assert (await table.scan().to_arrow()).equals(seen)
            (bucket,) = await table.stats()
            assert bucket.base is not None
            assert "base_total_delta_bytes" in str(bucket.base.unused_reason)
            assert f'scankv_base_drops_total{{table="{TABLE}"}} 1.0' in (await client.metrics()).splitlines()


async def _only_one(data_dir: Path) -> bool:
    return all(len(names) == 1 for names in bases_on_disk(data_dir, TABLE).values())


@pytest.mark.breadth
async def test_a_base_is_built_anew_once_the_changes_pass_the_share_and_the_old_one_goes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *SOON, *WHATEVER_IT_WRITES, "--set", "base_changed_share=0.25") as server:
        async with connect(server.url) as client:
            table = await client.create_table(TABLE, SCHEMA, primary_key=KEY, buckets=1, columnar_base="eager")
            await table.upsert(rows_of(range(1000)))
            await await_bases(table)
            (name,) = bases_on_disk(server.data_dir, TABLE)[0]
            for number in range(1, 11):
                # An updated row counts once: with every third of these writes, a new base is due.
                await table.upsert(rows_of(range(100 * number - 100, 100 * number), version=number))

                async def is_due(name: str = name, anew: bool = number % 3 == 0) -> bool:
                    found = bases_on_disk(server.data_dir, TABLE)[0]
                    return len(found) == 1 and (found[0] > name) is anew

                await await_until(is_due, "a new base where the changes make one due, and but the last one there")
                (name,) = bases_on_disk(server.data_dir, TABLE)[0]
                rows = await table.scan().read_path("columnar").to_arrow()
                assert rows.equals(await table.scan().read_path("rocksdb").to_arrow())


@pytest.mark.breadth
@pytest.mark.parametrize("reverse", [False, True])
async def test_a_scan_that_began_on_an_old_base_keeps_its_view_while_newer_ones_come(
    tmp_path: Path, reverse: bool
) -> None:
    with ServerProcess(tmp_path / "data", *ALL_THE_TIME) as server:
        async with connect(server.url, read_ahead_bytes=64 << 10) as client:
            table = await client.create_table(TABLE, SCHEMA, primary_key=KEY, buckets=2, columnar_base="eager")
            await table.upsert(rows_of(range(40_000)))
            await await_bases(table)
            scan = table.scan().reverse() if reverse else table.scan()
            expected = await scan.read_path("rocksdb").to_arrow()
            batches = []
            async with scan.read_path("columnar").with_chunk(rows=500).resume(Resume.NEVER).stream() as stream:
                batches.append(await anext(stream))
                for number in range(1, 6):
                    before = bases_on_disk(server.data_dir, TABLE)
                    await table.upsert(rows_of(range(40_000), version=number))
                    await table.delete(keys_of(range(number, 40_000, 50)))

                    async def newer(before: dict[int, list[str]] = before) -> bool:
                        found = bases_on_disk(server.data_dir, TABLE)
                        return all(found[bucket][0] > names[-1] for bucket, names in before.items())

                    await await_until(newer, "a newer base of each bucket, and the one before gone")
                    batches += [await anext(stream) for _ in range(3)]
                batches += [batch async for batch in stream]
            assert pa.Table.from_batches(batches).equals(expected)
            await await_bases(table)
            assert (await scan.read_path("columnar").to_arrow()).equals(await scan.read_path("rocksdb").to_arrow())
