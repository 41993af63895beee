"""Reads a changelog from its first change to its last, and proves that no change is missing or damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streaming_server.storage.changelog.range_markers import MarkerReached

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.change_log import ReadableLog

_STEP_BYTES: Final = 8 << 20
_ANY: Final = 1 << 40


def count_changes(log: ReadableLog, definition: TableDefinition) -> int:
    """Decodes a complete changelog, and returns the number of its changes. Blocks.

    Raises:
        DataLoss: A record is damaged, or changes are missing.
    """
    span = log.span
    count, end = span.first, span.offset_of(span.end)
    while count < span.end:
        try:
            records = log.read(span.offset_of(count), end, definition, max_changes=_ANY, max_bytes=_STEP_BYTES)
        except MarkerReached:
            count += 1
        else:
            count += sum(len(record.changes) for record in records)
    return count - span.first
