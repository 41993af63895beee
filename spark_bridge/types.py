"""Maps the types of columns to Spark's types.

| ScanKV | Spark |
|---|---|
| bool, string, binary, date32, float32, float64 | boolean, string, binary, date, float, double |
| int8, int16, int32, int64 | tinyint, smallint, int, bigint |
| uint8, uint16, uint32, uint64 | smallint, int, bigint, decimal(20,0): Spark has no unsigned integers |
| float16 | float |
| decimal128(p, s) with 0 <= s <= p | decimal(p, s) |
| timestamp with a time zone, of any unit | timestamp: the instant; the zone is the session's to show |
| timestamp without a time zone, of any unit | timestamp_ntz |
| list, map, struct | array, map, struct |

Spark's timestamps have microseconds. Reading a value that is out of range or not a whole number of microseconds is an
error. Two types are refused: times of day, which Spark does not accept from a data source as Arrow data, and decimals
of another scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow.types as pat
from pyspark.sql import types as spark

from scankv.model.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN: Final = (
    (pat.is_boolean, spark.BooleanType),
    (pat.is_int8, spark.ByteType),
    (pat.is_int16, spark.ShortType),
    (pat.is_int32, spark.IntegerType),
    (pat.is_int64, spark.LongType),
    (pat.is_uint8, spark.ShortType),
    (pat.is_uint16, spark.IntegerType),
    (pat.is_uint32, spark.LongType),
    (pat.is_float16, spark.FloatType),
    (pat.is_float32, spark.FloatType),
    (pat.is_float64, spark.DoubleType),
    (pat.is_string, spark.StringType),
    (pat.is_binary, spark.BinaryType),
    (pat.is_date32, spark.DateType),
)
_UINT64_DIGITS: Final = 20


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Returns the columns in Spark's types. A NOT NULL column stays NOT NULL, since the server enforces it.

    Raises:
        SchemaMismatch: A column has no Spark type; the message says why, and how to read the other columns.
    """
    return spark.StructType(
        [spark.StructField(column.name, _spark_type(column.type, column.name), column.nullable) for column in schema]
    )


def _spark_type(type_: pa.DataType, column: str) -> spark.DataType:
    for is_type, plain in _PLAIN:
        if is_type(type_):
            return plain()
    if pat.is_uint64(type_):
        return spark.DecimalType(_UINT64_DIGITS, 0)
    if pat.is_timestamp(type_):
        return spark.TimestampNTZType() if type_.tz is None else spark.TimestampType()
    if pat.is_decimal(type_) and 0 <= type_.scale <= type_.precision:
        return spark.DecimalType(type_.precision, type_.scale)
    if pat.is_list(type_):
        return spark.ArrayType(_spark_type(type_.value_type, column), type_.value_field.nullable)
    if pat.is_map(type_):
        key, value = _spark_type(type_.key_type, column), _spark_type(type_.item_type, column)
        return spark.MapType(key, value, type_.item_field.nullable)
    if pat.is_struct(type_):
        fields = [spark.StructField(each.name, _spark_type(each.type, column), each.nullable) for each in type_.fields]
        return spark.StructType(fields)
    raise SchemaMismatch(
        f'column "{column}": Spark cannot read {type_}{_why(type_)}; leave the column out with option("columns", ...)',
        column=column,
    )


def _why(type_: pa.DataType) -> str:
    if pat.is_time(type_):
        return " from a data source"
    return ", since the scale must be between 0 and the precision" if pat.is_decimal(type_) else ""
