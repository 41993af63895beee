"""Opens a scan: turns a read plan into a source that reads it, for live tables and pinned snapshots alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.expressions import nanoseconds_a_byte, nanoseconds_a_row
from scankv.model.limits import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS
from streaming_server.scan.columnar.base_view import NO_BASES, cursors_of
from streaming_server.scan.resume_token import Fingerprint, TokenWriter, read_token
from streaming_server.scan.rows.keys_to_read import keys_to_read
from streaming_server.scan.rows.kv_source import KvSource
from streaming_server.scan.rows.ordered_source import OrderedSource
from streaming_server.scan.rows.row_representations import KeyedRepresentation, StoredRepresentation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scankv.model.errors import ScanKvError
    from scankv.model.expressions import BoundPredicate
    from scankv.model.keys.key_ranges import KeyRanges
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.bucket_cursors import BucketCursors
    from streaming_server.scan.chunk_source import ChunkSource, ScanPosition, View
    from streaming_server.scan.columnar.base_view import BaseView
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.resume_token import ResumePoint
    from streaming_server.scan.row_reader import ReadableBucket, RowReader

_PREDICATE_NANOSECONDS: Final = 8_000_000
"""How long a predicate may be evaluated at once: as long as several chunks without a predicate take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedScan:
    """A source that is ready to be read. The caller must close it.

    Attributes:
        source: Returns the rows.
        tokens: Creates the tokens that fit it.
        definition: The table as of the view.
        resumed_from: Where the scan resumes. None: at its beginning.
        limit: The most rows left to return. None: no limit.
        selective: Whether chunks may have fewer rows than were read for them.
        large_chunks: Whether only columnar bases are read, batch by batch, so that larger chunks take no longer.
        most_rows: The most rows to read at once, since a predicate of hundreds of nodes is evaluated on each.
        most_bytes: The most bytes to read at once, since a pattern may take long for a long text.
        has_version: Whether the view has a version, which a view that may not be durable must not have.
    """

    source: ChunkSource
    tokens: TokenWriter
    definition: TableDefinition
    resumed_from: ResumePoint | None
    limit: int | None
    selective: bool = False
    large_chunks: bool = False
    most_rows: int = MAX_CHUNK_ROWS
    most_bytes: int = MAX_CHUNK_BYTES
    has_version: bool = True

    def room(self, max_rows: int, max_bytes: int) -> tuple[int, int]:
        """Returns the rows and bytes to read at once for a chunk of at most `max_rows` and `max_bytes`."""
        rows = min(max_rows, self.most_rows)
        return rows, min(self.most_bytes, max(1, max_bytes * rows // max_rows))


def open_scan(
    plan: ReadPlan,
    definition: TableDefinition,
    reader: RowReader,
    view: View,
    view_id: str,
    bucket_of: Callable[[int], ReadableBucket],
    on_error: Callable[[int, ScanKvError], ScanKvError],
    bases: Mapping[int, BaseView] = NO_BASES,
) -> OpenedScan:
    """Creates the cursors of a scan as of now.

    Args:
        plan: The requested scan.
        definition: The table as of the view.
        reader: How it is read.
        view: The buckets to read, and their offsets.
        view_id: Identifies a pinned view. Empty for the live table, whose tokens fit every later view.
        bucket_of: Returns the bucket with a number.
        on_error: See `KvSource`.
        bases: The buckets whose key ranges are read from a columnar base.

    Raises:
        InvalidResumeToken: The token does not fit.
        DataLoss: A bucket is damaged.
    """
    fingerprint = _fingerprint(plan, definition, reader, view, view_id)
    point = read_token(plan.resume_token, fingerprint) if plan.resume_token else None
    position = point.position if point else None
    limit = point.remaining if point else plan.limit
    buckets = () if limit == 0 else view.log_offsets
    left = keys_to_read(reader, definition, buckets, position, reverse=plan.reverse, ordered=plan.ordered)
    cursors = cursors_of(reader, left, bucket_of, bases, reverse=plan.reverse, ordered=plan.ordered)
    source = _source(plan, definition, reader, view, cursors, position, on_error, ranges=left, of_bases=bool(bases))
    return OpenedScan(
        source=source,
        tokens=TokenWriter(fingerprint, view, None if definition.expiry is None else plan.now_micros),
        definition=definition,
        resumed_from=point,
        limit=limit,
        selective=reader.selective,
        # Chunks of rows that are decoded, or merged in order, hold the event loop longer the larger they are.
        large_chunks=isinstance(source, KvSource) and bool(left) and bases.keys() >= left.keys(),
        most_rows=MAX_CHUNK_ROWS if reader.residual is None else _most_rows(reader.residual),
        most_bytes=MAX_CHUNK_BYTES if reader.residual is None else _most_bytes(reader.residual),
        has_version=not plan.latest,
    )


def _most_rows(asked: BoundPredicate) -> int:
    return max(1, min(MAX_CHUNK_ROWS, _PREDICATE_NANOSECONDS // nanoseconds_a_row(asked)))


def _most_bytes(asked: BoundPredicate) -> int:
    return max(1, min(MAX_CHUNK_BYTES, _PREDICATE_NANOSECONDS // max(1, nanoseconds_a_byte(asked))))


def _fingerprint(
    plan: ReadPlan, definition: TableDefinition, reader: RowReader, view: View, view_id: str
) -> Fingerprint:
    return Fingerprint.of(
        table=(definition.name, definition.incarnation, view_id),
        schema=reader.decoder.schema.serialize().to_pybytes(),
        query=(
            sorted(view.log_offsets),
            plan.columns,
            plan.where_message,
            plan.limit,
            plan.key_range,
            plan.reverse,
            plan.ordered,
            # Nothing for `read_committed`, so that tokens of earlier servers fit.
            *(("latest",) if plan.latest else ()),
            *(("changes_follow",) if plan.changes_follow else ()),
            *plan.reused_names(definition),
        ),
    )


def _source(
    plan: ReadPlan,
    definition: TableDefinition,
    reader: RowReader,
    view: View,
    cursors: BucketCursors,
    position: ScanPosition | None,
    on_error: Callable[[int, ScanKvError], ScanKvError],
    *,
    ranges: Mapping[int, KeyRanges],
    of_bases: bool,
) -> ChunkSource:
    schema = reader.decoder.schema
    # A single bucket needs no merge.
    if not plan.ordered or len(ranges) < 2:
        return KvSource(schema, definition.schema.id, view, list(ranges), cursors, position, on_error)
    return OrderedSource(
        KeyedRepresentation(schema) if of_bases else StoredRepresentation(reader.decoder, reader.codec, reader.keys),
        definition.schema.id,
        view,
        cursors.made,
        position,
        on_error,
        reverse=plan.reverse,
        # Not for many ranges, where reading a single row may look up many keys without rows; nor for bases, which are
        # read in batches anyway.
        singly=not of_bases and all(keys.is_one_range for keys in ranges.values()),
    )
