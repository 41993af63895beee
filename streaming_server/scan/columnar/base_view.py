"""Decides whether a scan reads columnar bases instead of RocksDB, and creates its cursors over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest
from streaming_server.scan.bucket_cursors import BucketCursors
from streaming_server.scan.columnar.base_cursor import BaseCursor
from streaming_server.scan.cursor_chain import CursorChain
from streaming_server.scan.indexed_rows import IndexedRowsCursor
from streaming_server.scan.read_plan import ReadPath

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from scankv.model.keys.key_range import KeyRange
    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.scan.chunk_source import Cursor
    from streaming_server.scan.columnar.delta import DeltaView
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import ReadableBucket, RowReader
    from streaming_server.storage.columnar.columnar_base import ColumnarBase

BASE_CHUNK_ROWS: Final = 32_768
"""The default rows of a chunk from a base: the rows of one batch, which is then sent as it is in the file."""
BASE_CHUNK_BYTES: Final = 2 << 20
"""The same limit in bytes."""
FEW_ROWS: Final = 1000
"""A scan with a limit of at most so many rows reads no bases."""
_FEW_RANGES: Final = 16
"""Starting a range in a base takes as long as reading several hundred rows, so this many take a few milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseView:
    """A bucket at one instant: its columnar base and its delta. Immutable; pins no RocksDB iterator.

    Attributes:
        base: The base.
        delta: The delta.
        location: The name of the bucket in errors.
    """

    base: ColumnarBase
    delta: DeltaView
    location: str

    def cursor(self, reader: RowReader, key_range: KeyRange, *, reverse: bool) -> BaseCursor:
        """Creates a cursor over the rows of a key range, with the columns that a reader returns."""
        return BaseCursor(
            self.base,
            self.delta.merge,
            reader.codec,
            reader.columns,
            reader.residual,
            key_range,
            reverse=reverse,
            location=self.location,
        )


