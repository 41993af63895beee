"""A bootstrapped table is as one that the same rows were upserted to, and appears with all of them or not at all."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from aio_client import (
    Client,
    DuplicateKeys,
    InvalidRequest,
    RangeNotTracked,
    SchemaMismatch,
    StartFrom,
    StopAt,
    Table,
    TableExists,
    TableNotFound,
    UsageError,
    agg,
    connect,
    sync,
)
from scankv.v1 import bootstrap_pb2, transaction_pb2
from tests.support.examples import seeds
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import BootstrapProgress

pytestmark = pytest.mark.asyncio

SCHEMA: Final = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("v", pa.int64()),
        ("amount", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("day", pa.date32()),
    ]
)

KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"primary_key": ["k"]},
    "text keys": {"primary_key": ["name"], "compression": "zstd"},
    "one bucket": {"primary_key": ["k"], "buckets": 1, "row_deduplicate": False},
    "keys of two columns": {"primary_key": ["name", "k"], "bucket_key": ["k"], "buckets": 3},
    "indexed": {"primary_key": ["k"], "indexes": ["v", ("name", "v")]},
    "upsert changelog": {"primary_key": ["k"], "changelog": "upsert"},
    "no changelog": {"primary_key": ["k"], "changelog": "none"},
    "partitioned": {"primary_key": ["name", "k"], "bucket_key": ["k"], "partition_by": ["name"]},
    "expiring": {"primary_key": ["k"], "ttl_seconds": 2_000_000_000},
    "versioned": {"primary_key": ["k"], "merge_engine": "versioned", "version_column": "v"},
    "sequence": {"primary_key": ["k"], "sequence_column": ["v", "amount"]},
    "first row": {"primary_key": ["k"], "merge_engine": "first_row"},
    "partial update": {"primary_key": ["k"], "merge_engine": "partial_update", "sequence_groups": {"v": ["name"]}},
    "aggregate": {
        "primary_key": ["k"],
        "merge_engine": "aggregate",
        "aggregators": {"v": agg.sum(), "amount": agg.max(), "tags": agg.collect(), "day": agg.count()},
    },
}


def random_rows(rng: random.Random, count: int, keys: int) -> pa.Table:
    """Returns rows in random order, several of which have the same key if there are fewer keys."""
    numbers = rng.sample(range(keys), count) if keys >= count else rng.choices(range(keys), k=count)
    rows = [
        {
            "k": number - keys // 2,
            "name": f"name {number % 7}" if number % 2 else f"{number}\0é",
            "v": rng.choice([None, rng.randrange(-(10**6), 10**6)]),
            "amount": rng.choice([None, rng.random(), -0.0]),
            "tags": rng.choice([None, [], [rng.choice("abc"), None]]),
            "day": rng.choice([None, rng.randrange(20_000)]),
        }
        for number in numbers
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def schema_of(kind: dict[str, Any]) -> pa.Schema:
    """Returns the columns of a kind of table. A count has a type of its own."""
    if kind.get("merge_engine") == "aggregate":
        place = SCHEMA.get_field_index("day")
        return SCHEMA.set(place, pa.field("day", pa.int64()))
    if kind.get("merge_engine") == "partial_update":
        return SCHEMA.set(1, pa.field("name", pa.string()))
    return SCHEMA


async def sorted_rows(table: Table, **scan: Any) -> pa.Table:
    rows = await table.scan(**scan).to_arrow()
    return rows.sort_by([(name, "ascending") for name in table.primary_key])


async def assert_same(client: Client, table: Table, expected: Table) -> None:
    """Fails if two tables differ for any kind of reader."""
    rows = await sorted_rows(expected)
    assert (await sorted_rows(table)).equals(rows)
    assert await table.count() == await expected.count() == len(rows)
    for where in ("v > 1000", "k < 0", "name = 'name 3'", "name = 'name 3' AND v < 0"):
        assert (await sorted_rows(table, where=where)).equals(await sorted_rows(expected, where=where))
    keys = rows.select(table.primary_key).slice(0, 20)
    assert (await table.lookup(keys)).equals(await expected.lookup(keys))
    best = [await each.top_n(10, order_by="v") for each in (table, expected)]
    assert best[0].equals(best[1])
    checks = await client.check_table(table.name)
    assert all(check.is_consistent for check in checks), checks
    assert [check.rows for check in checks] == [check.rows for check in await client.check_table(expected.name)]


@pytest.mark.parametrize("kind", KINDS)
@seeds(1)
@pytest.mark.represented_by("0-aggregate")
async def test_a_bootstrapped_table_equals_one_with_upserts(client: Client, name: str, kind: str, seed: int) -> None:
    rng, options = random.Random(f"{kind} {seed}"), KINDS[kind]
    schema = schema_of(options)
    merges = kind in {"text keys", "versioned", "sequence", "first row", "partial update", "aggregate"}
    rows = random_rows(rng, 3000, keys=rng.choice([50, 2000]) if merges else 6000)
    table = await client.bootstrap(name, rows, schema=schema, duplicates="merge" if merges else "error", **options)
    expected = await client.create_table(f"{name}_upserted", schema, **options)
    await expected.upsert(rows)
    await assert_same(client, table, expected)
    # Later writes find rows, hidden values and sizes as they should be.
    more = random_rows(rng, 500, keys=6000)
    for each in (table, expected):
        await each.upsert(more)
    await assert_same(client, table, expected)


async def test_rows_with_the_same_key_are_merged_in_their_order(client: Client, name: str) -> None:
    rows = [{"k": n % 10, "v": n} for n in range(1000)]
    table = await client.bootstrap(name, rows, primary_key=["k"], duplicates="merge")
    assert {row["k"]: row["v"] for row in await table.scan().to_pylist()} == {k: 990 + k for k in range(10)}


async def test_merged_rows_are_stored_as_they_are(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    options: dict[str, Any] = {"merge_engine": "aggregate", "aggregators": {"n": agg.count()}}
    rows = [{"k": 1, "n": 7}]
    table = await client.bootstrap(name, rows, schema=schema, primary_key=["k"], mode="overwrite", **options)
    assert await table.get(1) == {"k": 1, "n": 7}


async def test_rows_with_the_same_key_are_an_error_that_names_one(client: Client, name: str) -> None:
    rows = pa.table({"k": [1, 2, 3, 2], "v": [1, 2, 3, 4]})
    with pytest.raises(DuplicateKeys, match=r"several rows for the table .* have the key k=2: correct the source"):
        await client.bootstrap(name, rows, primary_key=["k"])
    with pytest.raises(TableNotFound):
        await client.table(name)


async def test_nothing_is_visible_before_all_rows_are(client: Client, name: str) -> None:
    rows = random_rows(random.Random(1), 2000, keys=4000)
    reports: list[BootstrapProgress] = []
    reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=100))
    table = await client.bootstrap(name, reader, primary_key=["k"], on_progress=reports.append)
    assert reports[-1].rows_in_table == reports[-1].rows == reports[-1].merged_rows == await table.count() == 2000
    assert [report.rows_in_table for report in reports[:-1]] == [None] * (len(reports) - 1)
    assert reports[-1].fraction == 1.0
    assert reports[-1].remaining == 0.0


async def test_an_error_of_the_source_leaves_nothing(tmp_path: Path, name: str) -> None:
    def broken() -> Any:
        yield pa.record_batch({"k": [1, 2]})
        raise OSError("the source is gone")

    with ServerProcess(tmp_path / "data") as server:
        async with connect(server.url) as client:
            reader = pa.RecordBatchReader.from_batches(pa.schema([("k", pa.int64())]), broken())
            with pytest.raises(OSError, match="the source is gone"):
                await client.bootstrap(name, reader, primary_key=["k"])
            assert [*(tmp_path / "data" / "bootstraps").iterdir()] == []
            assert await client.tables() == []


async def test_a_null_in_the_key_is_refused_with_its_row(client: Client, name: str) -> None:
    with pytest.raises(SchemaMismatch, match="row 1"):
        await client.bootstrap(name, pa.table({"k": [1, None], "v": [1, 2]}), primary_key=["k"])


async def test_columns_are_cast_if_nothing_is_lost(client: Client, name: str) -> None:
    rows = pa.table({"k": pa.array([1, 2], pa.int32()), "v": pa.array([1, 2**40])})
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = await client.bootstrap(name, rows, schema=schema, primary_key=["k"])
    assert await table.get(2) == {"k": 2, "v": 2**40}
    narrow = pa.schema([("k", pa.int64()), ("v", pa.int32())])
    with pytest.raises(SchemaMismatch, match=r'"v"'):
        await client.bootstrap(f"{name}_narrow", rows, schema=narrow, primary_key=["k"])


async def test_streams_begin_with_all_rows_or_fail_at_the_marker(client: Client, name: str) -> None:
    rows = [{"k": n, "v": n} for n in range(500)]
    table = await client.bootstrap(name, rows, primary_key=["k"], buckets=2)
    await table.upsert([{"k": 3, "v": -3}])
    found = await table.changes(StartFrom.FULL, StopAt.LATEST).to_pylist()
    assert {row["k"]: row["v"] for row in found} == {row["k"]: row["v"] for row in rows} | {3: -3}
    earliest = table.changes(StartFrom.EARLIEST, StopAt.LATEST)
    with pytest.raises(RangeNotTracked):
        await earliest.to_arrow()
    kept = {}
    for row in await earliest.with_untracked("rescan").with_row_kind().to_pylist():
        if row["_change_type"] in ("+I", "+U"):
            kept[row["k"]] = row["v"]
    assert kept == {row["k"]: row["v"] for row in rows} | {3: -3}


async def test_no_rows_make_an_empty_table(client: Client, name: str) -> None:
    table = await client.bootstrap(name, SCHEMA.empty_table(), primary_key=["k"], indexes=["v"])
    assert await table.count() == 0
    await table.upsert(random_rows(random.Random(1), 10, 100))
    assert await table.count() == 10


async def test_an_existing_table_is_refused_at_the_begin_and_at_the_end(client: Client, name: str) -> None:
    rows = pa.table({"k": [1]})

    def slow() -> Any:
        yield rows.to_batches()[0]
        other = sync.connect(client.config.address)
        with other:
            other.create_table(name, rows.schema, primary_key=["k"])

    reader = pa.RecordBatchReader.from_batches(rows.schema, slow())
    with pytest.raises(TableExists):
        await client.bootstrap(name, reader, primary_key=["k"])
    assert await (await client.table(name)).count() == 0
    with pytest.raises(TableExists):
        await client.bootstrap(name, rows, primary_key=["k"])


async def test_tables_that_cannot_be_bootstrapped_are_refused(client: Client, name: str) -> None:
    rows = pa.table({"k": [1]})
    with pytest.raises(InvalidRequest, match="would have no primary key"):
        await client.bootstrap(name, rows, primary_key=[])
    with pytest.raises(InvalidRequest, match='would have changelog="input"'):
        await client.bootstrap(name, rows, primary_key=["k"], changelog="input")
    with pytest.raises(UsageError, match='duplicates must be "error" or "merge"'):
        await client.bootstrap(name, rows, primary_key=["k"], duplicates="skip")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="source must be a location"):
        await client.bootstrap(name, 7, primary_key=["k"])  # type: ignore[arg-type]
    changes = pa.table({"k": [1], "_change_type": ["+I"]})
    with pytest.raises(UsageError, match="_change_type"):
        await client.bootstrap(name, changes, schema=rows.schema, primary_key=["k"])


async def test_names_of_parts_that_cannot_be_right_are_refused(client: Client, name: str) -> None:
    services = client._transport.services.bootstraps
    wrong = ("", "x" * 129, "a\nb")
    for part in wrong:
        staging = bootstrap_pb2.StageRowsRequest(table=name, bootstrap_id="0", part=part)
        with pytest.raises(InvalidRequest, match="must be 1 to 128 printable characters"):
            await client._transport.call(lambda: services.StageRows, staging)
    for parts, message in [*(([part], "printable characters") for part in wrong), (["a", "a"], "named twice")]:
        sizes = [transaction_pb2.TransactionPartSize(part=part, requests=1) for part in parts]
        commit = bootstrap_pb2.CommitBootstrapRequest(table=name, bootstrap_id="0", parts=sizes)
        with pytest.raises(InvalidRequest, match=message):
            await client._transport.call(lambda: services.CommitBootstrap, commit)


async def test_parquet_files_below_a_directory_are_one_source(client: Client, name: str, tmp_path: Path) -> None:
    for day in range(3):
        (tmp_path / f"day={day}").mkdir()
        rows = pa.table({"k": pa.array(range(day * 1000, day * 1000 + 1000)), "text": ["x"] * 1000})
        parquet.write_table(rows, tmp_path / f"day={day}" / "part.parquet")
    (tmp_path / "_SUCCESS").touch()
    reports: list[BootstrapProgress] = []
    table = await client.bootstrap(name, tmp_path, primary_key=["k"], on_progress=reports.append)
    assert await table.count(where="day = 1") == 1000
    assert await table.get(2500) == {"k": 2500, "text": "x", "day": 2}
    assert reports[0].total_rows == 3000
    assert reports[-1].rows_in_table == 3000
