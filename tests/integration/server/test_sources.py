"""Every kind of read returns the same rows from columnar bases as row by row, for the live table and a snapshot."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import pytest_asyncio

from aio_client import DataLoss, InvalidRequest, ScanSource, StartFrom, StopAt, col, connect
from tests.faults.test_base_crash import read_until_error
from tests.support.bases import ALL_THE_TIME, SOON, await_bases, base_path, bases_on_disk
from tests.support.server_process import ServerProcess
from tests.support.snapshots import views_on_disk
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aio_client import Client, Scan, Snapshot, Table

    ReadPath: TypeAlias = Literal["auto", "rocksdb", "columnar"]

pytestmark = pytest.mark.asyncio

SCHEMA: Final = pa.schema(
    [("team", pa.string()), ("k", pa.int64()), ("score", pa.float64()), ("level", pa.int32()), ("name", pa.string())]
)
KEY: Final = ["team", "k"]
ROWS: Final = 20_000
BUCKETS: Final = 3
NEVER_ANEW: Final = (*SOON, "--set", "base_changed_share=10")


def rows_of(numbers: range, version: int = 0) -> pa.Table:
    """Returns rows whose values follow from number and version; many have the same level, and some have none."""
    ids = np.arange(numbers.start, numbers.stop, numbers.step)
    scattered = ids * 7919 % 10_007
    return pa.table(
        {
            "team": pa.array([f"t{number % 3}" for number in ids.tolist()]),
            "k": ids - ROWS // 2,
            "score": pa.array((scattered + version) / 8, mask=ids % 11 == 0),
            "level": pa.array((scattered % 50).astype(np.int32), mask=ids % 7 == 0),
            "name": [f"n{version}-{number}" for number in scattered.tolist()],
        },
        schema=SCHEMA,
    )


def keys_of(numbers: range) -> list[tuple[str, int]]:
    rows = rows_of(numbers)
    return list(zip(rows["team"].to_pylist(), rows["k"].to_pylist(), strict=True))


class Sources(NamedTuple):
    """A table with bases and later changes, and a snapshot of it from between these changes."""

    table: Table
    snapshot: Snapshot

    def scan(self, at: str) -> Scan:
        return self.table.scan().as_of(self.snapshot) if at == "snapshot" else self.table.scan()

    def at(self, at: str) -> dict[str, Any]:
        return {"as_of": self.snapshot} if at == "snapshot" else {}


async def changed(table: Table, version: int) -> None:
    """Changes, deletes and inserts some rows."""
    await table.upsert(rows_of(range(version, ROWS, 89), version))
    await table.delete(keys_of(range(version * 1000, version * 1000 + 300)))
    await table.upsert(rows_of(range(ROWS + version * 100, ROWS + version * 100 + 50), version))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("sources") / "data", *NEVER_ANEW) as server:
        yield server


@pytest_asyncio.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with connect(server.url) as client:
        yield client


async def based(client: Client) -> Table:
    """Makes a table with bases and later changes."""
    table = await client.create_table("test.sources", SCHEMA, primary_key=KEY, buckets=BUCKETS, columnar_base="eager")
    await table.upsert(rows_of(range(ROWS)))
    await await_bases(table)
    await changed(table, 1)
    return table


@pytest_asyncio.fixture
async def sources(client: Client) -> Sources:
    for snapshot in await client.snapshots():
        return Sources(await client.table("test.sources"), snapshot)
    table = await based(client)
    snapshot = await table.snapshot(ttl=3600)
    await changed(table, 2)
    return Sources(table, snapshot)


AT: Final = pytest.mark.parametrize("at", ["live", "snapshot"])


@AT
async def test_nothing_of_it_opens_a_rocksdb_cursor(client: Client, sources: Sources, at: str) -> None:
    for scan in (sources.scan(at), sources.scan(at).ordered()):
        assert await cursors_of(client, scan) == 0

    async def nothing_is_live() -> bool:
        return (await client.stats()).live_scans == 0

    await await_until(nothing_is_live, "no scan left")


async def cursors_of(client: Client, scan: Scan) -> int:
    """Returns how many RocksDB cursors a scan has while it runs."""
    for _ in range(50):
        async with scan.with_chunk(rows=100).stream() as stream:
            await anext(stream)
            stats = await client.stats()
        if stats.live_scans == 1:  # it was not already over
            return stats.open_cursors
    raise AssertionError("no scan was seen while it ran")


@pytest.mark.represented_by("True-name-snapshot", "True-k-snapshot", "True-team-snapshot", "False-k-snapshot")
@AT
@pytest.mark.parametrize("by", ["score", "level", "name", "k", "team"])
@pytest.mark.parametrize("descending", [False, True])
async def test_the_first_rows_are_those_of_a_sort_of_all(sources: Sources, by: str, descending: bool, at: str) -> None:
    direction = "descending" if descending else "ascending"
    keys = [(by, direction), *((name, "ascending") for name in KEY if name != by)]
    for where in (None, col("score") < 300.0, col("name").starts_with("n2-")):
        rows = (
            await sources.scan(at).where(where).read_path("rocksdb").to_arrow()
            if where is not None
            else (await sources.scan(at).read_path("rocksdb").to_arrow())
        )
        ordered = rows.take(pc.sort_indices(rows, sort_keys=keys))
        for n in (1, 10, 3000):
            found = await sources.table.top_n(n, by, where, descending=descending, **sources.at(at))
            assert found.equals(ordered[:n])
        ties = await sources.table.top_n(10, by, where, descending=descending, ties="all", **sources.at(at))
        if len(rows) > 10:
            last = ordered[by][9]
            same = pc.equal(ordered[by], last) if last.is_valid else ordered[by].is_null()
            assert ties.num_rows == max(pc.indices_nonzero(same).to_pylist()) + 1
        assert ties.equals(ordered[: ties.num_rows])


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_parts_of_a_snapshot_give_each_row_once_whatever_they_are_read_from(
    sources: Sources, ordered: bool
) -> None:
    scan = sources.scan("snapshot").ordered() if ordered else sources.scan("snapshot")
    found: dict[str, list[pa.Table]] = {"columnar": [], "rocksdb": []}
    for part in await scan.splits(5):
        for read_path in ("columnar", "rocksdb"):
            found[read_path].append(await part.read_path(read_path).to_arrow())
    assert all(one.equals(other) for one, other in zip(found["columnar"], found["rocksdb"], strict=True))
    sizes = [rows.num_rows for rows in found["columnar"]]
    assert max(sizes) < 1.5 * min(sizes)
    together, every = pa.concat_tables(found["columnar"]), await scan.to_arrow()
    assert together.sort_by([(name, "ascending") for name in KEY]).equals(
        every.sort_by([(name, "ascending") for name in KEY])
    )


async def test_a_start_from_the_whole_table_reads_the_bases(client: Client, sources: Sources) -> None:
    scan = sources.table.scan().with_source(ScanSource.LOG).with_row_kind()
    async with scan.start_from(StartFrom.FULL).stop_at(StopAt.LATEST).with_chunk(rows=100).stream() as stream:
        batches = [await anext(stream)]
        assert (await client.stats()).open_cursors == 0
        batches += [batch async for batch in stream]
    rows = pa.Table.from_batches(batches).select(SCHEMA.names)
    assert rows.equals(await sources.table.scan().read_path("rocksdb").to_arrow())


async def test_where_a_bucket_has_no_base_rows_are_put_in_order_row_by_row(client: Client) -> None:
    table = await client.create_table("test.baseless", SCHEMA, primary_key=KEY, buckets=BUCKETS, columnar_base="off")
    await table.upsert(rows_of(range(100)))
    explanation = await table.scan().ordered().explain()
    assert explanation.read_path == "rocksdb"
    assert explanation.read_path_reason.startswith("no bucket has a columnar base ready: ")
    with pytest.raises(InvalidRequest, match='cannot be read with read_path "columnar": it has none yet'):
        await table.scan().ordered().read_path("columnar").to_arrow()
    async with table.snapshot() as snapshot:
        reason = (await table.scan().as_of(snapshot).explain()).read_path_reason
        assert reason == "no bucket has a columnar base ready: it was pinned without one"
        with pytest.raises(
            InvalidRequest, match='cannot be read with read_path "columnar": the snapshot has no base of the bucket'
        ):
            await table.scan().as_of(snapshot).read_path("columnar").to_arrow()
        assert (await table.scan().as_of(snapshot).to_arrow()).num_rows == 100


@pytest.mark.breadth
async def test_a_snapshot_keeps_its_bases_when_newer_ones_come_over_a_restart_and_when_the_tables_are_gone(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data", *ALL_THE_TIME) as server:
        async with connect(server.url) as client:
            table = await based(client)
            snapshot = await table.snapshot(ttl=3600)
            expected = await table.scan().as_of(snapshot).read_path("rocksdb").to_arrow()
            pinned = bases_on_disk(server.data_dir, table.name)

            async def check() -> None:
                for scan in (table.scan(), table.scan().ordered()):
                    rows = await scan.as_of(snapshot).read_path("columnar").to_arrow()
                    assert rows.equals(await scan.as_of(snapshot).read_path("rocksdb").to_arrow())
                assert (await table.scan().as_of(snapshot).read_path("columnar").to_arrow()).equals(expected)

            await check()
            await changed(table, 2)

            async def newer() -> bool:
                found = bases_on_disk(server.data_dir, table.name)
                return all(found[bucket][0] > names[-1] for bucket, names in pinned.items())

            await await_until(newer, "newer bases, and those of the snapshot gone from the table")
            await check()
            assert server.stop() == 0
            shutil.rmtree(server.data_dir / "tables" / "test" / "sources" / "bases")
            server.restart()
            await client.wait_ready()
            await check()
            await snapshot.release()
            assert views_on_disk(server.data_dir) == []


@pytest.mark.represented_by("manifest.json")
@pytest.mark.parametrize("name", ["rows.arrow", "keys.arrow", "delta.arrow", "manifest.json"])
async def test_damage_of_a_snapshots_base_is_found_before_its_rows_and_then_the_checkpoint_is_read(
    tmp_path: Path, name: str
) -> None:
    with ServerProcess(tmp_path / "data", *NEVER_ANEW) as server:
        async with connect(server.url) as client:
            table = await based(client)
            snapshot = await table.snapshot(ttl=3600)
            scan = table.scan().as_of(snapshot)
            expected = await scan.read_path("rocksdb").to_arrow()
            (view,) = views_on_disk(server.data_dir)
            (file,) = (view / "bases" / "0001").rglob(name)
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 16
            # A separate file: the live base has the same content.
            file.unlink()
            file.write_bytes(data)
            if name in ("rows.arrow", "keys.arrow"):
                ended = await read_until_error(scan.read_path("columnar"), expected)
                assert isinstance(ended, DataLoss)
                assert "scan again, and the rows are read from the snapshot's checkpoint" in str(ended)
            assert (await scan.to_arrow()).equals(expected)
            explanation = await scan.explain()
            assert (explanation.read_path, "1 of 3 buckets have no base" in explanation.read_path_reason) == (
                "columnar",
                True,
            )
            with pytest.raises(InvalidRequest, match="bucket 1 cannot be read with read_path"):
                await scan.read_path("columnar").to_arrow()
            assert (await scan.ordered().to_arrow()).num_rows == expected.num_rows
            assert (await table.scan().read_path("columnar").to_arrow()).equals(expected)
            assert base_path(server.data_dir, table.name, 1).is_dir()
