"""Items of asynchronous code for a caller that blocks, made in the client's event loop a few items ahead."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from types import TracebackType

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# In CPython, a Ctrl-C between a thread's last instruction and its wait does not end the wait.
WAKE_SECONDS: Final = 0.5
"""How often a waiting thread checks for interrupts, in seconds."""

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 4 * 1024 * 1024
ITEMS_AHEAD: Final = 3


class LoopThread(Protocol):
    """The event loop of a client, for other threads."""

    @property
    def address(self) -> str:
        """The server of the client."""

    def call(self, function: Callable[..., Awaitable[_Result]], *args: object) -> _Result:
        """Calls a coroutine function in the event loop and waits for its result."""

    def soon(self, function: Callable[[], object]) -> None:
        """Lets the event loop call a function that does not wait. Does nothing if the loop has ended."""

    def is_in_loop(self) -> bool:
        """Returns whether the caller is the thread of the event loop, which must not wait."""


class ReadAhead(Generic[_Item]):
    """The items of an asynchronous generator for a caller that blocks. The next items are made while the caller works.

    At most `ahead` unfinished items exist, including the one that the caller works on; what the generator itself holds
    is not counted. An item is finished when the caller asks for the next one.

    One reader, in any thread. Use it in `with`, whose end closes the generator and waits for that. Dropping it also
    closes the generator, without waiting.
    """

    def __init__(
        self, loop: LoopThread, make: Callable[[], AsyncGenerator[_Item, None]], ahead: int = ITEMS_AHEAD
    ) -> None:
        """Called by `Client.read_ahead` and `Scan.batches`; starts nothing.

        Args:
            loop: The event loop that runs the generator.
            make: Makes the generator.
            ahead: How many unfinished items may exist.

        Raises:
            UsageError: `ahead` is not at least 1.
        """
        if type(ahead) is not int or ahead < 1:
            raise UsageError(f"ahead must be a whole number of at least 1, not {ahead!r}", option="ahead")
        self._loop = loop
        self._make = make
        self._handover: _Handover[_Item] = _Handover(ahead)
        self._task: asyncio.Task[None] | None = None
        self._has_item = False

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # May run in any thread, even the client's own, so it must not wait.
        if (task := getattr(self, "_task", None)) is not None:
            self._loop.soon(task.cancel)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Item:
        """Returns the next item.

        Raises:
            StopIteration: The generator has ended, or was closed.
            UsageError: The client was closed before the end.
        """
        self._start()
        if self._has_item:
            self._has_item = False
            self._loop.soon(self._handover.places.release)
        found = self._handover.take()
        if isinstance(found, _End):
            raise self._failure(found)
        self._has_item = True
        return found

    def cancel(self) -> None:
        """Ends the generator, if it has begun, without waiting. The reader then gets an error."""
        if self._task is not None:
            self._loop.soon(self._task.cancel)

    def close(self) -> None:
        """Closes the generator, and returns when it has ended. Idempotent."""
        if self._task is None:
            self._handover.put(_End(None))
            return
        self._loop.soon(self._task.cancel)
        if not self._loop.is_in_loop():
            self._handover.wait_for_end()
        self._handover.clear()

    def _start(self) -> None:
        if self._task is None and not self._handover.has_ended:
            self._task = self._loop.call(_begin, self._make(), self._handover)

    def _failure(self, end: _End) -> BaseException:
        # Further reads find the same end.
        self._handover.put(end)
        if isinstance(end.error, asyncio.CancelledError):
            return UsageError("the client was closed before all was read", address=self._loop.address)
        return StopIteration() if end.error is None else end.error


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the items: the error that has ended them, or None."""

    error: BaseException | None


@dataclass(slots=True, eq=False)
class _Handover(Generic[_Item]):
    """The queue from the event loop to the reader. The event loop waits for free places without blocking."""

    ahead: int
    places: asyncio.Semaphore = field(init=False)
    _items: queue.SimpleQueue[_Item | _End] = field(default_factory=queue.SimpleQueue)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.places = asyncio.Semaphore(self.ahead)

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def put(self, item: _Item | _End) -> None:
        self._items.put(item)
        if isinstance(item, _End):
            self._ended.set()

    def take(self) -> _Item | _End:
        while True:
            try:
                return self._items.get(timeout=WAKE_SECONDS)
            except queue.Empty:
                continue

    def wait_for_end(self) -> None:
        while not self._ended.wait(WAKE_SECONDS):
            pass

    def clear(self) -> None:
        """Drops the remaining items."""
        while not self._items.empty():
            self._items.get()
        self._items.put(_End(None))


async def _begin(items: AsyncGenerator[_Item, None], handover: _Handover[_Item]) -> asyncio.Task[None]:
    return asyncio.create_task(_pump(items, handover), name="read-ahead")


async def _pump(items: AsyncGenerator[_Item, None], handover: _Handover[_Item]) -> None:
    """Makes items until it is cancelled or the event loop ends. Holds no reference that would keep the client open."""
    error: BaseException | None = None
    try:
        async with aclosing(items):
            async for item in items:
                await handover.places.acquire()
                handover.put(item)
    except asyncio.CancelledError as cancelled:
        error = cancelled.with_traceback(None)
        raise
    except BaseException as failure:
        error = failure
    finally:
        # Comes last, so that nothing is left when a caller has seen the end.
        handover.put(_End(error))


async def gather(
    chunks: AsyncIterator[pa.RecordBatch], max_rows: int = BATCH_ROWS, max_bytes: int = BATCH_BYTES
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Joins rows to batches of at least `max_rows` rows or `max_bytes` bytes of Arrow data, except for the last one.

    The first chunk with rows is a batch of its own, returned at once, because the caller may want no more.
    """
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    is_first = True
    async for chunk in chunks:
        if not chunk.num_rows:
            continue
        gathered.append(chunk)
        rows, size = rows + chunk.num_rows, size + chunk.nbytes
        if is_first or rows >= max_rows or size >= max_bytes:
            yield _join(gathered)
            gathered, rows, size, is_first = [], 0, 0, False
    if gathered:
        yield _join(gathered)


def _join(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    return chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)
