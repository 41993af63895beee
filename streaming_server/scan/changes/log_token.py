"""Resume tokens of changes: how far each bucket was read, and how far the rows of a full start were read.

    version u8 · table 4 · query 4 · remaining limit u64 · buckets u16 · (bucket u16 · offset i64) ... ·
    views u16 · (view) ... · scanning u8 · scanned u8 · (bucket u16 · length u16 · key) ·
    catch-ups u16 · (bucket u16 · end i64 · partitions u16 · given u64) ... ·
    from version 18 on: rescans u16 · (bucket u16 · end i64 · length u16 · key) ... ·
    from version 19 on: (schema u32) of each catch-up ... · CRC32C u32

A view is `bucket u16 · length u16 · key` and the offset of each bucket, in the order above. All integers are
little-endian; `table` and `query` are digests, as in `resume_token`. A token has the least version that can hold it,
so that earlier servers read most tokens as well: 17 without rescans and catch-ups, 18 without catch-ups.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import google_crc32c

from scankv.model.errors import InvalidRequest, InvalidResumeToken
from scankv.model.limits import MAX_RESUME_TOKEN_BYTES
from streaming_server.scan.chunk_source import ScanPosition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.scan.resume_token import Fingerprint

_VERSION: Final = 17
_RESCAN_VERSION: Final = 18
_SCHEMA_VERSION: Final = 19
_HEAD: Final = struct.Struct("<B4s4sQH")
_OFFSET: Final = struct.Struct("<Hq")
_COUNT: Final = struct.Struct("<H")
_NET: Final = struct.Struct("<HqHQ")
_RESCAN: Final = struct.Struct("<HqH")
_SCHEMA: Final = struct.Struct("<I")
_POSITION: Final = struct.Struct("<HH")
_CHECKSUM: Final = struct.Struct("<I")
_NO_LIMIT: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class LaterView:
    """A view with which a full start continued after an interruption.

    Attributes:
        after: The rows after this position are those of the view.
        offsets: For each bucket, the first change that is not in the view.
    """

    after: ScanPosition
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class NetPosition:
    """How far the net changes of one bucket's backlog were returned.

    Attributes:
        end: The offset where the backlog ends. It starts at the bucket's offset in the position.
        partitions: The number of partitions of the keys; 0 if it is not known yet.
        given: The number of net changes returned.
        schema_id: The schema version in which rows were compared, so that a stream that resumes finds the same net
            changes. 0: the current one, as in tokens of earlier servers.
    """

    end: int
    partitions: int = 0
    given: int = 0
    schema_id: int = 0


@dataclass(frozen=True, slots=True)
class RescanPosition:
    """How far the rows of one bucket's range markers were returned.

    Attributes:
        end: The offset after the last of these markers. The first one is at the bucket's offset in the position.
        key: The encoded key of the last row that was returned.
    """

    end: int
    key: bytes


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far changes were read.

    Attributes:
        offsets: For each bucket, the offset of the next change.
        scanned: How far the rows of a full start were read. None: no row was read yet, all rows were read, or the
            stream has no full start.
        views: The views that these rows come from, except the first view, at which the changes begin.
        scanning: Whether rows of a full start are still to come, even if none has come so far.
        net: For each bucket in a compacted catch-up, how far its net changes were returned.
        rescans: For each bucket whose range markers are being read again, how far their rows were returned.
    """

    offsets: Mapping[int, int]
    scanned: ScanPosition | None = None
    views: tuple[LaterView, ...] = ()
    scanning: bool = False
    net: Mapping[int, NetPosition] = field(default_factory=dict)
    rescans: Mapping[int, RescanPosition] = field(default_factory=dict)


NO_RESCANS: Final[Mapping[int, RescanPosition]] = MappingProxyType({})


class LogTokenWriter:
    def __init__(self, fingerprint: Fingerprint) -> None:
        self._digests = fingerprint.table, fingerprint.query

    def token(self, position: LogPosition, remaining: int | None) -> bytes:
        """Returns the token for continuing after a position with the remaining limit."""
        buckets = sorted(position.offsets)
        left = _NO_LIMIT if remaining is None else remaining
        schemas = [net.schema_id for net in position.net.values()]
        version = _SCHEMA_VERSION if any(schemas) else _RESCAN_VERSION if position.rescans else _VERSION
        parts = [_HEAD.pack(version, *self._digests, left, len(buckets))]
        parts += [_OFFSET.pack(bucket, position.offsets[bucket]) for bucket in buckets]
        parts.append(_COUNT.pack(len(position.views)))
        for view in position.views:
            parts += [_pack_position(view.after), struct.pack(f"<{len(buckets)}q", *(view.offsets[b] for b in buckets))]
        parts.append(bytes([position.scanning, position.scanned is not None]))
        if position.scanned is not None:
            parts.append(_pack_position(position.scanned))
        parts.append(_COUNT.pack(len(position.net)))
        parts += [_NET.pack(bucket, net.end, net.partitions, net.given) for bucket, net in position.net.items()]
        if version >= _RESCAN_VERSION:
            parts.append(_COUNT.pack(len(position.rescans)))
            for bucket, rescan in position.rescans.items():
                parts += [_RESCAN.pack(bucket, rescan.end, len(rescan.key)), rescan.key]
        if version >= _SCHEMA_VERSION:
            parts += map(_SCHEMA.pack, schemas)
        body = b"".join(parts)
        if position.rescans and len(body) + _CHECKSUM.size > MAX_RESUME_TOKEN_BYTES:
            # The keys of many buckets do not fit. Without them, the rows of the markers come again.
            return self.token(replace(position, rescans={}), remaining)
        if len(body) + _CHECKSUM.size > MAX_RESUME_TOKEN_BYTES:
            raise InvalidRequest(
                'the scan was interrupted too often in phase "rows": start it again from its beginning'
            )
        return body + _CHECKSUM.pack(google_crc32c.value(body))


