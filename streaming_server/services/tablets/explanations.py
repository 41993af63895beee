"""Explains a scan of a table with tablets: one plan for all buckets, and the indexes that the tablets have."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scankv.v1 import scan_pb2
from streaming_server.scan.execution.explain import explain
from streaming_server.scan.read_plan import ReadPath
from streaming_server.scan.rows.index_lookup import plan_reads
from streaming_server.services.scan_request import read_plan
from streaming_server.services.tablets.scans import tablets_by_instant
from streaming_server.storage.rows.table_codec import TableCodec

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_EXPLAIN: Final = "scankv.v1.ScanService/ExplainScan"


async def explain_scan(request: scan_pb2.ScanKvRequest, calls: TabletCalls) -> scan_pb2.ExplainScanResponse:
    """Explains a scan: see `ScanService.ExplainScan`. If the tablets differ, the slowest tablet counts."""
    plan = read_plan(request)
    calls.check_buckets(plan.buckets)
    by_tablet, requests = calls.buckets_by_tablet(request.buckets), {}
    for tablet, buckets in by_tablet.items():
        each = requests[tablet] = scan_pb2.ScanKvRequest()
        each.CopyFrom(request)
        each.ClearField("resume_token")
        each.table, each.buckets[:] = calls.tablets[tablet].name, buckets
    answers = await calls.ask(_EXPLAIN, requests, scan_pb2.ExplainScanResponse)
    joined = min(answers.values(), key=lambda each: (bool(each.index), each.read_path == scan_pb2.READ_PATH_COLUMNAR))
    plan = plan.as_of(calls.now_micros)
    # Which keys are read where does not depend on what the tablets have.
    keys = await asyncio.to_thread(_explain_keys, plan, calls.definition)
    joined.buckets[:], joined.ranges[:], joined.first_points[:] = keys.buckets, keys.ranges, keys.first_points
    if request.consistency == scan_pb2.CONSISTENCY_OWNER:
        joined.instants = len(tablets_by_instant(request, calls, by_tablet))
    joined.snapshot_id = request.snapshot.snapshot_id
    joined.range_count, joined.points, joined.all_keys = keys.range_count, keys.points, keys.all_keys
    if plan.ordered and len(keys.buckets) > 1:
        # Their rows are merged by their keys, which a tablet with one of the buckets does not know.
        looked_at = {*joined.columns_read, *calls.definition.primary_key}
        joined.columns_read[:] = [name for name in calls.definition.schema.names if name in looked_at]
    return joined


def _explain_keys(plan: ReadPlan, definition: TableDefinition) -> scan_pb2.ExplainScanResponse:
    """Explains a scan as if the table had all buckets itself. Raises SchemaMismatch."""
    together = replace(definition, tablets=1)
    reader, _ = plan_reads(plan, TableCodec.of(together))
    buckets = sorted(plan.buckets or together.own_buckets)
    return explain(plan, together, reader, buckets, None, (ReadPath.ROCKSDB, ""))
