"""From what a request asks for to a source that reads it: the same for live tables and pinned snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming_server.scan.kv_source import KvSource, left_to_read
from streaming_server.scan.resume_token import Fingerprint, TokenWriter, read_token
from streaming_server.scan.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.scan.chunk_source import ChunkSource, View
    from streaming_server.scan.resume_token import ResumePoint
    from streaming_server.storage.cursor import BucketCursor
    from streaming_server.storage.row_codec import RowCodec
    from table_model.errors import ScanKvError
    from table_model.expressions import Predicate
    from table_model.key_codec import KeyCodec
    from table_model.key_range import KeyRange
    from table_model.schema import TableDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """What one request asks to be read. Immutable.

    Attributes:
        buckets: The buckets, None for all.
        columns: The columns, None for all.
        where: What is true of the rows, None for all.
        where_message: The same as it was sent.
        key_range: The keys.
        reverse: Whether in descending order.
        limit: The most rows of the whole scan, None for all.
        resume_token: Where it goes on, empty at the beginning.
    """

    buckets: tuple[int, ...] | None
    columns: tuple[str, ...] | None
    where: Predicate | None
    where_message: bytes
    key_range: KeyRange
    reverse: bool
    limit: int | None
    resume_token: bytes

    def reader(self, codec: RowCodec, keys: KeyCodec) -> RowReader:
        """How this is read of a table with such rows and keys. Raises SchemaMismatch."""
        return RowReader.of(codec, keys, self.columns, self.where, self.key_range)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedScan:
    """A source that is ready to be read; who got it closes it.

    Attributes:
        source: Gives the rows.
        tokens: Makes the tokens that fit it.
        table_incarnation: Of the table that it reads.
        resumed_from: Where it goes on, None when it begins.
        limit: The most rows that are left to be returned, None for all.
        selective: Whether chunks have fewer rows than were read for them.
    """

    source: ChunkSource
    tokens: TokenWriter
    table_incarnation: str
    resumed_from: ResumePoint | None
    limit: int | None
    selective: bool = False


def open_scan(
    plan: ReadPlan,
    definition: TableDefinition,
    reader: RowReader,
    view: View,
    view_id: str,
    make_cursor: Callable[[int, KeyRange], BucketCursor],
    on_error: Callable[[int, ScanKvError], ScanKvError],
) -> OpenedScan:
    """Makes the cursors of a scan, at the instant when it is called.

    Args:
        plan: What is asked for.
        definition: The table as of the view.
        reader: How it is read.
        view: The buckets that are read, and their offsets.
        view_id: Names a pinned view; empty for the live table, whose tokens fit every later view.
        make_cursor: Makes a cursor over some keys of a bucket.
        on_error: As for `KvSource`.

    Raises:
        InvalidResumeToken: The token does not fit.
        DataLoss: A bucket is damaged.
    """
    fingerprint = Fingerprint.of(
        table=(definition.name, definition.incarnation, view_id),
        schema=reader.decoder.schema.serialize().to_pybytes(),
        query=(sorted(view.log_offsets), plan.columns, plan.where_message, plan.limit, plan.key_range, plan.reverse),
    )
    point = read_token(plan.resume_token, fingerprint) if plan.resume_token else None
    position = point.position if point else None
    limit = point.remaining if point else plan.limit
    left = left_to_read(tuple(view.log_offsets), reader.key_range, position, reverse=plan.reverse) if limit != 0 else {}
    cursors: dict[int, BucketCursor] = {}
    try:
        for bucket, keys in left.items():
            cursors[bucket] = make_cursor(bucket, keys)
    except BaseException:
        for cursor in cursors.values():
            cursor.close()
        raise
    return OpenedScan(
        source=KvSource(reader.decoder.schema, definition.schema.id, view, cursors, position, on_error),
        tokens=TokenWriter(fingerprint, view),
        table_incarnation=definition.incarnation,
        resumed_from=point,
        limit=limit,
        selective=reader.selective,
    )
