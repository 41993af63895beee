"""The checksum of a chunk, which covers those before it. Stated in `scan.proto`, at `ScanChunk.crc32c`."""

from __future__ import annotations

import google_crc32c


def chunk_crc32c(before: int, record_batch: int, changes: bytes = b"") -> int:
    """The checksum of a chunk.

    The rows come in by a checksum of their own. Those of a columnar base have theirs already.

    Args:
        before: The checksum of the chunk before; 0 for the first.
        record_batch: The CRC32C of the rows' bytes.
        changes: The bytes that say what happened to the rows.
    """
    checksum = google_crc32c.extend(record_batch, changes) if changes else record_batch
    return int(google_crc32c.extend(checksum, before.to_bytes(4, "little")))
