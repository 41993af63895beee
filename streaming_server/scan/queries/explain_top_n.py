"""How would a top-N be answered? Completes the explanation of the scan that would find its rows. Reads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.keys.key_parts import range_text
from scankv.model.keys.key_range import KeyRange
from scankv.v1 import scan_pb2
from streaming_server.scan.execution.explain import residual_text

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from scankv.v1.scan_pb2 import ExplainScanResponse
    from streaming_server.scan.queries.indexed_top_n import OrderChoice
    from streaming_server.scan.queries.top_n import TopNSpec


def complete_explanation(
    answer: ExplainScanResponse, spec: TopNSpec, definition: TableDefinition, choice: OrderChoice | None
) -> None:
    """Makes the explanation of a scan that of a top-N.

    Args:
        answer: The explanation of the scan that would read the candidates if no index had the order. Changed in place.
        spec: The requested rows.
        definition: The table.
        choice: The index that has the order. None: the rows are found by the scan.
    """
    answer.order_by, answer.ordered, answer.reverse = spec.by, True, not spec.ascending
    answer.limit, answer.with_ties = spec.n, spec.with_ties
    read = {spec.by, *answer.columns_read}
    if choice is not None:
        _read_in_index_order(answer, spec, choice)
        residual = choice.plan.residual
        read = {spec.by, *(() if residual is None else residual.columns)}
    answer.columns_read[:] = [name for name in definition.schema.names if name in read]
    answer.columns_returned[:] = definition.schema.names if spec.columns is None else spec.columns


def _read_in_index_order(answer: ExplainScanResponse, spec: TopNSpec, choice: OrderChoice) -> None:
    plan = choice.plan
    ranges = [each for each in (plan.values, plan.nulls) if not each.is_empty]
    if len(ranges) == 2 and ranges[0].end == ranges[1].start:
        ranges = [KeyRange(ranges[0].start, ranges[1].end)]
    answer.index_order, answer.index_keys = True, choice.most_entries(spec) or 0
    answer.index[:] = choice.codec.index.columns
    answer.index_ranges[:] = [range_text(each, choice.codec.columns) for each in ranges]
    answer.index_range_count = len(ranges)
    answer.residual = "" if plan.residual is None else residual_text(plan.residual)
    answer.read_path = scan_pb2.READ_PATH_ROCKSDB
    answer.read_path_reason = "an index has the rows in this order"
