"""The columns that describe changes, which are run-length encoded on the wire and Arrow columns for the reader."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from scankv.model.tables.columns import CHANGE_COLUMNS
from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    Kinds: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]
    Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

CHANGE_SYMBOLS: Final = ("+I", "-U", "+U", "-D")
"""Row kinds: insert, update before, update after, delete."""

CHANGE_FIELDS: Final[tuple[pa.Field[Any], ...]] = tuple(
    map(
        pa.field,
        CHANGE_COLUMNS,
        (pa.string(), pa.int64(), pa.int32(), pa.timestamp("us", "UTC")),
        # A stream that starts with all rows of the table sends these without offset and time.
        (False, True, False, True),
    )
)
"""The columns that precede those of the table."""


@cache
def _all_symbols() -> pa.StringArray:
    """Returns `CHANGE_SYMBOLS` as an Arrow array. Not made on import: Arrow's first conversion imports pandas."""
    return pa.array(CHANGE_SYMBOLS)


@dataclass(frozen=True, slots=True)
class ChangeColumns:
    """The change columns of rows of one bucket. Immutable.

    Attributes:
        kinds: The row kinds, as positions in `CHANGE_SYMBOLS`.
        offsets: The log offsets. None: these are rows of the table, which have neither offset nor time.
        micros: The commit times, in microseconds since 1970 UTC. None if `offsets` is None.
    """

    kinds: Kinds
    offsets: Numbers | None
    micros: Numbers | None

    @classmethod
    def of_table(cls, rows: int) -> ChangeColumns:
        """Returns the columns of rows of the table, which are all inserts."""
        return cls(np.zeros(rows, np.uint8), None, None)

    def first(self, rows: int) -> ChangeColumns:
        """Returns the columns of the first rows."""
        if self.offsets is None or self.micros is None:
            return ChangeColumns(self.kinds[:rows], None, None)
        return ChangeColumns(self.kinds[:rows], self.offsets[:rows], self.micros[:rows])

    def arrays(self, bucket: int) -> list[pa.Array]:
        """Returns the Arrow columns of `CHANGE_FIELDS`."""
        rows = len(self.kinds)
        if self.offsets is None or self.micros is None:
            offsets, times = _null_offsets_and_times(rows)
        else:
            offsets, times = pa.array(self.offsets), pa.array(self.micros).view(CHANGE_FIELDS[3].type)
        return [_symbols(self.kinds), offsets, _bucket_numbers(bucket, rows), times]

    def to_bytes(self) -> bytes:
        """Returns a serialized `ChangeColumns` of `scan.proto`, usually a few bytes."""
        one = len(self.kinds) > 0 and bool((self.kinds == self.kinds[0]).all())
        message = scan_pb2.ChangeColumns(kinds=(self.kinds[:1] if one else self.kinds).tobytes())
        if self.offsets is not None and self.micros is not None:
            message.offsets, message.offset_runs = _to_runs(self.offsets, step=1)
            message.commit_micros, message.commit_runs = _to_runs(self.micros, step=0)
        return message.SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes, rows: int) -> ChangeColumns:
        """Reads the result of `to_bytes` for this number of rows. Raises ValueError if the bytes do not fit it."""
        message = scan_pb2.ChangeColumns.FromString(data)
        kinds = np.frombuffer(message.kinds, np.uint8)
        if len(kinds) == 1:
            kinds = np.repeat(kinds, rows)
        if len(kinds) != rows or (rows and kinds.max() >= len(CHANGE_SYMBOLS)):
            raise ValueError("the changes do not have one known row kind per row")
        if not message.offsets and not message.commit_micros:
            return cls(kinds, None, None)
        offsets = _from_runs(message.offsets, message.offset_runs, rows, step=1)
        return cls(kinds, offsets, _from_runs(message.commit_micros, message.commit_runs, rows, step=0))


def _to_runs(values: Numbers, *, step: int) -> tuple[bytes, bytes]:
    """Encodes values as runs, within which each value exceeds the previous one by `step`.

    Returns the first value of each run and the lengths of the runs. The lengths are empty if a single run has all
    values, or if every value is its own run because that takes fewer bytes.
    """
    starts = np.concatenate(([0], np.flatnonzero(np.diff(values) != step) + 1))
    if len(starts) == 1:
        return values[:1].astype("<i8").tobytes(), b""
    if 3 * len(starts) > 2 * len(values):  # A run takes 12 bytes, a value 8.
        return values.astype("<i8").tobytes(), b""
    lengths = np.diff(starts, append=len(values))
    return values[starts].astype("<i8").tobytes(), lengths.astype("<u4").tobytes()


def _from_runs(values: bytes, runs: bytes, rows: int, *, step: int) -> Numbers:
    starts: Numbers = np.frombuffer(values, "<i8").astype(np.int64, copy=False)
    lengths = np.frombuffer(runs, "<u4").astype(np.int64)
    if not len(lengths):
        lengths = np.array([rows]) if len(starts) == 1 else np.ones(len(starts), np.int64)
    if len(lengths) != len(starts) or lengths.sum() != rows:
        raise ValueError("the runs do not cover all rows")
    if step == 0:
        return np.repeat(starts, lengths)
    # Each value is its row number plus the amount by which its run is ahead of the row number at its start.
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(rows)


def _symbols(kinds: Kinds) -> pa.Array:
    """Returns the symbols of row kinds. Usually all kinds are the same, which is faster."""
    if len(kinds) and (kinds == kinds[0]).all():
        return _symbol(int(kinds[0]), len(kinds))
    return _all_symbols().take(pa.array(kinds))


# Columns with the same value in every row are cached by the number of rows: most chunks have the same size.


@lru_cache(maxsize=8)
def _symbol(kind: int, rows: int) -> pa.Array:
    return pa.repeat(_all_symbols()[kind], rows)


@lru_cache(maxsize=8)
def _bucket_numbers(bucket: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(bucket, pa.int32()), rows)


@lru_cache(maxsize=2)
def _null_offsets_and_times(rows: int) -> tuple[pa.Array, pa.Array]:
    """Returns null offsets and null times for rows of the table."""
    nothing = pa.nulls(rows, pa.int64())
    return nothing, nothing.view(CHANGE_FIELDS[3].type)
