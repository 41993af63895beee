"""Reads an index for a scan, as long as that costs less than reading all rows.

Both ways of reading show the same rows in the same order as of the same instant. How many matching entries there are is
known only after reading them. So both scans are opened at the instant of the view, the entries are read afterwards,
and one scan is closed. Reading entries in vain costs a small part of the scan that follows.
"""

from __future__ import annotations

import asyncio
import math
import time
from copy import copy
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.keys.key_ranges import KeyRanges
from streaming_server.scan.indexed_rows import IndexedKeys
from streaming_server.scan.read_plan import ReadPath
from streaming_server.scan.rows.index_choice import choose_index
from streaming_server.scan.rows.locked_view import MAX_STEP_ENTRIES
from streaming_server.scan.rows.lookup_costs import RowsToScan, most_lookups
from streaming_server.storage.cursors.entry_cursor import STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.scan.rows.index_choice import IndexChoice
    from streaming_server.scan.rows.locked_view import LockedView

MAX_ENTRY_BYTES: Final = 40 * 1024 * 1024
"""The most bytes of index entries that one scan keeps."""
LEAST_ENTRIES: Final = 64
"""With so few matching rows, an index lookup takes less than opening a scan of all rows."""
_NO_VALUES: Final = pa.array([], pa.binary())
_FEW_ENTRIES: Final = 10_000
"""Reading so many entries takes 10 ms: little compared with a scan that may not reach its limit soon."""


def open_lookup(
    plan: ReadPlan, reader: RowReader, choices: Iterable[IndexChoice], locked: LockedView, based: Collection[int]
) -> IndexLookup | None:
    """Begins a lookup in the best index that can be used. None: no index can. The caller closes the lookup.

    Args:
        plan: The requested scan.
        reader: How the rows are read without an index.
        choices: The indexes that can find the keys, best first.
        locked: The buckets, as of the instant of the scan.
        based: The buckets that would be read from a columnar base.
    """
    choice = choose_index(choices, locked.indexes)
    if choice is None or plan.limit == 0 or plan.read_path is ReadPath.COLUMNAR:
        return None
    return IndexLookup(choice, reader, locked, _most_entries(plan, reader, choice, locked, based))


def _most_entries(
    plan: ReadPlan, reader: RowReader, choice: IndexChoice, locked: LockedView, based: Collection[int]
) -> int:
    """Returns with how many matching entries an index lookup still costs less than reading all rows."""
    if reader.ranges.is_bounded:
        # How many rows the partitions have that would be read is unknown here.
        return _FEW_ENTRIES
    buckets = [
        RowsToScan(bucket.approximate_rows, bucket.row_bytes, number in based)
        for number, bucket in locked.buckets.items()
    ]
    most = max(most_lookups(buckets, covered=reader.is_covered_by(choice.codec)), LEAST_ENTRIES)
    if plan.limit is None:
        return most
    # The lookup has to read all matching entries first. A scan of all rows ends sooner the more rows match.
    return min(most, max(math.isqrt(plan.limit * most_lookups(buckets, covered=True)), _FEW_ENTRIES))


