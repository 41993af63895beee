"""The state of one table that all of its operations share: definition, codec, and buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from scankv.model.errors import InvalidRequest
from streaming_server.engine.bucket.call_point import now_of
from streaming_server.engine.bucket.own_buckets import OwnBuckets
from streaming_server.engine.bucket.sweep_record import SweepRecord
from streaming_server.scan.chunk_source import View, total_rows
from streaming_server.storage.rows.table_codec import TableCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.admission.live_scans import Abortable
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.files.disk_reserve import DiskReserve


class TableState:
    """The state of one open table. Bound to the server's event loop.

    Attributes:
        codec: Encodes and decodes the current version of the table. `alter` replaces it.
        path: The table's directory.
        buckets: Its own buckets, by number.
        executor: Runs blocking work.
        clock: The server's clock.
        reserve: The disk space that writes leave free.
        total_delta_bytes: The memory for the deltas of all columnar bases of the process.
        sweep: What the sweep of expired rows has done.
        count_written: Counts rows that a request has applied.
    """

    def __init__(
        self,
        definition: TableDefinition,
        path: Path,
        make_bucket: Callable[[int, TableState], LiveBucket],
        *,
        executor: StorageExecutor,
        clock: ServerClock,
        reserve: DiskReserve,
        total_delta_bytes: int,
        count_written: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Opens nothing.

        Args:
            definition: The current definition.
            path: The table's directory.
            make_bucket: Creates the bucket of a number.
            executor: Runs blocking work.
            clock: The server's clock.
            reserve: The disk space that writes leave free.
            total_delta_bytes: The memory for the deltas of all columnar bases of the process.
            count_written: Counts rows that a request has applied.
        """
        self.codec = TableCodec.of(definition)
        self.path = path
        self.executor = executor
        self.clock = clock
        self.reserve = reserve
        self.total_delta_bytes = total_delta_bytes
        self.sweep = SweepRecord()
        self.count_written = count_written
        self.buckets = OwnBuckets(definition, lambda number: make_bucket(number, self))
        self._sources: WeakSet[Abortable] = WeakSet()
        self._listeners: set[Callable[[], None]] = set()

    @property
    def definition(self) -> TableDefinition:
        return self.codec.definition

    def alter(self, definition: TableDefinition) -> None:
        """Uses a newer definition from now on. Running scans keep theirs.

        A write that began with the old definition holds its bucket's mutex, so it is done before.
        """
        self.codec = TableCodec.of(definition)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener whenever more is durable, and when the table is altered or closed.

        All buckets must be open. Returns a function that removes the listener.
        """
        self._listeners.add(listener)
        stops = [live.on_durable(listener) for live in self.buckets]

        def stop() -> None:
            self._listeners.discard(listener)
            for each in stops:
                each()

        return stop

    def notify(self) -> None:
        """Calls all listeners."""
        for listener in list(self._listeners):
            listener()

    def select_buckets(self, numbers: Sequence[int] | None) -> list[LiveBucket]:
        """Returns some own buckets (None: all), ascending.

        Raises:
            InvalidRequest: A bucket is named twice, or does not exist.
            NotOwner: A bucket is in another tablet.
        """
        if numbers is None:
            return list(self.buckets)
        if len(set(numbers)) != len(numbers):
            raise InvalidRequest("a bucket is named twice: name each once")
        return [self.buckets[number] for number in sorted(numbers)]

    def view_of(self, states: Mapping[int, BucketState]) -> View:
        """Returns the view that consists of these states of buckets. Its time is now, or that of the call's point."""
        return View(
            {number: state.log_offset for number, state in states.items()},
            now_of(self.clock),
            total_rows(state.rows for state in states.values()),
        )

    def abort_on_close(self, source: Abortable) -> None:
        """Aborts a reader of a bucket before the table closes. Hold the bucket's mutex.

        The reference is weak, so that a reader that is dropped frees its cursors at once.
        """
        self._sources.add(source)

    def sources(self) -> Iterator[Abortable]:
        """Yields all current readers of buckets."""
        yield from list(self._sources)
