"""Resume tokens of changes: how far each bucket was read, and, within a start from the whole table, how far that was.

    version u8 · table 4 · query 4 · left of the limit u64 · buckets u16 · (bucket u16 · offset i64) ... ·
    views u16 · (view) ... · scanning u8 · scanned u8 · (bucket u16 · length u16 · key) ·
    stretches u16 · (bucket u16 · end i64 · partitions u16 · given u64) ... · CRC32C u32

where a view is `bucket u16 · length u16 · key` and the offset of each bucket, in the order above. All integers are
little-endian; `table` and `query` are digests, as in `resume_token`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import google_crc32c

from scankv.model.errors import InvalidRequest, InvalidResumeToken
from scankv.model.limits import MAX_RESUME_TOKEN_BYTES
from streaming_server.scan.chunk_source import Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.scan.resume_token import Fingerprint

_VERSION: Final = 17
_HEAD: Final = struct.Struct("<B4s4sQH")
_OFFSET: Final = struct.Struct("<Hq")
_COUNT: Final = struct.Struct("<H")
_NET: Final = struct.Struct("<HqHQ")
_PLACE: Final = struct.Struct("<HH")
_CHECKSUM: Final = struct.Struct("<I")
_NO_LIMIT: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class LaterView:
    """A view over which a start from the whole table went on after a cut.

    Attributes:
        after: Rows after this position are of this view.
        offsets: For each bucket, the first change that is not in it.
    """

    after: Position
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class NetPosition:
    """How far the net changes of a stretch of one bucket's log were given.

    Attributes:
        end: The offset where the stretch ends; it begins where the bucket was read on.
        partitions: Into how many partitions its keys are divided; 0 where that is not known yet.
        given: How many of its net changes were given.
    """

    end: int
    partitions: int = 0
    given: int = 0


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far changes were read.

    Attributes:
        offsets: For each bucket, the offset of the next change.
        scanned: How far the rows of the whole table were read that come first. None: they are over, or none come.
        views: The views that those rows are of, but for the first, which `offsets` stand for.
        scanning: Whether rows of the whole table are still to come, be it that none came so far.
        net: How far the net changes of those buckets were given that are being caught up with.
    """

    offsets: Mapping[int, int]
    scanned: Position | None = None
    views: tuple[LaterView, ...] = ()
    scanning: bool = False
    net: Mapping[int, NetPosition] = field(default_factory=dict)


class LogTokenWriter:
    """Makes the tokens of one stream of changes."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        self._digests = fingerprint.table, fingerprint.query

    def token(self, position: LogPosition, remaining: int | None) -> bytes:
        """The token for what comes behind a position, with what is left of the limit."""
        buckets = sorted(position.offsets)
        left = _NO_LIMIT if remaining is None else remaining
        parts = [_HEAD.pack(_VERSION, *self._digests, left, len(buckets))]
        parts += [_OFFSET.pack(bucket, position.offsets[bucket]) for bucket in buckets]
        parts.append(_COUNT.pack(len(position.views)))
        for view in position.views:
            parts += [_place(view.after), struct.pack(f"<{len(buckets)}q", *(view.offsets[b] for b in buckets))]
        parts.append(bytes([position.scanning, position.scanned is not None]))
        if position.scanned is not None:
            parts.append(_place(position.scanned))
        parts.append(_COUNT.pack(len(position.net)))
        parts += [_NET.pack(bucket, net.end, net.partitions, net.given) for bucket, net in position.net.items()]
        body = b"".join(parts)
        if len(body) + _CHECKSUM.size > MAX_RESUME_TOKEN_BYTES:
            raise InvalidRequest("the start from the whole table was cut too often to go on: begin it anew")
        return body + _CHECKSUM.pack(google_crc32c.value(body))


@dataclass(frozen=True, slots=True)
class LogToken:
    """What a token says.

    Attributes:
        table: The digest of the table that it is of.
        query: The digest of the query that it is of.
        position: Where to go on.
        remaining: What is left of the limit, None without one.
    """

    table: bytes
    query: bytes
    position: LogPosition
    remaining: int | None


def read_log_token(token: bytes, fingerprint: Fingerprint) -> tuple[LogPosition, int | None]:
    """Where a token of a query goes on, and what is left of the limit.

    Raises:
        InvalidResumeToken: It is damaged, of a newer version, or of another table or query.
    """
    said = parse_log_token(token)
    for given, expected, what in (
        (said.table, fingerprint.table, "another table, or the table was created anew"),
        (said.query, fingerprint.query, "another query: buckets, columns, limit and predicate must be the same"),
    ):
        if given != expected:
            raise InvalidResumeToken(f"the resume token comes from {what}")
    return said.position, said.remaining


def parse_log_token(token: bytes) -> LogToken:
    """What a token says, whatever it is of.

    Raises:
        InvalidResumeToken: It is damaged, or of a newer version.
    """
    body, checksum = token[: -_CHECKSUM.size], token[-_CHECKSUM.size :]
    damaged = InvalidResumeToken("the resume token is damaged: send it exactly as it was received")
    if len(token) > MAX_RESUME_TOKEN_BYTES or _CHECKSUM.pack(google_crc32c.value(body)) != checksum:
        raise damaged
    try:
        version, table, query, left, count = _HEAD.unpack_from(body)
        if version != _VERSION:
            raise InvalidResumeToken(
                f"the resume token has version {version}; of changes, this server reads {_VERSION}"
            )
        position = _Reader(body, _HEAD.size).position(count)
    except (struct.error, IndexError) as error:
        raise damaged from error
    return LogToken(table, query, position, None if left == _NO_LIMIT else left)


class _Reader:
    def __init__(self, body: bytes, place: int) -> None:
        self._body = body
        self._place = place

    def position(self, buckets: int) -> LogPosition:
        offsets: dict[int, int] = {}
        for _ in range(buckets):
            bucket, offsets[bucket] = self._next(_OFFSET)
        views = []
        for _ in range(self._next(_COUNT)[0]):
            after = self._position()
            views.append(LaterView(after, dict(zip(offsets, self._next(struct.Struct(f"<{buckets}q")), strict=True))))
        scanning, scanned = self._next(struct.Struct("<BB"))
        place = self._position() if scanned else None
        net = {bucket: NetPosition(*rest) for bucket, *rest in (self._next(_NET) for _ in range(self._next(_COUNT)[0]))}
        return LogPosition(offsets, place, tuple(views), bool(scanning), net)

    def _position(self) -> Position:
        bucket, length = self._next(_PLACE)
        self._place += length
        return Position(bucket, self._body[self._place - length : self._place])

    def _next(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._body, self._place)
        self._place += layout.size
        return values


def _place(position: Position) -> bytes:
    return _PLACE.pack(position.bucket, len(position.key)) + position.key