class IndexLookup:
    """Reads the entries of an index for a scan, at one instant, until reading all rows would cost less.

    Create it at the instant of the view, together with the cursors of both scans; read the entries whenever. It is
    bound to the event loop, and must be closed unless it has read everything.

    Args:
        choice: The index, and the entries to read.
        reader: How the rows are read without the index.
        locked: The buckets.
        most: The most entries with which the index is used.

    Attributes:
        choice: The index, and the entries to read.
        reader: Reads the rows that the index finds. It knows their keys once `is_chosen` is True.
        most: The most entries with which the index is used.
        is_chosen: Whether the scan uses the index. None: not all entries were read yet.
    """

    def __init__(self, choice: IndexChoice, reader: RowReader, locked: LockedView, most: int) -> None:
        self.choice, self.most = choice, most
        self.is_chosen: bool | None = None
        self._locked = locked
        self._indexed = IndexedKeys(dict.fromkeys(locked.buckets), {} if reader.is_covered_by(choice.codec) else None)
        self.reader = reader.with_indexed_keys(choice.codec, self._indexed, choice.plan.residual)
        self._values: dict[int, list[pa.BinaryArray]] = {number: [] for number in locked.buckets}
        self._entries_left, self._bytes_left = most, MAX_ENTRY_BYTES
        self._aborted: ScanKvError | None = None
        ranges = KeyRanges.of(*(choice.codec.within(columns) for columns in choice.plan.ranges))
        self._cursors = {number: bucket.entry_cursor(ranges) for number, bucket in locked.buckets.items()}

    async def read(self, count: int | None = None, *, keeps: bool = True) -> None:
        """Reads the next entries, about `count` of them (None: all), and sets `is_chosen` once it is known.

        Args:
            count: How many entries.
            keeps: Whether `reader` will read the rows. If not, the entries are only counted, and take no memory.

        Raises:
            DataLoss: The entries are damaged.
            ScanKvError: The error given to `abort`.
        """
        self._check()
        try:
            await self._read_entries(-1 if count is None else self._entries_left - count, keeps=keeps)
            if not self._cursors and self.is_chosen is None:
                if keeps:
                    await self._find_keys()
                self.is_chosen = True
        except BaseException:
            self.close()
            raise

    async def _read_entries(self, least_left: int, *, keeps: bool) -> None:
        until = time.perf_counter() + STEP_SECONDS
        while self._cursors and self._entries_left > least_left:
            number = next(iter(self._cursors))
            try:
                self._step(number, min(self._entries_left + 1, MAX_STEP_ENTRIES), keeps=keeps)
            except ScanKvError as error:
                raise self._locked.on_error(number, error) from error.__cause__
            if self._entries_left < 0 or self._bytes_left < 0:
                self.is_chosen = False
                self._values.clear()
                self.close()
            elif time.perf_counter() > until:
                await self._locked.yield_to_others()
                self._check()
                until = time.perf_counter() + STEP_SECONDS

    def _step(self, number: int, count: int, *, keeps: bool) -> None:
        values = self._cursors[number].next_values(count)
        if values is None:
            self._cursors.pop(number).close()
        elif values:
            # Arrow needs a fraction of the memory of as many objects.
            array = pa.array(values, pa.binary())
            if keeps:
                self._values[number].append(array)
            self._entries_left -= len(array)
            self._bytes_left -= array.nbytes

    async def _find_keys(self) -> None:
        """Computes the keys of the rows from the entries: in a thread if there are many."""
        is_quick = self.most - self._entries_left <= MAX_STEP_ENTRIES
        for number in list(self._values):
            parts = self._values.pop(number)
            try:
                keys, rows = self._sort(parts) if is_quick else await asyncio.to_thread(self._sort, parts)
            except DataLoss as error:
                raise self._locked.on_error(number, error) from error
            self._check()
            self._indexed.keys[number] = keys
            if self._indexed.rows is not None:
                self._indexed.rows[number] = rows

    def _sort(self, parts: list[pa.BinaryArray]) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Returns the keys of some entries, ascending, and for a covering index the rows. Takes the parts away."""
        if not parts:
            return _NO_VALUES, _NO_VALUES
        rows = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        parts.clear()
        keys = self.choice.codec.row_keys(rows)
        if len(keys) == 1:
            return keys, rows
        order = pc.array_sort_indices(keys)
        keys = keys.take(order)
        if pc.any(pc.equal(keys[1:], keys[:-1])).as_py():
            raise DataLoss("an index has several entries for one row: run `scankv check`")
        return keys, rows if self._indexed.rows is None else rows.take(order)

    def _check(self) -> None:
        if self._aborted is not None:
            raise copy(self._aborted)

    def abort(self, error: ScanKvError) -> None:
        """Closes the cursors now. A running `read` raises `error`."""
        self._aborted = error
        self.close()

    def close(self) -> None:
        """Closes the cursors. Closing twice is allowed."""
        while self._cursors:
            self._cursors.popitem()[1].close()
