"""Which types Parquet has."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import UsageError


def parquet_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns of a table with the types that a reader of Parquet files finds.

    Timestamps in seconds become those in milliseconds, and so do times of day. The instants of timestamps with a time
    zone stay, the zone does not.

    Raises:
        UsageError: Parquet cannot hold a column. The message names it.
    """
    return pa.schema([pa.field(each.name, _type(each.type, each.name), each.nullable) for each in schema])


def _type(type_: pa.DataType, column: str) -> pa.DataType:
    if pat.is_struct(type_):
        return pa.struct([pa.field(each.name, _type(each.type, column), each.nullable) for each in type_.fields])
    if pat.is_map(type_):
        value = pa.field("value", _type(type_.item_type, column), type_.item_field.nullable)
        return pa.map_(_type(type_.key_type, column), value)
    if pat.is_list(type_):
        item = type_.value_field
        return pa.list_(pa.field("element", _type(item.type, column), item.nullable))
    if pat.is_timestamp(type_):
        return pa.timestamp("ms" if type_.unit == "s" else type_.unit, None if type_.tz is None else "UTC")
    if type_ == pa.time32("s"):
        return pa.time32("ms")
    if pat.is_decimal(type_) and not 0 <= type_.scale <= type_.precision:
        raise UsageError(
            f'column "{column}" cannot be published: the scale of a decimal must be between 0 and its precision in '
            "Parquet: use such a decimal",
            column=column,
        )
    return type_
