"""When a scan reads a columnar base instead of RocksDB, and what it needs for that."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streaming_server.scan.base_cursor import BaseCursor

if TYPE_CHECKING:
    from streaming_server.scan.chunk_source import Cursor
    from streaming_server.scan.opening import ReadPlan
    from streaming_server.scan.overlay import OverlayView
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.storage.columnar_base import ColumnarBase
    from table_model.key_range import KeyRange

BASE_CHUNK_ROWS: Final = 32_768
"""Rows of a chunk out of a base when the scan does not say: those of one batch of it, which then go out as they lie."""
BASE_CHUNK_BYTES: Final = 2 << 20
"""The same in bytes."""
_FEW_ROWS: Final = 1000


class Via(enum.Enum):
    """What the rows of the live table are read from."""

    AUTO = enum.auto()
    ITERATOR = enum.auto()
    BASE = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseView:
    """A bucket at one moment, as its base and what was written since. Immutable; pins no RocksDB iterator.

    Attributes:
        base: The base.
        overlay: What was written since.
        place: What errors call the bucket.
    """

    base: ColumnarBase
    overlay: OverlayView
    place: str

    def cursor(self, reader: RowReader, key_range: KeyRange, *, reverse: bool) -> Cursor:
        """A cursor over the rows of a key range, with the columns that a reader returns."""
        return BaseCursor(
            self.base,
            self.overlay.net,
            reader.codec,
            reader.columns,
            reader.residual,
            key_range,
            reverse=reverse,
            place=self.place,
        )


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
    obstacle = _obstacle(plan, reader)
    if obstacle:
        return ViaChoice(False, obstacle, possible=False)
    if plan.via is Via.ITERATOR:
        return ViaChoice(False, "asked for")
    if plan.via is Via.BASE:
        return ViaChoice(True, "asked for")
    if plan.limit is not None and plan.limit <= _FEW_ROWS:
        return ViaChoice(False, f"the limit is at most {_FEW_ROWS:,} rows")
    return ViaChoice(True, "a range of many rows")


def _obstacle(plan: ReadPlan, reader: RowReader) -> str:
    if reader.points is not None or reader.indexed is not None:
        return "single keys are looked up"
    if plan.ordered:
        return "the rows of several buckets are merged by key"
    if plan.stored_rows:
        return "rows are needed as they are stored"
    return ""
