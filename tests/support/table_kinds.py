"""Kinds of tables over which a suite runs by parameter: the contents are the same, the storage differs."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tests.support.evolved import create_evolved_table

if TYPE_CHECKING:
    from aio_client import Client, Table

_PARTITION: Final = pa.field("p", pa.int64(), nullable=False)
_PARTITION_KEYS: Final = 50


class TableKind(Enum):
    """A kind of table whose key is `k`, or begins with a partition that ascends with `k`.

    The bucket depends on `k` alone, so that rows have the same buckets, and there the same order, in all kinds.
    """

    PLAIN = "plain"
    EVOLVED = "evolved"
    """The columns had other names, places and types before."""
    PARTITIONED = "partitioned"
    """Partitioned, and its rows expire decades after their last write. Has a last column `p`, the partition."""

    def columns(self, schema: pa.Schema) -> pa.Schema:
        """Returns the columns of the table, with the given ones first."""
        return schema.append(_PARTITION) if self is TableKind.PARTITIONED else schema

    def key(self, k: int) -> tuple[int, ...]:
        """Returns the complete key of `k`, in key order."""
        return (_partition(k), k) if self is TableKind.PARTITIONED else (k,)

    def keys_only(self, k: int) -> dict[str, int]:
        """Returns the key columns of `k` by their names."""
        return {"p": _partition(k), "k": k} if self is TableKind.PARTITIONED else {"k": k}

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns a row with its partition, if the kind has partitions."""
        return row | self.keys_only(row["k"])

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with their partitions, if the kind has partitions."""
        if self is not TableKind.PARTITIONED:
            return batch
        partitions = pa.array([_partition(k) for k in batch.column("k").to_pylist()], _PARTITION.type)
        return batch.append_column(_PARTITION, partitions)

    async def create(self, client: Client, name: str, schema: pa.Schema, **arguments: Any) -> Table:
        """Creates a table without rows whose first columns are `schema`."""
        match self:
            case TableKind.EVOLVED if "aggregators" in arguments:
                return await _create_renamed(client, name, schema, **arguments)
            case TableKind.EVOLVED:
                return await create_evolved_table(client, name, schema, primary_key=["k"], **arguments)
            case TableKind.PARTITIONED:
                partitioned: dict[str, Any] = {"primary_key": ["p", "k"], "bucket_key": ["k"], "partition_by": ["p"]}
                columns = self.columns(schema)
                return await client.create_table(name, columns, **partitioned, ttl_seconds=2_000_000_000, **arguments)
        return await client.create_table(name, schema, primary_key=["k"], **arguments)


async def _create_renamed(
    client: Client, name: str, schema: pa.Schema, *, aggregators: dict[str, Any], **arguments: Any
) -> Table:
    """Creates a table whose aggregated columns, which cannot be dropped, had other names before."""
    before = pa.schema(
        [field.with_name(f"old {field.name}") if field.name in aggregators else field for field in schema]
    )
    functions = {f"old {column}": function for column, function in aggregators.items()}
    await client.create_table(name, before, primary_key=["k"], aggregators=functions, **arguments)
    return await client.alter_table(name, rename_columns={f"old {column}": column for column in aggregators})


def _partition(k: int) -> int:
    return k // _PARTITION_KEYS
