"""The gate before the buckets that a transaction is written to: closed until all of it is there.

While a gate is closed, whoever takes a bucket's mutex waits for it, so nobody begins to read or write in between;
lookups and what only asks how things stand get the buckets as of the closing. All buckets of a gate open at once.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING

from streaming_server.engine.tasks.executor import all_ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from scankv.model.errors import ScanKvError
    from streaming_server.engine.bucket.live_bucket import LiveBucket


class Gate:
    """One closing of the gate before some buckets. Bound to the event loop."""

    def __init__(self) -> None:
        """Begins closed."""
        self._opened = asyncio.Event()
        self._failure: ScanKvError | None = None

    async def passed(self) -> None:
        """Returns once it is open. Raises what `fail` was given."""
        await self._opened.wait()
        if self._failure is not None:
            raise copy(self._failure)

    @property
    def failure(self) -> ScanKvError | None:
        """Why nobody will pass it any more; None: it is not so."""
        return self._failure

    def open(self) -> None:
        """Lets everybody go on."""
        self._opened.set()

    def fail(self, error: ScanKvError) -> None:
        """Lets nobody pass: who waits, or will wait, gets an error."""
        self._failure = error
        self._opened.set()


class GatedMutex(asyncio.Lock):
    """A bucket's mutex: who acquires it has passed the gate, which is open for as long as it is held.

    Attributes:
        gate: The gate, while it is closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate | None = None

    @property
    def failure(self) -> ScanKvError | None:
        """Why nobody can acquire it; None: it is not so."""
        return None if self.gate is None else self.gate.failure

    async def acquire(self) -> bool:  # type: ignore[override]  # typeshed has Literal[True]
        """Acquires the mutex once the gate is open. Raises what the gate failed with."""
        while True:
            await self.passed()
            await super().acquire()
            if self.gate is None:
                return True
            self.release()

    async def passed(self) -> None:
        """Returns when the gate is open, at least for a moment."""
        while self.gate is not None:
            await self.gate.passed()

    @asynccontextmanager
    async def beside_gate(self) -> AsyncIterator[None]:
        """The mutex for those who may pass a closed gate: a transaction, and who reads the bucket as before it."""
        await super().acquire()
        try:
            yield
        finally:
            self.release()


@asynccontextmanager
async def all_mutexes(chosen: Sequence[LiveBucket]) -> AsyncIterator[None]:
    """The mutexes of some buckets, which are given in the order in which everybody takes them.

    None of them is held while another one's gate is closed: what reads the others would wait for it, too.
    """
    async with AsyncExitStack() as mutexes:
        while True:
            for live in chosen:
                await live.mutex.passed()
            for live in chosen:
                await mutexes.enter_async_context(live.mutex.beside_gate())
            if all(live.mutex.gate is None for live in chosen):
                break
            await mutexes.aclose()
        yield


@asynccontextmanager
async def closed_gate(chosen: Sequence[LiveBucket]) -> AsyncIterator[Gate]:
    """A gate before some buckets, which are given in the order in which mutexes are taken; closed at one instant.

    At the end of the block it is open again, for all of them at once but those that are blocked. Until then,
    `LiveBucket.before` of each is the bucket as of that instant.

    Raises:
        DataLoss: A bucket is damaged, and none is closed.
    """
    gate = Gate()
    async with all_mutexes(chosen):
        opened = await all_ended(live.opened() for live in chosen)
        for live, bucket in zip(chosen, opened, strict=True):
            live.close_gate(gate, bucket)
    try:
        yield gate
    finally:
        opening = [live for live in chosen if live.mutex.gate is gate]
        for live in opening:
            live.open_gate()
        gate.open()
        for live in opening:
            live.tell()
