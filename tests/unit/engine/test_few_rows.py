"""Few rows as Python values: the same changes as in columns, and no other bytes are taken for rows or keys."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidKey, InvalidRequest, SchemaMismatch
from scankv.model.tables import agg
from streaming_server.storage.rows.single_rows import has_single_rows
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.examples import examples
from tests.support.merged_table import MergedTable, merging_table
from tests.support.tables import define
from tests.unit.storage.strategies import batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.tables.agg import Aggregator
    from scankv.model.tables.schema import TableDefinition

many = examples(30)

NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
KEYS = (*NUMBERS, pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
TYPES = (*KEYS, pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal128(38, 7))


@st.composite
def tables(draw: st.DrawFn) -> TableDefinition:
    """Generates tables whose rows can be written one by one, with up to three key columns."""
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    others = draw(st.lists(st.tuples(st.sampled_from(TYPES), st.booleans()), max_size=10))
    fields = [pa.field(f"k{number}", type_, nullable=False) for number, type_ in enumerate(keys)]
    names = [field.name for field in fields]
    fields += [pa.field(f"v{number}", type_, nullable) for number, (type_, nullable) in enumerate(others)]
    definition = define(pa.schema(draw(st.permutations(fields))), *names)
    assert has_single_rows(definition)
    return definition


@given(st.data())
@many
def test_bytes_are_refused_or_read_as_the_row_that_has_them(data: st.DataObject) -> None:
    definition = data.draw(tables())
    codec = TableCodec.of(definition)
    assert codec.single is not None
    (row,) = codec.rows.encode(data.draw(batches(definition.schema.arrow, 1, 1))).to_pylist()
    places = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=3))
    broken = bytearray(row)
    for place in places:
        broken[place] = data.draw(st.integers(0, 255))
    try:
        key, values = codec.single.read(bytes(broken[: data.draw(st.integers(0, len(row)))]), 0)
    except (InvalidRequest, InvalidKey, SchemaMismatch):
        return
    stored = codec.single.encode(values)
    decoded = codec.rows.decoder().decode(pa.array([stored], pa.binary()))
    decoded.validate(full=True)
    assert str(decoded.to_pylist()) == str([dict(zip(definition.schema.arrow.names, values, strict=True))])
    assert codec.keys.encode(codec.keys.canonicalize(decoded))[0].to_pylist() == [key]


@given(st.data())
@many
def test_bytes_are_refused_or_read_as_the_key_that_has_them(data: st.DataObject) -> None:
    definition = data.draw(tables())
    codec = TableCodec.of(definition)
    assert codec.single is not None
    batch = data.draw(batches(definition.schema.arrow, 1, 1))
    (key,) = codec.keys.encode(codec.keys.canonicalize(batch))[0].to_pylist()
    broken = bytearray(key)
    for place in data.draw(st.lists(st.integers(0, max(len(key) - 1, 0)), max_size=2)):
        if broken:
            broken[place] = data.draw(st.integers(0, 255))
    sent = bytes(broken[: data.draw(st.integers(0, len(key)))])
    try:
        values = codec.single.read_key(sent, 0)
    except InvalidKey:
        return
    columns = codec.single.to_key_batch([values])
    assert codec.keys.encode(columns)[0].to_pylist() == [sent]


def test_nulls_in_required_columns_are_refused_by_name() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    codec = TableCodec.of(define(schema, "k"))
    assert codec.single is not None
    with pytest.raises(SchemaMismatch, match=r'column "v", row 3: it is NOT NULL'):
        codec.single.read(codec.single.encode((1, None)), 3)


MERGED = pa.schema(
    [
        pa.field("k", pa.int8(), nullable=False),
        ("i", pa.int8()),
        ("u", pa.uint64()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("h", pa.float16()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("n", pa.decimal128(5, 2)),
        ("t", pa.timestamp("us", "Europe/Berlin")),
        ("y", pa.date32()),
    ]
)
NIGHT = dt.datetime(2025, 10, 26, 0, 30, tzinfo=dt.UTC)  # In Berlin, 2:30 comes twice.
VALUES: dict[str, list[Any]] = {
    "i": [None, 1, 2, -3, 100],
    "u": [None, 0, 1, 2, 2**64 - 1],
    "d": [None, 0.0, -0.0, 1.5, math.nan, math.inf],
    "f": [None, 0.0, -0.0, 0.1, 3e38, math.nan],
    "h": [None, -0.0, 0.1, 1e-7, 60_000.0],
    "s": [None, "", "a", "b\0", "ü"],
    "b": [None, True, False],
    "n": [None, Decimal("0.01"), Decimal("-1.25"), Decimal("999.99")],
    "t": [None, NIGHT, NIGHT + dt.timedelta(hours=1), NIGHT + dt.timedelta(hours=2)],
    "y": [None, dt.date(2020, 2, 29), dt.date(1969, 12, 31)],
}
OF_NUMBERS = [agg.sum, agg.product, agg.avg]
OF_ALL = [agg.min, agg.max, agg.last_value, agg.last_non_null_value, agg.first_value, agg.first_non_null_value]
FUNCTIONS: dict[str, list[Callable[[], Aggregator]]] = {
    **{name: [*OF_NUMBERS, *OF_ALL] for name in ("d", "f", "h", "n")},
    **{name: [*OF_NUMBERS, *OF_ALL, agg.count] for name in ("i", "u")},
    **{name: [*OF_ALL] for name in ("s", "t", "y")},
    "b": [*OF_ALL, agg.bool_and, agg.bool_or],
}


@st.composite
def merging_tables(draw: st.DrawFn) -> TableDefinition:
    """Generates tables whose rows are merged, or that have indexes, with all engines and functions."""
    engine = draw(st.sampled_from(["last_row", "first_row", "versioned", "partial_update", "aggregate"]))
    options: dict[str, Any] = {"merge_engine": engine}
    if engine == "last_row":
        options["sequence"] = draw(st.sampled_from([(), ("s",), ("t", "i"), ("d",)]))
        options["changelog"] = draw(st.sampled_from(["full", "upsert", "none"]))
    if engine == "versioned":
        options["version_column"] = draw(st.sampled_from(["i", "t", "u"]))
    if engine == "partial_update":
        groups = st.sampled_from([[], [(("i",), ("s", "d"))], [(("t", "s"), ("u",)), (("y",), ("b", "n"))]])
        options["groups"] = draw(groups)
    if engine == "aggregate":
        names = draw(st.sets(st.sampled_from(MERGED.names[1:])))
        options["aggregates"] = {name: draw(st.sampled_from(FUNCTIONS[name]))() for name in sorted(names)}
    if engine not in ("first_row", "versioned"):
        options["delete_behavior"] = "allow" if not options.get("groups") else "ignore"
    if options.get("changelog", "full") == "full":
        options["row_deduplicate"] = draw(st.sampled_from(["true", "false"]))
    indexes = draw(st.lists(st.sampled_from([("i",), ("d", "s"), ("n", "b"), ("t",), ("u", "y")]), unique=True))
    return merging_table(MERGED, indexes=indexes, **options)


ROWS = st.fixed_dictionaries(
    {"k": st.integers(0, 2), **{name: st.sampled_from(values) for name, values in VALUES.items()}}
)
WRITES = st.lists(st.one_of(st.lists(ROWS, min_size=1, max_size=4), st.sets(st.integers(0, 2), min_size=1)), max_size=6)


@given(merging_tables(), WRITES)
@many
def test_few_rows_are_merged_as_columns_are(definition: TableDefinition, writes: list[Any]) -> None:
    # The table compares the change of each write on both paths.
    table = MergedTable(definition)
    for written in writes:
        try:
            if isinstance(written, list):
                table.write(written)
            elif definition.options.deletes == "allow":
                table.delete(sorted(written))
        except InvalidRequest:
            # A sum or product that does not fit, which the columns refuse.
            assert definition.options.merge_engine == "aggregate"


@pytest.mark.parametrize("engine", ["last_row", "first_row", "versioned", "partial_update", "aggregate"])
def test_common_engines_and_functions_need_no_columns(engine: str) -> None:
    options: dict[str, Any] = {"version_column": "i"} if engine == "versioned" else {}
    if engine == "aggregate":
        options["aggregates"] = {
            "i": agg.count(),
            "u": agg.sum(),
            "d": agg.avg(),
            "s": agg.max(),
            "b": agg.bool_and(),
            "n": agg.sum(),
            "t": agg.first_value(),
        }
    table = MergedTable(merging_table(MERGED, merge_engine=engine, indexes=[("i",), ("d", "s")], **options))
    for number in (1, 2):
        table.write([{"k": 1, **{name: values[number] for name, values in VALUES.items()}}])
    assert table.merged_few == 2
