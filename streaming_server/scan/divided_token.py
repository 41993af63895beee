"""Resume tokens of scans of several tablets: which tablet, and the token of its stream.

    mark u8 · tablet u16 · rows of earlier tablets u64 · buckets u16 · (bucket u16 · log offset i64) ... · token ·
    CRC32C u32

All integers are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import google_crc32c

from scankv.model.errors import InvalidResumeToken
from streaming_server.scan.resume_token import TokenWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.scan.chunk_source import ScanPosition

_MARK: Final = b"\xf7"
"""The first byte of a token of several tablets. Those of one tablet begin with a small version."""

_HEAD: Final = struct.Struct("<cHQH")
_OFFSET: Final = struct.Struct("<Hq")
_CHECKSUM: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TabletPlace:
    """Where a scan of several tablets continues.

    Attributes:
        tablet: The tablet. Those before it are complete.
        returned: The rows that those before it have returned.
        token: The resume token of its stream. Empty: from its beginning.
        log_offsets: The offsets of the view that the token comes from, of all buckets.
    """

    tablet: int
    returned: int
    token: bytes
    log_offsets: Mapping[int, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        head = _HEAD.pack(_MARK, self.tablet, self.returned, len(self.log_offsets))
        body = head + b"".join(_OFFSET.pack(*each) for each in sorted(self.log_offsets.items())) + self.token
        return body + _CHECKSUM.pack(google_crc32c.value(body))

    @classmethod
    def of(cls, token: bytes) -> TabletPlace:
        """Reads a token. Raises InvalidResumeToken if it is damaged."""
        body, checksum = token[: -_CHECKSUM.size], token[-_CHECKSUM.size :]
        is_whole = len(body) >= _HEAD.size and body[:1] == _MARK
        if not is_whole or checksum != _CHECKSUM.pack(google_crc32c.value(body)):
            raise InvalidResumeToken("the resume token is damaged, or comes from another table: start again")
        _, tablet, returned, count = _HEAD.unpack_from(body)
        end = _HEAD.size + count * _OFFSET.size
        if end > len(body):
            raise InvalidResumeToken("the resume token is damaged: start again")
        return cls(tablet, returned, body[end:], dict(_OFFSET.iter_unpack(body[_HEAD.size : end])))


class DividedTokens(TokenWriter):
    """Makes the tokens of the stream of one tablet, as those of the scan of all tablets. Without a limit.

    Args:
        tokens: Makes the tokens of the tablet.
        tablet: The number of the tablet.
        log_offsets: The offsets of all buckets of the scan.
    """

    def __init__(self, tokens: TokenWriter, tablet: int, log_offsets: Mapping[int, int]) -> None:
        self._tokens = tokens
        self._place = TabletPlace(tablet, 0, b"", log_offsets)

    def token(self, position: ScanPosition, remaining: int | None) -> bytes:
        """See `TokenWriter.token`."""
        return replace(self._place, token=self._tokens.token(position, remaining)).to_bytes()
