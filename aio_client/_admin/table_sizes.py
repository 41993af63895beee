"""The sizes of tables, as a list of tables shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from scankv.v1 import table_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """How large a table is.

    Attributes:
        rows: The number of live rows. None: the table does not count its rows (see the option `changelog` of
            `create_table`), or a bucket is damaged or was not opened since the server started.
        disk_bytes: About the bytes on disk, with columnar bases, without snapshots: see `Table.disk_use`.
        unopened_buckets: How many buckets were not opened since the server started, so that their rows are not known.
    """

    rows: int | None
    disk_bytes: int
    unopened_buckets: int

    @classmethod
    def of(cls, message: table_pb2.TableSize) -> Self:
        """Decodes a size in an answer."""
        return cls(
            rows=message.rows if message.HasField("rows") else None,
            disk_bytes=message.disk_bytes,
            unopened_buckets=message.unopened_buckets,
        )
