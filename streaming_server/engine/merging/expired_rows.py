"""Expired rows of a bucket that are still stored: merges do not see them, and they are removed as a change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from streaming_server.engine.merging.outcome import merge_delete
from streaming_server.engine.merging.prepared_rows import PreparedRows
from streaming_server.storage.changelog.records import ChangeOrigin, Changes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.engine.merging.merger import StoredRows
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.rows.table_codec import TableCodec

REMOVAL: Final = ChangeOrigin.of("expiry/", ())
"""The origin of removals of expired rows. No client can have this writer id."""


class UnexpiredRows:
    """Stored rows as of a time, without those that have expired: `StoredRows`. Not thread-safe.

    Args:
        rows: The stored rows.
        codec: The table.
        now_micros: The time, in microseconds since 1970 UTC.

    Attributes:
        codec: The table.
        expired: The expired rows that were looked up, by key. They must be removed before their keys are written, so
            that readers of the changelog, indexes and row counts lose the old row before they get the new one.
    """

    def __init__(self, rows: StoredRows, codec: TableCodec, now_micros: int) -> None:
        self.codec = codec
        self.expired: dict[bytes, bytes] = {}
        self._rows = rows
        self._now_micros = now_micros

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """See `StoredRows`. Raises DataLoss."""
        found = self._rows.get(keys)
        alive = self.codec.rows.without_expired(found, self._now_micros)
        for key, row, kept in zip(keys, found, alive, strict=True) if alive is not found else ():
            if row is not None and kept is None:
                self.expired[key] = row
        return alive

    def has_rows_among(self, keys: list[bytes]) -> bool:
        """See `StoredRows`."""
        return self._rows.has_rows_among(keys)


def removal_of(rows: Mapping[bytes, bytes], codec: TableCodec, bucket: int) -> BucketChange:
    """Returns the change that removes expired rows from a bucket.

    It is a delete of the rows. With `ttl_changes="none"`, the changelog gets nothing, and no offset is used. That is
    possible because no view differs: no view has the rows anyway.

    Args:
        rows: The stored rows, by key.
        codec: The table.
        bucket: The number of the bucket.

    Raises:
        DataLoss: A row is damaged.
    """
    definition = codec.definition
    keys = sorted(rows)
    old: list[bytes | None] = [rows[key] for key in keys]
    key_rows = codec.rows.decoder(definition.primary_key).decode(pa.array(old, pa.binary()))
    deleted = PreparedRows(bucket, codec.rows, key_rows, pa.array(keys, pa.binary()), None)
    change = merge_delete(old, deleted, codec.indexes.values())
    changes = change.changes
    if changes is None:
        return change
    if definition.expiry is not None and definition.expiry.is_silent:
        return replace(change, changes=Changes(np.zeros(0, np.uint8), changes.rows.slice(0, 0)))
    return replace(change, changes=replace(changes, origin=REMOVAL))
