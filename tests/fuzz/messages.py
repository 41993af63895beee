"""Makes messages of any type from their descriptors: hostile values, and values that a server knows."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

Known = dict[str, list[Any]]
"""Values by field name that a server knows, such as its tables and the tokens that it has issued."""

_MAX_DEPTH: Final = 7
_DENSITIES: Final = (0.05, 0.15, 0.3, 0.6, 0.95)
_ALWAYS: Final = ("table", "token", "snapshot_id", "lock_id")
_WAITS: Final = (0, 0, 0, 1, 20, 60_001, 2**32 - 1)
_TIMES: Final = (0, 1, 999, 1000, 60_000, 604_800_001, 2**63, 2**64 - 1)
_SMALL: Final[Mapping[str, Sequence[int]]] = {
    # Values that the server would take long for, and rightly, are left out: a wait, and a table of 1,024 buckets.
    "wait_millis": _WAITS,
    "buckets": (0, 1, 2, 3, 1025, 2**32 - 1),
    "ttl_millis": _TIMES,
    "heartbeat_millis": (0, 1, 100, 2**32 - 1),
}
_ODD_TEXTS: Final = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\n\r",
    "..",
    "../../etc/passwd",
    "\U0001f600",
    "ä\u0301\u202e\ufeff",
    "\u2028",
    "'; drop table",
    "%s%n{0}",
    "NaN",
    "-0",
    "1e400",
    "9" * 38,
    "9" * 39,
    "0." + "9" * 38,
    "None",
    "x" * 129,
    "\U0001f600" * 3000,
)
_NUMBERS: Final = (0, 1, 2, 3, 7, 100, 8192, 65_536, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62)
_DOUBLES: Final = (0.0, -0.0, 1.5, -1.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 2.0**63)
_INTEGERS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def messages(descriptor: Descriptor, known: Known) -> st.SearchStrategy[Message]:
    """Returns a strategy for messages of a type, most of which name what the server knows."""
    return st.randoms(use_true_random=False).map(lambda random: make_message(random, descriptor, known))


def requests(descriptor: Descriptor, known: Known) -> st.SearchStrategy[bytes]:
    """Returns a strategy for the bytes of requests: messages of the type, and sometimes damaged ones."""
    return st.randoms(use_true_random=False).map(lambda random: make_request(random, descriptor, known))


def make_request(random: Random, descriptor: Descriptor, known: Known) -> bytes:
    """Makes the bytes of a request: most are a message of the type."""
    data: bytes = make_message(random, descriptor, known).SerializeToString()
    if random.random() < 0.95:
        return data
    return random.choice((mutate(random, data), data + b"\xca\x30\x04junk", random.randbytes(random.randrange(64))))


def make_message(random: Random, descriptor: Descriptor, known: Known, depth: int = 0) -> Message:
    """Makes a message. Each has a density of its own, so that there are messages with few fields and with all."""
    message: Any = GetMessageClass(descriptor)()
    if (complete := known.get(descriptor.name)) and random.random() < 0.4:
        message.ParseFromString(random.choice(complete))
        return message  # type: ignore[no-any-return]
    density = random.choice(_DENSITIES) / (1 + depth / 4)
    for field in descriptor.fields:
        chosen = field.name in _ALWAYS or (field.containing_oneof is not None and len(descriptor.fields) < 9)
        if random.random() < (0.95 if chosen and depth == 0 else max(density, 0.5) if chosen else density):
            _set_field(random, message, field, known, depth)
    return message  # type: ignore[no-any-return]


def _set_field(random: Random, message: Any, field: FieldDescriptor, known: Known, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        entries = getattr(message, field.name)
        for _ in range(_length(random)):
            at = _scalar(random, key, known, f"{field.name}.key")
            if value.message_type is None:
                entries[at] = _scalar(random, value, known, field.name)
    elif field.message_type is not None:
        if depth >= _MAX_DEPTH:
            return
        for _ in range(_length(random) if field.is_repeated else 1):
            part = make_message(random, field.message_type, known, depth + 1)
            if field.is_repeated:
                getattr(message, field.name).append(part)
            else:
                getattr(message, field.name).CopyFrom(part)
    elif field.is_repeated:
        getattr(message, field.name).extend(_scalar(random, field, known, field.name) for _ in range(_length(random)))
    else:
        setattr(message, field.name, _scalar(random, field, known, field.name))


def _length(random: Random) -> int:
    return random.choice((0, 1, 1, 1, 2, 2, 3, 5)) if random.random() < 0.995 else 1500


def _scalar(random: Random, field: FieldDescriptor, known: Known, name: str) -> Any:
    values = known.get(name)
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes(random, [value for value in values or () if isinstance(value, bytes)])
        return _text(random, [value for value in values or () if isinstance(value, str)])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return random.choice(numbers) if random.random() < 0.9 else random.choice((99, -1, 2**31 - 1))
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return random.choice(_DOUBLES)
    low, high = _INTEGERS[kind]
    numbers = [value for value in values or () if isinstance(value, int)]
    number = random.choice(numbers or _SMALL.get(name) or (*_NUMBERS, low, high, high - 1, -1, -2))
    return min(max(number, low), high)


def _text(random: Random, values: Sequence[str]) -> str:
    if values and random.random() < 0.93:
        return random.choice(values)
    return random.choice(_ODD_TEXTS)


def _bytes(random: Random, values: Sequence[bytes]) -> bytes:
    chance = random.random()
    if values and chance < 0.6:
        return bytes(random.choice(values))
    if values and chance < 0.92:
        return mutate(random, random.choice(values))
    return random.choice((b"", b"\x00", b"\xff" * 40, random.randbytes(random.randrange(200))))


def mutate(random: Random, data: bytes) -> bytes:
    """Changes some bytes, and in half of the cases makes a CRC32C at the end right again, as tokens have one."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(changed) + 1)
        change = random.randrange(6)
        if change == 0:
            changed[at:at] = random.randbytes(random.choice((1, 2, 8)))
        elif change == 1:
            del changed[at : at + random.choice((1, 2, 8, 64))]
        elif change == 2:
            number = random.choice((0, 1, -1, 2**15, 2**31 - 1, -(2**31), random.getrandbits(31)))
            changed[at : at + 4] = struct.pack("<i", number)
        elif change == 3:
            changed[at:at] = changed[at : at + random.choice((2, 8, 32))]
        elif at < len(changed):
            changed[at] = changed[at] ^ 1 << random.randrange(8) if change == 4 else random.choice((0, 1, 127, 255))
    if len(changed) > 4 and random.random() < 0.5:
        changed[-4:] = struct.pack("<I", google_crc32c.value(bytes(changed[:-4])))
    return bytes(changed)
