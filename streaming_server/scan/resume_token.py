"""Resume tokens: where a scan continues, as opaque bytes that fit only the scan they come from.

    version u8 · table u32 · schema u32 · query u32 · time of the view i64 · buckets u16 ·
    (bucket u16 · log offset i64) ... · bucket u16 · remaining limit u64 · key ... · CRC32C u32

All integers are little-endian. `table`, `schema` and `query` are digests, so the refusal of a token of another scan
can name the difference. The log offsets are those of the view that the token comes from, so a scan that resumes over a
newer view can report both. All tokens of a stream agree up to and including the log offsets.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c

from scankv.model.errors import InvalidResumeToken
from scankv.model.limits import MAX_RESUME_TOKEN_BYTES
from streaming_server.scan.chunk_source import ScanPosition, View

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERSION = 1
_HEAD = struct.Struct("<B4s4s4sqH")
_OFFSET = struct.Struct("<Hq")
_TAIL = struct.Struct("<HQ")
_CHECKSUM = struct.Struct("<I")
_NO_LIMIT = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Four-byte digests that identify the scan a token belongs to.

    Attributes:
        table: The table's incarnation, and the pinned view if the scan reads one.
        schema: The returned columns.
        query: The requested rows and their order.
    """

    table: bytes
    schema: bytes
    query: bytes

    @classmethod
    def of(cls, *, table: Iterable[object], schema: bytes, query: Iterable[object]) -> Fingerprint:
        """Digests some values, each of which has a distinctive `repr`."""
        return cls(_digest(repr(tuple(table)).encode()), _digest(schema), _digest(repr(tuple(query)).encode()))


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The contents of a token.

    Attributes:
        position: How far the scan had come.
        remaining: The remaining limit. None: no limit.
        view: The view that it was reading. The number of its rows is not in the token.
    """

    position: ScanPosition
    remaining: int | None
    view: View


class TokenWriter:
    def __init__(self, fingerprint: Fingerprint, view: View) -> None:
        offsets = sorted(view.log_offsets.items())
        parts = (fingerprint.table, fingerprint.schema, fingerprint.query)
        self._head = _HEAD.pack(_VERSION, *parts, view.micros, len(offsets)) + b"".join(
            _OFFSET.pack(bucket, offset) for bucket, offset in offsets
        )
        self._checksum = google_crc32c.value(self._head)

    def token(self, position: ScanPosition, remaining: int | None) -> bytes:
        """Returns the token for continuing after a position with the remaining limit."""
        tail = _TAIL.pack(position.bucket, _NO_LIMIT if remaining is None else remaining) + position.key
        return self._head + tail + _CHECKSUM.pack(google_crc32c.extend(self._checksum, tail))


def read_token(token: bytes, fingerprint: Fingerprint) -> ResumePoint:
    """Parses a token.

    Raises:
        InvalidResumeToken: The token is damaged, has another version, or belongs to another table, schema or query.
    """
    body, checksum = token[: -_CHECKSUM.size], token[-_CHECKSUM.size :]
    if (
        not _HEAD.size + _TAIL.size <= len(body) <= MAX_RESUME_TOKEN_BYTES
        or _CHECKSUM.pack(google_crc32c.value(body)) != checksum
    ):
        raise _damaged_token()
    version, table, schema, query, micros, count = _HEAD.unpack_from(body)
    if version != _VERSION:
        raise InvalidResumeToken(
            f"the resume token has version {version}: this server reads version {_VERSION}; start the scan again"
        )
    for given, expected, what in (
        (table, fingerprint.table, "another table or snapshot, or from an earlier table of the same name"),
        (
            query,
            fingerprint.query,
            "another query: buckets, columns, filter, limit, key range and order must be the same",
        ),
        (
            schema,
            fingerprint.schema,
            "another schema: the table was altered in the meantime; start again and name the columns to read",
        ),
    ):
        if given != expected:
            raise InvalidResumeToken(f"the resume token comes from {what}")
    tail = _HEAD.size + count * _OFFSET.size
    if tail + _TAIL.size > len(body):
        raise _damaged_token()
    offsets = dict(_OFFSET.iter_unpack(body[_HEAD.size : tail]))
    bucket, remaining = _TAIL.unpack_from(body, tail)
    return ResumePoint(
        ScanPosition(bucket, body[tail + _TAIL.size :]),
        None if remaining == _NO_LIMIT else remaining,
        View(offsets, micros, 0),
    )


def _damaged_token() -> InvalidResumeToken:
    return InvalidResumeToken("the resume token is damaged: send it exactly as it was received")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=4).digest()
