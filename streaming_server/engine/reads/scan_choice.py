"""Opens a scan of a live table with and without an index at one instant, and chooses one once the mutexes are free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming_server.engine.columnar.base_choice import choose_bases, live_buckets_with_bases, record_errors
from streaming_server.scan.columnar.base_view import NO_BASES, merge_deltas
from streaming_server.scan.execution.open_scan import open_scan
from streaming_server.scan.rows.index_lookup import open_lookup
from streaming_server.scan.rows.locked_view import MAX_STEP_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import ExitStack

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.scan.chunk_source import View
    from streaming_server.scan.columnar.base_view import BaseView
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.scan.rows.index_choice import IndexChoice
    from streaming_server.scan.rows.index_lookup import IndexLookup
    from streaming_server.scan.rows.locked_view import LockedView
    from streaming_server.storage.bucket.bucket import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOpening:
    """What opens the scans of one plan at one instant. Use it while the mutexes are held.

    Attributes:
        table: The table.
        plan: The plan.
        opened: The buckets whose mutexes are held.
        to_close: Closes what was opened, unless the caller takes it over.
    """

    table: TableState
    plan: ReadPlan
    opened: Sequence[tuple[LiveBucket, Bucket]]
    to_close: ExitStack

    def lookup(
        self, reader: RowReader, choices: Sequence[IndexChoice], lock_view: Callable[[], LockedView]
    ) -> IndexLookup | None:
        """Begins a lookup in an index. None: no index can be used.

        Args:
            reader: How the rows are read without an index.
            choices: The indexes that can find the keys.
            lock_view: Returns the view of the buckets.
        """
        if not choices:
            return None
        based = live_buckets_with_bases(self.plan, reader, [live for live, _ in self.opened])
        lookup = open_lookup(self.plan, reader, choices, lock_view(), based)
        if lookup is not None:
            self.to_close.callback(lookup.close)
            self.table.abort_on_close(lookup)
        return lookup

    async def scans(self, reader: RowReader, lookup: IndexLookup | None, view: View) -> ScanChoice:
        """Opens the scan without an index, the one through it, or both if a few entries do not decide between them."""
        if lookup is not None:
            await lookup.read(MAX_STEP_ENTRIES)
        if lookup is not None and lookup.is_chosen:
            return ScanChoice(self._scan(lookup.reader, view, NO_BASES), NO_BASES)
        bases = choose_bases(self.plan, reader, self.opened)
        scan = self._scan(reader, view, bases)
        if lookup is None or lookup.is_chosen is False:
            return ScanChoice(scan, bases)
        return ScanChoice(scan, bases, self._scan(lookup.reader, view, NO_BASES), lookup)

    def _scan(self, reader: RowReader, view: View, bases: Mapping[int, BaseView]) -> OpenedScan:
        bucket_of = {live.number: bucket for live, bucket in self.opened}.__getitem__
        on_error = record_errors({live.number: live for live, _ in self.opened}, bases)
        scan = open_scan(self.plan, self.table.definition, reader, view, "", bucket_of, on_error, bases)
        self.to_close.callback(scan.source.close)
        self.table.abort_on_close(scan.source)
        return scan


@dataclass(frozen=True, slots=True)
class ScanChoice:
    """A scan, or two scans of one instant of which one is to be chosen.

    Attributes:
        scan: The scan; of two, the one without an index.
        bases: The columnar bases that it reads.
        through: The scan through an index. None: nothing is to be chosen.
        lookup: Decides between the two.
    """

    scan: OpenedScan
    bases: Mapping[int, BaseView]
    through: OpenedScan | None = None
    lookup: IndexLookup | None = None

    async def choose(self, run: Callable[[Callable[[], object]], Awaitable[object]]) -> OpenedScan:
        """Returns the scan to read, and closes the other one.

        Args:
            run: Runs what takes long, in a thread.
        """
        if self.through is not None and self.lookup is not None:
            await self.lookup.read()
            if self.lookup.is_chosen:
                self.scan.source.close()
                return self.through
            self.through.source.close()
        await merge_deltas(self.bases, run)
        return self.scan
