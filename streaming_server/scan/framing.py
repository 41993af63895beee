"""A chunk, or an answer, as the bytes of its protobuf message, with the rows copied once instead of three times.

Setting a `bytes` field copies it, serialising the message copies it again, and both touch fresh memory; for chunks of
some 400 KB that was 7 % of a scan. Only the framing of the one large field is written here: tag and length as in
https://protobuf.dev/programming-guides/encoding; the small fields come from protobuf, and their order does not matter.
`aio_client/_transport/framing.py` is the other end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.message import Message

ROWS_ALIGNMENT: Final = 16
"""A reader uses the rows where they lie in the message, and Arrow wants its values aligned."""

_LENGTH_DELIMITED: Final = 2
_CHUNK_TAG: Final = bytes([scan_pb2.ScanKvResponse.CHUNK_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_RECORD_BATCH_TAG: Final = bytes([scan_pb2.ScanChunk.RECORD_BATCH_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_PADDING_TAG: Final = bytes([scan_pb2.ScanChunk.PADDING_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_PADDINGS: Final = [
    _PADDING_TAG + bytes([size - 2]) + bytes(size - 2) if size else b""
    for size in (0, ROWS_ALIGNMENT + 1, *range(2, ROWS_ALIGNMENT))
]
"""By how many bytes there are too few: none has a single byte, so it has one more than the alignment."""

_PIECE_BYTES: Final = 1024 * 1024


def frame_chunk(chunk: scan_pb2.ScanChunk, record_batch: pa.Buffer) -> bytes:
    """A serialised `ScanKvResponse` with a chunk, of which all other fields are set already.

    It is what protobuf makes of the same fields, up to their order, and `padding`.
    """
    small = chunk.SerializeToString()
    field = _RECORD_BATCH_TAG + _varint(record_batch.size)
    unpadded = len(small) + len(field) + record_batch.size
    # Where the padding makes the length a byte longer, the rows miss their place; the reader then copies them.
    before = len(_CHUNK_TAG) + len(_varint(unpadded)) + len(small) + len(field)
    padding = _PADDINGS[-before % ROWS_ALIGNMENT]
    return b"".join((_CHUNK_TAG, _varint(unpadded + len(padding)), small, padding, field, record_batch))


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
