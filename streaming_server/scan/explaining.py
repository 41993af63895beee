"""What a scan would do, worked out as for the scan itself and put into words; nothing is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protos.scankv.v1 import scan_pb2
from streaming_server.scan.base_view import Via
from streaming_server.scan.keys_to_read import keys_to_read
from table_model.expressions import MAX_POINTS
from table_model.key_parts import point_text, range_text
from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streaming_server.scan.index_lookup import IndexChoice
    from streaming_server.scan.opening import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from table_model.schema import TableDefinition

_POINTS_SHOWN: Final = 10
_LONGEST_TEXT: Final = 10_000


def explain(
    plan: ReadPlan,
    definition: TableDefinition,
    reader: RowReader,
    buckets: Iterable[int],
    choice: IndexChoice | None,
    via: tuple[Via, str],
) -> scan_pb2.ExplainScanResponse:
    """Explains a scan from its beginning.

    Args:
        plan: What is asked for.
        definition: The table as of the view that would be read.
        reader: How it would be read.
        buckets: The buckets asked for.
        choice: The index that would tell the keys, None for none.
        via: What the rows would be read from, and why.
    """
    asked = () if plan.limit == 0 else buckets
    left = keys_to_read(reader, definition, asked, None, reverse=plan.reverse, ordered=plan.ordered)
    points = sorted(key for keys in left.values() if not isinstance(keys, KeyRange) for key in keys)
    # All buckets are read in the same range.
    ranges = {keys for keys in left.values() if isinstance(keys, KeyRange)}
    residual = reader.residual if choice is None else choice.plan.residual
    returned = definition.schema.names if plan.columns is None else plan.columns
    looked_at = set(returned if residual is None else residual.columns)
    if plan.ordered and len(left) > 1:
        looked_at |= set(definition.primary_key)
    return scan_pb2.ExplainScanResponse(
        buckets=left,
        ranges=[range_text(keys, reader.keys) for keys in ranges],
        points=len(points),
        first_points=[point_text(key, reader.keys) for key in points[:_POINTS_SHOWN]],
        residual="" if residual is None else _shortened(repr(residual.predicate)),
        columns_read=[name for name in definition.schema.names if name in looked_at],
        columns_returned=returned,
        ordered=plan.ordered,
        reverse=plan.reverse,
        limit=plan.limit,
        index=() if choice is None else choice.codec.index.columns,
        index_range="" if choice is None else _shortened(repr(choice.plan.told)),
        index_keys=0 if choice is None else MAX_POINTS,
        via=scan_pb2.VIA_BASE if via[0] is Via.BASE else scan_pb2.VIA_ITERATOR,
        via_reason=via[1],
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
