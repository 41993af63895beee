"""Statistics of one table: its buckets, disk use and index builds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aio_client._admin.bases import BaseStats
from aio_client._admin.disk_use import DiskUse
from aio_client._admin.indexes import index_statuses
from aio_client._table.handle import TableMethods

if TYPE_CHECKING:
    from aio_client._admin.indexes import IndexStatus
    from scankv.v1 import table_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStats:
    """The statistics of one bucket.

    Attributes:
        bucket: The bucket's number.
        rows: The exact number of live rows. None if the table does not count its rows, because writes do not read the
            rows that they replace (see the option `changelog` of `create_table`); `Table.count` reads them.
        log_offset: The log offset that the next change gets.
        epoch: How many unclean server starts the bucket has seen.
        disk_bytes: Bytes of the bucket's files on disk, without its columnar base and its snapshots.
        log_bytes: Bytes of the changes in the changelog, as they were written.
        retention_holder: What has the oldest retention hold: a stream, consumer, transaction, snapshot or undo. None if
            nothing holds the changelog.
        retention_hold_bytes: Bytes of the changes from that hold on, which retention does not remove.
        damage: Why the bucket cannot be read. None if it can.
        base: The bucket's columnar base. None if the table has the option `columnar_base=off`.
    """

    bucket: int
    rows: int | None
    log_offset: int
    epoch: int
    disk_bytes: int
    log_bytes: int
    retention_holder: str | None
    retention_hold_bytes: int
    damage: str | None
    base: BaseStats | None

    @classmethod
    def of(cls, message: table_pb2.BucketStatistics) -> Self:
        """Decodes the statistics in an answer."""
        return cls(
            bucket=message.bucket,
            rows=message.rows if message.HasField("rows") else None,
            log_offset=message.log_offset,
            epoch=message.epoch,
            disk_bytes=message.disk_bytes,
            log_bytes=message.log_bytes,
            retention_holder=message.retention_holder or None,
            retention_hold_bytes=message.retention_hold_bytes,
            damage=message.damage or None,
            base=BaseStats.of(message.base) if message.HasField("base") else None,
        )


class StatsMethods(TableMethods):
    """The statistics of a table. Every call asks the server."""

    async def stats(self) -> list[BucketStats]:
        """Returns the statistics of every bucket, in ascending order of bucket numbers. Opens all buckets."""
        response = await self._handle.describe(statistics=True)
        return [BucketStats.of(bucket) for bucket in response.buckets]

    async def disk_use(self) -> DiskUse:
        """Returns the disk use of the table now, with its columnar bases and snapshots. Opens all buckets."""
        return DiskUse.of((await self._handle.describe(statistics=True)).disk)

    async def index_status(self) -> list[IndexStatus]:
        """Returns how far the build of every index has come, in the order of creation. Opens all buckets."""
        return index_statuses(await self._handle.describe(statistics=True))
