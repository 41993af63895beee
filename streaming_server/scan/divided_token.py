"""Resume tokens of the parts of a divided scan, which are also tokens of the complete scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

from streaming_server.scan.resume_token import TokenWriter

if TYPE_CHECKING:
    from streaming_server.scan.chunk_source import ScanPosition


class DividedTokens(TokenWriter):
    """Makes the tokens of the stream of one tablet as tokens of the scan of all tablets.

    Args:
        tokens: Makes the tokens of the tablet.
        head: The bytes before the tablet's token in the token of the scan. A checksum of both follows.
    """

    def __init__(self, tokens: TokenWriter, head: bytes) -> None:
        self._tokens = tokens
        self._head = head

    def token(self, position: ScanPosition, remaining: int | None) -> bytes:
        """See `TokenWriter.token`."""
        body = self._head + self._tokens.token(position, remaining)
        return body + int(google_crc32c.value(body)).to_bytes(4, "little")
