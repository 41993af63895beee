"""Checking that all that is stored of a bucket agrees: its rows, how many are counted, and the entries of its indexes.

An index is compared with the rows without sorting or keeping anything: of the entries that the rows should have, and of
those that are there, the number and the sum of a 64-bit hash. Whatever is missing, left over or different changes the
sum, but for one time in 2^64.
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

from scankv.model.errors import DataLoss, InvalidKey, RequestTooLarge, ScanKvError
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.rows.table_codec import TableCodec

# A step holds the event loop for about 2 ms, as a chunk of a scan does.
_STEP_ROWS = 1024
_STEP_BYTES = 256 * 1024
_ID_BYTES = 4
# Turns of the event loop between steps, as in `services/reading.py`.
_TURNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFindings:
    """What was found of one index in one bucket.

    Attributes:
        columns: Those of the index.
        entries: How many entries it has.
        ready: Whether it is used; only then it was compared with the rows.
        problem: What is wrong with it, empty when nothing is.
    """

    columns: tuple[str, ...]
    entries: int
    ready: bool
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFindings:
    """What was found in one bucket.

    Attributes:
        rows: How many rows it has.
        indexes: What was found of each index of the table.
        problem: What is wrong with it apart from single indexes, empty when nothing is.
    """

    rows: int
    indexes: tuple[IndexFindings, ...]
    problem: str


class BucketChecker:
    """One check of one bucket, as of the moment when it is made. Bound to the event loop; memory is that of a step.

    Make it under the bucket's mutex. It pins files on disk until `run` has ended, or `abort`.

    Attributes:
        rows_scanned: Rows read so far.
    """

    def __init__(
        self,
        number: int,
        bucket: Bucket,
        codec: TableCodec,
        on_error: Callable[[ScanKvError], ScanKvError],
    ) -> None:
        """Begins before the first row.

        Args:
            number: That of the bucket.
            bucket: Holds what is checked.
            codec: The table.
            on_error: Is told of damage, and gives the error that says where.
        """
        self.rows_scanned = 0
        self._number = number
        self._place = bucket.location
        self._rows = bucket.state.rows
        self._keys = codec.keys
        self._indexes = codec.indexes
        self._on_error = on_error
        self._ended: ScanKvError | None = None
        self._expected = {index: _EntryChecksum() for index in codec.indexes if index in bucket.state.ready_indexes}
        self._found = {index: _EntryChecksum() for index in codec.indexes}
        self._strangers = 0
        self._problems: list[str] = []
        self._is_whole = True
        self._last_key = b""
        self._row_cursor = bucket.cursor(codec.rows, codec.rows.decoder(), codec.key_codec)
        try:
            self._entry_cursor = bucket.entry_cursor(ALL_KEY_RANGES)
        except BaseException:
            self._row_cursor.close()
            raise

    async def run(self) -> BucketFindings:
        """Reads everything, in steps between which others have their turn. Raises what `abort` was told."""
        try:
            await self._others_turn()
            for reading in (self._read_rows, self._read_entries):
                try:
                    await reading()
                except DataLoss as error:
                    self._is_whole = False
                    self._problems.append(self._on_error(error).message)
        finally:
            self.close()
        if self._is_whole and self._rows is not None and self.rows_scanned != self._rows:
            self._problems.append(f"{self._place} has {self.rows_scanned} rows, where {self._rows} are counted")
        if self._strangers:
            self._problems.append(f"{self._place} has {_entries(self._strangers)} of no index that the table has")
        return BucketFindings(
            rows=self.rows_scanned,
            indexes=tuple(map(self._findings_of, self._indexes)),
            problem="; ".join(dict.fromkeys(self._problems)),
        )

    def abort(self, error: ScanKvError) -> None:
        """Frees everything now; `run` raises the error."""
        self._ended = self._ended or error
        self.close()

    def close(self) -> None:
        """Frees the cursors. Closing twice is allowed."""
        self._row_cursor.close()
        self._entry_cursor.close()

    async def _read_rows(self) -> None:
        while (batch := self._row_cursor.next_batch(_STEP_ROWS, _STEP_BYTES)) is not None:
            if not batch.num_rows:
                await self._others_turn()
                continue
            keys = self._checked_keys(batch)
            self.rows_scanned += batch.num_rows
            await self._others_turn()
            for index, expected in self._expected.items():
                try:
                    entry_keys, values = self._indexes[index].entries(batch, keys)
                except RequestTooLarge as error:
                    raise DataLoss(f"{self._place} has a row that cannot be in an index, which has all rows") from error
                expected.add(entry_keys.to_pylist(), values.to_pylist())
                await self._others_turn()

    def _checked_keys(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The encoded keys of the next rows."""
        try:
            keys, buckets = self._keys.encode(batch)
        except InvalidKey as error:
            raise DataLoss(f"{self._place} has a row with a key that cannot be stored") from error
        plain = keys.to_pylist()
        if not all(map(lt, [self._last_key, *plain], plain)):
            self._problems.append(f"{self._place} has rows that are not where their keys belong")
        if (buckets != self._number).any():
            self._problems.append(f"{self._place} has rows that belong to other buckets")
        self._last_key = plain[-1]
        return keys

    async def _read_entries(self) -> None:
        while (read := self._entry_cursor.next_entries(_STEP_ROWS)) is not None:
            self._add_entries(*read)
            await self._others_turn()

    def _add_entries(self, keys: list[bytes], values: list[bytes]) -> None:
        """Takes entries in their order, those of one index after those of another."""
        start = 0
        while start < len(keys):
            prefix = keys[start][:_ID_BYTES]
            found = self._found.get(int.from_bytes(prefix, "big")) if len(prefix) == _ID_BYTES else None
            if found is None:
                self._strangers += 1
                start += 1
                continue
            behind = KeyRange.under(prefix).end
            end = len(keys) if behind is None else bisect_left(keys, behind, start)
            found.add(keys[start:end], values[start:end])
            start = end

    async def _others_turn(self) -> None:
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
            problem=_difference(found, expected) if expected is not None and self._is_whole else "",
        )


@dataclass(slots=True)
class _EntryChecksum:
    """What entries amount to, in whatever order they come."""

    count: int = 0
    hashes: int = 0

    def add(self, keys: list[bytes], values: list[bytes]) -> None:
        """Takes more entries; no key begins another one, so key and value are told apart."""
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
