"""Versions: a version identifies the contents of some buckets, so that a client can recognize an earlier result."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128_digest

from scankv.model.tables.expiry import tick_of
from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scankv.model.tables.schema import TableDefinition

# Part of every version, so that versions of another format never match.
_FORMAT: Final = b"scankv version 1"


def version_of(
    definition: TableDefinition, log_offsets: Mapping[int, int], micros: int, rows: int | None = None
) -> bytes:
    """Returns the version of some buckets of a table: 16 bytes that stay equal while neither rows nor columns change.

    In a table whose rows expire, the version has the tick and the TTL too, because rows may have expired or reappeared.

    The version is a digest of the table's incarnation, its schema, and the number of changes in each bucket. It
    excludes the epochs: the count of a durable change is reused only after a recovery that has lost changes, and the
    version contains the number of such recoveries. So a restart changes nothing, even after a crash. A caller must not
    send a version before its contents are durable.

    Args:
        definition: The table as of the view.
        log_offsets: For each bucket of the view, the offset of the first change that is not in it.
        micros: When the view was taken, in microseconds since 1970 UTC.
        rows: The number of rows of the view. Where the changelog is the storage of the rows, trimming removes rows
            without a change; but then their number says how many.
    """
    parts = [part for bucket in sorted(log_offsets) for part in (bucket, count_of(log_offsets[bucket]))]
    if not definition.has_key:
        parts.append(rows or 0)
    schema = f" {definition.incarnation} {definition.schema.id} ".encode()
    if definition.losses:
        schema += f"{definition.losses} losses ".encode()
    if (expiry := definition.expiry) is not None:
        schema += f"{expiry.column.id} {expiry.seconds} {expiry.since_micros} {tick_of(micros)} ".encode()
    return xxh3_128_digest(_FORMAT + schema + struct.pack(f"<{len(parts)}Q", *parts))
