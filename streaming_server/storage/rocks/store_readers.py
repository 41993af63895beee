"""The readers of one store, whose iterators are created as late as possible without changing what they show."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.errors import ScanKvError


class LateReader(Protocol):
    """Something that reads stores, and creates what it needs for each of them as late as possible."""

    def create(self, number: int, /) -> None:
        """Creates what reads the store that it knows by a number."""

    def fail(self, number: int, error: ScanKvError, /) -> None:
        """Takes the error with which `create` failed."""


class StoreReaders:
    """The readers of one store that are open.

    An iterator of RocksDB shows the instant of its creation, and until the next write, all instants show the same. So
    the iterators of a reader are created when it is first read, or just before the next write: a scan of hundreds of
    buckets begins without waiting for iterators that it may never reach.

    Thread-safe: a thread may write while the event loop reads. Adding a reader, and removing one that has created
    nothing, takes no lock, since a scan does so for each of its buckets.
    """

    def __init__(self, failure: Callable[[Exception], ScanKvError]) -> None:
        """Has no readers yet. `failure` translates errors of RocksDB."""
        self._failure = failure
        # How many of the readers that are not waiting are open.
        self._begun = 0
        # Reentrant: what is created may itself be a reader with iterators.
        self._lock = RLock()
        self._waiting: dict[LateReader, int] = {}

    def add(self, create: Callable[[], None]) -> StoreReader:
        """Adds a reader. Call it while nothing is written to the store.

        Args:
            create: Creates the iterators of the reader; called at most once.
        """
        reader = StoreReader(self, create)
        self.promise(reader, 0)
        return reader

    def promise(self, reader: LateReader, number: int) -> None:
        """Adds a reader that may read other stores, too, once. Call it while nothing is written to the store.

        Args:
            reader: The reader.
            number: What the reader knows this store by.
        """
        self._waiting[reader] = number

    @property
    def count(self) -> int:
        """How many readers are open. They must be closed before the store is."""
        return len(self._waiting) + self._begun

    def create_all(self) -> None:
        """Creates the iterators of all readers. Call it before each write, which they must not show."""
        with self._lock:
            while self._waiting:
                for reader in list(self._waiting):
                    self._create(reader)

    def _create(self, reader: LateReader) -> None:
        # Counted twice for a moment, rather than not at all.
        self._begun += 1
        number = self._waiting.pop(reader, None)
        if number is None:
            self._begun -= 1
            return
        try:
            reader.create(number)
        except Exception as error:
            reader.fail(number, self._failure(error))

    def create(self, reader: LateReader) -> None:
        """Creates the iterators of one reader, unless they were created."""
        with self._lock:
            self._create(reader)

    def remove(self, reader: LateReader) -> None:
        """Removes a reader, whose iterators are not created any more."""
        if self._waiting.pop(reader, None) is None:
            # A thread may be creating its iterators.
            with self._lock:
                self._begun -= 1


class StoreReader:
    """One reader of a store, until it is closed."""

    __slots__ = ("_create", "_failure", "_readers")

    def __init__(self, readers: StoreReaders, create: Callable[[], None]) -> None:
        """See `StoreReaders.add`."""
        # Dropped once it was called or never will be: it refers to what refers to this.
        self._create: Callable[[], None] | None = create
        self._failure: ScanKvError | None = None
        self._readers: StoreReaders | None = readers

    def begin(self) -> None:
        """Has the iterators created, if they do not exist yet. Raises ScanKvError if they could not be created."""
        if self._readers is not None:
            self._readers.create(self)
        if self._failure is not None:
            raise self._failure

    def create(self, _: int) -> None:
        """Creates its iterators. For `StoreReaders`."""
        create, self._create = self._create, None
        if create is not None:
            create()

    def fail(self, _: int, error: ScanKvError) -> None:
        """Has an error raised by `begin`, because its iterators could not be created. For `StoreReaders`."""
        self._failure = error

    def close(self) -> None:
        """Has no iterators created any more, and lets the store be closed. Closing twice is allowed."""
        readers, self._readers, self._create = self._readers, None, None
        if readers is not None:
            readers.remove(self)
