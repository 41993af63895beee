"""One bucket of a pinned view: a RocksDB checkpoint, opened for reading and checked against the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.counts import counted
from scankv.model.errors import DataLoss
from streaming_server.storage.bucket.bucket_state import load_state
from streaming_server.storage.bucket.partitions import BucketPartitions
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.stored_log import StoredLog
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.cursors.entry_cursor import EntryCursor
from streaming_server.storage.cursors.key_probe import KeyProbe
from streaming_server.storage.cursors.ranges_cursor import RangesCursor
from streaming_server.storage.cursors.row_lookup import RowLookup
from streaming_server.storage.rocks.store import RocksStore

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.keys.key_range import KeyRange
    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.storage.changelog.change_log import ReadableLog
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.rocks.store_readers import StoreReaders
    from streaming_server.storage.rows.row_codec import Decoder, RowCodec
    from streaming_server.storage.snapshots.snapshots import PinnedBucket


class Checkpoint:
    """A bucket at the instant of a pin, open for reading. It never changes. Create cursors from one thread at a time.

    Args:
        path: RocksDB's directory.
        location: The name of the checkpoint in errors, such as `bucket 3 of game.scores in snapshot view 5f0c`.
        pinned: The entry of the bucket in the manifest.
        compression: The compression of the table.
        resources: Shared by all buckets of the process.

    Raises:
        DataLoss: The checkpoint is damaged: RocksDB cannot open it, or it contradicts the manifest.

    Attributes:
        location: The name of the checkpoint in errors.
        longest_row: Bytes of the longest row ever written to the bucket.
        ready_indexes: The ids of the indexes that have an entry for every row.
        log: The changelog.
    """

    def __init__(
        self, path: Path, location: str, pinned: PinnedBucket, *, compression: str, resources: RocksResources
    ) -> None:
        self.location = location
        self.longest_row = pinned.longest_row
        self._rows = pinned.rows
        self._store = RocksStore(path, location, compression=compression, resources=resources, read_only=True)
        try:
            state = load_state(self._store)
            # The epoch may differ: after an unclean stop, a bucket is in a new epoch before it stores that epoch.
            if (state.count, state.rows) != (count_of(pinned.log_offset), pinned.rows):
                raise DataLoss(
                    f"{location} is damaged: it has {counted(state.count, 'change')} and {_text(state.rows)}, but its "
                    f"manifest says {counted(count_of(pinned.log_offset), 'change')} and {_text(pinned.rows)}"
                )
            self.ready_indexes = state.ready_indexes
            self.log: ReadableLog = StoredLog(self._store, lambda: state.log_span)
        except BaseException:
            self._store.close()
            raise

    def cursor(
        self, codec: RowCodec, decoder: Decoder, keys: KeyCodec, key_range: KeyRange, *, reverse: bool = False
    ) -> BucketCursor:
        """Returns a cursor over the rows of a key range; in descending key order with `reverse`."""
        return BucketCursor(self._store, codec, decoder, keys, self.longest_row, key_range, reverse=reverse)

    def ranges_cursor(self, decoder: Decoder, ranges: KeyRanges, *, reverse: bool = False) -> RangesCursor:
        """Returns a cursor over the rows of some key ranges, like `Bucket.ranges_cursor`."""
        return RangesCursor(self._store, decoder, ranges, self.longest_row, reverse=reverse)

    def row_lookup(self) -> RowLookup:
        """Returns what looks up the rows of index entries."""
        return RowLookup(self._store)

    def probe(self) -> KeyProbe:
        """Returns a probe that samples the keys."""
        return KeyProbe(self._store)

    def entry_cursor(self, ranges: KeyRanges, *, reverse: bool = False) -> EntryCursor:
        """Returns a cursor over the entries of a ready index in some ranges; in descending order with `reverse`."""
        return EntryCursor(self._store, self.longest_row, ranges, reverse=reverse)

    @property
    def approximate_rows(self) -> int:
        """About how many rows the bucket has."""
        return self._store.estimate_rows() if self._rows is None else self._rows

    @property
    def row_bytes(self) -> int:
        """About how many bytes a stored row has."""
        return min(self._store.estimate_row_bytes(), self.longest_row)

    @property
    def late_readers(self) -> StoreReaders:
        """Creates cursors as late as possible without changing what they show."""
        return self._store.readers

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored rows of some encoded keys, None for a key without a row."""
        return self._store.get_rows(keys)

    def partitions(self) -> Collection[bytes]:
        """Returns the encoded values of the partitions. Raises DataLoss."""
        return BucketPartitions(self._store).records.keys()

    def close(self) -> None:
        """Closes the files. All cursors must have been closed."""
        self._store.close()


def _text(rows: int | None) -> str:
    return "an unknown number of rows" if rows is None else counted(rows, "row")
