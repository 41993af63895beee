"""Segments: one record in place of several small ones, which readers would read more slowly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import (
    MAX_CHANGES_PER_RECORD,
    MAX_RECORD_BYTES,
    decode_header,
    decode_record,
    encode_segment,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.records import RecordHeader

_LARGE_ENOUGH: Final = 1024
"""A record of this many changes reads fast enough to stay as it is."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Adjacent records, and the one record that replaces them.

    Attributes:
        end: The number of changes up to and including the last one of these records.
        record: The key and value of the replacement. None: the records stay as they are.
        last_key: The key of the last of these records.
        size: The bytes of these records.
    """

    end: int
    record: tuple[bytes, bytes] | None
    last_key: bytes = b""
    size: int = 0


def plan_segment(records: Iterable[tuple[bytes, bytes]], definition: TableDefinition) -> Segment | None:
    """Plans the segment that replaces the first of some adjacent records, given by their keys and values.

    Takes up to about 50 ms, for 4,096 records.

    Returns:
        The segment. None: too few records exist so far.

    Raises:
        DataLoss: A record is damaged.
    """
    run: list[tuple[bytes, bytes]] = []
    changes = size = 0
    first: RecordHeader | None = None
    for key, value in records:
        header = decode_header(key, value)
        same = first is None or (header.epoch, header.schema_id, header.origin) == (
            first.epoch,
            first.schema_id,
            first.origin,
        )
        if run and (not same or header.is_marker or changes + header.count > MAX_CHANGES_PER_RECORD):
            break
        if run and size + len(value) > MAX_RECORD_BYTES:
            break
        first = first or header
        run.append((key, value))
        changes += header.count
        size += len(value)
        if header.is_marker or header.count >= _LARGE_ENOUGH:
            break
    else:
        # These changes are few, and later changes may fit into the same segment.
        return None
    assert first is not None
    after = count_of(first.offset) + changes
    if len(run) == 1:
        return Segment(after, None)
    record = encode_segment([decode_record(key, value, definition) for key, value in run])
    return Segment(after, record, run[-1][0], size)
