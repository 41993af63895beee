"""How the server would answer a scan or a top-N, as values and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from scankv.model.counts import counted
from scankv.v1 import lookup_pb2, scan_pb2

if TYPE_CHECKING:
    from aio_client._transport.transport import Transport
    from scankv.v1.scan_pb2 import ExplainScanResponse, ScanKvRequest

_SOURCES: Final = {"live": "live", "pinned": "pinned snapshot", "lake": "published version"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanExplanation:
    """What a scan or a top-N would read and decode; `print` shows it. Texts are for people, and may change.

    Attributes:
        source: "live" for the table, "pinned" for a snapshot, "lake" for a published version alone.
        table: The table's name, as `database.table`.
        buckets: The buckets whose rows are read, ascending. Empty: nothing is read.
        ranges: The key ranges that are read, as comparisons of key columns; the first ten. Empty: only points are read,
            or nothing.
        range_count: How many key ranges are read.
        all_keys: Whether the ranges are all keys of these buckets.
        points: How many single keys are looked up besides the ranges, without those found in an index.
        first_points: The first ten of these keys.
        index: The columns of the index that yields the keys to look up. Empty: no index is used, since none fits or
            reading the ranges costs less.
        index_ranges: The ranges of the index that are read, as comparisons of its columns; the first ten. Empty: no
            index is used, or no entry can match.
        index_range_count: How many ranges of the index are read.
        index_keys: The most keys that are looked up through the index. If more rows match by the time of the scan,
            `ranges` are read instead.
        residual: The residual predicate, which is evaluated for each row read. None: the rows need no filter.
        columns_read: The columns that are decoded for each row read. Without a residual predicate, these are the
            columns returned.
        columns_returned: The columns that are decoded for each row returned, in order.
        ordered: Whether the rows of all buckets are returned in one order, not only those of each bucket.
        reverse: Whether the order is descending.
        limit: The most rows returned. None: no limit.
        read_path: What the rows are read from: `columnar`, the columnar base of each bucket that has one, `rocksdb`, or
            `lake`, the files of the published table and what has changed since.
        read_path_reason: Why the rows are read from there, in words.
        partitions_read: How many partitions of a partitioned table are read. None: the table is not partitioned.
        partitions: How many partitions the buckets have. None: the table is not partitioned.
        by_offset: Whether the rows of a bucket are in the order of their log offsets, because the table has no primary
            key.
        instants: Of how many instants the rows are: more than one only with the consistency `owner`.
        order_by: Of a top-N: the column that orders the rows, nulls last in both directions. None: a scan is explained.
        index_order: Whether the entries of the index are read in their order until there are enough rows. `index_keys`
            is then the most entries that are read before `ranges` are read instead; 0: as many as it takes.
        with_ties: Whether a top-N also returns the rows after the last one that equal it in `order_by`.
    """

    source: Literal["live", "pinned", "lake"]
    table: str
    buckets: tuple[int, ...]
    ranges: tuple[str, ...]
    range_count: int
    all_keys: bool
    points: int
    first_points: tuple[str, ...]
    index: tuple[str, ...]
    index_ranges: tuple[str, ...]
    index_range_count: int
    index_keys: int
    residual: str | None
    columns_read: tuple[str, ...]
    columns_returned: tuple[str, ...]
    ordered: bool
    reverse: bool
    limit: int | None
    read_path: Literal["columnar", "rocksdb", "lake"]
    read_path_reason: str
    partitions_read: int | None
    partitions: int | None
    by_offset: bool
    instants: int
    order_by: str | None = None
    index_order: bool = False
    with_ties: bool = False

    @classmethod
    def of(cls, table: str, message: ExplainScanResponse) -> Self:
        """Decodes the server's answer about a scan of a table."""
        return cls(
            source="pinned" if message.snapshot_id else "live",
            table=table,
            buckets=tuple(message.buckets),
            ranges=tuple(message.ranges),
            range_count=message.range_count,
            all_keys=message.all_keys,
            points=message.points,
            first_points=tuple(message.first_points),
            index=tuple(message.index),
            index_ranges=tuple(message.index_ranges),
            index_range_count=message.index_range_count,
            index_keys=message.index_keys,
            residual=message.residual or None,
            columns_read=tuple(message.columns_read),
            columns_returned=tuple(message.columns_returned),
            ordered=message.ordered,
            reverse=message.reverse,
            limit=message.limit if message.HasField("limit") else None,
            read_path="columnar" if message.read_path == scan_pb2.READ_PATH_COLUMNAR else "rocksdb",
            read_path_reason=message.read_path_reason,
            partitions_read=message.partitions_read if message.HasField("partitions_read") else None,
            partitions=message.partitions if message.HasField("partitions") else None,
            by_offset=message.by_offset,
            instants=message.instants or 1,
            order_by=message.order_by or None,
            index_order=message.index_order,
            with_ties=message.with_ties,
        )

    @property
    def order(self) -> str:
        """The order of the rows in words."""
        by = "log offset" if self.by_offset else "key"
        if self.order_by is not None:
            ties = "in any order" if self.by_offset else "ascending by key"
            return f"{'descending' if self.reverse else 'ascending'} by {self.order_by}, nulls last; equal rows {ties}"
        return f"{'descending' if self.reverse else 'ascending'} by {by} " + (
            "over all buckets" if self.ordered else "within each bucket, one bucket after another"
        )

    def __str__(self) -> str:
        """Returns the explanation with one line per question."""
        lines = {
            "source": f"{self.table}, {_SOURCES[self.source]}",
            "buckets": ", ".join(map(str, self.buckets)) or "none: nothing is read",
            "view": "" if self.instants == 1 else f"{self.instants} instants, one for each owner of the buckets",
            "keys": self._keys(),
            "partitions": "" if self.partitions is None else f"{self.partitions_read:,} of {self.partitions:,}",
            "filter": self.residual or "none: every row read is returned",
            "read": ", ".join(self.columns_read) or "no columns",
            "returned": ", ".join(self.columns_returned) or "no columns",
            "order": self.order,
            "path": f"{self.read_path}: {self.read_path_reason}",
            "limit": "none" if self.limit is None else counted(self.limit, "row") + self.with_ties * " and all ties",
        }
        width = 10 if self.partitions is not None else 9
        return "\n".join(f"{what:<{width}} {text}" for what, text in lines.items() if text)

    def _keys(self) -> str:
        if self.index_order:
            read = _ranges_text(self.index_ranges, self.index_range_count) or "none"
            text = f"in the order of the index on ({', '.join(self.index)}), until there are enough: {read}"
            more = f"; if over {self.index_keys:,} entries: {_ranges_text(self.ranges, self.range_count)}"
            return text + more * bool(self.index_keys)
        if self.index:
            return (
                f"from the index on ({', '.join(self.index)}): "
                f"{_ranges_text(self.index_ranges, self.index_range_count) or 'none'}; "
                f"if over {self.index_keys:,}: {_ranges_text(self.ranges, self.range_count)}"
            )
        points = ""
        if self.points:
            more = ", ..." if self.points > len(self.first_points) else ""
            points = f"{self.points:,} looked up: {', '.join(self.first_points)}{more}"
        return "; ".join(filter(None, [_ranges_text(self.ranges, self.range_count), points])) or "none"


def _ranges_text(ranges: tuple[str, ...], count: int) -> str:
    """Formats ranges, of which only the first are given."""
    text = "; ".join(ranges)
    if count < 2:
        return text
    more = "; ..." if count > len(ranges) else ""
    return f"{count:,} ranges: {text}{more}"


async def explain(transport: Transport, request: ScanKvRequest) -> ScanExplanation:
    """Asks the server how it would answer a scan. Reads no rows. Raises what the start of the scan would raise."""
    return ScanExplanation.of(
        request.table, await transport.call(lambda: transport.services.scans.ExplainScan, request)
    )


async def explain_top_n(transport: Transport, request: lookup_pb2.TopNRequest) -> ScanExplanation:
    """Asks the server how it would answer a top-N. Reads no rows. Raises what the start of the query would raise."""
    # Both messages have the same fields.
    wanted = lookup_pb2.ExplainTopNRequest.FromString(request.SerializeToString())
    return ScanExplanation.of(
        request.table, await transport.call(lambda: transport.services.lookups.ExplainTopN, wanted)
    )
