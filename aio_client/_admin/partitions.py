"""Partitions of a table: listing, creating and dropping them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from aio_client._table.handle import TableMethods
from scankv.model.errors import InvalidRequest, UsageError
from scankv.model.tables.partition_ttl import partition_rule
from scankv.model.tables.partitioning import Partitioning
from scankv.v1 import partition_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.tables.partition_ttl import PartitionRule


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition of a table at one moment.

    Attributes:
        values: The value of each partition column, by name. A value that Python does not have, such as a date after the
            year 9999, is an Arrow scalar.
        rows: The exact number of live rows. None if the table does not count its rows, because writes do not read the
            rows that they replace (see the option `changelog` of `create_table`).
        disk_bytes: About how many bytes of table files the rows take: their share, by number, of the files of each
            bucket. Rows that were written in the last minutes may not be in files yet. None if `rows` is None.
        created_at: When the partition was created, by a call or by its first write; in UTC, by the server's clock.
        last_write_at: When it was last written. None: never.
        expires_at: When the table option `partition_ttl` lets the server drop the partition, in UTC. None: never;
            with the option, because the value of its column is no time in the expected format.
    """

    values: dict[str, Any]
    rows: int | None
    disk_bytes: int | None
    created_at: dt.datetime
    last_write_at: dt.datetime | None
    expires_at: dt.datetime | None

    @classmethod
    def of(cls, message: partition_pb2.Partition, partitioning: Partitioning, rule: PartitionRule | None) -> Self:
        """Decodes a partition in an answer."""
        values = partitioning.decode(message.values)
        return cls(
            values=values,
            rows=message.rows if message.HasField("rows") else None,
            disk_bytes=message.disk_bytes if message.HasField("disk_bytes") else None,
            created_at=_time(message.created_micros),
            last_write_at=_time(message.written_micros) if message.written_micros else None,
            expires_at=None if rule is None else rule.expiry_of(values),
        )


class PartitionMethods(TableMethods):
    """The partitions of a table that was created with `partition_by`."""

    async def partitions(self, values: Mapping[str, object] | None = None) -> list[PartitionInfo]:
        """Lists partitions in key order. Opens all buckets of the table.

        A partition exists from its first write, or from `create_partition`, until it is dropped; also without rows.

        Args:
            values: List only partitions with these values of the first partition columns. Default: all.

        Raises:
            InvalidRequest: The table is not partitioned.
            InvalidKey: A value is not of its column's type, or names no partition column.
            DataLoss: A bucket is damaged.
        """
        partitioning = self._partitioning
        prefix = partitioning.encode(_mapping(values)) if values else b""
        request = partition_pb2.ListPartitionsRequest(table=self._handle.name, values=prefix)
        transport = self._handle.transport
        response = await transport.call(lambda: transport.services.partitions.ListPartitions, request)
        return self._infos(response.partitions, partitioning)

    async def create_partition(self, values: Mapping[str, object]) -> bool:
        """Creates a partition without rows, durably. The first write would create it as well.

        Args:
            values: The value of each partition column, by name.

        Returns:
            Whether the partition is new.

        Raises:
            InvalidRequest, InvalidKey, DataLoss: As `partitions`.
            DiskFull: The disk is full.
        """
        prefix = self._partitioning.encode(_mapping(values))
        request = partition_pb2.CreatePartitionRequest(table=self._handle.name, values=prefix)
        transport = self._handle.transport
        response = await transport.call(lambda: transport.services.partitions.CreatePartition, request)
        return response.created

    async def drop_partition(self, values: Mapping[str, object]) -> list[PartitionInfo]:
        """Drops all rows of a partition, or of several, in all buckets at one instant: durably, and all or nothing.

        The time does not depend on the number of rows, and other partitions can be read and written in the meantime.
        Scans that run and pinned snapshots keep the rows. The changelog does not get a change for each row, but one
        marker of a deleted range in each bucket that had such rows. A transaction that is open and has staged rows of
        the partition writes them when it commits, which creates the partition again.

        Args:
            values: The value of each partition column, by name; or only of the first ones, which drops all partitions
                that have these values.

        Returns:
            The dropped partitions, as they were before. Empty if none existed.

        Raises:
            InvalidRequest, InvalidKey: As `partitions`. Nothing was dropped.
            ColumnLocked: A column of the table is locked.
            DataLoss: A bucket is damaged. Nothing was dropped.
            DiskFull: The disk is full.
        """
        partitioning = self._partitioning
        prefix = partitioning.encode(_mapping(values))
        request = partition_pb2.DropPartitionsRequest(table=self._handle.name, values=prefix)
        transport = self._handle.transport
        response = await transport.call(lambda: transport.services.partitions.DropPartitions, request, repeatable=False)
        return self._infos(response.partitions, partitioning)

    @property
    def _partitioning(self) -> Partitioning:
        shape = self._handle.shape
        names = list(shape.description.partition_by)
        if not names:
            raise InvalidRequest(
                f"table {shape.name} is not partitioned: create a table with partition_by to have partitions",
                table=shape.name,
            )
        return Partitioning(names, [shape.schema.field(name).type for name in names])

    def _infos(self, messages: Iterable[partition_pb2.Partition], partitioning: Partitioning) -> list[PartitionInfo]:
        options = self._handle.shape.description.options
        ttl, column, format_ = (
            options.get(name, "") for name in ("partition_ttl", "partition_ttl_column", "partition_ttl_format")
        )
        rule = partition_rule(ttl, column, format_, partitioning)
        return [PartitionInfo.of(message, partitioning, rule) for message in messages]


def _mapping(values: Mapping[str, object]) -> Mapping[str, object]:
    if not isinstance(values, Mapping):
        raise UsageError(f'values must be a mapping of partition columns, as {{"day": day}}, not {values!r:.80}')
    return values


def _time(micros: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=micros)
