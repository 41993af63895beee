"""Statistics of columnar bases as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.names import table_of
from scankv.v1 import admin_pb2, table_pb2
from streaming_server.engine.columnar.base_stats import base_stats_of

if TYPE_CHECKING:
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.table.live_table import LiveTable


def base_statistics(live: LiveBucket, now_micros: int) -> table_pb2.BaseStatistics:
    """Returns the statistics of the base of one bucket, at a commit time."""
    found = base_stats_of(live, now_micros)
    return table_pb2.BaseStatistics(
        unused_reason=found.unused_reason,
        log_offset=found.log_offset,
        rows=found.rows,
        disk_bytes=found.disk_bytes,
        changes_since=found.changes_since,
        delta_rows=found.delta_rows,
        delta_bytes=found.delta_bytes,
        age_millis=found.age_millis,
        builds=found.record.builds,
        build_cpu_micros=int(found.record.cpu_seconds * 1_000_000),
        written_bytes=found.record.written_bytes,
        last_build_cpu_micros=int(found.record.last_cpu_seconds * 1_000_000),
        last_written_bytes=found.record.last_written_bytes,
    )


def has_bases(table: LiveTable) -> bool:
    """Whether some bucket has a base or had one since the start, or each is to have one whatever its size."""
    if table.definition.options.columnar_base == "eager":
        return len(table.buckets) > 0
    return any(live.columnar.base is not None or live.columnar.record.builds for live in table.buckets)


def table_bases(table: LiveTable) -> admin_pb2.TableBases:
    """Returns the statistics of the bases of one table. Opens nothing."""
    now_micros = table.state.clock.commit_micros()
    found = [base_stats_of(live, now_micros) for live in table.buckets]
    return admin_pb2.TableBases(
        table=table_of(table.definition.name),
        buckets=len(found),
        bases=sum(not each.unused_reason for each in found),
        rows=sum(each.rows for each in found),
        disk_bytes=sum(each.disk_bytes for each in found),
        changes_since=sum(each.changes_since for each in found),
        delta_rows=sum(each.delta_rows for each in found),
        delta_bytes=sum(each.delta_bytes for each in found),
        age_millis=max(each.age_millis for each in found),
        builds=sum(each.record.builds for each in found),
        build_cpu_micros=int(sum(each.record.cpu_seconds for each in found) * 1_000_000),
        written_bytes=sum(each.record.written_bytes for each in found),
        unused_reasons=sorted({each.unused_reason for each in found if each.unused_reason}),
    )
