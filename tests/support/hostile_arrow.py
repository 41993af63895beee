"""Malicious Arrow IPC streams: valid streams whose metadata is changed, as a hostile client could send them.

An IPC stream is messages of a continuation mark, a length, a flatbuffer `Message` and a body; see Arrow's
`format/Message.fbs`. Table fields used here: `Message` 1 header type, 2 header, 3 body length; `RecordBatch` 0 length,
1 nodes (length and null count of each array, int64 each), 2 buffers (offset and length, int64 each).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = 0xFFFFFFFF
_RECORD_BATCH = 3


@dataclass
class IpcMessage:
    """One message of a stream; `metadata` can be changed in place."""

    metadata: bytearray
    body: bytes

    @property
    def is_batch(self) -> bool:
        """Returns whether the message contains a record batch."""
        return bool(self.metadata) and self.metadata[self._field(self._root(), 1)] == _RECORD_BATCH

    @property
    def body_length(self) -> int:
        """Returns the size of the body according to the metadata. For record batches only."""
        return int(struct.unpack_from("<q", self.metadata, self._field(self._root(), 3))[0])

    def set_body_length(self, length: int) -> None:
        """Sets the size of the body in the metadata."""
        struct.pack_into("<q", self.metadata, self._field(self._root(), 3), length)

    def set_rows(self, rows: int) -> None:
        """Sets the number of rows of the batch; the lengths of its columns stay."""
        struct.pack_into("<q", self.metadata, self._field(self._batch(), 0), rows)

    def change_nodes(self, change: Callable[[int, int, int], tuple[int, int]]) -> None:
        """Replaces length and null count of every array: `change(number, length, null_count)`."""
        self._change_pairs(1, change)

    def change_buffers(self, change: Callable[[int, int, int], tuple[int, int]]) -> None:
        """Replaces offset and length of every buffer: `change(number, offset, length)`."""
        self._change_pairs(2, change)

    def _change_pairs(self, field: int, change: Callable[[int, int, int], tuple[int, int]]) -> None:
        start = self._target(self._field(self._batch(), field))
        (count,) = struct.unpack_from("<I", self.metadata, start)
        for number in range(count):
            place = start + 4 + 16 * number
            struct.pack_into(
                "<qq", self.metadata, place, *change(number, *struct.unpack_from("<qq", self.metadata, place))
            )

    def _root(self) -> int:
        return self._target(0)

    def _batch(self) -> int:
        return self._target(self._field(self._root(), 2))

    def _target(self, place: int) -> int:
        return place + int(struct.unpack_from("<I", self.metadata, place)[0])

    def _field(self, table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", self.metadata, table)[0]
        return table + int(struct.unpack_from("<H", self.metadata, vtable + 4 + 2 * number)[0])


def split(stream: bytes) -> list[IpcMessage]:
    """Returns the messages of a stream, without its end mark."""
    messages, at = [], 0
    while at < len(stream):
        _, size = struct.unpack_from("<II", stream, at)
        at += 8
        if size == 0:
            break
        message = IpcMessage(bytearray(stream[at : at + size]), b"")
        if message.is_batch:
            message.body = stream[at + size : at + size + message.body_length]
        messages.append(message)
        at += size + len(message.body)
    return messages


def joined(messages: list[IpcMessage]) -> bytes:
    """Returns the stream that consists of these messages."""
    parts = [struct.pack("<II", _MARK, len(m.metadata)) + bytes(m.metadata) + m.body for m in messages]
    return b"".join(parts) + struct.pack("<II", _MARK, 0)


def changed(stream: bytes, change: Callable[[IpcMessage], None]) -> bytes:
    """Returns the stream with a change applied to its first record batch."""
    messages = split(stream)
    change(next(message for message in messages if message.is_batch))
    return joined(messages)


def with_schema_of(stream: bytes, other: bytes) -> bytes:
    """Returns the batches of one stream with the schema of another."""
    return joined([split(other)[0], *split(stream)[1:]])