@dataclass(frozen=True, slots=True)
class LogToken:
    """The contents of a token.

    Attributes:
        table: The digest of the table that it belongs to.
        query: The digest of the query that it belongs to.
        position: Where to resume.
        remaining: The remaining limit. None: no limit.
    """

    table: bytes
    query: bytes
    position: LogPosition
    remaining: int | None


def read_log_token(token: bytes, fingerprint: Fingerprint) -> tuple[LogPosition, int | None]:
    """Returns where the token of a query resumes, and the remaining limit.

    Raises:
        InvalidResumeToken: The token is damaged, has another version, or belongs to another table or query.
    """
    parsed = parse_log_token(token)
    for given, expected, what in (
        (
            parsed.table,
            fingerprint.table,
            "another table, or from before the table was restored or created again: start again",
        ),
        (parsed.query, fingerprint.query, "another query: buckets, columns, filter and limit must be the same"),
    ):
        if given != expected:
            raise InvalidResumeToken(f"the resume token comes from {what}")
    return parsed.position, parsed.remaining


def parse_log_token(token: bytes) -> LogToken:
    """Parses a token of any table and query.

    Raises:
        InvalidResumeToken: The token is damaged, or has another version.
    """
    body, checksum = token[: -_CHECKSUM.size], token[-_CHECKSUM.size :]
    damaged = InvalidResumeToken("the resume token is damaged: send it exactly as it was received")
    if len(token) > MAX_RESUME_TOKEN_BYTES or _CHECKSUM.pack(google_crc32c.value(body)) != checksum:
        raise damaged
    try:
        version, table, query, left, count = _HEAD.unpack_from(body)
        if not _VERSION <= version <= _SCHEMA_VERSION:
            raise InvalidResumeToken(
                f"the resume token has version {version}: this server reads versions {_VERSION} to {_SCHEMA_VERSION}; "
                "start again"
            )
        position = _TokenParser(body, _HEAD.size).position(count, version)
    except (struct.error, IndexError, ValueError) as error:
        raise damaged from error
    return LogToken(table, query, position, None if left == _NO_LIMIT else left)


class _TokenParser:
    def __init__(self, body: bytes, offset: int) -> None:
        self._body = body
        self._offset = offset

    def position(self, buckets: int, version: int) -> LogPosition:
        offsets: dict[int, int] = {}
        for _ in range(buckets):
            bucket, offsets[bucket] = self._next(_OFFSET)
        if len(offsets) != buckets:
            raise ValueError("a bucket is there twice")
        views = []
        for _ in range(self._next(_COUNT)[0]):
            after = self._position()
            views.append(LaterView(after, dict(zip(offsets, self._next(struct.Struct(f"<{buckets}q")), strict=True))))
        scanning, scanned = self._next(struct.Struct("<BB"))
        scanned_to = self._position() if scanned else None
        net = {bucket: NetPosition(*rest) for bucket, *rest in (self._next(_NET) for _ in range(self._next(_COUNT)[0]))}
        rescans: dict[int, RescanPosition] = {}
        for _ in range(self._next(_COUNT)[0] if version >= _RESCAN_VERSION else 0):
            bucket, end, length = self._next(_RESCAN)
            rescans[bucket] = RescanPosition(end, self._key(length))
        if version >= _SCHEMA_VERSION:
            net = {bucket: replace(each, schema_id=self._next(_SCHEMA)[0]) for bucket, each in net.items()}
        return LogPosition(offsets, scanned_to, tuple(views), bool(scanning), net, rescans)

    def _position(self) -> ScanPosition:
        bucket, length = self._next(_POSITION)
        return ScanPosition(bucket, self._key(length))

    def _key(self, length: int) -> bytes:
        self._offset += length
        return self._body[self._offset - length : self._offset]

    def _next(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._body, self._offset)
        self._offset += layout.size
        return values


def _pack_position(position: ScanPosition) -> bytes:
    return _POSITION.pack(position.bucket, len(position.key)) + position.key
