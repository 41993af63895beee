"""Index lookup: finds the keys of matching rows in an index, if there are few of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.expressions import MAX_POINTS, plan_index
from scankv.model.keys.buckets import KeyPlaces
from scankv.model.keys.key_ranges import KeyRanges
from streaming_server.scan.read_plan import is_cheap_to_plan
from streaming_server.scan.row_reader import IndexedKeys
from streaming_server.scan.rows.locked_view import MAX_STEP_ENTRIES
from streaming_server.storage.cursors.entry_cursor import STEP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from scankv.model.expressions import IndexPlan
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.scan.rows.locked_view import LockedView
    from streaming_server.storage.cursors.entry_cursor import EntryCursor
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.table_codec import TableCodec

MAX_ENTRY_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of index entries, keys and values, that one scan keeps."""

_MANY_RANGES: Final = 256


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """The index that a scan uses, and the ranges of entries that it reads there. Immutable."""

    codec: IndexCodec
    plan: IndexPlan


def plan_reads(plan: ReadPlan, codec: TableCodec) -> tuple[RowReader, list[IndexChoice]]:
    """Binds a plan to a table. Returns its reader, and the indexes that can find the keys, best first.

    Raises:
        SchemaMismatch: A column does not exist, or a value does not fit the type of its column.
    """
    reader = plan.reader(codec.rows, codec.key_codec)
    if len(reader.ranges) > _MANY_RANGES and codec.definition.has_key:
        places = KeyPlaces(codec.definition.key_schema, codec.definition.bucket_key, codec.definition.buckets)
        reader = replace(reader, by_bucket=places.of_ranges(reader.ranges, codec.definition.own_buckets))
    return reader, index_choices(reader, codec.indexes.values())


async def plan_reads_off_loop(
    run: Callable[..., Awaitable[tuple[RowReader, list[IndexChoice]]]],
    plan: ReadPlan,
    codec: TableCodec,
) -> tuple[RowReader, list[IndexChoice]]:
    """Calls `plan_reads`; in a thread by `run` if it may take milliseconds, as with hundreds of comparisons."""
    if is_cheap_to_plan(plan.where):
        return plan_reads(plan, codec)
    return await run(plan_reads, plan, codec)


def index_choices(reader: RowReader, indexes: Iterable[IndexCodec]) -> list[IndexChoice]:
    """Returns the indexes whose columns a predicate bounds, best first; none if the key bounds the rows already.

    In a partitioned table, the key bounds the rows of a partition, and an index begins with the partition columns as
    well. So an index is chosen there if it bounds more columns than the key does.

    For each index, this takes as long as planning the key.

    Args:
        reader: How the rows would be read without an index.
        indexes: The indexes of the table.
    """
    where, by_key = reader.residual, None
    if where is not None and reader.codec.definition.partition_by:
        where = reader.where
        by_key = None if where is None else plan_index(where, reader.keys)
    elif reader.ranges.is_bounded:
        return []
    if where is None:
        return []
    choices = [
        IndexChoice(codec, plan)
        for codec in indexes
        if (plan := plan_index(where, codec.columns)) is not None
        and (by_key is None or plan.rank[:2] > by_key.rank[:2])
    ]
    return sorted(choices, key=lambda choice: choice.plan.rank, reverse=True)


def choose_index(choices: Iterable[IndexChoice], indexes: Iterable[IndexCodec]) -> IndexChoice | None:
    """Returns the best choice whose index is among the usable `indexes`. None: no choice is usable."""
    usable = {codec.index.id for codec in indexes}
    return next((choice for choice in choices if choice.codec.index.id in usable), None)


async def read_through_index(reader: RowReader, choices: Iterable[IndexChoice], locked: LockedView) -> RowReader:
    """Returns the reader, restricted to the keys that an index finds, if one can be used and finds at most 10,000.

    The restricted reader reads the same rows in the same order, as of the same instant.

    Raises:
        DataLoss: The entries are damaged.
    """
    choice = choose_index(choices, locked.indexes)
    if choice is None:
        return reader
    found = await _indexed_keys(choice, locked, keep_rows=reader.is_covered_by(choice.codec))
    return reader if found is None else reader.with_indexed_keys(choice.codec, found, choice.plan.residual)


async def _indexed_keys(choice: IndexChoice, locked: LockedView, *, keep_rows: bool) -> IndexedKeys | None:
    """Returns the keys by bucket; None if there are too many."""
    keys: dict[int, tuple[bytes, ...]] = {}
    rows: dict[bytes, bytes] = {}
    entries = _Entries(choice, locked)
    for number in locked.buckets:
        values = await entries.of_bucket(number)
        if values is None:
            return None
        try:
            row_keys = choice.codec.row_keys(pa.array(values, pa.binary())).to_pylist()
            keys[number] = _ascending(row_keys)
        except DataLoss as error:
            raise locked.on_error(number, error) from error
        if keep_rows:
            rows.update(zip(row_keys, values, strict=True))
    return IndexedKeys(keys, rows if keep_rows else None)


def _ascending(keys: list[bytes]) -> tuple[bytes, ...]:
    ascending = sorted(keys)
    if len(set(ascending)) < len(ascending):
        raise DataLoss("an index has several entries for one row: run `scankv check`")
    return tuple(ascending)


class _Entries:
    """Reads the entries of some ranges until there are too many."""

    def __init__(self, choice: IndexChoice, locked: LockedView) -> None:
        self._ranges = KeyRanges.of(*(choice.codec.within(columns) for columns in choice.plan.ranges))
        self._locked = locked
        self._entries_left, self._bytes_left = MAX_POINTS, MAX_ENTRY_BYTES
        self._turn = time.perf_counter()

    async def of_bucket(self, number: int) -> list[bytes] | None:
        """Returns the values of the entries of a bucket; None if they exceed the limits."""
        found: list[bytes] = []
        cursor = self._locked.buckets[number].entry_cursor(self._ranges)
        try:
            while (values := self._step(number, cursor)) is not None:
                found += values
                if self._entries_left < 0 or self._bytes_left < 0:
                    return None
                if time.perf_counter() - self._turn > STEP_SECONDS:
                    await self._locked.yield_to_others()
                    self._turn = time.perf_counter()
        finally:
            cursor.close()
        return found

    def _step(self, number: int, cursor: EntryCursor) -> list[bytes] | None:
        """Returns the values of the next entries, possibly none; None at the end."""
        try:
            read = cursor.next_entries(min(self._entries_left + 1, MAX_STEP_ENTRIES))
        except ScanKvError as error:
            raise self._locked.on_error(number, error) from error.__cause__
        if read is None:
            return None
        keys, values = read
        self._entries_left -= len(keys)
        self._bytes_left -= sum(map(len, keys)) + sum(map(len, values))
        return values
