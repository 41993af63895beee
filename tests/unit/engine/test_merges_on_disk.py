"""Merges in a live table: hidden state is synced before the acknowledgment, and bases contain the merged rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.model.errors import InvalidRequest, UsageError
from scankv.model.tables.merge_functions import aggregate_of
from scankv.model.tables.merge_spec import MergeSpec
from scankv.v1 import write_pb2
from streaming_server.config import load_config
from streaming_server.engine.functions.installed import load_installed
from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.services.write import kind_of
from tests.support.snapshots import tables_in
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables

MEANS = pa.schema([pa.field("k", pa.int64(), nullable=False), ("mean", pa.float64()), ("total", pa.int64())])
SPEC = MergeSpec(aggregates=(aggregate_of("mean", "avg"), aggregate_of("total", "sum")))


async def means(tables: Tables, **options: str) -> LiveTable:
    await tables.create(
        "test.means",
        MEANS,
        primary_key=["k"],
        bucket_key=(),
        buckets=1,
        options={"merge_engine": "aggregate", **options},
        merging=SPEC,
    )
    return tables.table("test.means")


async def write(table: LiveTable, *rows: dict[str, Any]) -> dict[int, int]:
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(MEANS.names) | row for row in rows], schema=MEANS)
    return (await table.writes.upsert(ipc_stream(MEANS, batch), 0))[1]


@pytest.mark.asyncio
async def test_a_write_that_changes_only_what_is_hidden_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await means(tables)
        first = await write(table, {"k": 1, "mean": 2.0})
        syncs = table.buckets[0].syncs
        assert await write(table, {"k": 1, "mean": 2.0}) == first
        assert table.buckets[0].syncs == syncs + 1


@pytest.mark.asyncio
async def test_a_refused_row_leaves_its_bucket_and_its_base_as_they_were(tmp_path: Path) -> None:
    async with tables_in(tmp_path, base_maintenance_seconds=3600.0) as tables:
        table = await means(tables, columnar_base="eager", delete_behavior="allow")
        before = await write(table, {"k": 1, "total": 2**63 - 1}, {"k": 2, "total": 1})
        await tables._bases.maintain_bucket(table.state, table.buckets[0])
        assert not table.buckets[0].columnar.unusable_reason()
        with pytest.raises(InvalidRequest, match=r'column "total", key \(1\)'):
            await write(table, {"k": 2, "total": 1}, {"k": 1, "total": 1})
        assert not table.buckets[0].columnar.unusable_reason()
        assert await write(table, {"k": 3}) == {0: before[0] + 1}
        keys = ipc_stream(
            table.definition.key_schema, pa.record_batch({"k": pa.array([1, 3])}).cast(table.definition.key_schema)
        )
        await table.writes.delete(keys, kind=WriteKind())
        view = table.buckets[0].columnar.view()
        assert view is not None
        net = view.delta.merge()
        assert [value is None for value in net.values.to_pylist()] == [True, True]


def test_a_mode_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must be a value of WriteMode, not 7"):
        kind_of(write_pb2.UpsertRequest(mode=7))  # type: ignore[arg-type]


def test_aggregators_are_a_list_in_the_file_and_names_with_commas_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('data = "x"\naggregators = ["a.b", "c.d"]\n')
    assert load_config({}, file).aggregators == ("a.b", "c.d")
    assert load_config({"data": "x", "aggregators": "a.b, c.d"}).aggregators == ("a.b", "c.d")
    assert load_config({"data": "x"}).aggregators == ()
    file.write_text('data = "x"\naggregators = [5]\n')
    with pytest.raises(UsageError, match="a list of names"):
        load_config({}, file)


def test_a_package_with_the_earlier_group_of_entry_points_is_refused_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "mypkg-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[scankv.aggregate_functions]\nmypkg.longest = mypkg:Longest\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as caught:
        load_installed(["mypkg.longest"])
    assert caught.value.message == (
        'aggregators = "mypkg.longest": its package has this entry point in the group "scankv.aggregate_functions", '
        'which is now "scankv.aggregators": rename the group in the package, and install it again'
    )


def test_the_earlier_name_of_aggregators_is_refused_with_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('data = "x"\naggregate_functions = ["a.b"]\n')
    now = 'has the setting "aggregate_functions", which is now "aggregators"'
    with pytest.raises(UsageError, match=f"the configuration file {now}"):
        load_config({}, file)
    with pytest.raises(UsageError, match=f"the environment {now}"):
        load_config({"data": "x"}, environ={"SCANKV_AGGREGATE_FUNCTIONS": "a.b"})
