"""Where a scan of a table with tablets continues, as opaque bytes that fit only the scan they come from.

    mark u8 · table u32 · schema u32 · query u32 · tablet u16 · returned rows u64 · time of the view i64 ·
    expiry time i64 · buckets u16 · (bucket u16 · log offset i64) ... · token of the tablet, or the last key ... ·
    CRC32C u32

All integers are little-endian. The digests, the log offsets and the times are as in the tokens of other scans.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c

from scankv.model.errors import InvalidResumeToken
from streaming_server.scan.resume_token import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.read_plan import ReadPlan

_MARK: Final = 0xF7
"""The first byte of a token of several tablets. Tokens of one tablet begin with a small version number."""

_HEAD: Final = struct.Struct("<B4s4s4sHQqqH")
_OFFSET: Final = struct.Struct("<Hq")
_CHECKSUM: Final = struct.Struct("<I")

ALL_TABLETS: Final = 0xFFFF
"""Stands for the tablet, in a place of a scan that merges all tablets into one order."""


@dataclass(frozen=True, slots=True)
class JoinedPlace:
    """Where a scan of several tablets continues. Immutable.

    Attributes:
        fingerprint: Identifies the scan.
        tablet: The tablet that is read. Tablets before it are complete. `ALL_TABLETS`: all are read together.
        returned: The rows that the tablets before it have returned; with `ALL_TABLETS`, all rows returned.
        view_micros: The time of the view that the scan reads.
        expired_at: The time as of which rows have expired.
        log_offsets: The offsets of that view, of all buckets.
        rest: The resume token of the tablet; with `ALL_TABLETS`, the key of the last row.
    """

    fingerprint: Fingerprint
    tablet: int
    returned: int
    view_micros: int
    expired_at: int
    log_offsets: Mapping[int, int]
    rest: bytes

    def to_bytes(self) -> bytes:
        """Returns the token."""
        digests = self.fingerprint.table, self.fingerprint.schema, self.fingerprint.query
        offsets = sorted(self.log_offsets.items())
        head = _HEAD.pack(_MARK, *digests, self.tablet, self.returned, self.view_micros, self.expired_at, len(offsets))
        body = head + b"".join(_OFFSET.pack(*each) for each in offsets) + self.rest
        return body + _CHECKSUM.pack(google_crc32c.value(body))


def read_place(token: bytes, fingerprint: Fingerprint) -> JoinedPlace:
    """Parses a token. Raises InvalidResumeToken if it is damaged, or belongs to another scan."""
    body, checksum = token[: -_CHECKSUM.size], token[-_CHECKSUM.size :]
    if len(body) < _HEAD.size or body[0] != _MARK or checksum != _CHECKSUM.pack(google_crc32c.value(body)):
        raise _damaged()
    _, table, schema, query, tablet, returned, view_micros, expired_at, count = _HEAD.unpack_from(body)
    fingerprint.check(Fingerprint(table, schema, query))
    end = _HEAD.size + count * _OFFSET.size
    if end > len(body):
        raise _damaged()
    offsets = dict(_OFFSET.iter_unpack(body[_HEAD.size : end]))
    return JoinedPlace(fingerprint, tablet, returned, view_micros, expired_at, offsets, body[end:])


def token_head(token: bytes) -> bytes:
    """Returns how all tokens of a tablet begin, from a token without the tablet's part."""
    return token[: -_CHECKSUM.size]


def fingerprint_of(plan: ReadPlan, definition: TableDefinition, snapshot_id: str) -> Fingerprint:
    """Returns what identifies a scan of a table with tablets. Raises SchemaMismatch for an unknown column."""
    return Fingerprint.of(
        table=(definition.name, definition.incarnation, snapshot_id),
        schema=definition.schema.select(plan.columns).serialize().to_pybytes(),
        query=(
            sorted(plan.buckets or range(definition.buckets)),
            plan.columns,
            plan.where_message,
            plan.limit,
            plan.key_range,
            plan.reverse,
            plan.ordered,
            plan.latest,
            plan.changes_follow,
            *plan.reused_names(definition),
        ),
    )


def _damaged() -> InvalidResumeToken:
    return InvalidResumeToken("the resume token is damaged: send it exactly as it was received")
