"""Types as Spark has them, and batches with exactly the types that Spark accepts."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest

from scankv.model.errors import SchemaMismatch
from spark_bridge.casting import arrow_schema, cast_rows
from spark_bridge.types import spark_schema

TYPES: list[tuple[pa.DataType, str, Any, Any]] = [
    (pa.bool_(), "boolean", True, True),
    (pa.int8(), "tinyint", -128, -128),
    (pa.int16(), "smallint", 2**15 - 1, 2**15 - 1),
    (pa.int32(), "int", 1, 1),
    (pa.int64(), "bigint", 2**63 - 1, 2**63 - 1),
    (pa.uint8(), "smallint", 255, 255),
    (pa.uint16(), "int", 65_535, 65_535),
    (pa.uint32(), "bigint", 2**32 - 1, 2**32 - 1),
    (pa.uint64(), "decimal(20,0)", 2**64 - 1, decimal.Decimal(2**64 - 1)),
    (pa.float16(), "float", 1.5, 1.5),
    (pa.float32(), "float", 1.5, 1.5),
    (pa.float64(), "double", 0.1, 0.1),
    (pa.string(), "string", "é", "é"),
    (pa.binary(), "binary", b"\0", b"\0"),
    (pa.decimal128(38, 3), "decimal(38,3)", decimal.Decimal("0.123"), decimal.Decimal("0.123")),
    (pa.list_(pa.uint8()), "array<smallint>", [1, None], [1, None]),
    (pa.map_(pa.string(), pa.uint64()), "map<string,decimal(20,0)>", [("a", 1)], [("a", decimal.Decimal(1))]),
    (
        pa.struct([pa.field("a", pa.uint32(), nullable=False), pa.field("b", pa.list_(pa.timestamp("ns")))]),
        "struct<a:bigint,b:array<timestamp_ntz>>",
        {"a": 1, "b": None},
        {"a": 1, "b": None},
    ),
]


@pytest.mark.parametrize(("type_", "name", "given", "expected"), TYPES, ids=[str(each[0]) for each in TYPES])
def test_each_type_has_one_of_spark_and_keeps_its_values(
    type_: pa.DataType, name: str, given: Any, expected: Any
) -> None:
    schema = pa.schema([pa.field("c", type_), pa.field("k", pa.int64(), nullable=False)])
    there = spark_schema(schema)
    assert there["c"].dataType.simpleString() == name
    assert (there["c"].nullable, there["k"].nullable) == (True, False)
    target = arrow_schema(there)
    rows = cast_rows(pa.record_batch([[given, None], [1, 2]], schema=schema), target)
    assert rows.schema.equals(target)
    rows.validate(full=True)
    assert rows.column(0).to_pylist() == [expected, None]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "+02:00"])
def test_times_of_any_unit_and_zone_are_the_same_instant(unit: str, zone: str | None) -> None:
    schema = pa.schema([("t", pa.timestamp(unit, zone))])
    there = spark_schema(schema)
    assert there["t"].dataType.simpleString() == ("timestamp_ntz" if zone is None else "timestamp")
    times = pa.array([1_700_000_000, None]).cast(pa.timestamp("s")).cast(schema.field("t").type)
    rows = cast_rows(pa.record_batch([times], schema=schema), arrow_schema(there))
    assert rows.column(0).cast(pa.int64()).to_pylist() == [1_700_000_000_000_000, None]


def test_nanoseconds_that_spark_cannot_hold_are_an_error_that_names_the_column() -> None:
    schema = pa.schema([("t", pa.timestamp("ns"))])
    rows = pa.record_batch([pa.array([1]).cast(pa.timestamp("ns"))], schema=schema)
    with pytest.raises(SchemaMismatch, match=r'column "t": .* exactly'):
        cast_rows(rows, arrow_schema(spark_schema(schema)))


@pytest.mark.parametrize(
    "type_", [pa.time32("s"), pa.time64("us"), pa.decimal128(5, -2), pa.decimal128(5, 7), pa.list_(pa.time64("ns"))]
)
def test_what_spark_cannot_have_is_refused_naming_column_type_and_what_to_do(type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r'column "c": Spark cannot read .*option\("columns"'):
        spark_schema(pa.schema([("c", type_)]))


def test_columns_that_have_their_types_are_not_copied() -> None:
    rows = pa.record_batch({"a": pa.array([1.0, 2.0]), "b": pa.array(["x", "y"])})
    conformed = cast_rows(rows, arrow_schema(spark_schema(rows.schema)))
    assert [each.buffers()[1].address for each in conformed.columns] == [
        each.buffers()[1].address for each in rows.columns
    ]
