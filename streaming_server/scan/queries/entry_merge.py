"""Finds the first entries of an index over several buckets. Of each bucket, it reads only entries that may be first."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss, InvalidKey, ScanKvError
from scankv.model.expressions import evaluate
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges
from streaming_server.arrays.sort_codes import sort_codes
from streaming_server.scan.rows.locked_view import MAX_STEP_ENTRIES
from streaming_server.storage.cursors.range_reader import STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.expressions import BoundPredicate
    from streaming_server.scan.rows.locked_view import LockedView
    from streaming_server.storage.cursors.entry_cursor import EntryCursor
    from streaming_server.storage.rows.index_codec import IndexCodec


MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""The limit for the entries kept. A scan reads rows with longer entries better."""

_QUICK_ENTRIES: Final = 64
"""So few entries are read and decoded in about half a millisecond."""


class BudgetExceeded(Exception):
    """Reading the index costs too much. Not a failure: the caller scans the rows instead."""


@dataclass(frozen=True, slots=True)
class FirstByValue:
    """The first n entries, once the value of the last one is known. Immutable.

    Attributes:
        found: Matching entries in no order, as `EntryMerge` describes them: all entries before the value of the n-th,
            and, of the buckets not in `cut`, all entries with that value. There may be others after it.
        last: The value of the n-th entry; None if there are fewer than n, all of which are in `found`.
        cut: The buckets with unread entries of that value, and the ranges of all entries of that value there.
    """

    found: pa.RecordBatch
    last: pa.Scalar | None
    cut: Mapping[int, KeyRange]


