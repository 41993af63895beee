"""The lanes of a writer: every key always takes the same one, and each sends one request at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from aio_client._input.requests import REQUEST_ROWS, cut
from scankv.model.keys.buckets import bucket_of
from scankv.model.keys.key_codec import KeyCodec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client._write.write_requests import TableShape, WriteKind


class LaneOfKeys:
    """Which lane a key takes. Lanes share no bucket unless there are more lanes than buckets. Immutable.

    Args:
        shape: The table.
        lanes: How many lanes there are at most.
    """

    def __init__(self, shape: TableShape, lanes: int) -> None:
        self._names = list(shape.description.bucket_key)
        self._codec = KeyCodec([shape.key_schema.field(name).type for name in self._names], self._names)
        buckets = shape.description.buckets
        self._per_bucket = max(1, lanes // buckets)
        self._buckets = buckets
        self.lanes = min(lanes, buckets) if self._per_bucket == 1 else buckets * self._per_bucket

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each lane, in their order."""
        if self.lanes == 1:
            yield 0, batch
            return
        keys = self._codec.encode([self._codec.canonical(batch.column(name)) for name in self._names])
        # The hash modulo the buckets is the bucket; what else is in it spreads the keys of one bucket over its lanes.
        numbers = bucket_of(keys, self._buckets * self._per_bucket) % self.lanes
        for lane in np.unique(numbers).tolist():
            yield lane, batch.take(pa.array(np.flatnonzero(numbers == lane)))


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one request."""

    kind: WriteKind
    batch: pa.RecordBatch


class Lane:
    """Rows that wait for their turn. Bound to the event loop.

    Args:
        batch_bytes: What a request aims at.
        batch_seconds: For how long rows wait for others to go with them.

    Attributes:
        sealed: How many pieces there have been that wait for no more rows.
        done: How many of them are over.
        sending: The piece that is under way.
    """

    def __init__(self, batch_bytes: int, batch_seconds: float) -> None:
        self._batch_bytes = batch_bytes
        self._batch_seconds = batch_seconds
        self._open: list[pa.RecordBatch] = []
        self._kind: WriteKind | None = None
        self._since = 0.0
        self._waiting: deque[Piece] = deque()
        self._news = asyncio.Event()
        self.sending: Piece | None = None
        self.sealed = 0
        self.done = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all that waits or is under way."""
        pieces = [*self._waiting, self.sending] if self.sending else self._waiting
        return sum(int(batch.nbytes) for batch in [*self._open, *(piece.batch for piece in pieces)])

    @property
    def waiting_rows(self) -> int:
        """Rows that were not sent yet."""
        return sum(int(batch.num_rows) for batch in [*self._open, *(piece.batch for piece in self._waiting)])

    def add(self, kind: WriteKind, batch: pa.RecordBatch) -> None:
        """Puts rows behind all others."""
        if self._kind != kind:
            self.seal()
        if not self._open:
            self._kind, self._since = kind, time.monotonic()
        self._open.append(batch)
        size, rows = sum(b.nbytes for b in self._open), sum(b.num_rows for b in self._open)
        if size >= self._batch_bytes or rows >= REQUEST_ROWS:
            self.seal()
        self._news.set()

    def seal(self) -> None:
        """Lets what is there wait for no more rows."""
        if self._open and self._kind is not None:
            # A batch that was added may alone be more than a request aims at.
            pieces = [Piece(self._kind, batch) for batch in cut(self._open, max_bytes=self._batch_bytes)]
            self._waiting += pieces
            self.sealed += len(pieces)
            self._open = []
            self._news.set()

    async def next(self) -> Piece:
        """Waits for the next piece, which then is `sending`."""
        while not self._waiting:
            self._news.clear()
            left = max(self._since + self._batch_seconds - time.monotonic(), 0.0) if self._open else None
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                self.seal()
        self.sending = self._waiting.popleft()
        return self.sending

    def end(self) -> None:
        """Notes that the piece that was under way is over."""
        self.sending = None
        self.done += 1
