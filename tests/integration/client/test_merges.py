"""Merge engines through the client and a real server: rows, streams of changes, and restarts."""

from __future__ import annotations

import asyncio
import os
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasketches
import numpy as np
import pandas as pd
import pyarrow as pa
import pyroaring
import pytest

import scankv
from aio_client import StartFrom, StopAt, agg, connect
from scankv.model.errors import InvalidOption, InvalidRequest, SchemaMismatch, Unavailable, UsageError
from tests.support.merged_table import replayed
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

ROUTES = pa.schema(
    [
        ("route", pa.string()),
        ("flights", pa.int64()),
        ("delay_sum", pa.int32()),
        ("delay", pa.float64()),
        ("worst", pa.int32()),
        ("airports", pa.list_(pa.string())),
        ("note", pa.string()),
    ]
)
AGGREGATES = {
    "flights": agg.count(),
    "delay_sum": agg.sum(),
    "delay": agg.avg(),
    "worst": agg.max(ignore_retract=True),
    "airports": agg.collect(distinct=True),
}
NOTHING = dict.fromkeys(ROUTES.names)


def flight(route: str, delay: int | None, airport: str) -> dict[str, Any]:
    return NOTHING | {
        "route": route,
        "flights": 1,
        "delay_sum": delay,
        "delay": delay,
        "worst": delay,
        "airports": [airport],
    }


async def routes(client: Client, name: str, **changed: Any) -> Table:
    options: dict[str, Any] = {
        "primary_key": ["route"],
        "merge_engine": "aggregate",
        "aggregators": AGGREGATES,
        "buckets": 2,
    } | changed
    return await client.create_table(name, ROUTES, **options)


async def assert_replays(table: Table) -> None:
    """Checks that the changelog leads to the rows."""
    log = await table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_pylist()
    changes = [(row["_change_type"], {name: row[name] for name in table.schema.names}) for row in log]
    key = table.primary_key[0]
    assert replayed(changes, key) == {row[key]: row for row in await table.scan().to_pylist()}


async def test_an_aggregate_table_adds_up_what_is_written_and_takes_back_what_is_retracted(
    client: Client, name: str
) -> None:
    table = await routes(client, name)
    first = [flight("a-b", 10, "LAX"), flight("a-b", None, "SFO"), flight("c-d", 3, "LAX")]
    await table.upsert(first)
    await table.upsert([flight("a-b", 20, "LAX")])
    expected = NOTHING | {"route": "a-b", "flights": 3, "delay_sum": 30, "delay": 15.0, "worst": 20}
    assert await table.get("a-b") == expected | {"airports": ["LAX", "SFO"]}
    await table.retract([flight("a-b", 10, "LAX")])
    after = expected | {"flights": 2, "delay_sum": 20, "delay": 20.0, "airports": ["SFO"]}
    assert await table.get("a-b") == after
    await table.upsert(
        [flight("a-b", 20, "SFO") | {"_change_type": "-U"}, flight("a-b", 5, "X") | {"_change_type": "+U"}]
    )
    assert await table.get("a-b") == after | {"delay_sum": 5, "delay": 5.0, "airports": ["X"]}
    await assert_replays(table)


@pytest.mark.breadth
async def test_two_jobs_fill_different_columns_of_a_row(client: Client, name: str) -> None:
    table = await routes(client, name)
    await asyncio.gather(
        *(table.upsert([flight("a-b", 1, "X")], columns=["route", "flights"]) for _ in range(10)),
        *(table.upsert([{"route": "a-b", "delay_sum": 2}], columns=("route", "delay_sum")) for _ in range(10)),
    )
    assert await table.get("a-b") == NOTHING | {"route": "a-b", "flights": 10, "delay_sum": 20}
    await assert_replays(table)


async def test_what_is_merged_and_what_is_hidden_survives_kill_and_restart(server: ServerProcess, name: str) -> None:
    async with connect(server.url) as client:
        table = await routes(client, name, columnar_base="eager")
        await table.upsert([flight("a-b", 10, "LAX")])
        # The second time, it changes only the hidden state.
        for _ in range(2):
            await table.upsert([{"route": "a-b", "delay": 10.0}], columns=["route", "delay"])
    server.kill()
    server.start()
    async with connect(server.url) as client:
        table = await client.table(name)
        assert table.aggregators == AGGREGATES
        await table.upsert([{"route": "a-b", "delay": 50.0}], columns=["route", "delay"])
        row = await table.get("a-b")
        assert row is not None
        assert row["delay"] == 20.0
        assert await table.scan().read_path("rocksdb").to_pylist() == await table.scan().to_pylist() == [row]
        await assert_replays(table)


