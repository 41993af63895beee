"""Resume tokens: where a scan continues, as opaque bytes that fit only the scan they come from.

    version u8 · table u32 · schema u32 · query u32 · time of the view i64 · buckets u16 ·
    (bucket u16 · log offset i64) ... · expiry time i64 · bucket u16 · remaining limit u64 · key ... · CRC32C u32

All integers are little-endian. `table`, `schema` and `query` are digests, so the refusal of a token of another scan
can name the difference. The log offsets are those of the view that the token comes from, so a scan that resumes over a
newer view can report both. The expiry time is that of the first view of the scan, so that all parts of the scan lack
the same expired rows. Only version 2 has it, which tables use whose rows expire; without it, the time of the view
counts. All tokens of a stream agree up to and including the log offsets.
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
_EXPIRY_VERSION = 2
_EXPIRY = struct.Struct("<q")
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

    def check(self, given: Fingerprint) -> None:
        """Raises InvalidResumeToken unless a token with these digests belongs to this scan."""
        for found, expected, what in (
            (
                given.table,
                self.table,
                "another table or snapshot, or from before the table was restored or created again: start again",
            ),
            (
                given.query,
                self.query,
                "another query: buckets, columns, filter, limit, key range and order must be the same",
            ),
            (
                given.schema,
                self.schema,
                "another schema: the table was altered in the meantime; start again and name the columns to read",
            ),
        ):
            if found != expected:
                raise InvalidResumeToken(f"the resume token comes from {what}")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The contents of a token.

    Attributes:
        position: How far the scan had come.
        remaining: The remaining limit. None: no limit.
        view: The view that it was reading. The number of its rows is not in the token.
        expired_at: The time as of which rows had expired, in microseconds since 1970 UTC.
    """

    position: ScanPosition
    remaining: int | None
    view: View
    expired_at: int


class TokenWriter:
    """Makes the tokens of one stream.

    Args:
        fingerprint: The scan.
        view: The view that it reads.
        expired_at: The time as of which rows have expired, in microseconds since 1970 UTC. None: rows do not expire.
    """

    def __init__(self, fingerprint: Fingerprint, view: View, expired_at: int | None = None) -> None:
        offsets = sorted(view.log_offsets.items())
        parts = (fingerprint.table, fingerprint.schema, fingerprint.query)
        version = _VERSION if expired_at is None else _EXPIRY_VERSION
        self._head = _HEAD.pack(version, *parts, view.micros, len(offsets)) + b"".join(
            _OFFSET.pack(bucket, offset) for bucket, offset in offsets
        )
        if expired_at is not None:
            self._head += _EXPIRY.pack(expired_at)
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
    body = _checked_body(token)
    version, table, schema, query, micros, count = _HEAD.unpack_from(body)
    fingerprint.check(Fingerprint(table, schema, query))
    end = _HEAD.size + count * _OFFSET.size
    tail = end + (_EXPIRY.size if version == _EXPIRY_VERSION else 0)
    if tail + _TAIL.size > len(body):
        raise _damaged_token()
    offsets = dict(_OFFSET.iter_unpack(body[_HEAD.size : end]))
    bucket, remaining = _TAIL.unpack_from(body, tail)
    return ResumePoint(
        ScanPosition(bucket, body[tail + _TAIL.size :]),
        None if remaining == _NO_LIMIT else remaining,
        View(offsets, micros, 0),
        _EXPIRY.unpack_from(body, end)[0] if version == _EXPIRY_VERSION else micros,
    )


def time_of_token(token: bytes) -> int:
    """Returns `ResumePoint.expired_at` of a token of any scan. Raises InvalidResumeToken if the token is damaged."""
    body = _checked_body(token)
    version, *_, micros, count = _HEAD.unpack_from(body)
    if version != _EXPIRY_VERSION:
        return int(micros)
    at = _HEAD.size + count * _OFFSET.size
    if at + _EXPIRY.size > len(body):
        raise _damaged_token()
    return int(_EXPIRY.unpack_from(body, at)[0])


def _checked_body(token: bytes) -> bytes:
    """Returns a token without its checksum. Raises InvalidResumeToken if it is damaged or of another version."""
    body, checksum = token[: -_CHECKSUM.size], token[-_CHECKSUM.size :]
    if (
        not _HEAD.size + _TAIL.size <= len(body) <= MAX_RESUME_TOKEN_BYTES
        or _CHECKSUM.pack(google_crc32c.value(body)) != checksum
    ):
        raise _damaged_token()
    if body[0] not in (_VERSION, _EXPIRY_VERSION):
        raise InvalidResumeToken(
            f"the resume token has version {body[0]}: this server reads versions {_VERSION} and {_EXPIRY_VERSION}; "
            "start the scan again"
        )
    return body


def _damaged_token() -> InvalidResumeToken:
    return InvalidResumeToken("the resume token is damaged: send it exactly as it was received")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=4).digest()
