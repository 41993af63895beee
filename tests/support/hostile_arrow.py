"""Arrow IPC streams that lie: valid ones whose metadata is changed by hand, as a hostile client could send them.

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
        """Whether it carries a record batch."""
        return bool(self.metadata) and self.metadata[self._field(self._root(), 1)] == _RECORD_BATCH

    @property
    def body_length(self) -> int:
        """How many bytes it says that its body has; record batches only."""
        return int(struct.unpack_from("<q", self.metadata, self._field(self._root(), 3))[0])

    def set_body_length(self, length: int) -> None:
        """Says that the body has this many bytes."""
        struct.pack_into("<q", self.metadata, self._field(self._root(), 3), length)

    def set_rows(self, rows: int) -> None:
        """Says that the batch has this many rows; its columns keep their lengths."""
        struct.pack_into("<q", self.metadata, self._field(self._batch(), 0), rows)

    def change_nodes(self, change: Callable[[int, int, int], tuple[int, int]]) -> None:
        """Replaces length and null count of every array: `change(number, length, null_count)`."""
        self._change_pairs(1, change)

    def change_buffers(self, change: Callable[[int, int, int], tuple[int, int]]) -> None:
        """Replaces where every buffer lies in the body: `change(number, offset, length)`."""
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
    """The messages of a stream, without its end mark."""
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
    """The stream of these messages."""
    parts = [struct.pack("<II", _MARK, len(m.metadata)) + bytes(m.metadata) + m.body for m in messages]
    return b"".join(parts) + struct.pack("<II", _MARK, 0)


def changed(stream: bytes, change: Callable[[IpcMessage], None]) -> bytes:
    """The stream with its first record batch changed."""
    messages = split(stream)
    change(next(message for message in messages if message.is_batch))
    return joined(messages)


def with_schema_of(stream: bytes, other: bytes) -> bytes:
    """The batches of one stream under the schema of another."""
    return joined([split(other)[0], *split(stream)[1:]])
