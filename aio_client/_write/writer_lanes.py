"""The lanes of a writer. A key always uses the same lane, and a lane has one request in flight at a time."""

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

    from aio_client._table.shape import TableShape
    from aio_client._write.write_requests import RequestKind


class LaneChooser:
    """Chooses the lane of each key. Lanes share no bucket unless there are more lanes than buckets.

    In a table whose buckets take turns, so do the lanes.

    Args:
        shape: The table.
        lanes: The most lanes to use.
    """

    def __init__(self, shape: TableShape, lanes: int) -> None:
        self._names = list(shape.description.bucket_key)
        fields = [shape.schema.field(name) for name in self._names]
        buckets, has_key = shape.description.buckets, len(shape.key_schema) > 0
        self._codec: KeyCodec | None = None
        if self._names:
            types, nullable = [field.type for field in fields], [field.nullable for field in fields]
            self._codec = KeyCodec(types, self._names, nullable)
        self._turn = 0
        # Rows without a key have an order in their bucket, which several lanes would not keep.
        self._per_bucket = max(1, lanes // buckets) if has_key else 1
        self._buckets = buckets
        self.lanes = min(lanes, buckets) if self._per_bucket == 1 else buckets * self._per_bucket

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields the rows of each lane, in their order, with the lane's number."""
        if self.lanes == 1:
            yield 0, batch
            return
        if self._codec is None:
            self._turn = (self._turn + 1) % self.lanes
            yield self._turn, batch
            return
        keys = self._codec.encode([self._codec.canonical(batch.column(name)) for name in self._names])
        # The hash modulo the number of buckets is the bucket. Its other bits spread a bucket's keys over lanes.
        numbers = bucket_of(keys, self._buckets * self._per_bucket) % self.lanes
        for lane in np.unique(numbers).tolist():
            yield lane, batch.take(pa.array(np.flatnonzero(numbers == lane)))


@dataclass(frozen=True, slots=True)
class LanePiece:
    """The rows of one request."""

    kind: RequestKind
    batch: pa.RecordBatch


class Lane:
    """Rows that wait to be sent, in order. Belongs to the event loop.

    Args:
        batch_bytes: The size at which a request is sent.
        batch_delay: The longest that rows wait for their request to fill.

    Attributes:
        sealed: How many pieces were sealed: they wait for no more rows.
        done: How many of these have been sent, with success or not.
        sending: The piece in flight.
    """

    def __init__(self, batch_bytes: int, batch_delay: float) -> None:
        self._batch_bytes = batch_bytes
        self._batch_delay = batch_delay
        self._open: list[pa.RecordBatch] = []
        self._kind: RequestKind | None = None
        self._since = 0.0
        self._waiting: deque[LanePiece] = deque()
        self._changed = asyncio.Event()
        self.sending: LanePiece | None = None
        self.sealed = 0
        self.done = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows that wait or are in flight."""
        pieces = [*self._waiting, self.sending] if self.sending else self._waiting
        return sum(int(batch.nbytes) for batch in [*self._open, *(piece.batch for piece in pieces)])

    @property
    def waiting_rows(self) -> int:
        """The number of rows that were not sent yet."""
        return sum(int(batch.num_rows) for batch in [*self._open, *(piece.batch for piece in self._waiting)])

    def add(self, kind: RequestKind, batch: pa.RecordBatch) -> None:
        """Appends rows. Seals a piece that is full, or whose rows are of another kind."""
        if self._kind != kind:
            self.seal()
        if not self._open:
            self._kind, self._since = kind, time.monotonic()
        self._open.append(batch)
        size, rows = sum(b.nbytes for b in self._open), sum(b.num_rows for b in self._open)
        if size >= self._batch_bytes or rows >= REQUEST_ROWS:
            self.seal()
        self._changed.set()

    def seal(self) -> None:
        """Makes a piece of the rows collected so far, so that they wait for no more rows."""
        if self._open and self._kind is not None:
            # A single batch may be larger than a request should be.
            pieces = [LanePiece(self._kind, batch) for batch in cut(self._open, max_bytes=self._batch_bytes)]
            self._waiting += pieces
            self.sealed += len(pieces)
            self._open = []
            self._changed.set()

    async def next(self) -> LanePiece:
        """Waits for the next piece, and makes it `sending`."""
        while not self._waiting:
            self._changed.clear()
            left = max(self._since + self._batch_delay - time.monotonic(), 0.0) if self._open else None
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                self.seal()
        self.sending = self._waiting.popleft()
        return self.sending

    def end(self) -> None:
        """Records that the piece in flight is done."""
        self.sending = None
        self.done += 1
