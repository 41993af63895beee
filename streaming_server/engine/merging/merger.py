"""Merges written rows into the rows that a bucket stores, by the rules of one version of a table."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.rows.row_values import NotExactError
from streaming_server.engine.merging.appended_rows import AppendedRows
from streaming_server.engine.merging.engine import Engines
from streaming_server.engine.merging.few_rows import FewRows, merge_few
from streaming_server.engine.merging.outcome import inputs_of, mark_range, merge_delete, merge_upsert, reads_old_rows
from streaming_server.engine.merging.prepared_rows import PreparedRows
from streaming_server.engine.merging.step import merge_rows

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.functions.installed import Installed
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.rows.table_codec import TableCodec


class StoredRows(Protocol):
    """The encoded rows of a bucket, or of a bucket after writes that are not applied yet."""

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the rows of some encoded keys, None where no row exists."""

    def has_rows_among(self, keys: list[bytes]) -> bool:
        """Whether a row may exist between the least and the greatest of some keys."""


@dataclass(frozen=True, slots=True)
class Merger:
    """Merges written rows into stored rows. Immutable.

    Attributes:
        codec: The table.
        engines: Its merge engines.
        tracks_changes: Whether the changelog gets the changes. If not, it gets a range marker.
    """

    codec: TableCodec
    engines: Engines
    tracks_changes: bool = True

    @classmethod
    def of(cls, codec: TableCodec, installed: Installed) -> Merger:
        """Raises InvalidRequest where the server lacks one of the table's aggregators."""
        return cls(codec, Engines(codec.definition, installed))

    @property
    def definition(self) -> TableDefinition:
        return self.codec.definition

    def without_indexes(self) -> Merger:
        """Returns a merger that computes no index entries."""
        return replace(self, codec=replace(self.codec, indexes={}))

    def without_tracking(self) -> Merger:
        """Returns a merger whose changes leave a range marker in the changelog. Rows are upserted in columns only."""
        return replace(self, tracks_changes=False)

    def merge(self, stored: StoredRows, rows: BucketRows) -> BucketChange:
        """Computes what writing rows does to a bucket.

        Args:
            stored: The rows of the bucket.
            rows: What is written, encoded for `codec`: see `PreparedRows.for_codec`.

        Raises:
            InvalidRequest, RequestTooLarge: The rows cannot be merged with the stored ones.
            DataLoss: A stored row is damaged.
        """
        if isinstance(rows, AppendedRows):
            return rows.change()
        if not self.tracks_changes:
            assert isinstance(rows, PreparedRows)
            change = mark_range(self._merge_columns(stored, rows))
            marker = change.marker
            if change.rows_added is None and marker is not None and not stored.has_rows_among(marker.extremes):
                # One probe keeps the number of rows exact where the keys are new, as in a backfill in key order.
                count = len(change.put_keys)
                change = replace(change, rows_added=count, inserted=[True] * count)
            return change
        if self.definition.options.changelog == "input":
            columns = rows.prepare() if isinstance(rows, FewRows) else rows
            return replace(self._merge_columns(stored, columns), changes=inputs_of(columns))
        if isinstance(rows, FewRows):
            indexes = self.codec.indexes.values()
            row_merge = self.engines.row_merge
            if row_merge is not None:
                reads = (rows.merges and not rows.deletes) or reads_old_rows(self.definition, indexes)
                with suppress(NotExactError):
                    return merge_few(stored.get(rows.keys) if reads else None, rows, row_merge, self.codec)
            rows = rows.prepare()
        return self._merge_columns(stored, rows)

    def _merge_columns(self, stored: StoredRows, rows: PreparedRows) -> BucketChange:
        indexes = self.codec.indexes.values()
        if rows.written is not None:
            return merge_rows(stored.get(rows.keys.to_pylist()), rows, self.engines.of(rows.written), indexes)
        reads = bool(indexes) or (self.tracks_changes and reads_old_rows(self.definition, indexes))
        old = stored.get(rows.keys.to_pylist()) if reads else None
        if rows.values is None:
            return merge_delete(old, rows, indexes)
        deduplicate = self.definition.options.row_deduplicate
        try:
            return merge_upsert(old, rows, row_deduplicate=deduplicate, indexes=indexes)
        except RequestTooLarge as error:
            # The rows were checked for every index that existed when the request was prepared.
            raise RequestTooLarge(
                f"an index was added during the write, and the indexed columns of a row take over {MAX_KEY_BYTES:,} "
                "bytes; rows before this one may have been written: send shorter values"
            ) from error
