"""One bucket on disk: rows, changelog and state in one RocksDB directory, changed together or not at all."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from streaming_server.storage.changelog import LogRecord, decode_record, encode_records
from streaming_server.storage.cursor import BucketCursor
from streaming_server.storage.durable_mark import DurableMark
from streaming_server.storage.offsets import count_of, make_offset
from streaming_server.storage.points_cursor import PointsCursor
from streaming_server.storage.rocks import RocksResources, RocksStore
from table_model.errors import DataLoss
from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from streaming_server.storage.changelog import Changes
    from streaming_server.storage.row_codec import Decoder, RowCodec
    from table_model.key_codec import KeyCodec
    from table_model.schema import TableDefinition

_STATE_KEY = b"state"
_ALL_KEYS = KeyRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketState:
    """What a bucket knows about itself; stored in the WriteBatch of every change.

    Attributes:
        epoch: Grows by one with each unclean start.
        count: How many changes the bucket has had, over all epochs.
        epoch_starts: The count at which each epoch began, from epoch 0 on.
        rows: Live rows, exact.
        longest_row: Bytes of the longest row there ever was.
        commit_micros: Time of the last commit; the next one is never before it.
        clean: False from the first write after a start until an orderly close.
    """

    epoch: int = 0
    count: int = 0
    epoch_starts: tuple[int, ...] = (0,)
    rows: int = 0
    longest_row: int = 0
    commit_micros: int = 0
    clean: bool = True

    @property
    def log_offset(self) -> int:
        """The offset that the next change gets."""
        return make_offset(self.epoch, self.count)

    def to_bytes(self) -> bytes:
        """The stored form: JSON, so that fields can be added and a person can read it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BucketState:
        """The state that `to_bytes` gave."""
        fields = json.loads(data)
        return cls(**{**fields, "epoch_starts": tuple(fields["epoch_starts"])})

    def after_unclean_stop(self) -> BucketState:
        """The state to go on with when the bucket was not closed in order: a new epoch."""
        return replace(self, epoch=self.epoch + 1, epoch_starts=(*self.epoch_starts, self.count), clean=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChange:
    """Writes to one bucket, ready to be applied: stored rows to put, keys to delete, and the changes for the log."""

    put_keys: pa.Array
    put_values: pa.Array
    delete_keys: pa.Array
    changes: Changes
    rows_added: int
    schema_id: int

    @property
    def longest_row(self) -> int:
        """Bytes of the longest row put."""
        return int(np.diff(np.frombuffer(self.put_values.buffers()[1], np.int32)).max()) if len(self.put_values) else 0


class Bucket:
    """One bucket of a table, open.

    Not thread-safe: hold the bucket's mutex for everything but `sync`, which may run beside all else, one at a time,
    and `flush` and `checkpoint`, which may run beside all but `close`.
    """

    def __init__(self, path: Path, place: str, *, compression: str, resources: RocksResources) -> None:
        """Opens the bucket in directory `path`, making it when it is not there.

        Args:
            path: RocksDB's directory; the durable mark lies beside it, with the suffix `.durable`.
            place: What errors call the bucket, as `bucket 3 of game.scores`.
            compression: `none`, `lz4` or `zstd`, for blocks written from now on.
            resources: Shared by all buckets of the process.

        Raises:
            DataLoss: The bucket is damaged: RocksDB cannot open it, or acknowledged changes are missing.
        """
        self.place = place
        self._store = RocksStore(path, place, compression=compression, resources=resources)
        self._mark = DurableMark(path.with_suffix(".durable"))
        try:
            self._state = self._recover()
        except BaseException:
            self._mark.close()
            self._store.close()
            raise

    def _recover(self) -> BucketState:
        state = stored_state(self._store)
        durable = self._mark.read()
        if durable is None:
            raise DataLoss(f"{self.place} is damaged: its durable mark cannot be read")
        if state.count < count_of(durable):
            raise DataLoss(
                f"{self.place} has lost acknowledged changes: {count_of(durable)} were durable, {state.count} are there"
            )
        return state if state.clean else state.after_unclean_stop()

    @property
    def state(self) -> BucketState:
        """The state as of the last change applied, durable or not."""
        return self._state

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The stored rows of some encoded keys, None where there is none."""
        return self._store.get_rows(keys)

    def apply(self, change: BucketChange) -> None:
        """Applies a change atomically: rows, changelog and state. A change without changes takes no offset.

        It is visible to reads at once and durable after the next `sync`.
        """
        if len(change.changes) == 0:
            return
        state = replace(
            self._state,
            count=self._state.count + len(change.changes),
            rows=self._state.rows + change.rows_added,
            longest_row=max(self._state.longest_row, change.longest_row),
            commit_micros=max(self._state.commit_micros, time.time_ns() // 1000),
            clean=False,
        )
        batch = self._store.batch()
        batch.put_rows(change.put_keys.to_pylist(), change.put_values.to_pylist())
        batch.delete_rows(change.delete_keys.to_pylist())
        records = encode_records(
            change.changes,
            epoch=state.epoch,
            count=self._state.count,
            schema_id=change.schema_id,
            commit_micros=state.commit_micros,
        )
        for key, record in records:
            batch.put_log(key, record)
        batch.put_meta(_STATE_KEY, state.to_bytes())
        self._store.write(batch)
        self._state = state

    def cursor(
        self,
        codec: RowCodec,
        decoder: Decoder,
        keys: KeyCodec,
        key_range: KeyRange = _ALL_KEYS,
        *,
        reverse: bool = False,
    ) -> BucketCursor:
        """A cursor over the rows of a key range as of now, against key order with `reverse`."""
        return BucketCursor(self._store, codec, decoder, keys, self._state.longest_row, key_range, reverse=reverse)

    def points_cursor(self, decoder: Decoder, points: Sequence[bytes], *, reverse: bool = False) -> PointsCursor:
        """A cursor over the rows with some keys, which ascend, as of now; against key order with `reverse`."""
        return PointsCursor(self._store, decoder, points, reverse=reverse)

    def sync(self, offset: int) -> None:
        """Makes every change below `offset`, which must be applied already, durable, and marks it so."""
        self._store.sync()
        self._mark.write(offset)

    def changes(self, definition: TableDefinition, limit: int) -> Iterator[LogRecord]:
        """The first `limit` records of the changelog, oldest first."""
        for key, value in islice(self._store.log_records(), limit):
            yield decode_record(key, value, definition)

    def disk_bytes(self) -> int:
        """Bytes of the bucket's table files."""
        return self._store.disk_bytes()

    def flush(self) -> None:
        """Moves unflushed writes into table files."""
        self._store.flush()

    def checkpoint(self, path: Path) -> None:
        """Makes a copy of the bucket as of now in the directory `path`, which must not exist, for `Checkpoint` to read.

        Shares the table files with the bucket, and keeps those that the bucket deletes later.
        """
        self._store.checkpoint(path)

    def close(self) -> None:
        """Closes the bucket in order: the next start continues the epoch. All cursors must be closed before."""
        try:
            if not self._state.clean:
                self._state = replace(self._state, clean=True)
                batch = self._store.batch()
                batch.put_meta(_STATE_KEY, self._state.to_bytes())
                self._store.write(batch)
                self.sync(self._state.log_offset)
        finally:
            self._mark.close()
            self._store.close()


def stored_state(store: RocksStore) -> BucketState:
    """The state that a bucket's directory holds. Raises DataLoss when it cannot be read."""
    try:
        stored = store.meta.get(_STATE_KEY)
        return BucketState() if stored is None else BucketState.from_bytes(stored)
    except (ValueError, TypeError, KeyError) as error:
        raise DataLoss(f"{store.place} is damaged: its state cannot be read") from error
    except Exception as error:
        raise store.failure(error) from error
