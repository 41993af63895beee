"""Changes of columns: ids are never reused, references follow renames, and what is refused says why."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from scankv.model.errors import InvalidRequest, ScanKvError, SchemaMismatch
from scankv.model.tables.evolution import ColumnChanges
from scankv.model.tables.merge_functions import aggregate_of
from scankv.model.tables.merge_spec import MergeSpec, SequenceGroup
from scankv.model.tables.schema import TableDefinition
from scankv.model.types.widening import is_wider

COLUMNS = pa.schema(
    [
        ("k", pa.int64()),
        ("n", pa.int32()),
        ("text", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("ratio", pa.float32()),
    ]
)


def create(**arguments: Any) -> TableDefinition:
    return TableDefinition.create(
        "test.t", COLUMNS, primary_key=["k"], incarnation="one", created_millis=1, **{"buckets": 2, **arguments}
    )


def defaults(**values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values])


def ids(table: TableDefinition) -> dict[str, int]:
    return {column.name: column.id for column in table.schema.columns}


def test_the_id_of_a_dropped_column_is_never_used_again_even_after_a_restart() -> None:
    table = create().change_columns(ColumnChanges(drop=("ratio",)))
    table = TableDefinition.from_json(table.to_json())
    table = table.change_columns(ColumnChanges(add=pa.schema([("ratio", pa.float32())])))
    assert ids(table)["ratio"] == 7
    # Not even if nothing but the counter remembers it.
    forgetful = TableDefinition.from_json({**table.to_json(), "schemas": create().to_json()["schemas"]})
    assert ids(forgetful.change_columns(ColumnChanges(add=pa.schema([("x", pa.int8())]))))["x"] == 8


def test_all_changes_of_one_request_make_one_version_and_survive_a_restart() -> None:
    changes = ColumnChanges(
        drop=("ratio",),
        rename={"n": "text", "text": "n"},
        types={"n": pa.int64(), "price": pa.decimal128(20, 2), "day": pa.timestamp("us")},
        add=pa.schema([("ratio", pa.string())]),
        defaults=defaults(ratio="high", text=7),
        comments={"price": "in euros"},
        order=("k", "ratio", "n", "text", "price", "day"),
    )
    with pytest.raises(SchemaMismatch, match="in the index"):
        create(indexes=[["n"]]).change_columns(changes)
    table = create(indexes=[["text"]]).change_columns(changes)
    assert [schema.id for schema in table.schemas] == [1, 2]
    assert table.schema.arrow == pa.schema(
        [
            pa.field("k", pa.int64(), nullable=False),
            ("ratio", pa.string()),
            ("n", pa.string()),
            ("text", pa.int64()),
            ("price", pa.decimal128(20, 2)),
            ("day", pa.timestamp("us")),
        ]
    )
    assert ids(table) == {"k": 1, "ratio": 7, "n": 3, "text": 2, "price": 4, "day": 5}
    assert [index.columns for index in table.indexes] == [("n",)]
    ratio, text = table.schema.column("ratio"), table.schema.column("text")
    assert (ratio.initial_default, ratio.write_default) == (pa.scalar("high"), pa.scalar("high"))
    assert (text.initial_default, text.write_default) == (None, pa.scalar(7, pa.int64()))
    assert table.schema.column("price").comment == "in euros"
    assert TableDefinition.from_json(table.to_json()) == table


def test_references_follow_renames() -> None:
    merging = MergeSpec(sequence_groups=(SequenceGroup(("n",), ("text", "ratio")),))
    table = create(options={"merge_engine": "partial_update"}, merging=merging, indexes=[["text", "n"]])
    table = table.change_columns(ColumnChanges(rename={"n": "text", "text": "n"}))
    assert table.merging.sequence_groups == (SequenceGroup(("text",), ("n", "ratio")),)
    assert [index.columns for index in table.indexes] == [("n", "text")]
    versioned = create(options={"merge_engine": "versioned"}, merging=MergeSpec(version_column="n"))
    assert versioned.change_columns(ColumnChanges(rename={"n": "at"})).merging.version_column == "at"
    aggregate = create(
        options={"merge_engine": "aggregate"}, merging=MergeSpec(aggregates=(aggregate_of("ratio", "avg"),))
    )
    renamed = aggregate.change_columns(ColumnChanges(rename={"ratio": "mean"}))
    assert list(renamed.merging.by_column) == ["mean"]
    before, after = (aggregate.hidden_columns(aggregate.schema), renamed.hidden_columns(renamed.schemas[0]))
    assert [(column.id, column.type) for column in before] == [(column.id, column.type) for column in after]
    assert before, "avg has hidden columns"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (ColumnChanges(drop=("k",)), SchemaMismatch, '"k" cannot be dropped: it is in the primary key'),
        (ColumnChanges(drop=("x",)), SchemaMismatch, 'no column "x"'),
        (ColumnChanges(drop=("n", "n")), SchemaMismatch, "twice"),
        (ColumnChanges(drop=("n",), rename={"n": "m"}), SchemaMismatch, "dropped and changed"),
        (ColumnChanges(drop=("text",)), SchemaMismatch, r"in the index on \(text\); drop the index first"),
        (ColumnChanges(types={"k": pa.int64()}), SchemaMismatch, "in the primary key"),
        (ColumnChanges(types={"n": pa.int16()}), SchemaMismatch, "cannot change from int32 to int16"),
        (ColumnChanges(types={"n": pa.uint64()}), SchemaMismatch, "cannot change from int32 to uint64"),
        (ColumnChanges(types={"text": pa.binary()}), SchemaMismatch, "in the index"),
        (ColumnChanges(types={"day": pa.timestamp("us", "UTC")}), SchemaMismatch, "without time zone"),
        (ColumnChanges(types={"price": pa.decimal128(20, 3)}), SchemaMismatch, "same scale"),
        (ColumnChanges(rename={"k": "key"}), SchemaMismatch, "it is in the primary key"),
        (ColumnChanges(rename={"n": "text"}), SchemaMismatch, '"text" exists twice'),
        (ColumnChanges(rename={"n": "_log_offset"}), SchemaMismatch, "reserved"),
        (ColumnChanges(rename={"n": ""}), SchemaMismatch, "between 1 and 128"),
        (ColumnChanges(add=pa.schema([pa.field("x", pa.int8(), nullable=False)])), SchemaMismatch, "is NOT NULL"),
        (ColumnChanges(defaults=defaults(n="seven")), SchemaMismatch, "cannot have this default"),
        (ColumnChanges(defaults=defaults(n=2**40)), SchemaMismatch, "cannot have this default"),
        (ColumnChanges(defaults=defaults(k=1)), SchemaMismatch, "cannot have a default: it is in the primary key"),
        (ColumnChanges(defaults=defaults(x=1)), SchemaMismatch, 'no column "x"'),
        (ColumnChanges(comments={"x": "?"}), SchemaMismatch, 'no column "x"'),
        (ColumnChanges(comments={"n": "x" * 1001}), SchemaMismatch, "1,001 characters"),
        (ColumnChanges(order=("k", "n")), InvalidRequest, 'lacks column "text"'),
    ],
)
def test_a_change_that_is_refused_says_why(changes: ColumnChanges, error: type[ScanKvError], message: str) -> None:
    with pytest.raises(error, match=message):
        create(indexes=[["text"]]).change_columns(changes)


def test_columns_that_a_merge_engine_needs_are_kept() -> None:
    table = create(options={"merge_engine": "aggregate"}, merging=MergeSpec(aggregates=(aggregate_of("n", "sum"),)))
    for changes in (ColumnChanges(drop=("n",)), ColumnChanges(types={"n": pa.int64()})):
        with pytest.raises(SchemaMismatch, match="it has an aggregate"):
            table.change_columns(changes)
    renamed = ColumnChanges(rename={"n": "m"}, add=pa.schema([("n", pa.int8())]), defaults=defaults(n=1))
    assert table.change_columns(renamed).schema.column("n").initial_default == pa.scalar(1, pa.int8())
    # A null leaves a value as it is, so only rows that exist can have a default.
    with pytest.raises(SchemaMismatch, match="only a column that is added"):
        table.change_columns(ColumnChanges(defaults=defaults(text="x")))
    added = ColumnChanges(add=pa.schema([("more", pa.string())]), defaults=defaults(more="x"))
    column = table.change_columns(added).schema.column("more")
    assert (column.initial_default, column.write_default) == (pa.scalar("x"), None)
    versioned = create(options={"merge_engine": "versioned"}, merging=MergeSpec(version_column="n"))
    with pytest.raises(SchemaMismatch, match="decides which rows are newer"):
        versioned.change_columns(ColumnChanges(drop=("n",)))


def test_a_default_of_a_column_that_exists_changes_no_row_and_widens_with_its_column() -> None:
    table = create().change_columns(ColumnChanges(add=pa.schema([("x", pa.int8())]), defaults=defaults(x=1)))
    table = table.change_columns(ColumnChanges(types={"x": pa.int32()}, defaults=defaults(x=2, n=5)))
    x, n = table.schema.column("x"), table.schema.column("n")
    assert (x.initial_default, x.write_default) == (pa.scalar(1, pa.int32()), pa.scalar(2, pa.int32()))
    assert (n.initial_default, n.write_default) == (None, pa.scalar(5, pa.int32()))
    removed = table.change_columns(ColumnChanges(defaults=defaults(x=None))).schema.column("x")
    assert (removed.initial_default, removed.write_default) == (pa.scalar(1, pa.int32()), None)


def test_reused_names_are_those_that_meant_other_columns() -> None:
    table = create()
    assert table.reused_names(COLUMNS.names) == ()
    table = table.change_columns(ColumnChanges(rename={"n": "m"}))
    assert table.reused_names(["k", "m"]) == ()
    table = table.change_columns(ColumnChanges(rename={"text": "n"}))
    assert table.reused_names(["k", "m", "n"]) == (("n", 3),)
    assert table.reused_names(["k", "m"]) == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (pa.int8(), pa.int64(), True),
        (pa.uint8(), pa.int16(), True),
        (pa.uint16(), pa.int16(), False),
        (pa.int8(), pa.uint64(), False),
        (pa.int64(), pa.int64(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.float64(), False),
        (pa.decimal128(5, 2), pa.decimal128(6, 2), True),
        (pa.decimal128(5, 2), pa.decimal128(6, 3), False),
        (pa.date32(), pa.timestamp("ms"), True),
        (pa.date32(), pa.timestamp("ns"), False),
        (pa.string(), pa.binary(), False),
    ],
)
def test_only_types_that_hold_every_value_are_wider(old: pa.DataType, new: pa.DataType, expected: bool) -> None:
    assert is_wider(old, new) is expected
