"""The types of a table in Delta Lake."""

from __future__ import annotations

import pyarrow as pa
import pytest

from aio_client import UsageError
from scankv.lake.delta.delta_types import delta_schema, has_times_without_zone, schema_json


def test_types_that_delta_lake_lacks_become_larger_ones() -> None:
    types = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.timestamp("s"): pa.timestamp("us"),
        pa.timestamp("ms", "Europe/Berlin"): pa.timestamp("us", "UTC"),
        pa.list_(pa.uint8()): pa.list_(pa.field("element", pa.int16())),
        pa.struct([pa.field("a", pa.uint32(), nullable=False)]): pa.struct([pa.field("a", pa.int64(), nullable=False)]),
        pa.map_(pa.uint8(), pa.float16()): pa.map_(pa.int16(), pa.float32()),
        pa.decimal128(38, 10): pa.decimal128(38, 10),
    }
    found = delta_schema(pa.schema([pa.field(f"c{place}", type_) for place, type_ in enumerate(types)]))
    assert found.types == list(types.values())


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("at", pa.timestamp("ns")), "nanoseconds"),
        (pa.field("at", pa.time64("us")), "no type for time64"),
        (pa.field("at", pa.list_(pa.time32("s"))), "no type for time32"),
        (pa.field("price", pa.decimal128(10, -2)), "scale"),
        (pa.field("price", pa.decimal128(2, 4)), "scale"),
        (pa.field("the price", pa.int64()), "character"),
        (pa.field("s", pa.struct([pa.field("a=b", pa.int64())])), "character"),
    ],
)
def test_a_column_that_delta_lake_cannot_hold_is_refused_by_name(field: pa.Field, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        delta_schema(pa.schema([field]))
    assert refused.value.details["column"] == field.name


def test_names_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(UsageError, match='differs from "a" in case only'):
        delta_schema(pa.schema([("a", pa.int64()), ("A", pa.int64())]))


def test_the_schema_of_the_log_has_nested_types() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
            ("price", pa.decimal128(10, 2)),
            ("by_day", pa.map_(pa.date32(), pa.struct([("n", pa.int32())]))),
        ]
    )
    fields = schema_json(schema)["fields"]
    assert [field["name"] for field in fields] == schema.names
    assert [field["nullable"] for field in fields] == [False, True, True, True]
    assert [field["type"] for field in fields] == [
        "long",
        {"type": "array", "elementType": "string", "containsNull": False},
        "decimal(10,2)",
        {
            "type": "map",
            "keyType": "date",
            "valueType": {
                "type": "struct",
                "fields": [{"name": "n", "type": "integer", "nullable": True, "metadata": {}}],
            },
            "valueContainsNull": True,
        },
    ]


def test_times_without_a_zone_are_found_at_any_depth() -> None:
    assert has_times_without_zone(pa.schema([("a", pa.map_(pa.int64(), pa.list_(pa.timestamp("us"))))]))
    assert not has_times_without_zone(pa.schema([("a", pa.list_(pa.timestamp("us", "UTC")))]))
