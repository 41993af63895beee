"""The readers of one store, whose iterators are created as late as possible without changing what they show."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.errors import ScanKvError


class StoreReaders:
    """The readers of one store that are open.

    An iterator of RocksDB shows the instant of its creation, and until the next write, all instants show the same. So
    the iterators of a reader are created when it is first read, or just before the next write: a scan of hundreds of
    buckets begins without waiting for iterators that it may never reach.

    Thread-safe: a thread may write while the event loop reads.

    Attributes:
        count: How many readers are open. They must be closed before the store is.
    """

    def __init__(self, failure: Callable[[Exception], ScanKvError]) -> None:
        """Has no readers yet. `failure` translates errors of RocksDB."""
        self.count = 0
        self._failure = failure
        # Reentrant: what is created may itself be a reader with iterators.
        self._lock = RLock()
        self._waiting: dict[StoreReader, Callable[[], None]] = {}

    def add(self, create: Callable[[], None]) -> StoreReader:
        """Adds a reader. Call it while nothing is written to the store.

        Args:
            create: Creates the iterators of the reader; called at most once.
        """
        reader = StoreReader(self)
        with self._lock:
            self.count += 1
            self._waiting[reader] = create
        return reader

    def create_all(self) -> None:
        """Creates the iterators of all readers. Call it before each write, which they must not show."""
        with self._lock:
            while self._waiting:
                self._create(*self._waiting.popitem())

    def _create(self, reader: StoreReader, create: Callable[[], None]) -> None:
        try:
            create()
        except Exception as error:
            reader.failure = self._failure(error)

    def create(self, reader: StoreReader) -> None:
        """Creates the iterators of one reader, unless they were created."""
        with self._lock:
            create = self._waiting.pop(reader, None)
            if create is not None:
                self._create(reader, create)

    def remove(self, reader: StoreReader) -> None:
        """Removes a reader, whose iterators are not created any more."""
        with self._lock:
            self._waiting.pop(reader, None)
            self.count -= 1


class StoreReader:
    """One reader of a store, until it is closed.

    Attributes:
        failure: Why its iterators could not be created.
    """

    __slots__ = ("_readers", "failure")

    def __init__(self, readers: StoreReaders) -> None:
        """See `StoreReaders.add`."""
        self.failure: ScanKvError | None = None
        self._readers: StoreReaders | None = readers

    def begin(self) -> None:
        """Has the iterators created, if they do not exist yet. Raises ScanKvError if they could not be created."""
        if self._readers is not None:
            self._readers.create(self)
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Has no iterators created any more, and lets the store be closed. Closing twice is allowed."""
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.remove(self)
