"""When a scan reads a columnar base instead of RocksDB, and what it needs for that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest
from streaming_server.scan.columnar.base_cursor import BaseCursor
from streaming_server.scan.cursor_chain import CursorChain
from streaming_server.scan.read_plan import ReadPath

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from scankv.model.keys.key_range import KeyRange
    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.scan.chunk_source import Cursor
    from streaming_server.scan.columnar.delta import DeltaView
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import Readable, RowReader
    from streaming_server.storage.columnar.columnar_base import ColumnarBase

BASE_CHUNK_ROWS: Final = 32_768
"""Rows of a chunk out of a base when the scan does not say: those of one batch of it, which then go out as they lie."""
BASE_CHUNK_BYTES: Final = 2 << 20
"""The same in bytes."""
_FEW_ROWS: Final = 1000
_FEW_RANGES: Final = 16
"""To begin a range in a base takes as long as to read some hundred rows; of as many, some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseView:
    """A bucket at one moment, as its base and what was written since. Immutable; pins no RocksDB iterator.

    Attributes:
        base: The base.
        delta: What was written since.
        place: What errors call the bucket.
    """

    base: ColumnarBase
    delta: DeltaView
    place: str

    def cursor(self, reader: RowReader, key_range: KeyRange, *, reverse: bool) -> BaseCursor:
        """A cursor over the rows of a key range, with the columns that a reader returns."""
        return BaseCursor(
            self.base,
            self.delta.merge,
            reader.codec,
            reader.columns,
            reader.residual,
            key_range,
            reverse=reverse,
            place=self.place,
        )


NO_BASES: Final[Mapping[int, BaseView]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ViaChoice:
    """What a scan is read from.

    Attributes:
        base: Whether bases are read, in buckets that have one.
        reason: Why, in words.
        possible: Whether they could be.
    """

    base: bool
    reason: str
    possible: bool = True


def choose(plan: ReadPlan, reader: RowReader) -> ViaChoice:
    """What a plan is read from where there are bases."""
    obstacle = _obstacle(reader)
    if obstacle:
        return ViaChoice(False, obstacle, possible=False)
    if plan.read_path is ReadPath.ROCKSDB:
        return ViaChoice(False, "asked for")
    if plan.read_path is ReadPath.COLUMNAR:
        return ViaChoice(True, "asked for")
    if plan.limit is not None and plan.limit <= _FEW_ROWS:
        return ViaChoice(False, f"the limit is at most {_FEW_ROWS:,} rows")
    return ViaChoice(True, "a range of many rows")


def bases_for(
    plan: ReadPlan,
    reader: RowReader,
    filled: Collection[int],
    view_of: Callable[[int], BaseView | None],
    why_none: str,
) -> Mapping[int, BaseView]:
    """Of the buckets that have rows those that are read out of their bases; the others are read row by row.

    Args:
        plan: What is asked for.
        reader: How it is read.
        filled: The buckets that may have rows.
        view_of: Gives the base of a bucket, None where there is none.
        why_none: Why there may be none, and what to do, in words.

    Raises:
        InvalidRequest: Bases are asked for, and there is one missing, or the scan cannot be read so.
    """
    choice = choose(plan, reader)
    if plan.read_path is ReadPath.COLUMNAR and not choice.possible:
        raise InvalidRequest(f'this cannot be read with read_path "columnar": {choice.reason}; leave `read_path` out')
    if not choice.base:
        return NO_BASES
    bases = {number: view for number in filled if (view := view_of(number)) is not None}
    missing = [number for number in filled if number not in bases]
    if missing and plan.read_path is ReadPath.COLUMNAR:
        raise InvalidRequest(
            f'bucket {missing[0]} cannot be read with read_path "columnar": {why_none}', bucket=missing[0]
        )
    # Rows that are put in order are all in one form.
    return NO_BASES if missing and plan.ordered else bases


def choose_read_path(
    plan: ReadPlan, reader: RowReader, filled: Collection[int], based: Collection[int], *, through_index: bool
) -> tuple[ReadPath, str]:
    """What `bases_for` would choose, and why, in words.

    Args:
        plan: What is asked for.
        reader: How it is read, but for an index.
        filled: The buckets that may have rows.
        based: Those of them that have a base.
        through_index: Whether an index tells the keys.
    """
    if through_index:
        return ReadPath.ROCKSDB, "single keys are looked up"
    choice = choose(plan, reader)
    if not choice.base:
        return ReadPath.ROCKSDB, choice.reason
    if not based:
        return ReadPath.ROCKSDB, "no bucket has a columnar base"
    missing = len(filled) - len(based)
    if missing and plan.ordered:
        return ReadPath.ROCKSDB, f"{missing} of {len(filled)} buckets have no base, and all are put in one order"
    return ReadPath.COLUMNAR, choice.reason + (f"; {missing} of {len(filled)} buckets have no base" if missing else "")


def cursor_of(
    reader: RowReader,
    number: int,
    bucket: Readable,
    keys: KeyRanges,
    bases: Mapping[int, BaseView],
    *,
    reverse: bool = False,
) -> Cursor:
    """A cursor over some keys of a bucket, which reads its base where that is among `bases`. Raises DataLoss."""
    if number in bases:
        base = bases[number]
        ordered = reversed(list(keys)) if reverse else keys
        cursors: list[Callable[[], Cursor]] = [partial(base.cursor, reader, one, reverse=reverse) for one in ordered]
        return cursors[0]() if len(cursors) == 1 else CursorChain(cursors)
    return reader.cursor(bucket, keys, reverse=reverse)


async def merge_deltas(bases: Mapping[int, BaseView], run: Callable[[Callable[[], object]], Awaitable[object]]) -> None:
    """Sorts what was written since the bases, with `run` in a thread.

    Else the first chunk would do it, on the event loop: half a second for a million rows.
    """
    for each in bases.values():
        if not each.delta.is_merged:
            await run(each.delta.merge)


def _obstacle(reader: RowReader) -> str:
    if reader.ranges.are_keys or reader.indexed is not None:
        return "single keys are looked up"
    if len(reader.ranges) > _FEW_RANGES:
        return f"over {_FEW_RANGES} ranges of keys are looked up one after another"
    return ""
