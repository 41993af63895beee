"""The keys that an index tells of the rows that a predicate is true of, where those are few."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.expressions import MAX_POINTS, plan_index
from scankv.model.keys.key_ranges import KeyRanges
from streaming_server.scan.read_plan import is_planned_at_once
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
"""Of the entries, keys and values, that one scan keeps."""


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """The index that a scan looks into, and what it looks for there. Immutable."""

    codec: IndexCodec
    plan: IndexPlan


def plan_reads(plan: ReadPlan, codec: TableCodec) -> tuple[RowReader, list[IndexChoice]]:
    """Binds a plan to a table: what it reads, and the indexes that can find the keys, the best first.

    Raises:
        SchemaMismatch: A column does not exist, or a comparison does not fit its type.
    """
    reader = plan.reader(codec.rows, codec.key_codec)
    return reader, index_choices(reader, codec.indexes.values())


async def plan_reads_in(
    run: Callable[..., Awaitable[tuple[RowReader, list[IndexChoice]]]],
    plan: ReadPlan,
    codec: TableCodec,
) -> tuple[RowReader, list[IndexChoice]]:
    """The same, with `run` in a thread where it takes some milliseconds, as for hundreds of comparisons."""
    if is_planned_at_once(plan.where):
        return plan_reads(plan, codec)
    return await run(plan_reads, plan, codec)


def index_choices(reader: RowReader, indexes: Iterable[IndexCodec]) -> list[IndexChoice]:
    """The indexes whose columns a predicate bounds, the best first; none when the key says more than any.

    Takes as long as planning the key does, for each index.

    Args:
        reader: How the rows would be read without one.
        indexes: Those of the table.
    """
    if reader.residual is None or reader.ranges.is_bounded:
        return []
    choices = [
        IndexChoice(codec, plan)
        for codec in indexes
        if (plan := plan_index(reader.residual, codec.columns)) is not None
    ]
    return sorted(choices, key=lambda choice: choice.plan.rank, reverse=True)


def chosen_index(choices: Iterable[IndexChoice], indexes: Iterable[IndexCodec]) -> IndexChoice | None:
    """The best choice whose index can be used, as `indexes` can; None where there is none."""
    usable = {codec.index.id for codec in indexes}
    return next((choice for choice in choices if choice.codec.index.id in usable), None)


async def read_through_index(reader: RowReader, choices: Iterable[IndexChoice], locked: LockedView) -> RowReader:
    """The reader, with the keys that an index tells when one can be used and they are at most 10,000.

    The rows that it reads then, and their order, are the same, as of the same instant.

    Raises:
        DataLoss: The entries are damaged.
    """
    choice = chosen_index(choices, locked.indexes)
    if choice is None:
        return reader
    found = await _indexed_keys(choice, locked, keep_rows=reader.is_covered_by(choice.codec))
    return reader if found is None else reader.through(choice.codec, found, choice.plan.residual)


async def _indexed_keys(choice: IndexChoice, locked: LockedView, *, keep_rows: bool) -> IndexedKeys | None:
    """The keys by bucket, None when they are too many."""
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
        raise DataLoss("an index has several entries of one row; run `scankv check`")
    return tuple(ascending)


class _Entries:
    """Reads the entries of some ranges, until they are too many."""

    def __init__(self, choice: IndexChoice, locked: LockedView) -> None:
        self._ranges = KeyRanges.of(*(choice.codec.within(columns) for columns in choice.plan.ranges))
        self._locked = locked
        self._room, self._room_bytes = MAX_POINTS, MAX_ENTRY_BYTES
        self._turn = time.perf_counter()

    async def of_bucket(self, number: int) -> list[bytes] | None:
        """The values of the entries of a bucket, None when there is no room for them."""
        found: list[bytes] = []
        cursor = self._locked.buckets[number].entry_cursor(self._ranges)
        try:
            while (values := self._step(number, cursor)) is not None:
                found += values
                if self._room < 0 or self._room_bytes < 0:
                    return None
                if time.perf_counter() - self._turn > STEP_SECONDS:
                    await self._locked.yield_to_others()
                    self._turn = time.perf_counter()
        finally:
            cursor.close()
        return found

    def _step(self, number: int, cursor: EntryCursor) -> list[bytes] | None:
        """The values of the next entries, perhaps none; None at the end."""
        try:
            read = cursor.next_entries(min(self._room + 1, MAX_STEP_ENTRIES))
        except ScanKvError as error:
            raise self._locked.on_error(number, error) from error.__cause__
        if read is None:
            return None
        keys, values = read
        self._room -= len(keys)
        self._room_bytes -= sum(map(len, keys)) + sum(map(len, values))
        return values
