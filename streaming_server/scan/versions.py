"""Versions: the name of what some buckets of a table hold, by which an answer that was given before is known again."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128_digest

from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scankv.model.tables.schema import TableDefinition

# Part of every version, so that none of another making is ever taken for one of these.
_FORMAT: Final = b"scankv version 1"


def version_of(definition: TableDefinition, log_offsets: Mapping[int, int]) -> bytes:
    """The version of some buckets of a table: 16 bytes, equal as long as neither rows nor columns of them change.

    It is made of the table's incarnation, its schema, and how many changes each bucket has had. Not of the epochs: the
    count of a durable change is never used twice, so a restart, also an unclean one, changes nothing. Whoever hands out
    a version must wait until what it names is durable.

    Args:
        definition: The table as of the view.
        log_offsets: For each bucket of the view, the offset of the first change that is not in it.
    """
    parts = [part for bucket in sorted(log_offsets) for part in (bucket, count_of(log_offsets[bucket]))]
    schema = f" {definition.incarnation} {definition.schema.id} ".encode()
    return xxh3_128_digest(_FORMAT + schema + struct.pack(f"<{len(parts)}Q", *parts))
