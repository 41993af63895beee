"""How a scan reads stored rows: which keys it reads, which rows it keeps, which columns it decodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from scankv.model.expressions import conjuncts, evaluate, plan_keys
from scankv.model.expressions.key_planning import residual_of
from scankv.model.expressions.nodes import Unexpired
from scankv.model.keys.key_parts import keys_within
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.cursor_chain import CursorChain
from streaming_server.scan.log_cursor import LogCursor
from streaming_server.scan.rows_without_key import buckets_of_rows
from streaming_server.storage.rows.row_codec import RowDecoder
from streaming_server.storage.rows.row_expiry import ExpirySlot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.expressions import BoundPredicate
    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.scan.bucket_cursors import LateReaders
    from streaming_server.scan.chunk_source import Cursor
    from streaming_server.scan.indexed_rows import IndexedKeys
    from streaming_server.storage.changelog.change_log import ReadableLog
    from streaming_server.storage.cursors.entry_cursor import EntryCursor
    from streaming_server.storage.cursors.row_lookup import RowLookup
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec


_FEW_RANGES: Final = 4
"""Up to this many ranges of a bucket get an iterator each, created at the instant of the scan."""


class ReadableBucket(Protocol):
    """One bucket of a live table or of a pinned view."""

    def cursor(
        self, codec: RowCodec, decoder: Decoder, keys: KeyCodec, key_range: KeyRange, *, reverse: bool = False
    ) -> Cursor:
        """Creates a cursor over the rows of a key range."""

    def ranges_cursor(self, decoder: Decoder, ranges: KeyRanges, *, reverse: bool = False) -> Cursor:
        """Creates a cursor over the rows of several key ranges."""

    def row_lookup(self) -> RowLookup:
        """Creates what looks up the rows of index entries."""

    def entry_cursor(self, ranges: KeyRanges, *, reverse: bool = False) -> EntryCursor:
        """Creates a cursor over the index entries in some ranges."""

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored rows of some keys, None where no row exists."""

    @property
    def late_readers(self) -> LateReaders:
        """Creates cursors as late as possible without changing what they show."""

    @property
    def log(self) -> ReadableLog:
        """The changelog."""

    @property
    def location(self) -> str:
        """The name of the bucket in errors."""

    @property
    def approximate_rows(self) -> int:
        """About how many rows the bucket has."""

    @property
    def row_bytes(self) -> int:
        """About how many bytes a stored row has."""

    @property
    def longest_row(self) -> int:
        """The bytes of the longest row that the bucket has ever had."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """How a scan reads the rows of a table. Immutable.

    Attributes:
        codec: The codec of the table's rows.
        keys: The codec of their keys.
        decoder: Decodes the batches to return.
        ranges: The keys that can hold matching rows.
        columns: The columns to return. None: all columns.
        stored_rows: Whether to return the stored rows as an additional column.
        residual: The residual predicate; `decoder` drops rows for which it is not true. None: all rows match.
        where: The complete predicate, if only it restricts the keys. None: all rows match, or the keys are also
            restricted in another way.
        indexed: The keys that an index lookup has found; only these are read. None: no index was used.
        by_bucket: `ranges` by bucket, if there are many, because sorting them takes milliseconds; or if the rows are in
            few buckets of a table without a key. None: the keys say which buckets they can be in.
    """

    codec: RowCodec
    keys: KeyCodec
    decoder: Decoder
    ranges: KeyRanges
    columns: tuple[str, ...] | None = None
    stored_rows: bool = False
    residual: BoundPredicate | None = None
    where: BoundPredicate | None = None
    indexed: IndexedKeys | None = None
    by_bucket: Mapping[int, KeyRanges] | None = None

    @property
    def selective(self) -> bool:
        """Whether `decoder` drops rows."""
        return self.residual is not None

    def cursor(self, bucket: ReadableBucket, ranges: KeyRanges, *, reverse: bool) -> Cursor:
        """Creates a cursor over some keys of a bucket, as of now, without an index. Raises DataLoss."""
        definition = self.codec.definition
        if not definition.has_key:
            records = bucket.log.reader(ranges.span, definition, reverse=reverse)
            return LogCursor(
                records, self.codec, self.columns, self.residual, reverse=reverse, location=bucket.location
            )
        if ranges.is_one_range:
            return bucket.cursor(self.codec, self.decoder, self.keys, ranges.span, reverse=reverse)
        if len(ranges) <= _FEW_RANGES and not ranges.are_keys:
            # An iterator over one range is several times as fast as one that is moved between ranges.
            ordered = reversed(list(ranges)) if reverse else ranges
            return CursorChain.of_iterators(
                partial(bucket.cursor, self.codec, self.decoder, self.keys, one, reverse=reverse) for one in ordered
            )
        return bucket.ranges_cursor(self.decoder, ranges, reverse=reverse)

    def is_covered_by(self, index: IndexCodec) -> bool:
        """Whether an index has all columns that are returned or filtered by."""
        returned = self.codec.definition.schema.names if self.columns is None else self.columns
        looked_at = () if self.residual is None else self.residual.columns
        return not self.stored_rows and set(index.covered) >= {*returned, *looked_at}

    def with_indexed_keys(self, index: IndexCodec, indexed: IndexedKeys, residual: BoundPredicate | None) -> RowReader:
        """Returns a reader of the same rows that reads the keys an index lookup has found.

        Args:
            index: The index.
            indexed: The keys found.
            residual: The residual predicate. None: no predicate remains.
        """
        codec, columns = self.codec, self.columns
        if indexed.rows is not None:
            codec, columns = index.rows, self.codec.definition.schema.names if columns is None else columns
        decoder = _decoder(codec, columns, residual, stored_rows=self.stored_rows)
        return replace(self, codec=codec, decoder=decoder, residual=residual, indexed=indexed)

    @classmethod
    def of(
        cls,
        codec: RowCodec,
        keys: KeyCodec,
        columns: Sequence[str] | None,
        where: BoundPredicate | None,
        key_range: KeyRange,
        *,
        stored_rows: bool = False,
    ) -> RowReader:
        """Creates a reader of some columns of the rows in a key range for which `where` is true.

        Args:
            codec: The codec of the table's rows.
            keys: The codec of their keys.
            columns: The columns to return. None: all columns.
            where: The predicate, bound to the codec's schema. None: all rows.
            key_range: The keys to read.
            stored_rows: Whether to return the stored rows as an additional column, the last one.

        Raises:
            SchemaMismatch: A column does not exist.
        """
        names = None if columns is None else tuple(columns)
        if where is None:
            decoder = _decoder(codec, names, None, stored_rows=stored_rows)
            return cls(codec, keys, decoder, keys_within(key_range, keys), names, stored_rows)
        plan = plan_keys(where, keys)
        ranges = plan.ranges & keys_within(key_range, keys)
        decoder = _decoder(codec, names, plan.residual, stored_rows=stored_rows)
        alone = where if key_range == KeyRange() else None
        numbers = buckets_of_rows(where, codec.definition)
        by_bucket = None if numbers is None else dict.fromkeys(numbers, ranges)
        return cls(codec, keys, decoder, ranges, names, stored_rows, plan.residual, alone, by_bucket=by_bucket)


def _decoder(
    codec: RowCodec, columns: tuple[str, ...] | None, residual: BoundPredicate | None, *, stored_rows: bool
) -> Decoder:
    decoder: Decoder = codec.decoder(columns)
    if stored_rows:
        decoder = _StoredRowsDecoder(decoder)
    if residual is None:
        return decoder
    parts = conjuncts(residual.predicate)
    others = [part for part in parts if not isinstance(part, Unexpired)]
    asked = residual if len(others) == len(parts) else residual_of(others, residual.columns)
    if asked is not None:
        decoder = _FilteringDecoder(codec, decoder, asked)
    for part in parts:
        if isinstance(part, Unexpired):
            decoder = _UnexpiredDecoder(codec, decoder, part)
    return decoder


class _StoredRowsDecoder:
    """Adds the stored rows to the decoded columns, so that other columns can be decoded later, of fewer rows."""

    def __init__(self, decoder: Decoder) -> None:
        self.schema = decoder.schema.append(pa.field("stored", pa.binary()))
        self._decoder = decoder

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*self._decoder.decode(values).columns, values], schema=self.schema)


class _UnexpiredDecoder:
    """Decodes the rows that have not expired, which their bytes show before anything is decoded."""

    def __init__(self, codec: RowCodec, decoder: Decoder, unexpired: Unexpired) -> None:
        self.schema = decoder.schema
        self._decoder = decoder
        self._slots = ExpirySlot(codec, unexpired.column_id, unexpired.parts[0].paths[0].names[0])
        self._bound = unexpired.bound

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        if isinstance(self._decoder, RowDecoder):
            return self._decoder.decode_unexpired(values, self._slots, self._bound)
        alive = self._slots.unexpired(values, self._bound)
        return self._decoder.decode(values if alive is None else values.filter(pa.array(alive)))


class _FilteringDecoder:
    """Decodes the columns of a predicate first, then the other columns of the rows that it keeps."""

    def __init__(self, codec: RowCodec, decoder: Decoder, predicate: BoundPredicate) -> None:
        self.schema = decoder.schema
        self._decoder = decoder
        self._predicate = predicate
        self._looked_at = codec.decoder(predicate.columns)
        self._nothing: pa.RecordBatch | None = None

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        keep = evaluate(self._predicate, self._looked_at.decode(values))
        if keep.true_count:
            return self._decoder.decode(values.filter(keep))
        # Most chunks, if the predicate is selective. Decoding no rows takes a tenth of the time of a chunk.
        if self._nothing is None:
            self._nothing = self._decoder.decode(values[:0])
        return self._nothing
