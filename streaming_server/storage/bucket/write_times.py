"""The time of the last write in stored rows, which is set when the rows are written to their bucket."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streaming_server.arrays.arrow_buffers import var_offsets
from streaming_server.storage.bucket.bucket_change import FewBytes
from streaming_server.storage.changelog.records import RowKind

if TYPE_CHECKING:
    from streaming_server.storage.bucket.bucket_change import Binary, BucketChange
    from streaming_server.storage.rows.row_codec import RowCodec


def set_write_times(change: BucketChange, codec: RowCodec, micros: int) -> BucketChange:
    """Returns a change whose rows were written at a time, in microseconds since 1970 UTC, if rows have that time."""
    if codec.write_time is None or not len(change.put_values):
        return change
    slot = codec.layout.slots[-1]
    places = codec.layout.bitmap_start + slot.index // 8, 1 << slot.index % 8, slot.start
    values = _with_time(change.put_values, *places, struct.pack("<q", micros))
    return replace(change, put_values=values, restarts_times=_has_unlogged_rows(change))


def _has_unlogged_rows(change: BucketChange) -> bool:
    """Whether no change stands for some of the rows to put. If changes are not tracked, a marker stands for all."""
    if change.changes is None:
        return False
    kinds = change.changes.kinds
    after = np.count_nonzero(kinds == RowKind.INSERT) + np.count_nonzero(kinds == RowKind.UPDATE_AFTER)
    return bool(after < len(change.put_keys))


def _with_time(values: Binary, valid_at: int, bit: int, start: int, time: bytes) -> Binary:
    end = start + len(time)
    if isinstance(values, FewBytes):
        return FewBytes(
            [
                b"".join((row[:valid_at], bytes((row[valid_at] | bit,)), row[valid_at + 1 : start], time, row[end:]))
                for row in values
            ]
        )
    offsets = var_offsets(values)
    first = int(offsets[0])
    data = np.frombuffer(values.buffers()[2], np.uint8)[first : int(offsets[-1])].copy()
    starts = offsets - first
    np.ndarray((len(data) - 7,), "<i8", data, strides=(1,))[starts[:-1] + start] = int.from_bytes(time, "little")
    data[starts[:-1] + valid_at] |= bit
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