@pytest.mark.parametrize(("engine", "values"), [("first_row", ["one", "two"]), ("last_row", ["late", "again"])])
async def test_the_first_row_of_a_key_stays_and_the_last_one_replaces_it(
    client: Client, name: str, engine: str, values: list[str]
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = await client.create_table(name, schema, primary_key=["k"], merge_engine=engine)
    await table.upsert([{"k": 1, "v": "one"}, {"k": 1, "v": "late"}])
    await table.upsert([{"k": 2, "v": "two"}])
    await table.upsert([{"k": 2, "v": "again"}])
    assert [row["v"] for row in await table.scan().ordered().to_pylist()] == values
    await assert_replays(table)


async def test_late_rows_lose_by_version_and_by_sequence(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("seq", pa.int64()), ("v", pa.string())])
    for number, options in enumerate(
        [{"merge_engine": "versioned", "version_column": "seq"}, {"sequence_column": "seq"}]
    ):
        table = await client.create_table(f"{name}{number}", schema, primary_key=["k"], **options)  # type: ignore[arg-type]
        await table.upsert([{"k": 1, "seq": 5, "v": "five"}, {"k": 1, "seq": 4, "v": "late"}, {"k": 2, "v": "null"}])
        await table.upsert([{"k": 1, "seq": 5, "v": "again"}, {"k": 2, "seq": 0, "v": "zero"}])
        await table.upsert([{"k": 1, "seq": None, "v": "null"}])
        assert {row["k"]: row["v"] for row in await table.scan().to_pylist()} == {1: "again", 2: "zero"}
        assert (table.version_column, table.sequence_column) == (("seq", ()) if number == 0 else (None, ("seq",)))
        await assert_replays(table)


async def test_a_wide_row_is_filled_by_several_streams_each_with_its_own_sequence(client: Client, name: str) -> None:
    schema = pa.schema([(c, pa.int64()) for c in ("k", "s1", "a", "b", "s2", "c", "free")])
    table = await client.create_table(
        name,
        schema,
        primary_key=["k"],
        merge_engine="partial_update",
        delete_behavior="retract",
        sequence_groups={"s1": ["a", "b"], ("s2",): "c"},
        aggregators={"c": agg.sum()},
    )
    assert table.sequence_groups == {("s1",): ("a", "b"), ("s2",): ("c",)}
    await table.upsert([{"k": 1, "s1": 2, "a": 1, "b": 1}], columns=["k", "s1", "a", "b"])
    await table.upsert([{"k": 1, "s1": 1, "a": 9, "b": 9, "s2": 5, "c": 10, "free": 7}])
    await table.upsert([{"k": 1, "s1": 3, "a": None, "b": 2, "s2": 4, "c": 1, "free": None}])
    row = {"k": 1, "s1": 3, "a": None, "b": 2, "s2": 5, "c": 11, "free": 7}
    assert await table.get(1) == row
    await table.retract([{"k": 1, "s1": 3, "s2": 5, "c": 10}])
    assert await table.get(1) == row | {"b": None, "c": 1}
    with pytest.raises(InvalidRequest, match="deletes no rows"):
        await table.delete(1)
    await table.delete(1, mode="overwrite")
    assert await table.count() == 0
    await assert_replays(table)


