"""The columnar base of a live bucket, with the delta of what was written since."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from scankv.model.errors import DataLoss
from streaming_server.engine.bucket.base_record import BaseRecord
from streaming_server.scan.columnar.base_view import BaseView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.keys.key_range import KeyRange
    from streaming_server.scan.columnar.delta import Delta, DeltaView
    from streaming_server.storage.columnar.columnar_base import ColumnarBase

MAX_VIEWS_BYTES: Final = 64 << 20
"""The most memory for older states of the delta that running scans still read. Each state has its own sorted rows. If
they take more, new scans read RocksDB."""

UNMERGED_SHARE: Final = 0.1
"""The most rows that a scan sorts and merges before it reads a base, as a share of the rows of the base, or of the
delta if that has more. If more were written since the last merge, reading RocksDB takes less time."""

_FEW_ROWS: Final = 4096
"""So many rows are merged in a few milliseconds."""

_log: Final = logging.getLogger(__name__)


class BaseSlot:
    """What scans of one bucket can read instead of RocksDB. Changed with the bucket's mutex held.

    Attributes:
        base: The columnar base, if one exists and `delta` has all writes since.
        delta: The writes since the base, or since the base that is being built.
        is_adopted: Whether the server has looked for a base on disk that an earlier server built. `base` is that base,
            if it exists and could be completed.
        has_many_changes: Whether the base on disk has so many changes since that reads do not wait for its adoption.
        was_scanned: Whether a scan has asked for the base since maintenance last looked.
        adoption: Held while the server looks for that base. Acquire it before the mutex.
        record: What bases have cost, and why none exists.
    """

    def __init__(self, location: str) -> None:
        """Begins without a base.

        Args:
            location: The name of the bucket in errors.
        """
        self.base: ColumnarBase | None = None
        self.delta: Delta | None = None
        self.is_adopted = False
        self.has_many_changes = self.was_scanned = False
        self.adoption = asyncio.Lock()
        self.record = BaseRecord()
        self._location = location
        self._views: WeakSet[DeltaView] = WeakSet()

    def view(self, *, however_long: bool = False) -> BaseView | None:
        """Returns a view of the bucket as of now, to be read from its base.

        Records that a scan wants a base, which is a reason to build one, and to merge its delta.

        Args:
            however_long: Whether to return the view also if reading RocksDB takes less time, because much of the delta
                has to be merged first.

        Returns:
            The view. None: `unusable_reason` has the reason.
        """
        self.record.wanted = self.was_scanned = True
        base, delta = self.base, self.delta
        if base is None or delta is None or self.unusable_reason(however_long=however_long):
            return None
        view = delta.view()
        self._views.add(view)
        return BaseView(base=base, delta=view, location=self._location)

    def unusable_reason(self, *, however_long: bool = False) -> str:
        """Returns the human-readable reason why `view` would return None. Empty: it would not. Needs no mutex."""
        # Read once: a damaged base may be dropped at any time.
        base, delta = self.base, self.delta
        if base is None or delta is None:
            return self.record.unused_reason or "it is not open"
        if self._bytes_of_views_except(delta.latest_view) > MAX_VIEWS_BYTES:
            return "running scans keep too many earlier states of its delta"
        if not however_long and delta.unmerged_rows > self.most_unmerged_rows(delta):
            return "much was written since its delta was last merged; a scan makes the server merge it for later scans"
        return ""

    def most_unmerged_rows(self, delta: Delta) -> int:
        """Returns the most rows of a delta that scans merge before they read it with the base."""
        base = self.base
        # A merge also copies what was merged before.
        rows = max(0 if base is None else base.info.rows, delta.rows - delta.unmerged_rows)
        return max(_FEW_ROWS, int(UNMERGED_SHARE * rows))

    def _bytes_of_views_except(self, view: DeltaView | None) -> int:
        return sum(each.nbytes for each in self._views if each is not view)

    @property
    def delta_bytes(self) -> int:
        """Memory for the delta, with older states that scans still read."""
        delta = self.delta
        kept = sum(view.nbytes for view in self._views)
        return kept if delta is None else max(kept, delta.nbytes)

    def delete_ranges(self, ranges: Sequence[KeyRange], offset: int) -> None:
        """Removes all rows of some key ranges, because the bucket has deleted them at once. Reads few keys of the base.

        Args:
            ranges: The ranges.
            offset: The log offset of the bucket after the deletion.
        """
        base, delta = self.base, self.delta
        if delta is None or not ranges:
            return
        delta.delete_ranges(ranges, offset)
        if base is not None:
            self.install(base, delta, delta)

    def install(self, base: ColumnarBase, delta: Delta, instead_of: Delta | None = None) -> None:
        """Makes scans read a base, without the ranges whose rows were deleted since. Reads few keys of it.

        Args:
            base: The base.
            delta: All writes since.
            instead_of: The delta whose place it takes. If that was dropped in the meantime, nothing happens.
        """
        try:
            rest = base.without(delta.deleted_ranges)
        except DataLoss as error:
            _log.error("a columnar base is not read, and is built again: %s", error.message)
            self.drop("it was damaged")
            return
        if base.info.rows and not rest.info.rows:
            self.drop("all of its rows were deleted")
            return
        # Their rows take space until the next base, so they count as changes, which make it due.
        deleted = base.info.rows - rest.info.rows
        self.record.changed_bytes += base.info.disk_bytes * deleted // max(base.file_rows, 1)
        if self.delta is instead_of:
            self.base, self.delta = rest, delta

    def drop_unwanted(self) -> None:
        """Stops reading the base, if one exists, because the table has the option `columnar_base=off`."""
        if self.delta is not None:
            self.drop("the table has columnar_base=off")

    def drop(self, why: str, *, at_once: bool = True) -> None:
        """Stops reading the base.

        Args:
            why: The human-readable reason, for the statistics: the base is damaged, or lacks a write.
            at_once: Whether to build another base whatever it costs.
        """
        self.base = self.delta = None
        self.record.lost, self.record.is_on_disk = why, True
        if at_once:
            self.record.base_bytes = 0
