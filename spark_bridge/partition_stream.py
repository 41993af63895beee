"""The rows of one part for code that blocks, as a Spark task does: an event loop in a thread, a few batches between."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from aio_client import SnapshotLost, connect
from spark_bridge import leases
from spark_bridge.change_rows import another_table, shaping
from spark_bridge.conform import conform
from spark_bridge.frozen_worker import freeze_worker
from table_model.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import TracebackType

    from aio_client import Client, ScanStream
    from spark_bridge.planning import ScanPart

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 4 * 1024 * 1024
BATCHES_AHEAD: Final = 3


def read_part(part: ScanPart, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a part, as batches of up to about 65,536 rows in exactly the types of `schema`.

    Closing the generator, or dropping it, ends the scan, and everything that belongs to it is free when that returns.

    Raises:
        SnapshotLost: The snapshot has expired; the message says what to do.
        SchemaMismatch: A value does not fit Spark's type exactly.
        ScanKvError: As `aio_client.ScanStream`, which rides through a restart of the server.
    """
    freeze_worker()
    with PartStream(part, schema) as stream:
        yield from stream


class PartStream:
    """An asynchronous client, reading one part in an event loop of its own, and the batches that it has read so far.

    Those, with the one that the caller has, are at most `BATCHES_AHEAD`, each of up to `BATCH_ROWS` rows or
    `BATCH_BYTES` of Arrow data and one chunk more; not counted are the one that is being gathered, and the client's
    read-ahead.

    One reader. Belongs to the process that made it. Leaving `with` ends the scan and the thread.
    """

    def __init__(self, part: ScanPart, schema: pa.Schema) -> None:
        """Starts nothing.

        Args:
            part: What to read.
            schema: The types that the batches are to have.
        """
        self._part = part
        self._schema = schema
        # What it holds is bounded by the places, which the loop waits for without blocking.
        self._queue: queue.SimpleQueue[pa.RecordBatch | BaseException | None] = queue.SimpleQueue()
        self._places = asyncio.Semaphore(BATCHES_AHEAD)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="scankv-part", daemon=True)
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._task = self._loop.create_task(self._read())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        with suppress(RuntimeError):  # The loop is closed when everything was read.
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while isinstance(item := self._queue.get(), pa.RecordBatch):
            yield item
            # Whoever comes back is done with it. The loop is closed where an error lies behind the batches.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._places.release)
        if item is not None:
            raise item

    def _run(self) -> None:
        assert self._task is not None
        end: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.get_loop().run_until_complete(self._task)
        except BaseException as error:
            end = error
        # Last of all: whoever has seen the end finds nothing left.
        self._queue.put(end)

    async def _read(self) -> None:
        try:
            async with (
                connect(**asdict(self._part.config)) as client,
                leases.kept(client, self._part) as snapshot,
            ):
                await self._read_rows(client)
                # A task that dies before it is done with the last batch reads all of it again, from the same snapshot.
                for _ in range(BATCHES_AHEAD):
                    await self._places.acquire()
                if snapshot is not None:
                    await leases.finish(snapshot, self._part)
        except SnapshotLost as error:
            raise leases.expired(self._part) from error

    async def _read_rows(self, client: Client) -> None:
        async with client.scan(self._part.spec).stream() as stream:
            shape = self._shaping(stream)
            gathered: list[pa.RecordBatch] = []
            rows = size = 0
            is_first = True
            async for received in stream:
                chunk = shape(received)
                if not chunk.num_rows:
                    continue
                gathered.append(chunk)
                rows, size = rows + chunk.num_rows, size + chunk.nbytes
                # The first goes on at once: it may be all that is wanted.
                if is_first or rows >= BATCH_ROWS or size >= BATCH_BYTES:
                    await self._hand_over(gathered)
                    gathered, rows, size, is_first = [], 0, 0, False
            if gathered:
                await self._hand_over(gathered)

    def _shaping(self, stream: ScanStream) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """What makes rows of the stream those that Spark was told of, but for their types."""
        if self._part.followed is not None:
            if stream.table_incarnation != self._part.followed:
                raise another_table(self._part.spec.table)
            is_log = self._part.spec.log is not None
            return shaping(self._schema.names, is_log=is_log, bucket=lambda: stream.bucket)
        if stream.schema.names != self._schema.names:
            raise SchemaMismatch("the table has other columns than those that the job was planned with; load() again")
        return lambda chunk: chunk

    async def _hand_over(self, chunks: list[pa.RecordBatch]) -> None:
        rows = chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)
        batch = conform(rows, self._schema)
        await self._places.acquire()
        self._queue.put(batch)