async def test_deletes_do_what_the_table_says_and_partial_ones_only_their_columns(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    table = await client.create_table(name, schema, primary_key=["k"])
    await table.upsert([{"k": 1, "a": 1, "b": 1}, {"k": 2, "a": 2}])
    await table.delete([1, 2, 3], columns=["a"])
    assert await table.scan().to_pylist() == [{"k": 1, "a": None, "b": 1}]
    await table.upsert(
        [{"k": 1, "_change_type": "-U"}, {"k": 1, "a": 5, "_change_type": "+U"}, {"k": 4, "_change_type": "+I"}]
    )
    await table.upsert([{"k": 4, "_change_type": "-D"}])
    assert await table.scan().to_pylist() == [{"k": 1, "a": 5, "b": None}]
    await assert_replays(table)
    ignoring = await client.create_table(f"{name}i", schema, primary_key=["k"], delete_behavior="ignore")
    await ignoring.upsert([{"k": 1}])
    assert (await ignoring.delete([1])).rows == 1
    assert await ignoring.count() == 1


async def test_columns_added_to_an_aggregate_table_may_have_aggregates(client: Client, name: str) -> None:
    table = await routes(client, name)
    await table.upsert([flight("a-b", 1, "X")])
    added = pa.schema([("best", pa.int32()), ("last", pa.string())])
    table = await client.alter_table(name, add_columns=added, add_aggregators={"best": agg.min()})
    assert str(table.aggregators["best"]) == "agg.min()"
    for best in (None, 4, 7):
        await table.upsert([{"route": "a-b", "best": best, "last": str(best)}], columns=["route", "best", "last"])
    row = await table.get("a-b")
    assert row is not None
    assert (row["best"], row["last"], row["flights"], row["delay"]) == (4, "7", 1, 1.0)
    with pytest.raises(InvalidRequest, match='column "flights" is not added'):
        await client.alter_table(
            name, add_columns=pa.schema([("x", pa.int8())]), add_aggregators={"flights": agg.sum()}
        )


@pytest.mark.breadth
async def test_sketches_and_bitmaps_are_united(client: Client, name: str) -> None:
    kinds = ["hll_sketch", "theta_sketch", "top_k", "rbm32", "rbm64"]
    schema = pa.schema([("k", pa.int8()), *((kind, pa.binary()) for kind in kinds)])
    aggregators = {kind: getattr(agg, kind)() for kind in kinds}
    table = await client.create_table(
        name, schema, primary_key=["k"], merge_engine="aggregate", aggregators=aggregators
    )

    def row(numbers: range) -> dict[str, Any]:
        hll, theta = datasketches.hll_sketch(12), datasketches.update_theta_sketch()
        top = datasketches.frequent_strings_sketch(8)
        for number in numbers:
            hll.update(number)
            theta.update(number)
            top.update("often" if number % 2 else str(number))
        bitmaps = pyroaring.BitMap(numbers).serialize(), pyroaring.BitMap64(numbers).serialize()
        sketches = hll.serialize_compact(), theta.compact().serialize(), top.serialize()
        return {"k": 1} | dict(zip(kinds, (*sketches, *bitmaps), strict=True))

    await table.upsert([row(range(100)), row(range(50, 200))])
    await table.upsert([row(range(150, 300))])
    found = await table.get(1)
    assert found is not None
    assert datasketches.hll_sketch.deserialize(found["hll_sketch"]).get_estimate() == pytest.approx(300, rel=0.05)
    assert datasketches.compact_theta_sketch.deserialize(found["theta_sketch"]).get_estimate() == 300
    top = datasketches.frequent_strings_sketch.deserialize(found["top_k"])
    assert top.get_estimate("often") == 200
    assert list(pyroaring.BitMap.deserialize(found["rbm32"])) == list(range(300))
    assert list(pyroaring.BitMap64.deserialize(found["rbm64"])) == list(range(300))
    for kind in kinds:
        for broken in (b"", b"broken", found[kind][:-1]):
            with pytest.raises(InvalidRequest, match=f'column "{kind}", key \\(2\\): the value is no') as caught:
                await table.upsert([{"k": 2, kind: broken}])
            assert caught.value.details["column"] == kind
    assert await table.count() == 1


BAD_TABLES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"aggregators": {"route": agg.max()}}, InvalidRequest, 'column "route" is in the primary key'),
    ({"aggregators": {"nothing": agg.max()}}, SchemaMismatch, 'no column "nothing"'),
    ({"aggregators": {"note": agg.sum()}}, SchemaMismatch, 'column "note" is string, which sum does not take'),
    ({"aggregators": {"note": agg.Aggregator("summ")}}, InvalidRequest, 'column "note": there is no aggregator'),
    ({"aggregators": {"note": agg.Aggregator("max", (("by", "x"),))}}, InvalidRequest, 'max has no parameter "by"'),
    ({"aggregators": {"note": agg.listagg("")}}, InvalidRequest, 'column "note": the delimiter'),
    ({"aggregators": {"note": agg.installed("no.such")}}, InvalidRequest, 'column "note": this server has no'),
    ({"aggregators": {"note": "max"}}, UsageError, "must be from scankv.agg"),
    ({"changelog": "upsert"}, InvalidOption, 'changelog must be "full" or "input" .*, not "upsert"'),
    ({"changelog": "none"}, InvalidOption, 'changelog must be "full" or "input" .*, not "none"'),
    ({"merge_engine": "last_row"}, InvalidOption, "aggregators is only for merge_engine"),
    ({"merge_engine": "sum"}, InvalidOption, 'merge_engine" must be .*, not "sum"'),
    ({"merge_engine": "versioned", "aggregators": None}, InvalidOption, "needs a version_column"),
    ({"version_column": "flights"}, InvalidOption, "version_column is only for merge_engine"),
    ({"merge_engine": "versioned", "version_column": "airports", "aggregators": None}, SchemaMismatch, '"airports" is'),
    (
        {"merge_engine": "versioned", "version_column": "route", "aggregators": None},
        InvalidRequest,
        '"route" is in the',
    ),
    ({"merge_engine": "first_row", "delete_behavior": "allow", "aggregators": None}, InvalidOption, "delete_behavior"),
    ({"merge_engine": "versioned", "delete_behavior": "allow", "aggregators": None}, InvalidOption, "delete_behavior"),
    ({"delete_behavior": "retract"}, InvalidOption, "delete_behavior"),
    ({"merge_engine": "partial_update"}, InvalidRequest, "is in no sequence group"),
    (
        {"merge_engine": "partial_update", "aggregators": None, "delete_behavior": "retract"},
        InvalidOption,
        "give sequence_groups",
    ),
    (
        {"merge_engine": "partial_update", "aggregators": None, "sequence_groups": {"worst": ["worst"]}},
        InvalidRequest,
        'column "worst" is in sequence groups twice',
    ),
    (
        {"merge_engine": "partial_update", "aggregators": None, "sequence_groups": {"worst": []}},
        InvalidRequest,
        "a sequence group must have",
    ),
]


