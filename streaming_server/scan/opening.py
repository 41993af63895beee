"""From what a request asks for to a source that reads it: the same for live tables and pinned snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.expressions import nanoseconds_a_row
from scankv.model.limits import MAX_CHUNK_ROWS
from streaming_server.scan.base_view import NO_BASES, Via, cursor_of
from streaming_server.scan.index_lookup import index_choices
from streaming_server.scan.keys_to_read import keys_to_read
from streaming_server.scan.kv_source import KvSource
from streaming_server.scan.ordered_forms import KeyedForm, StoredForm
from streaming_server.scan.ordered_source import OrderedSource
from streaming_server.scan.resume_token import Fingerprint, TokenWriter, read_token
from streaming_server.scan.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from scankv.model.errors import ScanKvError
    from scankv.model.expressions import BoundPredicate, Predicate
    from scankv.model.key_codec import KeyCodec
    from scankv.model.key_range import KeyRange
    from scankv.model.key_ranges import KeyRanges
    from scankv.model.schema import TableDefinition
    from streaming_server.scan.base_view import BaseView
    from streaming_server.scan.chunk_source import ChunkSource, Cursor, Position, View
    from streaming_server.scan.index_lookup import IndexChoice
    from streaming_server.scan.resume_token import ResumePoint
    from streaming_server.scan.row_reader import Readable
    from streaming_server.storage.index_codec import IndexCodec
    from streaming_server.storage.row_codec import RowCodec

_SHORT_NODES, _SHORT_LISTS = 32, 256
_ASKING_NANOSECONDS: Final = 8_000_000
"""For so long at once a predicate may be asked of rows: as long as several chunks without one take."""


def is_planned_at_once(where: Predicate | None) -> bool:
    """Whether ranges of keys, or of an index, are planned in a fraction of a millisecond; if not, do it in a thread."""
    return where is None or (where.nodes <= _SHORT_NODES and where.list_values <= _SHORT_LISTS)


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
        ordered: Whether the rows of all buckets are in one order.
        limit: The most rows of the whole scan, None for all.
        resume_token: Where it goes on, empty at the beginning.
        stored_rows: Whether the rows as they are stored are one more column.
        via: What the rows are read from.
    """

    buckets: tuple[int, ...] | None
    columns: tuple[str, ...] | None
    where: Predicate | None
    where_message: bytes
    key_range: KeyRange
    reverse: bool
    limit: int | None
    resume_token: bytes
    ordered: bool = False
    stored_rows: bool = False
    via: Via = Via.AUTO

    def reader(self, codec: RowCodec, keys: KeyCodec) -> RowReader:
        """How this is read of a table with such rows and keys. Raises SchemaMismatch."""
        return RowReader.of(codec, keys, self.columns, self.where, self.key_range, stored_rows=self.stored_rows)

    def reading(
        self, codec: RowCodec, keys: KeyCodec, indexes: Collection[IndexCodec]
    ) -> tuple[RowReader, list[IndexChoice]]:
        """The same, and the indexes that may tell its keys, the best first. Raises SchemaMismatch."""
        reader = self.reader(codec, keys)
        return reader, index_choices(reader, indexes)

    async def reading_in(
        self,
        run: Callable[..., Awaitable[tuple[RowReader, list[IndexChoice]]]],
        codec: RowCodec,
        keys: KeyCodec,
        indexes: Collection[IndexCodec],
    ) -> tuple[RowReader, list[IndexChoice]]:
        """The same, with `run` in a thread where it takes some milliseconds, as for hundreds of comparisons."""
        if is_planned_at_once(self.where):
            return self.reading(codec, keys, indexes)
        return await run(self.reading, codec, keys, indexes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedScan:
    """A source that is ready to be read; who got it closes it.

    Attributes:
        source: Gives the rows.
        tokens: Makes the tokens that fit it.
        definition: The table as of the view.
        resumed_from: Where it goes on, None when it begins.
        limit: The most rows that are left to be returned, None for all.
        selective: Whether chunks have fewer rows than were read for them.
        large_chunks: Whether nothing but columnar bases is read, batch by batch, so that larger chunks take no longer.
        most_rows: The rows that are read at once, at most, since a predicate of hundreds of nodes is asked of each.
    """

    source: ChunkSource
    tokens: TokenWriter
    definition: TableDefinition
    resumed_from: ResumePoint | None
    limit: int | None
    selective: bool = False
    large_chunks: bool = False
    most_rows: int = MAX_CHUNK_ROWS

    def room(self, max_rows: int, max_bytes: int) -> tuple[int, int]:
        """The rows and bytes to read at once where a chunk may have so many."""
        if max_rows <= self.most_rows:
            return max_rows, max_bytes
        return self.most_rows, max(1, max_bytes * self.most_rows // max_rows)


def open_scan(
    plan: ReadPlan,
    definition: TableDefinition,
    reader: RowReader,
    view: View,
    view_id: str,
    bucket_of: Callable[[int], Readable],
    on_error: Callable[[int, ScanKvError], ScanKvError],
    bases: Mapping[int, BaseView] = NO_BASES,
) -> OpenedScan:
    """Makes the cursors of a scan, at the instant when it is called.

    Args:
        plan: What is asked for.
        definition: The table as of the view.
        reader: How it is read.
        view: The buckets that are read, and their offsets.
        view_id: Names a pinned view; empty for the live table, whose tokens fit every later view.
        bucket_of: The bucket of a number, to make a cursor of.
        on_error: As for `KvSource`.
        bases: The buckets of which ranges of keys are read from a columnar base.

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
    cursors: dict[int, Cursor] = {}
    try:
        for bucket, keys in left.items():
            cursors[bucket] = cursor_of(reader, bucket, bucket_of(bucket), keys, bases, reverse=plan.reverse)
    except BaseException:
        for cursor in cursors.values():
            cursor.close()
        raise
    source = _source(
        plan, definition, reader, view, cursors, position, on_error, ranges=left.values(), of_bases=bool(bases)
    )
    return OpenedScan(
        source=source,
        tokens=TokenWriter(fingerprint, view),
        definition=definition,
        resumed_from=point,
        limit=limit,
        selective=reader.selective,
        # What is read row by row, or put in order, holds the event loop for as long as a chunk takes.
        large_chunks=isinstance(source, KvSource) and bool(cursors) and bases.keys() >= cursors.keys(),
        most_rows=MAX_CHUNK_ROWS if reader.residual is None else _most_rows(reader.residual),
    )


def _most_rows(asked: BoundPredicate) -> int:
    return max(1, min(MAX_CHUNK_ROWS, _ASKING_NANOSECONDS // nanoseconds_a_row(asked)))


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
        ),
    )


def _source(
    plan: ReadPlan,
    definition: TableDefinition,
    reader: RowReader,
    view: View,
    cursors: Mapping[int, Cursor],
    position: Position | None,
    on_error: Callable[[int, ScanKvError], ScanKvError],
    *,
    ranges: Iterable[KeyRanges],
    of_bases: bool,
) -> ChunkSource:
    schema = reader.decoder.schema
    # The rows of one bucket are in order by themselves.
    if not plan.ordered or len(cursors) < 2:
        return KvSource(schema, definition.schema.id, view, cursors, position, on_error)
    return OrderedSource(
        KeyedForm(schema) if of_bases else StoredForm(reader.decoder, reader.codec, reader.keys),
        definition.schema.id,
        view,
        cursors,
        position,
        on_error,
        reverse=plan.reverse,
        # Row by row, many keys without rows would be looked up at once; bases are read in batches anyway.
        singly=not of_bases and all(keys.is_one_range for keys in ranges),
    )
