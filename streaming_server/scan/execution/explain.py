"""Explains what a scan would do: describes the plan that the scan itself would choose. Reads nothing."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from scankv.model.counts import counted
from scankv.model.keys.key_parts import point_text, range_text
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES, KeyRanges
from scankv.v1 import scan_pb2
from streaming_server.scan.read_plan import ReadPath
from streaming_server.scan.rows.keys_to_read import keys_to_read

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from scankv.model.expressions import BoundPredicate
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.scan.rows.index_choice import IndexChoice
    from streaming_server.scan.rows.index_lookup import IndexLookup

_POINTS_SHOWN: Final = 10
_RANGES_SHOWN: Final = 10
_LONGEST_TEXT: Final = 10_000


def explain(
    plan: ReadPlan,
    definition: TableDefinition,
    reader: RowReader,
    buckets: Iterable[int],
    lookup: IndexLookup | None,
    read_path: tuple[ReadPath, str],
    partitions: Collection[bytes] = (),
) -> scan_pb2.ExplainScanResponse:
    """Explains a scan from its beginning.

    Args:
        plan: The requested scan.
        definition: The table as of the view that would be read.
        reader: The reader that the scan would use.
        buckets: The requested buckets.
        lookup: The lookup that has read the entries of an index. None: no index can be used.
        read_path: Where the rows would be read from without an index, and the human-readable reason.
        partitions: The encoded values of the partitions of these buckets. Empty: the table is not partitioned.
    """
    asked = () if plan.limit == 0 else buckets
    path, reason = _read_path(lookup, read_path)
    choice = lookup.choice if lookup is not None and lookup.is_chosen else None
    left = keys_to_read(reader, definition, asked, None, reverse=plan.reverse, ordered=plan.ordered)
    pieces = sorted(
        {pair for keys in left.values() for pair in zip(keys.starts, keys.ends, strict=True)}, key=_start_of
    )
    read = KeyRanges(tuple([start for start, _ in pieces]), tuple([end for _, end in pieces]))
    points = read.keys
    ranges = [one for one in read if not KeyRanges.of(one).are_keys]
    residual = reader.residual if choice is None else choice.plan.residual
    returned = definition.schema.names if plan.columns is None else plan.columns
    looked_at = set(returned if residual is None else residual.columns)
    if plan.ordered and len(left) > 1:
        looked_at |= set(definition.primary_key)
    return scan_pb2.ExplainScanResponse(
        buckets=left,
        ranges=[range_text(one, reader.keys) for one in ranges[:_RANGES_SHOWN]],
        range_count=len(ranges),
        all_keys=read == ALL_KEY_RANGES,
        points=len(points),
        first_points=[point_text(key, reader.keys) for key in points[:_POINTS_SHOWN]],
        residual="" if residual is None else residual_text(residual),
        columns_read=[name for name in definition.schema.names if name in looked_at],
        columns_returned=returned,
        ordered=plan.ordered,
        reverse=plan.reverse,
        limit=plan.limit,
        index=() if choice is None else choice.codec.index.columns,
        index_ranges=[] if choice is None else _index_texts(choice),
        index_range_count=0 if choice is None else len(choice.plan.ranges),
        index_keys=0 if lookup is None or choice is None else lookup.most,
        read_path=scan_pb2.READ_PATH_COLUMNAR if path is ReadPath.COLUMNAR else scan_pb2.READ_PATH_ROCKSDB,
        read_path_reason=reason,
        partitions=len(partitions) if definition.partition_by else None,
        by_offset=not definition.has_key,
        partitions_read=_count_partitions(partitions, read) if definition.partition_by else None,
    )


def plan_text(answer: scan_pb2.ExplainScanResponse) -> str:
    """Returns a short description of a plan for the log, without values of keys and predicates."""
    parts = [
        "reads the columnar base" if answer.read_path == scan_pb2.READ_PATH_COLUMNAR else "reads RocksDB",
        counted(len(answer.buckets), "bucket"),
        "all keys"
        if answer.all_keys
        else f"{counted(answer.range_count, 'key range')} and {counted(answer.points, 'key')}",
    ]
    if answer.index:
        parts.append(f"found by the index on {', '.join(answer.index)} in {counted(answer.index_range_count, 'range')}")
    if answer.residual:
        parts.append("a residual predicate")
    parts.append(f"columns read: {', '.join(answer.columns_read)}")
    if answer.ordered:
        parts.append("ordered, descending" if answer.reverse else "ordered")
    if answer.HasField("limit"):
        parts.append(f"limit {answer.limit}")
    return "; ".join(parts)


def _read_path(lookup: IndexLookup | None, without: tuple[ReadPath, str]) -> tuple[ReadPath, str]:
    if lookup is None:
        return without
    if lookup.is_chosen:
        return ReadPath.ROCKSDB, "single keys are looked up"
    columns = ", ".join(lookup.choice.codec.index.columns)
    return without[0], f"too many rows match for the index on ({columns}); {without[1]}"


def residual_text(residual: BoundPredicate) -> str:
    """Returns a residual predicate as an explanation shows it."""
    return _shorten(repr(residual.predicate))


def _count_partitions(partitions: Iterable[bytes], read: KeyRanges) -> int:
    """Returns how many partitions have keys in some ranges."""
    return sum(bool(read.within(KeyRange.under(name))) for name in partitions)


def _index_texts(choice: IndexChoice) -> list[str]:
    return [range_text(one, choice.codec.columns) for one in islice(choice.plan.ranges, _RANGES_SHOWN)]


def _start_of(piece: tuple[bytes, bytes | None]) -> bytes:
    return piece[0]


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