async def test_bad_definitions_are_refused_with_column_and_rule_and_make_no_table(client: Client, name: str) -> None:
    for options, error, message in BAD_TABLES:
        with pytest.raises(error, match=message):
            await routes(client, name, **options)
    assert name not in {table.name for table in await client.tables()}


async def test_bad_writes_are_refused_and_write_nothing(client: Client, name: str) -> None:
    table = await routes(client, name)
    await table.upsert([flight("a-b", 1, "X")])
    strict = await client.create_table(
        f"{name}n", pa.schema([("k", pa.int8()), pa.field("v", pa.int8(), nullable=False)]), primary_key=["k"]
    )
    first = await client.create_table(f"{name}f", ROUTES, primary_key=["route"], merge_engine="first_row")
    fixed = await client.create_table(f"{name}d", ROUTES, primary_key=["route"], delete_behavior="disable")
    row = [flight("a-b", 2, "Y")]
    for write, error, message in [
        (lambda: table.upsert(row, columns=["flights"]), SchemaMismatch, 'key column "route" is not among'),
        (lambda: table.upsert(row, columns=["route", "nothing"]), SchemaMismatch, 'no column "nothing"'),
        (lambda: table.upsert(row, columns=["route", "route"]), SchemaMismatch, "named twice"),
        (lambda: table.upsert(row, mode="replace"), UsageError, "mode must be"),  # type: ignore[arg-type]
        (lambda: table.upsert([row[0] | {"_change_type": "X"}]), InvalidRequest, r"_change_type must be \+I"),
        (lambda: table.upsert([*row, row[0] | {"_change_type": "+I"}]), SchemaMismatch, "_change_type"),
        (lambda: table.delete("a-b", columns=["route"]), UsageError, "must name a column outside the key"),
        (lambda: strict.upsert([{"k": 1}], columns=["k"]), SchemaMismatch, 'column "v" is NOT NULL'),
        (lambda: strict.delete(1, columns=["v"]), SchemaMismatch, 'column "v" is NOT NULL'),
        (lambda: first.upsert(row, columns=["route", "note"]), InvalidRequest, "takes only complete rows"),
        (lambda: first.retract(row), InvalidRequest, "cannot retract rows"),
        (lambda: fixed.delete("a-b"), InvalidRequest, "deletes no rows"),
        (lambda: fixed.upsert([row[0] | {"_change_type": "-D"}]), InvalidRequest, "row 0: table"),
    ]:
        with pytest.raises(error, match=message):
            await write()  # type: ignore[no-untyped-call]
    assert (await table.get("a-b")) == flight("a-b", 1, "X")
    assert [await each.count() for each in (table, strict, first, fixed)] == [1, 0, 0, 0]


