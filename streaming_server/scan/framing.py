"""Serializes a chunk or a response as a protobuf message with one copy of the rows instead of three.

Protobuf copies a `bytes` field when it is set and again when the message is serialized. Both copies touch fresh memory;
for chunks of about 400 KB they took 7 % of a scan. This module writes only the framing of the one large field, tag and
length as in https://protobuf.dev/programming-guides/encoding. Protobuf serializes the small fields; their order does
not matter. `aio_client/_transport/framing.py` is the counterpart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.message import Message

ROWS_ALIGNMENT: Final = 16
"""Readers use the rows in place, inside the message, and Arrow needs its values aligned."""

_LENGTH_DELIMITED: Final = 2
_CHUNK_TAG: Final = bytes([scan_pb2.ScanKvResponse.CHUNK_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_RECORD_BATCH_TAG: Final = bytes([scan_pb2.ScanChunk.RECORD_BATCH_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_PADDING_TAG: Final = bytes([scan_pb2.ScanChunk.PADDING_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_PADDINGS: Final = [
    _PADDING_TAG + bytes([size - 2]) + bytes(size - 2) if size else b""
    for size in (0, ROWS_ALIGNMENT + 1, *range(2, ROWS_ALIGNMENT))
]
"""The padding field by the number of missing bytes. No field is one byte long, so one missing byte takes 17."""

_PIECE_BYTES: Final = 1024 * 1024


def frame_chunk(chunk: scan_pb2.ScanChunk, record_batch: pa.Buffer) -> bytes:
    """Serializes a `ScanKvResponse` with a chunk. All other fields of the chunk must be set already.

    The result is what protobuf makes of the same fields, except for their order and `padding`.
    """
    small = chunk.SerializeToString()
    field = _RECORD_BATCH_TAG + _varint(record_batch.size)
    unpadded = len(small) + len(field) + record_batch.size
    # If the padding makes the length a byte longer, the rows are not aligned, and the reader copies them.
    before = len(_CHUNK_TAG) + len(_varint(unpadded)) + len(small) + len(field)
    padding = _PADDINGS[-before % ROWS_ALIGNMENT]
    return b"".join((_CHUNK_TAG, _varint(unpadded + len(padding)), small, padding, field, record_batch))


def frame_answer(response: Message, rows: pa.Buffer) -> bytes:
    """Serializes a response with rows in its field `rows`. All other fields of the response must be set already.

    Call it in a thread. Copying tens of megabytes at once would hold the interpreter lock for tens of milliseconds, so
    the copy is made in pieces. Python joins more than a MiB of bytes without the lock.
    """
    number = response.DESCRIPTOR.fields_by_name["rows"].number
    head = bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(rows.size)
    view = memoryview(rows)
    pieces = [view[start : start + _PIECE_BYTES].tobytes() for start in range(0, rows.size, _PIECE_BYTES)]
    return b"".join([response.SerializeToString(), head, *pieces])


def _varint(number: int) -> bytes:
    """Encodes a number with seven bits per byte, the lowest first. The high bit says that more bytes follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
