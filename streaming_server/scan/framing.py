"""A chunk, or an answer, as the bytes of its protobuf message, with the rows copied once instead of three times.

Setting a `bytes` field copies it, serialising the message copies it again, and both touch fresh memory; for chunks of
some 400 KB that was 7 % of a scan. Only the framing of the one large field is written here: tag and length as in
https://protobuf.dev/programming-guides/encoding; the small fields come from protobuf, and their order does not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protos.scankv.v1 import scan_pb2

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.message import Message

_LENGTH_DELIMITED = 2
_CHUNK_TAG = bytes([scan_pb2.ScanKvResponse.CHUNK_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_RECORD_BATCH_TAG = bytes([scan_pb2.ScanChunk.RECORD_BATCH_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_PIECE_BYTES = 1024 * 1024


def frame_chunk(chunk: scan_pb2.ScanChunk, record_batch: pa.Buffer) -> bytes:
    """A serialised `ScanKvResponse` with a chunk, of which all other fields are set already.

    It is what protobuf makes of the same fields, up to their order.
    """
    small = chunk.SerializeToString()
    field = _RECORD_BATCH_TAG + _varint(record_batch.size)
    size = len(small) + len(field) + record_batch.size
    return b"".join((_CHUNK_TAG, _varint(size), small, field, record_batch))


def frame_answer(response: Message, rows: pa.Buffer) -> bytes:
    """A serialised response with rows in its field `rows`, of which all other fields are set already.

    For a thread beside the event loop. A copy of tens of megabytes at once would hold the interpreter lock for tens of
    milliseconds. So it is made in pieces, and these are joined without the lock, as Python does with bytes over a MiB.
    """
    number = response.DESCRIPTOR.fields_by_name["rows"].number
    head = bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(rows.size)
    view = memoryview(rows)
    pieces = [view[start : start + _PIECE_BYTES].tobytes() for start in range(0, rows.size, _PIECE_BYTES)]
    return b"".join([response.SerializeToString(), head, *pieces])


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
