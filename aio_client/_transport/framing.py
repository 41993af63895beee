"""The messages of a scan as they come, with the rows of a chunk left where they lie.

Protobuf would copy them out of the message, and once more out of its own memory. Only the framing is read here, as in
https://protobuf.dev/programming-guides/encoding, in whatever order the fields are. Protobuf reads all else, and what is
not as expected.
`streaming_server/scan/framing.py` is the other end.
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
"""Arrow leaves values where they are, and those that it hands them to want them aligned."""


@dataclass(frozen=True, slots=True)
class ScanMessage:
    """A message of a scan.

    Attributes:
        fields: The message; what it says of `record_batch` is not to be looked at.
        record_batch: That of a chunk, most often within the bytes that came; empty otherwise.
    """

    fields: scan_pb2.ScanKvResponse
    record_batch: pa.Buffer

    @classmethod
    def from_bytes(cls, message: bytes) -> Self:
        """Reads a message.

        Raises:
            DecodeError: It is none.
        """
        found = _rows_in(message)
        if found is not None:
            others, rows = found
            chunk = scan_pb2.ScanChunk.FromString(others)
            if not chunk.record_batch:  # Of two, the second counts.
                data = pa.py_buffer(memoryview(message)[rows])
                if data.address % _ALIGNMENT:
                    data = pa.py_buffer(message[rows])
                return cls(scan_pb2.ScanKvResponse(chunk=chunk), data)
        fields = scan_pb2.ScanKvResponse.FromString(message)
        return cls(fields, pa.py_buffer(fields.chunk.record_batch))


def _rows_in(message: bytes) -> tuple[bytes, slice] | None:
    """The other fields of a chunk, and where its rows are; None where protobuf has to look."""
    try:
        if message[0] != _CHUNK_TAG:
            return None
        size, first = _varint(message, 1)
        if first + size != len(message):
            return None
        place = first
        while True:
            before = place
            tag, place = _varint(message, place)
            if tag & 7 == _VARINT:
                _, place = _varint(message, place)
            elif tag & 7 == _FIXED32:
                place += 4
            elif tag & 7 == _LENGTH_DELIMITED:
                size, place = _varint(message, place)
                if tag == _RECORD_BATCH_TAG and place + size <= len(message):
                    rows = slice(place, place + size)
                    return message[first:before] + message[rows.stop :], rows
                place += size
            else:
                return None
    except IndexError:
        return None


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number, and the place behind it. Raises IndexError where the message ends before, or there is none."""
    number = 0
    for shift in range(0, _VARINT_BITS, 7):
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise IndexError