NO_BASES: Final[Mapping[int, BaseView]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReadPathChoice:
    """Whether a scan reads columnar bases.

    Attributes:
        base: Whether it reads the bases of buckets that have one.
        reason: The human-readable reason.
        possible: Whether it could read bases.
    """

    base: bool
    reason: str
    possible: bool = True


def consider_bases(plan: ReadPlan, reader: RowReader) -> ReadPathChoice:
    """Decides whether a plan reads columnar bases, if there are any."""
    obstacle = _obstacle(reader)
    if obstacle:
        return ReadPathChoice(False, obstacle, possible=False)
    if plan.read_path is ReadPath.ROCKSDB:
        return ReadPathChoice(False, "asked for")
    if plan.read_path is ReadPath.COLUMNAR:
        return ReadPathChoice(True, "asked for")
    if plan.limit is not None and plan.limit <= FEW_ROWS:
        return ReadPathChoice(False, f"the limit is at most {FEW_ROWS:,} rows")
    return ReadPathChoice(True, "a range of many rows")


def bases_for(
    plan: ReadPlan,
    reader: RowReader,
    filled: Collection[int],
    view_of: Callable[[int], BaseView | None],
    why_none: str,
) -> Mapping[int, BaseView]:
    """Returns the bases to read. Buckets with rows but without a base in the result are read row by row.

    Args:
        plan: What is requested.
        reader: How it is read.
        filled: The buckets that may have rows.
        view_of: Returns the base of a bucket, None if it has none.
        why_none: A human-readable text: why a bucket may have no base, and what to do.

    Raises:
        InvalidRequest: The plan demands bases, and one is missing, or the scan cannot read bases.
    """
    choice = consider_bases(plan, reader)
    if plan.read_path is ReadPath.COLUMNAR and not choice.possible:
        raise InvalidRequest(
            f'the scan cannot be read with read_path "columnar": {choice.reason}; leave `read_path` out'
        )
    if not choice.base:
        return NO_BASES
    bases = {number: view for number in filled if (view := view_of(number)) is not None}
    missing = [number for number in filled if number not in bases]
    if missing and plan.read_path is ReadPath.COLUMNAR:
        raise InvalidRequest(
            f'bucket {missing[0]} cannot be read with read_path "columnar": {why_none}', bucket=missing[0]
        )
    # An ordered merge needs all rows in one representation.
    return NO_BASES if missing and plan.ordered else bases


def choose_read_path(
    plan: ReadPlan, reader: RowReader, filled: Collection[int], unusable: Mapping[int, str]
) -> tuple[ReadPath, str]:
    """Returns what `bases_for` would choose, with a human-readable reason.

    Args:
        plan: What is requested.
        reader: How it is read, apart from an index.
        filled: The buckets that may have rows.
        unusable: For each bucket among them of which no base can be read, the human-readable reason.
    """
    choice = consider_bases(plan, reader)
    if not choice.base:
        return ReadPath.ROCKSDB, choice.reason
    if not unusable:
        return ReadPath.COLUMNAR if filled else ReadPath.ROCKSDB, choice.reason if filled else "no bucket has rows"
    why = next(iter(unusable.values()))
    if len(unusable) == len(filled):
        return ReadPath.ROCKSDB, f"no bucket has a columnar base ready: {why}"
    some = f"{len(unusable)} of {len(filled)} buckets have no base ready: {why}"
    if plan.ordered:
        return ReadPath.ROCKSDB, f"all buckets are merged in one order, and {some}"
    return ReadPath.COLUMNAR, f"{choice.reason}; {some}"


def buckets_with_bases(
    plan: ReadPlan, reader: RowReader, filled: Collection[int], unusable: Collection[int]
) -> Collection[int]:
    """Returns the buckets of which `bases_for` would read the base. The arguments are those of `choose_read_path`."""
    if not consider_bases(plan, reader).base or (plan.ordered and unusable):
        return ()
    return [number for number in filled if number not in unusable]


def cursor_of(
    reader: RowReader,
    number: int,
    bucket: ReadableBucket,
    keys: KeyRanges,
    bases: Mapping[int, BaseView],
    *,
    reverse: bool = False,
) -> Cursor:
    """Creates a cursor over some keys of a bucket, reading its base if it is among `bases`. Raises DataLoss."""
    if reader.indexed is not None:
        return IndexedRowsCursor(bucket, number, reader.decoder, reader.indexed, keys, reverse=reverse)
    if number in bases:
        base = bases[number]
        ordered = reversed(list(keys)) if reverse else keys
        cursors: list[Callable[[], Cursor]] = [partial(base.cursor, reader, one, reverse=reverse) for one in ordered]
        return cursors[0]() if len(cursors) == 1 else CursorChain(cursors)
    return reader.cursor(bucket, keys, reverse=reverse)


def cursors_of(
    reader: RowReader,
    left: Mapping[int, KeyRanges],
    bucket_of: Callable[[int], ReadableBucket],
    bases: Mapping[int, BaseView],
    *,
    reverse: bool = False,
    ordered: bool = False,
) -> BucketCursors:
    """Creates cursors over the keys that are left to read of each bucket, as of now. Raises DataLoss.

    With `ordered`, all of them exist when this returns.
    """
    cursors = BucketCursors(
        lambda number: cursor_of(reader, number, bucket_of(number), left[number], bases, reverse=reverse)
    )
    # Without an order, buckets are read one after another. Bases, and logs, show the instant only to a cursor made now.
    late = reader.codec.definition.has_key and not ordered
    try:
        for number in left:
            if late and cursors.made and number not in bases:
                cursors.create_later(number, bucket_of(number).late_readers)
            else:
                cursors.create(number)
    except BaseException:
        cursors.close()
        raise
    return cursors


async def merge_deltas(bases: Mapping[int, BaseView], run: Callable[[Callable[[], object]], Awaitable[object]]) -> None:
    """Merges the deltas of some bases, in a thread by `run`.

    Otherwise the first chunk would merge them on the event loop, which takes half a second for a million rows.
    """
    for each in bases.values():
        if not each.delta.is_merged:
            await run(each.delta.merge)


def _obstacle(reader: RowReader) -> str:
    if not reader.codec.definition.has_key:
        return "the table has no primary key, and stores its rows as Arrow record batches anyway"
    if reader.ranges.are_keys or reader.indexed is not None:
        return "single keys are looked up"
    if len(reader.ranges) > _FEW_RANGES:
        return f"over {_FEW_RANGES} ranges of keys are looked up one after another"
    return ""
