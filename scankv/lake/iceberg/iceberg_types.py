"""Which types Iceberg has, and the ids by which its readers find columns in data files."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.lake.lake_table import FIELD_ID
from scankv.model.errors import UsageError
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

_UTC: Final = pa.timestamp("us", "UTC")
_NESTED_IDS: Final = 1_000_000
"""The first id of a field inside a column. The ids of columns are smaller."""
_IDS_OF_COLUMN: Final = 2_000
"""How many ids the fields inside a column have."""
_SAME: Final = (
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
)
_WIDENED: Final = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.time64("us"): pa.time64("us"),
}


def iceberg_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns of a table with the types of Iceberg, and with their field ids.

    Small integers become `int`, uint32 becomes `long`, uint64 becomes `decimal(20, 0)`, and float16 becomes `float`.
    Timestamps and times become those in microseconds; the instants of timestamps with a time zone stay, the zone does
    not. A column keeps its field id as long as it exists, whatever its name is.

    Raises:
        UsageError: Iceberg cannot hold a column. The message names it.
    """
    fields = []
    for field in schema:
        column = int((field.metadata or {})[FIELD_ID])
        inner = iter(range(_NESTED_IDS + column * _IDS_OF_COLUMN, _NESTED_IDS + (column + 1) * _IDS_OF_COLUMN))
        fields.append(_field(field, field.name, column + 1, _FieldIds(field.name, inner)))
    return pa.schema(fields)


def schema_of(schema: pa.Schema, primary_key: Sequence[str], schema_id: int) -> Schema:
    """Returns the Iceberg schema of columns that `iceberg_schema` has returned.

    Raises:
        UsageError: Iceberg cannot tell two of the names apart.
    """
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.schema import Schema

    try:
        fields = pyarrow_to_schema(schema).fields
        by_name = {field.name: field.field_id for field in fields}
        # Iceberg allows no floats as identifiers.
        has_floats = any(pat.is_floating(schema.field(name).type) for name in primary_key)
        ids = [] if has_floats else [by_name[name] for name in primary_key]
        found = Schema(*fields, schema_id=schema_id, identifier_field_ids=ids)
        found.find_field(fields[0].field_id)  # names are checked on use
        _ = found.column_names
    except ValueError as error:
        raise UsageError(f"the columns cannot be published as Iceberg: {error}: rename one of them") from error
    return found


def spec_of(schema: Schema, partition_by: Sequence[str], metadata: TableMetadata | None) -> PartitionSpec:
    """Returns the partition spec of a table with some partition columns: one that it has had before, or the next one.

    Args:
        schema: The schema of the table.
        partition_by: The names of the partition columns.
        metadata: The table as it is. None: it does not exist yet.
    """
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    wanted = [(schema.find_field(name).field_id, name) for name in partition_by]
    specs = [] if metadata is None else metadata.partition_specs
    for spec in specs:
        if [(field.source_id, field.name) for field in spec.fields] == wanted:
            return spec
    last = metadata.last_partition_id if metadata is not None else None
    ids = count((last or PARTITION_FIELD_ID_START - 1) + 1)
    fields = [PartitionField(source, next(ids), IdentityTransform(), name) for source, name in wanted]
    return PartitionSpec(*fields, spec_id=max((spec.spec_id for spec in specs), default=-1) + 1)


class _FieldIds:
    """Gives ids to the fields inside a column whose type is being converted."""

    def __init__(self, name: str, ids: Iterator[int]) -> None:
        self.name = name
        self._ids = ids

    def next_id(self) -> int:
        id_ = next(self._ids, None)
        if id_ is None:
            raise self.refused(f"its type has more than {_IDS_OF_COLUMN:,} fields: use fewer")
        return id_

    def refused(self, why: str) -> UsageError:
        return UsageError(f'column "{self.name}" cannot be published: {why}', column=self.name)


def _field(field: pa.Field, name: str, id_: int, column: _FieldIds, *, required: bool = False) -> pa.Field:
    is_nullable = field.nullable and not required
    return pa.field(name, _type(field.type, column), is_nullable, metadata={FIELD_ID: str(id_)})


def _type(type_: pa.DataType, column: _FieldIds) -> pa.DataType:
    if pat.is_struct(type_):
        return pa.struct([_field(each, each.name, column.next_id(), column) for each in type_.fields])
    if pat.is_map(type_):
        key = _field(type_.key_field, "key", column.next_id(), column, required=True)
        return pa.map_(key, _field(type_.item_field, "value", column.next_id(), column))
    if pat.is_list(type_):
        return pa.list_(_field(type_.value_field, "element", column.next_id(), column))
    if type_ in _SAME:
        return type_
    if type_ in _WIDENED:
        return _WIDENED[type_]
    if pat.is_timestamp(type_) and type_.unit != "ns":
        return pa.timestamp("us") if type_.tz is None else _UTC
    if pat.is_timestamp(type_) or pat.is_time(type_):
        raise column.refused(f"Iceberg has microseconds, not nanoseconds: use {str(type_).replace('[ns', '[us')}")
    if pat.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return type_
    raise column.refused(f"Iceberg has no type for {format_type(type_)}: use another type, such as text")
