"""Resume tokens within the rows of a published version, from which a stream of changes continues."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

import google_crc32c

from scankv.model.errors import InvalidResumeToken

if TYPE_CHECKING:
    from scankv.model.scans.scan_spec import ScanSpec

_MARK: Final = b"lake1"
"""The tokens of the server begin with a byte below 32."""


@dataclass(frozen=True, slots=True)
class FileToken:
    """How far the files of a version were read. Immutable.

    Attributes:
        version: The number of the version.
        commit_id: Identifies the version: one that was published again has another.
        query: Identifies what is read of the files.
        file: The number of the file, in the order in which the files of the query are read.
        row: How many rows of the file were read, without masked ones.
    """

    version: int
    commit_id: str
    query: str
    file: int
    row: int

    def to_bytes(self) -> bytes:
        """Returns the token."""
        body = _MARK + json.dumps(asdict(self)).encode()
        checksum: int = google_crc32c.value(body)
        return body + checksum.to_bytes(4, "big")

    @classmethod
    def is_one(cls, token: bytes | None) -> bool:
        """Returns whether a resume token is of files, not of the changelog."""
        return token is not None and token.startswith(_MARK)

    @classmethod
    def of_bytes(cls, token: bytes, spec: ScanSpec) -> Self:
        """Reads a token. Raises InvalidResumeToken if it is damaged, or belongs to a stream of something else."""
        body = token[:-4]
        if google_crc32c.value(body) != int.from_bytes(token[-4:], "big"):
            raise InvalidResumeToken("the resume token is damaged: give it exactly as it was received")
        found = cls(**json.loads(body.removeprefix(_MARK)))
        if found.query != query_of(spec):
            raise InvalidResumeToken(
                "the resume token comes from another query: table, buckets, columns and filter must be the same"
            )
        return found


def query_of(spec: ScanSpec) -> str:
    """Identifies what a stream reads of the files of a version."""
    buckets = None if spec.buckets is None else sorted(spec.buckets)
    values = repr((spec.table, buckets, spec.columns, spec.where))
    return hashlib.blake2b(values.encode(), digest_size=8).hexdigest()
