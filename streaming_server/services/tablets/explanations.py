"""Explains reads of a table with tablets: one plan for all buckets, and the indexes that the tablets have."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scankv.v1 import lookup_pb2, scan_pb2
from streaming_server.scan.execution.explain import explain
from streaming_server.scan.read_plan import ReadPath
from streaming_server.scan.rows.index_choice import plan_reads
from streaming_server.services.query_request import bind_top_n, top_n_of
from streaming_server.services.scan_request import read_plan
from streaming_server.services.tablets.scans import tablets_by_instant
from streaming_server.storage.rows.table_codec import TableCodec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_EXPLAIN: Final = "scankv.v1.ScanService/ExplainScan"
_EXPLAIN_TOP_N: Final = "scankv.v1.LookupService/ExplainTopN"


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
    joined = await _ask_tablets(_EXPLAIN, requests, calls)
    plan = plan.as_of(calls.now_micros)
    keys = await _join_keys(joined, plan, request, calls)
    if request.consistency == scan_pb2.CONSISTENCY_OWNER:
        joined.instants = len(tablets_by_instant(request, calls, by_tablet))
    if plan.ordered and len(keys.buckets) > 1:
        # Their rows are merged by their keys, which a tablet with one of the buckets does not know.
        looked_at = {*joined.columns_read, *calls.definition.primary_key}
        joined.columns_read[:] = [name for name in calls.definition.schema.names if name in looked_at]
    return joined


async def explain_top_n(request: lookup_pb2.ExplainTopNRequest, calls: TabletCalls) -> scan_pb2.ExplainScanResponse:
    """Explains a top-N: see `LookupService.ExplainTopN`. If the tablets differ, the slowest tablet counts."""
    requests = {}
    for number, tablet in enumerate(calls.tablets):
        each = requests[number] = lookup_pb2.ExplainTopNRequest()
        each.CopyFrom(request)
        each.table = tablet.name
    joined = await _ask_tablets(_EXPLAIN_TOP_N, requests, calls)
    plan = bind_top_n(top_n_of(request), calls.definition).plan.as_of(calls.now_micros)
    await _join_keys(joined, plan, request, calls)
    return joined


async def _ask_tablets(
    method: str, requests: Mapping[int, Message], calls: TabletCalls
) -> scan_pb2.ExplainScanResponse:
    """Returns the explanation of the slowest tablet. Each tablet looks up a part of the keys that all may look up."""
    answers = await calls.ask(method, requests, scan_pb2.ExplainScanResponse)
    slowest = min(answers.values(), key=speed_of)
    if slowest.index and not slowest.index_order:
        slowest.index_keys = sum(each.index_keys for each in answers.values())
    return slowest


def speed_of(answer: scan_pb2.ExplainScanResponse) -> tuple[bool, bool, bool]:
    """Returns a value that is larger for the faster of two tablets."""
    # A tablet that reads an index in its order may end early, and one that collects candidates does not.
    return bool(answer.index), answer.index_order, answer.read_path == scan_pb2.READ_PATH_COLUMNAR


async def _join_keys(
    joined: scan_pb2.ExplainScanResponse,
    plan: ReadPlan,
    request: scan_pb2.ScanKvRequest | lookup_pb2.ExplainTopNRequest,
    calls: TabletCalls,
) -> scan_pb2.ExplainScanResponse:
    """Has the explanation of one tablet name the keys of all. Returns the explanation of these keys alone."""
    # Which keys are read where does not depend on what the tablets have.
    keys = await asyncio.to_thread(_explain_keys, plan, calls.definition)
    joined.buckets[:], joined.ranges[:], joined.first_points[:] = keys.buckets, keys.ranges, keys.first_points
    joined.range_count, joined.points, joined.all_keys = keys.range_count, keys.points, keys.all_keys
    joined.snapshot_id = request.snapshot.snapshot_id
    return keys


def _explain_keys(plan: ReadPlan, definition: TableDefinition) -> scan_pb2.ExplainScanResponse:
    """Explains a scan as if the table had all buckets itself. Raises SchemaMismatch."""
    together = replace(definition, tablets=1)
    reader, _ = plan_reads(plan, TableCodec.of(together))
    buckets = sorted(plan.buckets or together.own_buckets)
    return explain(plan, together, reader, buckets, None, (ReadPath.ROCKSDB, ""))
