"""Statistics of columnar bases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from scankv.v1 import admin_pb2, table_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseStats:
    """The columnar base of one bucket; zeros if it has none. Costs are since the start of the server.

    Attributes:
        unused_reason: Why scans do not read a base of the bucket, in words. None if they read one.
        log_offset: The offset of the first change that is not in the base.
        rows: Rows in the base.
        disk_bytes: Bytes of its files.
        changes_since: The number of changes after the base, as log offsets count them.
        delta_rows: Rows and deletions in the delta, which is in memory. A key that was written several times may count
            several times.
        delta_bytes: Memory of the delta, including older states of it that scans still read.
        age: Seconds since the build of the base began.
        builds: Bases that were built.
        build_cpu: Processor time of all builds, including failed ones.
        written_bytes: Bytes of the files of all bases built.
        last_build_cpu: Processor time of the last build.
        last_written_bytes: Bytes of the files of the last base built.
    """

    unused_reason: str | None
    log_offset: int
    rows: int
    disk_bytes: int
    changes_since: int
    delta_rows: int
    delta_bytes: int
    age: float
    builds: int
    build_cpu: float
    written_bytes: int
    last_build_cpu: float
    last_written_bytes: int

    @classmethod
    def of(cls, message: table_pb2.BaseStatistics) -> Self:
        """Decodes the statistics in an answer."""
        return cls(
            unused_reason=message.unused_reason or None,
            log_offset=message.log_offset,
            rows=message.rows,
            disk_bytes=message.disk_bytes,
            changes_since=message.changes_since,
            delta_rows=message.delta_rows,
            delta_bytes=message.delta_bytes,
            age=message.age_millis / 1000,
            builds=message.builds,
            build_cpu=message.build_cpu_micros / 1_000_000,
            written_bytes=message.written_bytes,
            last_build_cpu=message.last_build_cpu_micros / 1_000_000,
            last_written_bytes=message.last_written_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBases:
    """The columnar bases of one table: sums over its buckets, except for the age. See `BaseStats`.

    Attributes:
        table: `database.table`.
        buckets: The number of buckets.
        bases: How many of the buckets are read from a base.
        rows: Rows in bases.
        disk_bytes: Bytes of their files.
        changes_since: The number of changes after the bases.
        delta_rows: Rows and deletions in the deltas, which are in memory.
        delta_bytes: Memory of the deltas.
        age: Seconds since the build of the oldest base began.
        builds: Bases that were built.
        build_cpu: Processor time of all builds.
        written_bytes: Bytes of the files of all bases built.
        unused_reasons: Why scans do not read bases of some buckets, each reason once.
    """

    table: str
    buckets: int
    bases: int
    rows: int
    disk_bytes: int
    changes_since: int
    delta_rows: int
    delta_bytes: int
    age: float
    builds: int
    build_cpu: float
    written_bytes: int
    unused_reasons: tuple[str, ...]

    @classmethod
    def of(cls, message: admin_pb2.TableBases) -> Self:
        """Decodes the statistics in an answer."""
        return cls(
            table=message.table,
            buckets=message.buckets,
            bases=message.bases,
            rows=message.rows,
            disk_bytes=message.disk_bytes,
            changes_since=message.changes_since,
            delta_rows=message.delta_rows,
            delta_bytes=message.delta_bytes,
            age=message.age_millis / 1000,
            builds=message.builds,
            build_cpu=message.build_cpu_micros / 1_000_000,
            written_bytes=message.written_bytes,
            unused_reasons=tuple(message.unused_reasons),
        )
