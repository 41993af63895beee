"""Decodes the messages of a scan without copying the rows of a chunk.

Protobuf would copy the rows out of the message, and once more out of its own memory. This module reads only the
framing, as described in https://protobuf.dev/programming-guides/encoding, with the fields in any order. Protobuf
decodes everything else, and every message of another form. `streaming_server/scan/framing.py` is the other end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    from typing import Self

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_FIXED32: Final = 5
_VARINT_BITS: Final = 70
_CHUNK_TAG: Final = scan_pb2.ScanKvResponse.CHUNK_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_RECORD_BATCH_TAG: Final = scan_pb2.ScanChunk.RECORD_BATCH_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_ALIGNMENT: Final = 8
"""Arrow does not copy values, and the code that reads them needs them aligned."""


@dataclass(frozen=True, slots=True)
class ScanMessage:
    """A message of a scan.

    Attributes:
        fields: The message, whose `record_batch` must not be used.
        record_batch: The rows of a chunk, usually within the bytes received. Empty for other messages.
    """

    fields: scan_pb2.ScanKvResponse
    record_batch: pa.Buffer

    @classmethod
    def from_bytes(cls, message: bytes) -> Self:
        """Decodes a message.

        Raises:
            DecodeError: The bytes are not a message of a scan.
        """
        parts = _find_rows(message)
        if parts is not None:
            others, rows = parts
            chunk = scan_pb2.ScanChunk.FromString(others)
            if not chunk.record_batch:  # If the field occurs twice, the second counts, and protobuf decodes it.
                data = pa.py_buffer(memoryview(message)[rows])
                if data.address % _ALIGNMENT:
                    data = pa.py_buffer(message[rows])
                return cls(scan_pb2.ScanKvResponse(chunk=chunk), data)
        fields = scan_pb2.ScanKvResponse.FromString(message)
        return cls(fields, pa.py_buffer(fields.chunk.record_batch))


def _find_rows(message: bytes) -> tuple[bytes, slice] | None:
    """Returns the other fields of a chunk, and the position of its rows. None if protobuf has to decode the message."""
    try:
        if message[0] != _CHUNK_TAG:
            return None
        size, first = _varint(message, 1)
        if first + size != len(message):
            return None
        position = first
        while True:
            before = position
            tag, position = _varint(message, position)
            if tag & 7 == _VARINT:
                _, position = _varint(message, position)
            elif tag & 7 == _FIXED32:
                position += 4
            elif tag & 7 == _LENGTH_DELIMITED:
                size, position = _varint(message, position)
                if tag == _RECORD_BATCH_TAG and position + size <= len(message):
                    rows = slice(position, position + size)
                    return message[first:before] + message[rows.stop :], rows
                position += size
            else:
                return None
    except IndexError:
        return None


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Decodes a number. Returns it with the position after it. Raises IndexError if it is cut or too long."""
    number = 0
    for shift in range(0, _VARINT_BITS, 7):
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise IndexError
