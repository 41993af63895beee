"""Checks that the stored data of a bucket is consistent: its rows, its row count, and the entries of its indexes.

An index is compared with the rows without sorting or keeping entries. The check counts the entries that the rows should
have and adds up their 64-bit hashes, and does the same for the stored entries. A missing, extra or different entry
changes the sum, except with a probability of 2^-64.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from copy import copy
from dataclasses import dataclass
from operator import add, lt
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

from scankv.model.counts import counted
from scankv.model.errors import DataLoss, InvalidKey, RequestTooLarge, ScanKvError
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES
from streaming_server.scan.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.rows.table_codec import TableCodec

# A step holds the event loop for about 2 ms, as long as a chunk of a scan does.
_STEP_ROWS = 1024
_STEP_BYTES = 256 * 1024
_ID_BYTES = 4
# The turns of the event loop between two steps, as in `services/reading.py`.
_TURNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFindings:
    """The findings about one index in one bucket.

    Attributes:
        columns: The columns of the index.
        entries: The number of its entries.
        ready: Whether the index is complete. Only a complete index is compared with the rows.
        problem: What is wrong with the index. Empty: no problem was found.
    """

    columns: tuple[str, ...]
    entries: int
    ready: bool
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFindings:
    """The findings about one bucket.

    Attributes:
        rows: The number of its rows.
        indexes: The findings about each index of the table.
        problem: What is wrong with the bucket, apart from single indexes. Empty: no problem was found.
    """

    rows: int
    indexes: tuple[IndexFindings, ...]
    problem: str


class BucketChecker:
    """A check of one bucket, as of the moment when this object is created. Bound to the event loop.

    Create it with the bucket's mutex held. It pins files on disk until `run` has ended or `abort` was called. Memory:
    the rows of one step.

    Attributes:
        rows_scanned: The number of rows read so far.
    """

    def __init__(
        self,
        number: int,
        bucket: Bucket,
        codec: TableCodec,
        on_error: Callable[[ScanKvError], ScanKvError],
    ) -> None:
        """Pins the current state of the bucket. Reads nothing yet.

        Args:
            number: The number of the bucket.
            bucket: The bucket.
            codec: The table.
            on_error: Called with each error that reports damage. Returns the error with its location.
        """
        self.rows_scanned = 0
        self._number = number
        self._location = bucket.location
        self._rows = bucket.state.rows
        self._keys = codec.keys
        self._indexes = codec.indexes
        self._on_error = on_error
        self._ended: ScanKvError | None = None
        self._expected = {index: _EntryChecksum() for index in codec.indexes if index in bucket.state.ready_indexes}
        self._found = {index: _EntryChecksum() for index in codec.indexes}
        # Indexes that were dropped since the bucket last followed the definition, which makes it remove their entries.
        had = range(1, codec.definition.last_index_id + 1)
        self._dropped = {index for index in bucket.state.indexes if index in had} - {*codec.indexes}
        self._unknown_entries = 0
        self._problems: list[str] = []
        self._is_complete = True
        self._last_key = b""
        reader = RowReader.of(codec.rows, codec.key_codec, None, None, KeyRange())
        self._row_cursor = reader.cursor(bucket, ALL_KEY_RANGES, reverse=False)
        try:
            self._entry_cursor = bucket.entry_cursor(ALL_KEY_RANGES)
        except BaseException:
            self._row_cursor.close()
            raise

    async def run(self) -> BucketFindings:
        """Reads all rows and entries, in steps between which other tasks run. Raises the error given to `abort`."""
        try:
            await self._yield_to_others()
            for reading in (self._read_rows, self._read_entries):
                try:
                    await reading()
                except DataLoss as error:
                    self._is_complete = False
                    self._problems.append(self._on_error(error).message)
        finally:
            self.close()
        if self._is_complete and self._rows is not None and self.rows_scanned != self._rows:
            self._problems.append(
                f"{self._location} has {counted(self.rows_scanned, 'row')}, but its row count is {self._rows:,}"
            )
        if self._unknown_entries:
            self._problems.append(
                f"{self._location} has {_entries(self._unknown_entries)} of indexes that the table does not have"
            )
        return BucketFindings(
            rows=self.rows_scanned,
            indexes=tuple(map(self._findings_of, self._indexes)),
            problem="; ".join(dict.fromkeys(self._problems)),
        )

    def abort(self, error: ScanKvError) -> None:
        """Frees the cursors now, and makes `run` raise the error."""
        self._ended = self._ended or error
        self.close()

    def close(self) -> None:
        """Frees the cursors. Closing twice is allowed."""
        self._row_cursor.close()
        self._entry_cursor.close()

    async def _read_rows(self) -> None:
        while (batch := self._row_cursor.next_batch(_STEP_ROWS, _STEP_BYTES)) is not None:
            if not batch.num_rows:
                await self._yield_to_others()
                continue
            self.rows_scanned += batch.num_rows
            if not self._keys.names:
                self._check_bucket_keys(batch)
                await self._yield_to_others()
                continue
            keys = self._encode_and_check_keys(batch)
            await self._yield_to_others()
            for index, expected in self._expected.items():
                try:
                    entry_keys, values = self._indexes[index].entries(batch, keys)
                except RequestTooLarge as error:
                    raise DataLoss(
                        f"{self._location} has a row that cannot have an entry in an index, but the index is complete"
                    ) from error
                expected.add(entry_keys.to_pylist(), values.to_pylist())
                await self._yield_to_others()

    def _encode_and_check_keys(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """Returns the encoded keys of the next rows. Records a problem if keys are out of order or of other buckets."""
        try:
            keys, buckets = self._keys.encode(batch)
        except InvalidKey as error:
            raise DataLoss(f"{self._location} has a row with an invalid key") from error
        plain = keys.to_pylist()
        if not all(map(lt, [self._last_key, *plain], plain)):
            self._problems.append(f"{self._location} has rows that are not in the order of their keys")
        if (buckets != self._number).any():
            self._problems.append(f"{self._location} has rows that belong to other buckets")
        self._last_key = plain[-1]
        return keys

    def _check_bucket_keys(self, batch: pa.RecordBatch) -> None:
        """Records a problem if rows of a table without a primary key are of other buckets."""
        if self._keys.has_bucket_key and (self._keys.buckets_of_rows(batch) != self._number).any():
            self._problems.append(f"{self._location} has rows that belong to other buckets")

    async def _read_entries(self) -> None:
        while (read := self._entry_cursor.next_entries(_STEP_ROWS)) is not None:
            self._add_entries(*read)
            await self._yield_to_others()

    def _add_entries(self, keys: list[bytes], values: list[bytes]) -> None:
        """Adds the next entries, which are grouped by index, to the sums of their indexes."""
        start = 0
        while start < len(keys):
            prefix = keys[start][:_ID_BYTES]
            index = int.from_bytes(prefix, "big") if len(prefix) == _ID_BYTES else 0
            found = self._found.get(index)
            if found is None:
                self._unknown_entries += index not in self._dropped
                start += 1
                continue
            end_key = KeyRange.under(prefix).end
            end = len(keys) if end_key is None else bisect_left(keys, end_key, start)
            found.add(keys[start:end], values[start:end])
            start = end

    async def _yield_to_others(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if self._ended is not None:
            raise copy(self._ended)

    def _findings_of(self, index: int) -> IndexFindings:
        found, expected = self._found[index], self._expected.get(index)
        return IndexFindings(
            columns=self._indexes[index].index.columns,
            entries=found.count,
            ready=expected is not None,
            problem=_difference(found, expected) if expected is not None and self._is_complete else "",
        )


@dataclass(slots=True)
class _EntryChecksum:
    """The number and the sum of hashes of entries, independent of their order."""

    count: int = 0
    hashes: int = 0

    def add(self, keys: list[bytes], values: list[bytes]) -> None:
        """Adds entries. No key is a prefix of another key, so a hash of key and value together is unambiguous."""
        hashes = np.fromiter(map(xxh3_64_intdigest, map(add, keys, values)), np.uint64, len(keys))
        self.count += len(keys)
        self.hashes = (self.hashes + int(hashes.sum())) % 2**64


def _difference(found: _EntryChecksum, expected: _EntryChecksum) -> str:
    if found == expected:
        return ""
    more = found.count - expected.count
    if more == 0:
        return "differs from the rows"
    return f"{_entries(abs(more))} {'more' if more > 0 else 'fewer'} than rows"


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"
