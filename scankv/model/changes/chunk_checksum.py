"""The checksum of a chunk, which also covers all chunks before it. `ScanChunk.crc32c` in `scan.proto` defines it."""

from __future__ import annotations

import google_crc32c


def chunk_crc32c(before: int, record_batch: int, changes: bytes = b"") -> int:
    """Returns the checksum of a chunk.

    It is computed from the checksum of the rows rather than from their bytes, because a columnar base stores that
    checksum with its rows.

    Args:
        before: The checksum of the previous chunk; 0 for the first chunk.
        record_batch: The CRC32C of the rows' bytes.
        changes: The bytes of the chunk's change columns.
    """
    checksum = google_crc32c.extend(record_batch, changes) if changes else record_batch
    return int(google_crc32c.extend(checksum, before.to_bytes(4, "little")))
