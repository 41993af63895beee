"""Inspects a message before it is parsed: how much work parsing and checking it can cost.

Rule: the work for a message is in proportion to the rows that it carries. Parsing copies binary values, such as rows,
keys and the values of a list. Everything else becomes objects, one for each two bytes in the worst case: 24 MiB of it
took 400 MiB of memory and held the event loop for up to ten seconds. So everything else is bounded, and the first
unknown field ends the check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor

from scankv.model.errors import InvalidRequest, UnknownField

if TYPE_CHECKING:
    from google.protobuf.message import Message

MAX_OTHER_BYTES: Final = 1 << 20
"""The most bytes of a message besides its binary values. The largest commit, of 10,000 parts, takes half of it."""

_SMALL_BYTES: Final = 4096
"""A message of at most this size is not inspected, because it cannot cost much work."""

_RECORD_COST: Final = 16
"""Each record counts as at least this many bytes, which bounds the number of records to inspect."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES: Final = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_BYTES: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH,
}


def check_shape(data: bytes, message_type: type[Message]) -> None:
    """Checks that parsing a message takes no more work than its rows justify.

    Leaves truncated and malformed messages to the parser.

    Raises:
        InvalidRequest: The message has more than `MAX_OTHER_BYTES` besides its binary values.
        UnknownField: The message has an unknown field.
    """
    if len(data) <= _SMALL_BYTES:
        return
    left = MAX_OTHER_BYTES
    descriptor: Any = message_type.DESCRIPTOR  # protobuf's stub has a type of its own for it
    messages: list[tuple[Any, int, int]] = [(descriptor, 0, len(data))]
    while messages:
        of, at, end = messages.pop()
        while at < end:
            start = at
            tag, at = _varint(data, at)
            wire_type = tag & 7
            if at > end or tag >> 3 == 0 or wire_type > _FIXED32:
                return
            field = of.fields_by_number.get(tag >> 3)
            if field is None or not _is_of(field, wire_type):
                raise UnknownField(
                    f"{of.name} has field {tag >> 3}, which this server does not know, because it is older than the "
                    "client: upgrade the server"
                )
            if wire_type == _VARINT:
                at = _varint(data, at)[1]
            elif wire_type == _LENGTH:
                size, at = _varint(data, at)
                start, at = _open(field, start, at, min(at + size, end), messages)
            else:
                at += 8 if wire_type == _FIXED64 else 4
            left -= max(at - start, _RECORD_COST)
            if left < 0:
                raise InvalidRequest(
                    f"{descriptor.name} has over {MAX_OTHER_BYTES:,} bytes besides its rows, keys and lists of values: "
                    "ask for less at once"
                )


def _open(
    field: FieldDescriptor, start: int, at: int, end: int, messages: list[tuple[Any, int, int]]
) -> tuple[int, int]:
    """Returns the part of a length-delimited record that counts: its start and its end.

    Only the head of a binary value counts. A larger message is added to `messages`, so that its fields count instead.
    """
    if field.type == FieldDescriptor.TYPE_BYTES:
        return start + end - at, end
    if field.type == FieldDescriptor.TYPE_MESSAGE and end - at > _SMALL_BYTES:
        messages.append((field.message_type, at, end))
        return start + end - at, end
    return start, end


def _is_of(field: FieldDescriptor, wire_type: int) -> bool:
    """Whether a field can have this wire type; repeated numbers may also be packed. Others are unknown fields."""
    expected = _WIRE_TYPES.get(field.type, _VARINT)
    return wire_type == expected or (wire_type == _LENGTH and field.is_repeated)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number at a position, and the position after it; beyond the message if the number does not end."""
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return 0, len(data) + 1
