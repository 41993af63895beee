"""The already-applied filter: removes changes that the rows of a full start already contain.

The rows of a full start that was interrupted come from several views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from streaming_server.scan.changes.log_token import LaterView
    from streaming_server.storage.changelog.records import LogRecord


class AlreadyAppliedFilter:
    """Removes the changes that the rows of later views already contain. Immutable.

    The changelog is read from the end of the first view on. Rows after the position of an interruption come from a
    later view, so changes of these rows are new only if they come after that view.

    Args:
        views: The later views, at least one, in the order in which they were read.
        keys_of: Returns the encoded primary keys of rows.

    Attributes:
        views: The later views.
    """

    def __init__(self, views: Sequence[LaterView], keys_of: Callable[[pa.RecordBatch], pa.Array]) -> None:
        self.views = tuple(views)
        self._keys_of = keys_of

    def is_exhausted(self, offsets: Mapping[int, int]) -> bool:
        """Whether all changes from these offsets on are new."""
        return all(
            count_of(offset) >= count_of(view.offsets[bucket])
            for view in self.views
            for bucket, offset in offsets.items()
        )

    def new_changes(
        self, records: Sequence[LogRecord], bucket: int
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
        """Returns the indices of the new changes in some consecutive records of a bucket; None if all are new."""
        last = max(count_of(view.offsets[bucket]) for view in self.views)
        if count_of(records[0].offset) >= last:
            return None
        return np.flatnonzero(np.concatenate([self._is_new(record, bucket) for record in records]))

    def _is_new(self, record: LogRecord, bucket: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        keys = self._keys_of(record.changes.rows)
        applied_until = np.zeros(len(keys), np.int64)
        for view in self.views:
            if view.after.bucket > bucket:
                continue
            end = count_of(view.offsets[bucket])
            if view.after.bucket < bucket:
                applied_until[:] = end
            else:
                applied_until[pc.greater(keys, view.after.key).to_numpy(zero_copy_only=False)] = end
        return count_of(record.offset) + np.arange(len(keys)) >= applied_until