class EntryMerge:
    """Reads the entries of one index in one locked view, in short steps. For a single task.

    Entries are batches with `value`, the sort code of the column; `key`, the encoded primary key; `stored`, the stored
    value of the entry; and `bucket`.

    Args:
        index: The index.
        locked: The view to read.
        by: The last column of the index.
        residual: The predicate on the entries. None: all match.
        budget: The most entries to read. None: no limit.

    Attributes:
        read: The number of entries read so far.
    """

    def __init__(
        self, index: IndexCodec, locked: LockedView, by: str, residual: BoundPredicate | None, budget: int | None
    ) -> None:
        self.read = 0
        self._index = index
        self._locked = locked
        self._by = by
        self._residual = residual
        self._budget = budget
        self._key_columns = locked.codec.definition.primary_key
        looked_at = {by, *self._key_columns, *(() if residual is None else residual.columns)}
        self._decoder = index.decoder([name for name in index.covered if name in looked_at])
        self._since_turn = self._kept_bytes = 0

    def everywhere(self, columns: KeyRange) -> dict[int, KeyRange]:
        """Returns the entries of a range of the index's encoded columns, in all buckets."""
        return dict.fromkeys(self._locked.buckets, self._index.within(columns))

    async def first_by_value(self, columns: KeyRange, n: int, *, ascending: bool) -> FirstByValue:
        """Returns the first n entries of a range by value alone, and all entries that tie with the last of them.

        Raises:
            BudgetExceeded: The search has read more entries than the budget, or more than 64 MiB of them.
            DataLoss: The entries are damaged.
        """
        found, last, runs = await self._first(self.everywhere(columns), n, "value", ascending=ascending)
        read = [run for run in runs if not run.ended and run.last is not None]
        cut = [run for run in read if last is not None and run.last_read("value").equals(last)]
        if cut:
            again = pa.array([run.number for run in cut], pa.int32())
            is_again = pc.and_(pc.equal(found["value"], last), pc.is_in(found["bucket"], value_set=again))
            found = found.filter(pc.invert(is_again))
        return FirstByValue(found, last, {run.number: run.same_value() for run in cut})

    async def first_by_key(self, ranges: Mapping[int, KeyRange], n: int) -> pa.RecordBatch:
        """Returns at least the first n entries by key, in no order, of ranges that are sorted by key.

        Raises the same errors as `first_by_value`.
        """
        found, _, _ = await self._first(ranges, n, "key", ascending=True)
        return found

    async def _first(
        self, ranges: Mapping[int, KeyRange], n: int, column: str, *, ascending: bool
    ) -> tuple[pa.RecordBatch, pa.Scalar | None, Sequence[_EntryRun]]:
        """Reads ranges that are sorted by a column until no other entry can precede the n-th.

        Returns the matching entries, the value of the n-th (None if there are fewer), and the run of each bucket.
        """
        with ExitStack() as cursors:
            runs = [
                _EntryRun(
                    number, cursors.enter_context(closing(self._cursor(number, key_range, reverse=not ascending)))
                )
                for number, key_range in ranges.items()
            ]
            # Creating a cursor takes as long as reading about 16 entries.
            self._since_turn += 16 * len(runs)
            await self.end_step()
            active, last = runs, None
            kept: list[pa.RecordBatch] = []
            # Read each bucket's share, plus what it may have in addition by chance, plus one entry that shows whether
            # more entries tie with the last one. Another round would cost more than these few entries.
            share = n / max(1, len(runs))
            step = 1 + (n if len(runs) == 1 else int(share + sqrt(share)))
            while active:
                parts = self._read(active, min(step, MAX_STEP_ENTRIES // len(active) + 1))
                await self.end_step()
                kept.append(self._matching(parts))
                await self.end_step()
                missing = n - sum(part.num_rows for part in kept)
                if missing <= 0:
                    last = _nth(kept, column, n, in_order=len(runs) == 1, ascending=ascending)
                active = [run for run in active if not run.ended and _is_before(run, column, last, ascending=ascending)]
                step = self._next_step(step, missing, len(active))
            return pa.concat_batches(kept) if kept else self._decode([], [])[0], last, runs

    def _next_step(self, step: int, missing: int, active: int) -> int:
        """Returns how many entries to read next of each bucket that may have entries before the n-th."""
        if self._residual is not None:
            return 2 * step  # a selective predicate needs many entries
        return missing // max(1, active) + 1 if missing > 0 else max(1, step // 2)

    def _read(self, runs: Sequence[_EntryRun], step: int) -> list[tuple[_EntryRun, list[bytes]]]:
        """Reads `step` entries of some buckets."""
        parts: list[tuple[_EntryRun, list[bytes]]] = []
        began = time.thread_time()
        for run in runs:
            try:
                parts.append((run, run.next_values(step)))
            except ScanKvError as error:
                raise self._locked.on_error(run.number, error) from error.__cause__
            if time.thread_time() - began > STEP_SECONDS:
                # The cursor has skipped deleted entries. The other buckets wait for the next call.
                self._since_turn = MAX_STEP_ENTRIES
                break
        # A seek takes as long as reading about 16 entries.
        self._since_turn += sum(len(values) for _, values in parts) + 16 * len(parts)
        return parts

    def _matching(self, parts: Sequence[tuple[_EntryRun, list[bytes]]]) -> pa.RecordBatch:
        """Decodes the entries of some buckets together, and returns those that match."""
        numbers = [run.number for run, values in parts for _ in values]
        entries, kept = self._decode_naming_bucket([value for _, values in parts for value in values], numbers, parts)
        index = 0
        for run, values in parts:
            index += len(values)
            if values:
                run.last = entries.slice(index - 1, 1)
        self.read += index
        # Decoding takes longer than reading, above all for few entries.
        self._since_turn += _QUICK_ENTRIES + index
        if kept is not None:
            entries = entries.filter(kept)
        self._kept_bytes += entries.nbytes
        if self._kept_bytes > MAX_KEPT_BYTES or (self._budget is not None and self.read > self._budget):
            raise BudgetExceeded
        return entries

    async def end_step(self) -> None:
        """Gives other tasks a turn of the event loop if the entries read since the last one took a while."""
        if self._since_turn >= _QUICK_ENTRIES:
            self._since_turn = 0
            await self._locked.yield_to_others()

    def _decode_naming_bucket(
        self, values: list[bytes], numbers: list[int], parts: Sequence[tuple[_EntryRun, list[bytes]]]
    ) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        try:
            return self._decode(values, numbers)
        except DataLoss:
            for run, part in parts:
                try:
                    self._decode(part, [run.number] * len(part))
                except DataLoss as error:
                    raise self._locked.on_error(run.number, error) from error
            raise

    def _decode(self, values: list[bytes], numbers: list[int]) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        """Decodes entries of some buckets. Also returns which of them match; None: all."""
        stored = pa.array(values, pa.binary())
        columns = self._decoder.decode(stored)
        try:
            keys = self._locked.keys.encode([columns[name] for name in self._key_columns])
        except InvalidKey as error:
            raise DataLoss("an index entry is damaged: its key is not a valid key") from error
        arrays = [sort_codes(columns[self._by]), keys, stored, pa.array(numbers, pa.int32())]
        entries = pa.RecordBatch.from_arrays(arrays, ["value", "key", "stored", "bucket"])
        return entries, None if self._residual is None else evaluate(self._residual, columns)

    def _cursor(self, number: int, key_range: KeyRange, *, reverse: bool) -> EntryCursor:
        try:
            return self._locked.buckets[number].entry_cursor(KeyRanges.of(key_range), reverse=reverse)
        except ScanKvError as error:
            raise self._locked.on_error(number, error) from error.__cause__


class _EntryRun:
    """Reads one key range of one bucket.

    Attributes:
        number: The bucket.
        ended: Whether it is proven that there are no more entries.
        last: The last entry read, matching or not, as a batch of one; None before the first.
    """

    def __init__(self, number: int, cursor: EntryCursor) -> None:
        self.number = number
        self.ended = False
        self.last: pa.RecordBatch | None = None
        self._cursor = cursor
        self._last_key = b""

    def next_values(self, entries: int) -> list[bytes]:
        """Reads the next entries. Raises DataLoss."""
        keys, values = self._cursor.next_entries(entries) or ([], [])
        self.ended = self._cursor.ended
        if keys:
            self._last_key = keys[-1]
        return values

    def last_read(self, column: str) -> pa.Scalar:
        """Returns the last value or key read, matching or not. At least one entry must have been read."""
        assert self.last is not None
        return self.last[column][0]

    def same_value(self) -> KeyRange:
        """Returns the range of all entries with the last value read."""
        row_key: bytes = self.last_read("key").as_py()
        return KeyRange.under(self._last_key.removesuffix(row_key))


def _nth(kept: Sequence[pa.RecordBatch], column: str, n: int, *, in_order: bool, ascending: bool) -> pa.Scalar:
    """Returns the n-th of the kept entries by a column."""
    values = kept[0][column] if len(kept) == 1 else pa.concat_arrays([part[column] for part in kept])
    if in_order:
        return values[n - 1]
    order = pc.array_sort_indices(values, order="ascending" if ascending else "descending")
    return values[order[n - 1].as_py()]


def _is_before(run: _EntryRun, column: str, last: pa.Scalar | None, *, ascending: bool) -> bool:
    """Whether further entries of a bucket may precede the n-th."""
    if last is None or run.last is None:
        return True
    before: bool = (pc.less if ascending else pc.greater)(run.last_read(column), last).as_py()
    return before
