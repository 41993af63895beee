"""The state and rows of a bucket at one instant, for lookups by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.rocks.store import RowsSnapshot


@dataclass(frozen=True, slots=True)
class BucketSnapshot:
    """A bucket at one instant, for reading single keys. Thread-safe.

    Attributes:
        state: The state of the bucket.
        durable_offset: The offset up to which the bucket was durable.
        rows: The rows. None: they can no longer be read.
    """

    state: BucketState
    durable_offset: int
    rows: RowsSnapshot | None

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored rows of some encoded keys, None for a key without a row."""
        assert self.rows is not None
        return self.rows.get(keys)
