"""`table.dataset()`: what reads datasets of pyarrow has the answer that it has over a copy of the table."""

from __future__ import annotations

import asyncio
import math
import pickle
import subprocess
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import SchemaMismatch, TableNotFound, UsageError, connect, sync
from aio_client._integrations.arrow_dataset import TableDataset
from tests.support.type_samples import samples
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.server_process import ServerProcess

ROWS: Final = 2_000
SAMPLES: Final = {f"c{number}": array for number, array in enumerate(samples().values())}
POINTS: Final = [None if row % 9 == 0 else {"x": row % 5 or None, "y": [1.0, math.nan][row % 2]} for row in range(ROWS)]


def _column(values: pa.Array, step: int) -> pa.Array:
    """Returns a column in which each value, and null, occurs beside each one of most other columns."""
    cycle = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return cycle.take(pa.array([row // step % len(cycle) for row in range(ROWS)]))


COLUMNS: Final = {
    "k": pa.array(range(ROWS)),
    **{name: _column(values, 1 + 2 * step) for step, (name, values) in enumerate(SAMPLES.items())},
    "point": pa.array(POINTS, pa.struct([("x", pa.int64()), ("y", pa.float64())]), from_pandas=False),
}
SCHEMA: Final = pa.schema([pa.field(name, each.type, name != "k") for name, each in COLUMNS.items()])
DATA: Final = pa.table([*COLUMNS.values()], SCHEMA)
SCALARS: Final = [name for name, values in SAMPLES.items() if not pa.types.is_nested(values.type)]


@pytest.fixture(scope="module")
def client(shared_server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(shared_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def table(client: sync.Client) -> sync.Table:
    table = client.create_table("datasets.typed", SCHEMA, primary_key=["k"], buckets=3)
    table.upsert(DATA)
    return table


def _can_be_in_duckdb(name: str) -> bool:
    with duckdb.connect() as con:
        try:
            con.from_arrow(DATA.select([name])).create("copied")
            con.table("copied").fetchall()
        except duckdb.Error:
            return False
    return True


NAMES_IN_DUCKDB: Final = [name for name in SCHEMA.names if _can_be_in_duckdb(name)]


FEW: Final = DATA.select(NAMES_IN_DUCKDB)


@pytest.fixture(scope="module")
def few(client: sync.Client) -> sync.Table:
    """A table with all columns that DuckDB can have."""
    table = client.create_table("datasets.few", FEW.schema, primary_key=["k"], buckets=3)
    table.upsert(FEW)
    return table


@pytest.fixture(scope="module")
def con(few: sync.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with a live table and a copy of it."""
    with duckdb.connect() as con:
        con.register("live", few.dataset())
        con.from_arrow(FEW).create("copied")
        yield con


def _comparable(rows: pa.Table) -> list[str]:
    """Returns the columns of rows in the order of `k` as texts: NaN equals NaN, and 0.0 differs from -0.0."""
    return [str(_numbers(column.combine_chunks()).to_pylist()) for column in rows.sort_by("k").columns]


def _numbers(column: pa.Array) -> pa.Array:
    """Returns times as numbers, since Python cannot have all of them."""
    is_time = pa.types.is_temporal(column.type)
    return column.view({32: pa.int32(), 64: pa.int64()}[column.type.bit_width]) if is_time else column


# ---- Arrow expressions ----


@st.composite
def comparisons(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(SCALARS))
    values, field = SAMPLES[name], pc.field(name)
    value = values[draw(st.integers(0, len(values) - 1))]
    listed = values.take(pa.array(draw(st.lists(st.integers(0, len(values) - 1), max_size=3)), pa.int64()))
    forms = [field.is_null(), field.is_valid(), pc.field("k") < 70, pc.field("point", "x") >= 3]
    if not pa.types.is_float16(values.type):  # Arrow cannot compare it.
        forms += [field == value, field != value, field < value, field >= value, field.isin(listed)]
    if values.type in (pa.float32(), pa.float64()):
        forms += [pc.is_nan(field), pc.abs(field) > 0.5, field.is_null(nan_is_null=True)]
    if values.type == pa.string():
        forms += [pc.starts_with(field, "a"), pc.match_like(field, "a%"), pc.utf8_length(field) == 1]
    return draw(st.sampled_from(forms))


def _joined(parts: st.SearchStrategy[pc.Expression]) -> st.SearchStrategy[pc.Expression]:
    both = st.tuples(parts, parts)
    return st.one_of(
        parts.map(lambda each: ~each),
        both.map(lambda each: each[0] & each[1] | ~each[0]),
        both.map(lambda each: each[0] & each[1]),
    )


@given(
    filter_=st.recursive(comparisons(), _joined, max_leaves=4),
    columns=st.lists(st.sampled_from(SCHEMA.names[1:]), unique=True),
)
def test_a_scanner_returns_exactly_the_rows_of_its_filter(
    table: sync.Table, filter_: pc.Expression, columns: list[str]
) -> None:
    columns = [*columns, "k"]
    expected = pyarrow.dataset.dataset(DATA).to_table(columns=columns, filter=filter_)
    found = table.dataset().to_table(columns=columns, filter=filter_)
    assert found.schema.equals(expected.schema)
    assert _comparable(found) == _comparable(expected)
    assert table.dataset().count_rows(filter=filter_) == expected.num_rows


# ---- DuckDB ----


@cache
def _literals(con: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """Returns values of the columns with scalars, as DuckDB reads them."""
    found: dict[str, list[str]] = {}
    for name in {*SCALARS} & {*NAMES_IN_DUCKDB}:
        texts = con.sql(f"select distinct {name}::varchar from copied where {name} is not null").order("1").fetchall()
        for (text,) in texts:
            with suppress(duckdb.ConversionException, duckdb.BinderException):
                literal = f"'{text}'::{con.table('copied').select(name).types[0]}"
                con.sql(f"select {literal}").fetchall()
                found.setdefault(name, []).append(literal)
    return found


@st.composite
def conditions(draw: st.DrawFn, con: duckdb.DuckDBPyConnection) -> str:
    literals = _literals(con)
    name = draw(st.sampled_from(sorted(literals)))
    one, other = (draw(st.sampled_from(literals[name])) for _ in range(2))
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from"]))
    forms = [
        f"{name} {operator} {one}",
        f"{name} in ({one}, {other})",
        f"{name} not in ({one}, {other})",
        f"{name} between {one} and {other}",
        f"{name} is null",
        "point.x > 2",
        "point.y >= 1",
        "k + 1 < 70",
        "k between 100 and 200",
    ]
    return draw(st.sampled_from(forms))


def _sql_joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    both = st.tuples(parts, parts)
    return st.one_of(
        parts.map("not ({})".format),
        both.map(lambda each: "({}) and ({})".format(*each)),
        both.map(lambda each: "({}) or ({})".format(*each)),
    )


@given(data=st.data())
def test_duckdb_has_the_answer_that_it_has_over_a_copy(con: duckdb.DuckDBPyConnection, data: st.DataObject) -> None:
    where = data.draw(st.recursive(conditions(con), _sql_joined, max_leaves=4))
    names = [*data.draw(st.lists(st.sampled_from(NAMES_IN_DUCKDB[1:]), unique=True)), "k"]
    found, expected = (
        con.sql(f"select {', '.join(names)} from {source} where {where}").to_arrow_table()
        for source in ("live", "copied")
    )
    assert _comparable(found) == _comparable(expected)


# ---- What the server evaluates ----


class CountedDataset:
    """A dataset whose scans are kept to inspect their statistics."""

    def __init__(self, client: sync.Client, table: sync.Table) -> None:
        self.started: list[sync.ScanStream] = []

        def start(spec: Any) -> sync.ScanStream:
            self.started.append(client.scan(spec).stream())
            return self.started[-1]

        self.dataset = TableDataset(table.schema, table.scan(), start)

    def rows_returned(self) -> int:
        """Returns how many rows the server has sent in the last scan."""
        return self.started[-1].stats().rows_returned


@pytest.mark.parametrize(
    ("where", "sent"),
    [
        ("k = 77", 1),
        ("k in (1, 2, 3)", 3),
        ("k between 10 and 19 and k % 2 = 0", 10),
        ("k < 100 and c4 is null", None),
        ("point.x = 3 and k < 1000", None),
    ],
)
def test_duckdb_has_the_server_evaluate(client: sync.Client, few: sync.Table, where: str, sent: int | None) -> None:
    counted = CountedDataset(client, few)
    with duckdb.connect() as con:
        con.register("live", counted.dataset)
        rows = con.execute(f"select k from live where {where}").fetchall()
    assert counted.rows_returned() == (len(rows) if sent is None else sent) > 0


def test_the_server_evaluates_what_it_can_of_a_conjunction(client: sync.Client, table: sync.Table) -> None:
    counted = CountedDataset(client, table)
    known, other = pc.field("k") < 10, pc.field("k") * 2 > 6
    assert counted.dataset.to_table(columns=["c0"], filter=known & other).num_rows == 6
    assert (counted.rows_returned(), sorted(counted.started[-1].schema.names)) == (10, ["c0", "k"])
    assert counted.dataset.to_table(columns=["c0"], filter=known | other).num_rows == ROWS
    assert counted.rows_returned() == ROWS
    assert counted.dataset.count_rows(filter=known) == 10
    assert counted.started[-1].schema.names == []
    assert counted.dataset.head(5).num_rows == counted.rows_returned() == 5


def test_expressions_are_computed_of_the_columns_that_they_read(client: sync.Client, table: sync.Table) -> None:
    counted = CountedDataset(client, table)
    rows = counted.dataset.to_table(columns={"twice": pc.field("k") * 2}, filter=pc.field("k") < 2)
    assert rows.to_pydict() == {"twice": [0, 2]}
    assert counted.started[-1].schema.names == ["k"]
    assert counted.dataset.scanner(columns={"twice": pc.field("k") * 2}, filter=pc.field("k") < 2).count_rows() == 2


# ---- Scans end, and errors are those of the table ----


def test_a_query_that_needs_no_more_ends_its_scan(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = client.create_table("test.left", FEW.schema, primary_key=["k"], buckets=2)
        table.upsert(FEW)
        reader = table.dataset().scanner(columns=["k"]).to_reader()
        assert reader.read_next_batch().num_rows
        del reader
        with duckdb.connect() as con:
            con.register("live", table.dataset())
            assert len(con.sql("select k from live limit 10").fetchall()) == 10
        wait_until(lambda: client.stats().live_scans == 0, "the scans ended")


_PROGRAM: Final = """
import duckdb, sys
from scankv.sync import connect

client = connect(sys.argv[1])
dataset = client.table("test.left").dataset()
con = duckdb.connect()
con.register("live", dataset)
query = con.execute("select k from live limit 10")
reader = dataset.scanner().to_reader()
print(len(query.fetchmany(1)), reader.read_next_batch().num_rows > 0)
"""


def test_a_program_may_end_while_a_dataset_is_read(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = client.create_table("test.left", FEW.schema, primary_key=["k"], buckets=2)
        table.upsert(FEW)
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM, server.url], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "1 True\n", "")
        wait_until(lambda: client.stats().live_scans == 0, "the scans ended")


def test_a_snapshot_is_read_as_of_then(client: sync.Client, name: str) -> None:
    table = client.create_table(name, SCHEMA, primary_key=["k"])
    table.upsert(DATA.slice(0, 10))
    with table.snapshot() as snapshot:
        table.upsert(DATA.slice(10, 10))
        assert table.dataset(as_of=snapshot).count_rows() == 10
        assert table.dataset().count_rows() == 20


def test_what_a_dataset_cannot_do_is_refused(client: sync.Client, name: str) -> None:
    table = client.create_table(name, SCHEMA, primary_key=["k"])
    table.upsert(DATA.slice(0, 10))
    dataset = table.dataset()
    with pytest.raises(SchemaMismatch, match=r'"pont" is not a column; did you mean "point"'):
        dataset.to_table(columns=["pont"])
    with pytest.raises(UsageError, match=r"expected a pyarrow\.compute\.Expression, not str"):
        dataset.scanner(filter="k < 3")
    with pytest.raises(UsageError, match=r"cannot be pickled"):
        pickle.dumps(dataset)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: dataset.filter(pc.field("k") < 3), r"dataset\.to_table\(filter="),
        (lambda: dataset.sort_by("k"), r"dataset\.to_table\(\)\.sort_by\('k'\)"),
        (lambda: dataset.replace_schema(SCHEMA), "cannot be replaced"),
        (lambda: dataset.join(dataset, "k"), "DuckDB"),
    ]
    for call, message in refused:
        with pytest.raises(UsageError, match=message):
            call()
    client.alter_table(name, rename_columns={"point": "place"})
    with pytest.raises(SchemaMismatch, match="point"):
        dataset.to_table()
    client.drop_table(name)
    with pytest.raises(TableNotFound, match=name):
        dataset.count_rows()


def test_polars_reads_the_columns_and_rows_of_a_query(client: sync.Client, name: str) -> None:
    rows = DATA.select(["k", "point"])
    table = client.create_table(name, rows.schema, primary_key=["k"])
    table.upsert(rows)
    counted = CountedDataset(client, table)
    frame = pl.scan_pyarrow_dataset(counted.dataset).filter(pl.col("k") < 5).select("k").sort("k")
    assert frame.collect()["k"].to_list() == [0, 1, 2, 3, 4]
    assert (counted.rows_returned(), counted.started[-1].schema.names) == (5, ["k"])


@pytest.mark.asyncio
async def test_the_dataset_of_an_asynchronous_table_has_connections_of_its_own(
    shared_server: ServerProcess, table: sync.Table
) -> None:
    async with connect(shared_server.url) as client:
        dataset = (await client.table(table.name)).dataset()
        assert await asyncio.to_thread(dataset.count_rows) == ROWS
        assert dataset.to_table(columns=["k"], filter=pc.field("k") < 3).num_rows == 3  # blocks, but does not hang
