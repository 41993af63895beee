"""A change of one bucket that has been computed and validated, and is ready to be applied atomically."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming_server.storage.changelog.records import Changes

_FEW = 32  # values, for which NumPy takes longer


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """Writes to the entries of one index: entries to put, and keys of entries to delete. No key is in both."""

    index: int
    put_keys: pa.Array
    put_values: pa.Array
    delete_keys: pa.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChange:
    """Writes to one bucket: stored rows to put, keys to delete, changes for the changelog, and index entries.

    Attributes:
        put_keys: Encoded keys of the rows to put.
        put_values: The rows to put, as they are stored.
        delete_keys: Encoded keys of the rows to delete.
        changes: What the changelog records. None: the table has no changelog, and each key counts as one change.
        rows_added: By how many rows the bucket grows. None: unknown, because the old rows were not read.
        schema_id: The version of the table's schema that the rows have.
        entries: The writes to the entries of every index of the table.
    """

    put_keys: pa.Array
    put_values: pa.Array
    delete_keys: pa.Array
    changes: Changes | None
    rows_added: int | None
    schema_id: int
    entries: tuple[EntryChange, ...] = ()

    @property
    def count(self) -> int:
        """How many log offsets the change takes."""
        return len(self.put_keys) + len(self.delete_keys) if self.changes is None else len(self.changes)

    @property
    def longest_row(self) -> int:
        """Bytes of the longest row to put."""
        return _longest(self.put_values)

    @property
    def longest_deleted_key(self) -> int:
        """Bytes of the longest key to delete."""
        return _longest(self.delete_keys)


def _longest(values: pa.Array) -> int:
    """Returns the bytes of the longest of some binary values, 0 when there are none."""
    if len(values) <= _FEW:
        return max(map(len, values.to_pylist()), default=0)
    return int(np.diff(np.frombuffer(values.buffers()[1], np.int32)).max())
