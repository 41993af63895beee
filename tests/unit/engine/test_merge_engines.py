"""Every merge engine with every delete behavior: complete and partial writes, retractions and overwrites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidRequest, SchemaMismatch
from scankv.model.tables import agg
from scankv.model.tables.merge_functions import aggregate_of
from tests.support.examples import examples
from tests.support.merge_model import Function, MergeModel
from tests.support.merged_table import MergedTable, merging_table, replayed

if TYPE_CHECKING:
    from scankv.model.tables.agg import Aggregator
    from scankv.model.tables.schema import TableDefinition

SCHEMA = pa.schema(
    [
        ("k", pa.int8()),
        ("a", pa.int64()),
        ("b", pa.string()),
        ("s", pa.int32()),
        ("t", pa.float64()),
        ("n", pa.int64()),
        ("m", pa.list_(pa.int8())),
        ("f", pa.string()),
    ]
)
COLUMNS = SCHEMA.names[1:]
GROUPS = [(("s",), ("a", "n", "m")), (("t",), ("f",))]
AGGREGATES: dict[str, Aggregator] = {"n": agg.sum(), "m": agg.collect(), "f": agg.last_non_null_value()}
ALL_AGGREGATES = {
    "a": agg.avg(),
    "b": agg.first_value(ignore_retract=True),
    "s": agg.count(),
    "t": agg.max(ignore_retract=True),
    **AGGREGATES,
}
KINDS = ["+I", "+U", "-U", "-D"]

ENGINES: dict[str, dict[str, Any]] = {
    "last_row": {},
    "last_row by sequence": {"sequence": ("s",)},
    "last_row by two columns": {"sequence": ("t", "s")},
    "first_row": {},
    "versioned": {"version_column": "s"},
    "partial_update": {},
    "partial_update with groups": {"groups": GROUPS, "aggregates": AGGREGATES},
    "partial_update with a group of two": {"groups": [(("t", "s"), ("a", "b", "m", "f"))], "aggregates": {}},
    "aggregate": {"aggregates": ALL_AGGREGATES},
    "aggregate by default": {},
}
DELETES = {
    "last_row": ["allow", "ignore"],
    "first_row": ["ignore"],
    "versioned": ["ignore"],
    "partial_update": ["allow", "ignore"],
    "partial_update with groups": ["retract", "ignore"],
    "partial_update with a group of two": ["retract"],
    "aggregate": ["ignore", "allow"],
}
TABLES = [(title, deletes) for title in ENGINES for deletes in DELETES.get(title, DELETES.get(title.split(" ")[0], []))]


def table_of(title: str, deletes: str, **options: Any) -> TableDefinition:
    engine = title.split(" ")[0]
    return merging_table(SCHEMA, merge_engine=engine, delete_behavior=deletes, **ENGINES[title], **options)


def model_of(title: str, deletes: str) -> MergeModel:
    made = ENGINES[title]
    engine = title.split(" ")[0]
    version = made.get("version_column")
    aggregates = made.get("aggregates", {})
    if engine == "aggregate":
        aggregates = dict.fromkeys(COLUMNS, agg.last_non_null_value()) | aggregates
    functions = {
        name: Function(each.function, SCHEMA.field(name).type, **{key: True for key, _ in each.parameters})
        for name, each in aggregates.items()
    }
    order = (version,) if version else made.get("sequence", ())
    return MergeModel(engine, deletes, "k", COLUMNS, order, made.get("groups", ()), functions)


SMALL = st.sampled_from([None, 1, 2, 3])
ROWS = st.fixed_dictionaries(
    {
        "k": st.integers(0, 2),
        "a": SMALL,
        "b": st.sampled_from([None, "x", "y"]),
        "s": SMALL,
        "t": st.sampled_from([None, 1.0, 2.5]),
        "n": SMALL,
        "m": st.sampled_from([None, [], [1], [2, 1]]),
        "f": st.sampled_from([None, "f", "g"]),
    }
)
WRITES = st.lists(st.tuples(st.sampled_from(KINDS), ROWS), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WRITES, st.just(None)),
        st.tuples(st.just("write"), WRITES, st.sets(st.sampled_from(COLUMNS), min_size=1)),
        st.tuples(st.just("overwrite"), WRITES, st.one_of(st.none(), st.sets(st.sampled_from(COLUMNS), min_size=1))),
        st.tuples(st.just("delete"), WRITES, st.one_of(st.none(), st.sets(st.sampled_from(COLUMNS), min_size=1))),
    ),
    max_size=8,
)


@pytest.mark.parametrize(("title", "deletes"), TABLES)
@given(steps=STEPS)
@examples(8)
@pytest.mark.represented_by("last_row-allow", "aggregate by default-allow")
def test_an_engine_does_what_the_model_says_row_by_row(title: str, deletes: str, steps: list[Any]) -> None:
    definition = table_of(title, deletes)
    table, model = MergedTable(definition), model_of(title, deletes)
    whole = definition.options.merge_engine in ("first_row", "versioned")
    for what, events, columns in steps:
        if columns is not None:
            columns |= set(definition.merging.sequence_columns) if what == "write" else set()
        overwrite = what == "overwrite"
        if columns is not None and whole and what == "write":
            columns = None
        if what == "delete":
            if deletes == "retract":
                continue
            table.delete([row["k"] for _, row in events], sorted(columns or ()))
            if deletes == "allow":
                for _, row in events:
                    model.delete(row["k"], columns)
            continue
        if title == "partial_update with groups" and _takes_back_before_an_older_row(events):
            events = [event for event in events if event[0][0] == "+"] or events[:1]
        names = () if columns is None else ("k", *sorted(columns))
        table.write([row for _, row in events], [kind for kind, _ in events], names, overwrite=overwrite)
        model.write(events, columns, overwrite=overwrite)
        assert table.rows() == {key: model.rows[key] for key in sorted(model.rows)}
    assert replayed(table.log, "k") == table.rows() == model.rows


def _takes_back_before_an_older_row(events: list[Any]) -> bool:
    """What is taken back counts behind the older rows of its request: there the order of a request matters."""
    return any(kind[0] == "-" for kind, _ in events) and len(events) > 1


@given(rows=st.lists(ROWS, min_size=2, max_size=8), data=st.data())
def test_the_order_within_a_request_does_not_matter_where_the_functions_are_commutative(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    aggregates = {"a": agg.sum(), "s": agg.count(), "n": agg.avg(), "t": agg.min(), "b": agg.max(), "f": agg.max()}
    schema = SCHEMA.remove(SCHEMA.get_field_index("m"))
    definition = merging_table(schema, merge_engine="aggregate", aggregates=aggregates)
    one, other = MergedTable(definition), MergedTable(definition)
    one.write(rows)
    other.write(data.draw(st.permutations(rows)))
    assert one.rows() == other.rows()


@pytest.mark.parametrize("title", ["first_row", "versioned", "partial_update", "aggregate", "last_row by sequence"])
def test_a_write_that_changes_nothing_is_no_change_and_puts_nothing(title: str) -> None:
    table = MergedTable(table_of(title, "ignore"))
    row = {"k": 1, "a": 1, "b": "x", "s": 2, "t": 1.0, "n": 0, "m": [], "f": "f"}
    table.write([row])
    changes, puts = len(table.log), table.puts
    table.write([row | {"a": None, "b": None, "s": None, "n": None, "m": None, "t": None, "f": None}])
    assert (len(table.log), table.puts) == (changes, puts)


def test_a_write_that_changes_only_what_is_hidden_is_put_and_is_no_change() -> None:
    schema = pa.schema([("k", pa.int8()), ("mean", pa.float64())])
    table = MergedTable(merging_table(schema, merge_engine="aggregate", aggregates={"mean": agg.avg()}))
    table.write([{"k": 1, "mean": 2.0}])
    table.write([{"k": 1, "mean": 2.0}])
    assert len(table.log) == 1
    assert table.puts == 2
    table.write([{"k": 1, "mean": 5.0}])
    assert table.rows()[1]["mean"] == 3.0


def test_without_deduplication_each_key_that_a_row_counted_for_is_a_change() -> None:
    table = MergedTable(table_of("first_row", "ignore", row_deduplicate="false"))
    row = dict.fromkeys(COLUMNS) | {"k": 1}
    table.write([row])
    table.write([row])
    assert [kind for kind, _ in table.log] == ["+I"]
    table = MergedTable(table_of("versioned", "ignore", row_deduplicate="false"))
    table.write([row | {"s": 2}])
    table.write([row | {"s": 1}])
    table.write([row | {"s": 2}])
    assert [kind for kind, _ in table.log] == ["+I", "-U", "+U"]


def test_rows_of_an_older_schema_merge_and_added_columns_start_empty() -> None:
    first = merging_table(
        pa.schema([("k", pa.int8()), ("mean", pa.float64())]), merge_engine="aggregate", aggregates={"mean": agg.avg()}
    )
    added = pa.schema([("total", pa.int64()), ("average", pa.int32())])
    second = first.add_columns(added, [aggregate_of("total", "sum"), aggregate_of("average", "avg")])
    table = MergedTable(first)
    table.write([{"k": 1, "mean": 1.0}, {"k": 1, "mean": 3.0}])
    table.use(second)
    assert table.rows()[1] == {"k": 1, "mean": 2.0, "total": None, "average": None}
    table.write([{"k": 1, "mean": 5.0, "total": 4, "average": 3}])
    table.write([{"k": 1, "mean": 7.0, "total": 1, "average": 4}])
    assert table.rows()[1] == {"k": 1, "mean": 4.0, "total": 5, "average": 4}


def test_a_null_in_a_not_null_column_is_refused_where_a_merge_would_make_one() -> None:
    schema = pa.schema([pa.field("k", pa.int8()), pa.field("v", pa.int8(), nullable=False)])
    table = MergedTable(merging_table(schema, merge_engine="aggregate", aggregates={"v": agg.last_value()}))
    table.write([{"k": 1, "v": 1}])
    with pytest.raises(InvalidRequest, match=r'column "v", key \(1\): it would be null, but it is NOT NULL'):
        table.write([{"k": 1, "v": 1}], ["-D"])
    with pytest.raises(SchemaMismatch, match='column "v" is NOT NULL'):
        table.write([{"k": 1}], columns=["k"])
    assert table.rows() == {1: {"k": 1, "v": 1}}
