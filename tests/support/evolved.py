"""Tables that have had other columns before, for tests that do not care how a table got its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client import Client, Table

_NARROWER: Final = {
    pa.int64(): pa.int16(),
    pa.int32(): pa.int8(),
    pa.float64(): pa.float32(),
    pa.decimal128(12, 2): pa.decimal128(6, 2),
}


async def create_evolved_table(
    client: Client, name: str, schema: pa.Schema, *, primary_key: Sequence[str], **arguments: Any
) -> Table:
    """Creates a table without rows whose columns become `schema` when they are changed.

    Before, the columns outside the key had other names, other places and, if possible, narrower types. The first
    nullable one among them was another column with the same name.

    Args:
        client: The client.
        name: The table.
        schema: The columns that the table gets.
        primary_key: The key columns.
        arguments: Further arguments of `create_table`, which name no columns outside the key.
    """
    others = [field for field in schema if field.name not in primary_key]
    again = next(field for field in others if field.nullable)
    kept = [field for field in others if field is not again]
    before = [
        field.with_name(f"old {field.name}").with_type(_NARROWER.get(field.type, field.type))
        for field in reversed(kept)
    ]
    key = [schema.field(each) for each in reversed(primary_key)]
    first = pa.schema([pa.field(again.name, pa.date32()), *before, *key, ("dropped", pa.string())])
    await client.create_table(name, first, primary_key=primary_key, **arguments)
    table = await client.alter_table(
        name,
        drop_columns=[again.name, "dropped"],
        rename_columns={f"old {field.name}": field.name for field in kept},
        column_types={f"old {field.name}": field.type for field in kept if field.type in _NARROWER},
        add_columns=pa.schema([again]),
        column_order=schema.names,
    )
    assert table.schema == schema
    return table