async def test_a_writer_merges_and_retracts(client: Client, name: str) -> None:
    table = await routes(client, name)
    async with table.writer() as writer:
        for number in range(20):
            await writer.upsert([flight("a-b", number, "X")])
        await writer.retract([flight("a-b", 19, "Y")])
        await writer.upsert([{"route": "a-b", "note": "n"}], columns=["route", "note"])
    row = await table.get("a-b")
    assert row is not None
    assert (row["flights"], row["delay_sum"], row["note"]) == (19, sum(range(19)), "n")


INSTALLED = """
class Longest:
    def __init__(self, type, parameters):
        if str(type) != "string" or set(parameters) - {"least"}:
            raise ValueError("it takes strings, and least")
        self.least = int(parameters.get("least", 0))

    def merge(self, old, inputs):
        known = [text for text in [old, *inputs] if text is not None]
        return max([text for text in known if len(text) >= self.least], key=len, default=None)
"""


@pytest.mark.breadth
async def test_a_function_of_an_installed_package_is_used_where_the_server_lists_it(tmp_path: Path, name: str) -> None:
    package = tmp_path / "packages"
    (package / "mypkg-1.0.dist-info").mkdir(parents=True)
    (package / "mypkg.py").write_text(INSTALLED)
    (package / "mypkg-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    (package / "mypkg-1.0.dist-info" / "entry_points.txt").write_text(
        "[scankv.aggregators]\nmypkg.longest = mypkg:Longest\n"
    )
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", str(Path(scankv.__file__).parents[1]))])
    schema = pa.schema([("k", pa.int8()), ("v", pa.string()), ("n", pa.int8())])
    listed = ("--set", "aggregators=mypkg.longest")
    with ServerProcess(tmp_path / "data", *listed, wrapper=("env", f"PYTHONPATH={path}")) as server:
        async with connect(server.url) as client:
            options: dict[str, Any] = {"primary_key": ["k"], "merge_engine": "aggregate"}
            aggregators = {"v": agg.installed("mypkg.longest", least="2")}
            table = await client.create_table(name, schema, aggregators=aggregators, **options)
            await table.upsert([{"k": 1, "v": "abc"}, {"k": 1, "v": "ab"}, {"k": 2, "v": "a"}])
            await table.upsert([{"k": 1, "v": "defg"}])
            assert [row["v"] for row in await table.scan().ordered().to_pylist()] == ["defg", None]
            with pytest.raises(InvalidRequest, match=r'column "v": mypkg\.longest cannot retract a value'):
                await table.retract([{"k": 1, "v": "abc"}])
            with pytest.raises(InvalidRequest, match=r'column "n": mypkg\.longest refuses it: it takes strings'):
                await client.create_table(
                    f"{name}n", schema, aggregators={"n": agg.installed("mypkg.longest")}, **options
                )


@pytest.mark.breadth
async def test_a_server_that_lists_a_function_that_is_not_installed_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="aggregators"):
        ServerProcess(tmp_path / "data", "--set", "aggregators=mypkg.longest")


