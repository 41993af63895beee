"""Whether a record batch in Arrow's format is compressed: a short one may then expand to any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_FORMER_COMPRESSION: Final = b"ARROW:experimental_compression"
"""Arrow still decompresses a batch of format version 4 that names its compression in metadata with this key."""


def is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch message names a body compression, in its header or as Arrow 0.17 did.

    Reads two flatbuffer tables: `Message` (field 2 is the header) and in it `RecordBatch` (field 3 is the compression),
    as laid out in Arrow's `format/Message.fbs`.
    """
    data = memoryview(metadata)
    if _FORMER_COMPRESSION in bytes(data):
        return True

    def u32(position: int) -> int:
        return int.from_bytes(data[position : position + 4], "little")

    def field(table: int, number: int) -> int:
        vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        size = int.from_bytes(data[vtable : vtable + 2], "little")
        slot = 4 + 2 * number
        offset = int.from_bytes(data[vtable + slot : vtable + slot + 2], "little") if slot < size else 0
        return table + offset if offset else 0

    header = field(u32(0), 2)
    return bool(header) and bool(field(header + u32(header), 3))
