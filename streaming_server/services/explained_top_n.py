"""Explains a top-N: which index has its order, or how a scan would find its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.engine.snapshots.part_ids import shown_id
from streaming_server.scan.queries.explain_top_n import complete_explanation
from streaming_server.services.indexed_top_n import choose_index
from streaming_server.services.query_request import bind_top_n
from streaming_server.services.reading import definition_of, live_table_of

if TYPE_CHECKING:
    from scankv.v1 import lookup_pb2
    from scankv.v1.scan_pb2 import ExplainScanResponse
    from streaming_server.engine.tables.tables import Tables


async def explain_top_n(tables: Tables, request: lookup_pb2.TopNRequest) -> ExplainScanResponse:
    """Explains what `LookupService.TopN` would do. Reads no rows.

    Raises:
        ScanKvError: As the start of the query.
    """
    query = bind_top_n(request, definition_of(tables, request))
    chosen = await choose_index(tables, query)
    table, plan, definition = live_table_of(tables, request), query.plan, query.definition
    if table is not None:
        answer = await table.reads.explain(plan)
    else:
        snapshot_id = request.snapshot.snapshot_id
        async with tables.snapshots.reading(snapshot_id, request.table, None) as reader:
            answer = await reader.explain(plan)
        answer.snapshot_id = shown_id(snapshot_id)
    choice = None
    if chosen is not None:
        choice, definition = chosen
    complete_explanation(answer, query.result, definition, choice)
    return answer
