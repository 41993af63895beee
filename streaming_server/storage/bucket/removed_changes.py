"""The commit time of the last change that was removed from the changelog of a bucket.

The record of this time is written together with the removal, and names the number of removed changes. If a version that
writes no record removes more changes, the number differs, so the old record does not count.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, cast

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.range_markers import MarkerReached

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.change_log import ReadableLog
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rocks.store_batch import StoreBatch

_KEY: Final = b"log-removed"
# changes, microseconds since 1970 UTC
_RECORD: Final = struct.Struct(">QQ")


def put_removed(batch: StoreBatch, count: int, micros: int) -> None:
    """Records in a batch that the first `count` changes are removed, and when the last of them was committed."""
    batch.put_meta(_KEY, _RECORD.pack(count, micros))


def find_removed(store: RocksStore, count: int) -> int | None:
    """Returns when the last removed change was committed, if the first `count` changes are removed. None: unknown.

    Raises DataLoss.
    """
    try:
        stored = cast("bytes | None", store.meta.get(_KEY))
    except Exception as error:
        raise store.failure(error) from error
    if stored is None or len(stored) != _RECORD.size:
        return None
    removed, micros = _RECORD.unpack(stored)
    return int(micros) if removed == count else None


def commit_time_before(log: ReadableLog, count: int, definition: TableDefinition) -> int | None:
    """Returns the commit time of the last of the first `count` changes of a log. None: it is damaged."""
    span = log.span
    start, end = span.offset_of(count - 1), span.offset_of(count)
    try:
        records = log.read(start, end, definition, max_changes=1, max_bytes=1)
    except MarkerReached as reached:
        return reached.record.commit_micros
    except DataLoss:
        return None  # Damaged changes can be removed, too.
    return int(records[-1].commit_micros[-1])
