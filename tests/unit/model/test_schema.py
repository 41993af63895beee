"""Table definitions: what is refused, what never changes, and how they are stored."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from scankv.model.errors import InvalidOption, InvalidRequest, NoPrimaryKey, SchemaMismatch
from scankv.model.tables.columns import Schema
from scankv.model.tables.evolution import ColumnChanges
from scankv.model.tables.options import TableOptions
from scankv.model.tables.schema import TableDefinition
from scankv.model.types.types import is_key_type
from tests.unit.model.strategies import schemas, with_broken_names

COLUMNS = pa.schema(
    [
        pa.field("player", pa.large_string(), metadata={"from": "a file"}),
        ("game", pa.int32()),
        ("score", pa.int64()),
        ("tags", pa.list_(pa.string())),
    ],
    metadata={"pandas": "{}"},
)


def create(**changes: Any) -> TableDefinition:
    arguments: dict[str, Any] = {
        "name": "game.scores",
        "arrow_schema": COLUMNS,
        "primary_key": ["player", "game"],
        "incarnation": "i-1",
        "created_millis": 1_700_000_000_000,
    }
    return TableDefinition.create(**{**arguments, **changes})


def test_created_table_has_normal_types_ids_and_not_null_key() -> None:
    table = create()
    expected = pa.schema(
        [
            pa.field("player", pa.string(), nullable=False),
            pa.field("game", pa.int32(), nullable=False),
            ("score", pa.int64()),
            ("tags", pa.list_(pa.string())),
        ]
    )
    assert table.schema.arrow.equals(expected, check_metadata=True)
    assert [column.id for column in table.schema.columns] == [1, 2, 3, 4]
    assert table.schema.id == 1
    assert table.bucket_key == table.primary_key == ("player", "game")
    assert table.buckets == 4
    assert table.options == TableOptions()


def test_key_schema_is_in_key_order() -> None:
    table = create(primary_key=["game", "player"])
    assert table.key_schema == pa.schema(
        [pa.field("game", pa.int32(), nullable=False), pa.field("player", pa.string(), nullable=False)]
    )


def test_bucket_key_is_kept_in_key_order() -> None:
    assert create(bucket_key=["game"]).bucket_key == ("game",)
    assert create(bucket_key=["game", "player"]).bucket_key == ("player", "game")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"name": "scores"}, InvalidRequest, '"scores" is not a table name'),
        ({"primary_key": [], "indexes": [["score"]]}, NoPrimaryKey, "has no primary key: it cannot have an index"),
        ({"primary_key": [], "bucket_key": ["tags"]}, SchemaMismatch, 'column "tags".*cannot be in the bucket key'),
        ({"primary_key": [], "options": {"changelog": "none"}}, InvalidOption, '"changelog" must be "full" in a table'),
        ({"primary_key": [], "options": {"merge_engine": "first_row"}}, InvalidOption, "rows are never merged"),
        ({"primary_key": [], "options": {"columnar_base": "auto"}}, InvalidOption, "stored as Arrow record batches"),
        ({"primary_key": [], "options": {"delete_behavior": "allow"}}, InvalidOption, "rows are never deleted"),
        ({"primary_key": ["playr"]}, SchemaMismatch, 'there is no column "playr"; did you mean "player"?'),
        ({"primary_key": ["game", "game"]}, InvalidRequest, 'column "game" is in the primary key twice'),
        ({"primary_key": ["tags"]}, SchemaMismatch, 'key column "tags": list<item: string> cannot be in a key'),
        ({"bucket_key": ["score"]}, InvalidRequest, 'column "score" is in the bucket key but not in the primary key'),
        ({"bucket_key": ["game", "game"]}, InvalidRequest, "in the bucket key twice"),
        ({"buckets": 0}, InvalidRequest, "a table must have between 1 and 1,024 buckets, not 0"),
        ({"buckets": 1025}, InvalidRequest, "a table must have between 1 and 1,024 buckets, not 1,025"),
        ({"options": {"merge_engin": "x"}}, InvalidOption, 'did you mean "merge_engine"?'),
        ({"arrow_schema": pa.schema([])}, SchemaMismatch, "between 1 and 1,000 columns, not 0"),
        (
            {"arrow_schema": pa.schema([(str(i), pa.int8()) for i in range(1001)])},
            SchemaMismatch,
            "at most 1,000 columns, not 1,001",
        ),
        ({"arrow_schema": pa.schema([("a", pa.int8()), ("a", pa.int8())])}, SchemaMismatch, '"a" exists twice'),
        (
            {"arrow_schema": pa.schema([("", pa.int8())])},
            SchemaMismatch,
            "a name must have between 1 and 128 characters",
        ),
        (
            {"arrow_schema": pa.schema([("x" * 129, pa.int8())])},
            SchemaMismatch,
            "a name must have between 1 and 128 characters",
        ),
        ({"arrow_schema": pa.schema([("a\tb", pa.int8())])}, SchemaMismatch, r"'a\\tb': a name must have printable"),
        ({"arrow_schema": pa.schema([("_bucket", pa.int8())])}, SchemaMismatch, '"_bucket": the name is reserved'),
        ({"arrow_schema": pa.schema([("a", pa.date64())])}, SchemaMismatch, 'column "a": date64.*use date32'),
    ],
)
def test_definition_that_cannot_be_is_refused(
    changes: dict[str, Any], error: type[InvalidRequest], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        create(**changes)
    assert type(caught.value) is error


@pytest.mark.parametrize("type_", [pa.int8(), pa.struct([("cafe", pa.date64())])], ids=str)
def test_name_that_is_not_utf8_is_refused(type_: pa.DataType) -> None:
    broken = with_broken_names(pa.schema([("cafe", type_), ("b", type_)]))
    with pytest.raises(SchemaMismatch, match="name of a column or struct field is not valid UTF-8"):
        create(arrow_schema=broken, primary_key=["b"])
    with pytest.raises(SchemaMismatch, match="name of a column or struct field is not valid UTF-8"):
        create().add_columns(broken)


def test_added_columns_come_last_with_new_ids_and_keep_the_old_version() -> None:
    table = create()
    wider = table.add_columns(pa.schema([("level", pa.large_string())]))
    widest = wider.add_columns(pa.schema([("x", pa.int8()), ("y", pa.int8())]))
    assert [(column.id, column.name) for column in widest.schema.columns[4:]] == [(5, "level"), (6, "x"), (7, "y")]
    assert wider.schema.arrow.field("level").type == pa.string()
    assert widest.schema.id == 3
    assert widest.schema_at(1) == table.schema
    assert widest.schema_at(2) == wider.schema
    assert len(table.schemas) == 1


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (pa.schema([]), "no columns to add were given"),
        (pa.schema([pa.field("a", pa.int8(), nullable=False)]), 'column "a" is NOT NULL'),
        (pa.schema([("score", pa.int8())]), 'column "score" exists twice'),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), 'column "a" exists twice'),
        (pa.schema([("_log_offset", pa.int8())]), "the name is reserved"),
        (pa.schema([("a", pa.null())]), 'column "a": null cannot be stored'),
        (pa.schema([(str(i), pa.int8()) for i in range(997)]), "between 1 and 1,000 columns, not 1,001"),
    ],
)
def test_columns_that_cannot_be_added_are_refused(added: pa.Schema, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        create().add_columns(added)


def test_unknown_schema_version_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"game\.scores has no schema version 2; the current one is 1"):
        create().schema_at(2)


def test_columns_are_selected_in_the_order_given() -> None:
    schema = create().schema
    assert schema.select(None) is schema.arrow
    assert schema.select(["score", "player"]).names == ["score", "player"]
    assert schema.select([]).names == []
    with pytest.raises(SchemaMismatch, match='there is no column "scor"; did you mean "score"') as caught:
        schema.select(["scor"])
    assert caught.value.details == {"column": "scor"}
    with pytest.raises(SchemaMismatch, match='column "score" is selected twice'):
        schema.select(["score", "score"])


@given(schemas())
def test_definition_is_read_from_the_catalog_as_it_was_written(columns: pa.Schema) -> None:
    key = [field.name for field in columns if is_key_type(field.type)]
    if not key:
        return
    table = create(arrow_schema=columns, primary_key=key, options={"compression": "none"})
    added = pa.schema([("a new column", pa.int8())])
    table = table.add_columns(added)
    copy = TableDefinition.from_json(json.loads(json.dumps(table.to_json())))
    assert copy == table
    assert [schema.arrow for schema in copy.schemas] == [schema.arrow for schema in table.schemas]


def test_catalog_form_can_be_read_by_people() -> None:
    form = create().to_json()
    assert form["schemas"][0]["columns"][3] == {"id": 4, "name": "tags", "type": "list<item: string>", "nullable": True}
    assert form["options"] == {"columnar_base": "auto"}


def test_damaged_catalog_form_is_an_error_and_never_a_table() -> None:
    form = create().to_json()
    with pytest.raises(KeyError):
        TableDefinition.from_json({name: value for name, value in form.items() if name != "primary_key"})
    form["schemas"][0]["columns"].pop()
    with pytest.raises(ValueError, match="schema version 1 lists 3 columns, but its Arrow form has 4"):
        TableDefinition.from_json(form)


def test_definition_survives_pickling() -> None:
    table = create()
    assert table.schema.names == ("player", "game", "score", "tags")
    copy = pickle.loads(pickle.dumps(table))
    assert copy == table
    assert isinstance(copy.schema, Schema)


def test_a_table_without_a_key_keeps_its_changelog_and_distributes_by_any_columns() -> None:
    table = create(primary_key=[], bucket_key=["score", "player"])
    assert (table.has_key, table.bucket_key, table.options.log_retention_seconds) == (False, ("score", "player"), 0)
    assert [column.nullable for column in table.schema.columns] == [True] * 4
    assert TableDefinition.from_json(table.to_json()) == table
    shorter = table.alter_options({"log_retention_seconds": "60"})
    assert shorter.alter_options({}, ["log_retention_seconds"]).options.log_retention_seconds == 0
    with pytest.raises(InvalidOption, match='"log_retention_seconds" is given twice'):
        table.alter_options({"log_retention_seconds": "60"}, ["log_retention_seconds"])
    with pytest.raises(InvalidOption, match='"changelog" must be "full"'):
        table.alter_options({"changelog": "upsert"})
    renamed = table.change_columns(ColumnChanges(rename={"score": "points"}))
    assert renamed.bucket_key == ("points", "player")
    for changes in (ColumnChanges(drop=("score",)), ColumnChanges(types={"score": pa.float64()})):
        with pytest.raises(SchemaMismatch, match="it is in the bucket key"):
            table.change_columns(changes)


def test_rows_with_times_before_1970_live_as_long_as_all_others() -> None:
    for type_, a_second in ((pa.timestamp("us"), 1_000_000), (pa.date32(), 1 / 86_400)):
        table = TableDefinition.create(
            "a.b",
            pa.schema([("k", pa.int64()), ("born", type_)]),
            ["k"],
            options={"ttl_seconds": str(75 * 365 * 86_400), "ttl_column": "born"},
            incarnation="i",
            created_millis=0,
        )
        assert table.expiry is not None
        now = 50 * 365 * 86_400 * 1_000_000
        assert table.expiry.bound_at(now) == -25 * 365 * 86_400 * a_second


def test_write_times_of_a_definition_that_an_earlier_version_has_stored_count_as_before() -> None:
    plain = TableDefinition.create("a.b", pa.schema([("k", pa.int64())]), ["k"], incarnation="i", created_millis=0)
    begun = plain.alter_options({"ttl_seconds": "60"}, now_micros=1_000_000_000)
    assert TableDefinition.from_json(begun.to_json()) == begun
    stored = begun.to_json()
    del stored["write_times_since_micros"]
    earlier = TableDefinition.from_json(stored)
    assert earlier.write_time(earlier.schema) == begun.write_time(begun.schema)
    assert earlier.expiry is not None
    assert earlier.expiry.bound_at(1_050_000_000) == 990_000_000
    again = earlier.alter_options({}, ["ttl_seconds"], now_micros=2_000_000_000)
    again = again.alter_options({"ttl_seconds": "60"}, now_micros=3_000_000_000)
    assert again.expiry is not None
    assert again.expiry.bound_at(3_059_000_000) == 0
    assert again.expiry.bound_at(3_060_000_000) == 3_000_000_000


def test_new_tables_with_a_key_have_columnar_bases_by_default_and_stored_ones_keep_what_they_have() -> None:
    new = create()
    assert (new.options.columnar_base, new.options.to_strings()) == ("auto", {})
    stored = new.to_json()
    assert stored["options"] == {"columnar_base": "auto"}, "so that a later default does not change the table"
    assert TableDefinition.from_json(stored) == new
    del stored["options"]["columnar_base"]
    earlier = TableDefinition.from_json(stored)
    assert earlier.options.to_strings() == {"columnar_base": "off"}, "the default of the version that left it out"
    assert TableDefinition.from_json(earlier.to_json()) == earlier
    assert earlier.alter_options({}, ["columnar_base"]).options.columnar_base == "auto"


def test_a_table_without_a_key_has_no_bases_and_keeps_none_when_the_option_is_reset() -> None:
    table = create(primary_key=[])
    assert table.options.columnar_base == "off"
    assert TableDefinition.from_json(table.to_json()) == table
    assert table.alter_options({}, ["columnar_base"]) == table
    with pytest.raises(InvalidOption, match='must be "off" in a table without a primary key, not "auto"'):
        table.alter_options({"columnar_base": "auto"})