async def test_count_counts_inputs_of_any_type(client: Client, name: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("n", pa.int16()), ("a", pa.string())])
    table = await client.create_table(
        name, schema, primary_key=["k"], merge_engine="aggregate", aggregators={"n": agg.count()}
    )
    await table.upsert([{"k": 1, "n": "text"}, {"k": 1, "n": {"any": "thing"}}, {"k": 1, "n": None}, {"k": 1}])
    assert await table.get(1) == {"k": 1, "n": 2, "a": None}
    for values in (["a", None, "c"], [[1], None, []], [2**60, None, -(2**60)], [0.5, None, float("nan")]):
        inputs = pa.table({"k": [1, 1, 1], "n": values, "a": ["x"] * 3})
        await table.upsert(inputs)
        await table.upsert(pa.table({"k": [1, 1, 1], "n": values}), columns=["k", "n"])
        await table.retract(inputs.slice(0, 1).select(["k", "n"]), columns=["k", "n"])
    assert (await table.get(1)) == {"k": 1, "n": 2 + 4 * 3, "a": "x"}
    await table.upsert(pd.DataFrame({"k": [1, 1, 2], "n": ["a", np.nan, "b"], "a": "y"}))
    await table.upsert(pd.DataFrame({"k": [1, 1, 2], "n": [0.5, np.nan, 1.5], "a": "y"}))
    assert await table.scan(columns=["n"]).ordered().to_pylist() == [{"n": 16}, {"n": 2}]
    # A value that replaces the count counts as one.
    await table.upsert([{"k": 1, "n": 300, "a": None}], mode="overwrite")
    assert await table.get(1) == {"k": 1, "n": 300, "a": None}
    with pytest.raises(SchemaMismatch):
        await table.upsert([{"k": 1, "n": "text", "a": None}], mode="overwrite")


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("type_", "least", "most"),
    [
        (pa.int8(), -128, 127),
        (pa.uint64(), 0, 2**64 - 1),
        (pa.int64(), -(2**63), 2**63 - 1),
        (pa.decimal128(1, 1), Decimal("-0.9"), Decimal("0.9")),
        (pa.decimal128(5, -3), Decimal("-99999E3"), Decimal("99999E3")),
    ],
    ids=str,
)
async def test_a_mean_that_leaves_its_column_because_rows_are_taken_back_is_refused(
    client: Client, name: str, type_: pa.DataType, least: Any, most: Any
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", type_)])
    table = await client.create_table(
        name, schema, primary_key=["k"], merge_engine="aggregate", aggregators={"v": agg.avg()}
    )
    middle = least + (most - least) // 2 if isinstance(least, int) else Decimal(0).quantize(least)
    await table.upsert([{"k": 1, "v": most}, {"k": 1, "v": most}, {"k": 2, "v": middle}, {"k": 2, "v": middle}])
    before = await table.scan().to_pylist()
    one = least if least else middle
    for key, back in ((1, one), (2, most)):
        with pytest.raises(InvalidRequest, match=f'column "v", key .{key}.: the mean does not fit'):
            await table.retract([{"k": key, "v": back}, {"k": key, "v": back}, {"k": key, "v": back}])
    assert await table.scan().to_pylist() == before
    await table.retract([{"k": 1, "v": most}])
    assert await table.get(1) == {"k": 1, "v": most}
    await assert_replays(table)


@pytest.mark.breadth
@pytest.mark.parametrize("function", ["sum", "avg", "min", "max", "last_value"])
async def test_columns_of_any_type_can_be_deleted_beside_others(client: Client, name: str, function: str) -> None:
    type_ = pa.decimal128(5, -3)
    schema = pa.schema([("k", pa.int64()), ("v", type_), ("o", pa.int64())])
    table = await client.create_table(
        name,
        schema,
        primary_key=["k"],
        merge_engine="aggregate",
        aggregators={"v": getattr(agg, function)()},
        delete_behavior="allow",
    )
    rows = [{"k": k, "v": Decimal("7E3"), "o": 1} for k in range(3)]
    await table.upsert(rows)
    await table.delete([0, 1], columns=["v"])
    await table.upsert(rows[1:2])
    assert await table.scan(columns=["v"]).ordered().to_pylist() == [
        {"v": None},
        {"v": Decimal(7000)},
        {"v": Decimal(7000)},
    ]
    await assert_replays(table)


async def test_means_of_large_numbers_are_exact_and_ties_go_to_the_even_neighbour(client: Client, name: str) -> None:
    big, huge = 2**64 - 1, Decimal(10**37)
    schema = pa.schema([("k", pa.int64()), ("u", pa.uint64()), ("d", pa.decimal128(38, 0))])
    table = await client.create_table(
        name, schema, primary_key=["k"], merge_engine="aggregate", aggregators={"u": agg.avg(), "d": agg.avg()}
    )
    inputs: dict[int, list[tuple[Any, Any]]] = {
        1: [(big, huge)],
        2: [(big, huge + 1), (big, huge)],
        3: [(big, huge + 1), (big - 1, huge + 2)],
        4: [(big, -huge), (big - 2, -huge - 1), (big - 2, None)],
        5: [(1, Decimal(1)), (2, Decimal(2))],
    }
    await table.upsert([{"k": k, "u": u, "d": d} for k, values in inputs.items() for u, d in values])
    for k, values in inputs.items():
        means = []
        for column in zip(*values, strict=True):
            there = [int(value) for value in column if value is not None]
            means.append(round(Fraction(sum(there), len(there))))
        assert await table.get(k) == {"k": k, "u": means[0], "d": Decimal(means[1])}
