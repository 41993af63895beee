"""One instant of all tables of a server, as copies of the buckets' directories whose files are hard links."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, ScanKvError, Unavailable
from streaming_server.engine.bucket.commit_barrier import lock_mutexes
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.storage.backup.backup_writer import link_files
from streaming_server.storage.bucket.bucket_state import BucketState, load_state
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.durable_watermark import DurableWatermark
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_files import is_complete
from streaming_server.storage.tables.consumers import ConsumerDirectory, ConsumerRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock, StoredTimes
    from streaming_server.engine.bucket.live_bucket import LiveBucket, WriteMark
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.transactions import Transactions
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.transactions.decisions import CommittedTransaction

MAX_PAUSE_SECONDS: Final = 10.0
"""For how long a backup may pause writers. Each bucket takes about 2 ms."""

CUT_ATTEMPTS: Final = 3
_FLUSHES_AT_ONCE: Final = 2

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTable:
    """One table at the instant.

    Attributes:
        definition: Its definition.
        path: The directory with the copies of its buckets, `buckets/0003` and so on.
        states: The state of each bucket that was open.
        durable: The offset up to which each of the other buckets is durable.
        marks: What differs after the next write to each bucket.
        unchanged: The buckets that were not written to since the backup before. They have no copy.
        consumers: The consumers of its changes.
    """

    definition: TableDefinition
    path: Path
    states: dict[int, BucketState]
    durable: dict[int, int]
    marks: dict[int, WriteMark]
    unchanged: frozenset[int]
    consumers: tuple[ConsumerRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupCut:
    """The instant.

    Attributes:
        micros: The instant, in microseconds since 1970 UTC.
        pause_micros: How long writers were paused for it.
        times: The clock of the server.
        tables: The tables.
        epoch: The epoch of the transaction log.
        committed: The remembered commits of transactions.
    """

    micros: int
    pause_micros: int
    times: StoredTimes
    tables: list[CutTable]
    epoch: int
    committed: list[CommittedTransaction]


class CutTaker:
    """Takes the instant. Bound to the event loop.

    Args:
        root: Where the copies are made, on the file system of the data directory.
        executor: Runs blocking work.
        clock: The clock of the server.
        transactions: The transactions of the server.
        left_out: Why tables are left out, by name. It grows.
        before: The marks of the buckets in the backup before, by incarnation and number.
        agree: Given the earliest possible instant, returns the one to use. Called while the writers of this process
            are paused; may pause those of other workers. None: the earliest one is used.
        attempts: How often to try.

    Rule: a table that cannot be copied is left out, and does not keep the others from being copied.
    """

    def __init__(
        self,
        root: Path,
        executor: StorageExecutor,
        clock: ServerClock,
        transactions: Transactions,
        left_out: dict[str, str],
        before: Mapping[tuple[str, int], WriteMark],
        agree: Callable[[int], Awaitable[int]] | None = None,
        attempts: int = CUT_ATTEMPTS,
    ) -> None:
        self._agree = agree
        self._attempts = attempts
        self._root = self._copies = root
        self._executor = executor
        self._clock = clock
        self._transactions = transactions
        self._left_out = left_out
        self._before = before

    async def take(self, tables: Sequence[LiveTable]) -> BackupCut:
        """Takes the instant of some tables. The caller keeps them from being altered or dropped.

        Raises:
            Unavailable: Writers would have been paused for too long.
            DiskFull, OSError: The copies cannot be made.
        """
        for attempt in range(1, self._attempts + 1):
            await self.flush(self._usable(tables))
            # A directory of its own, because an attempt that was given up has left copies.
            self._copies = self._root / str(attempt)
            try:
                return await self._take(self._usable(tables))
            except TimeoutError:
                _log.warning("the instant of a backup took more than %g s, attempt %d", MAX_PAUSE_SECONDS, attempt)
        raise Unavailable(
            f"the backup would have paused writers for more than {MAX_PAUSE_SECONDS:g} s: nothing was backed up; try "
            "again when the server has less load"
        )

    def _usable(self, tables: Sequence[LiveTable]) -> list[LiveTable]:
        usable = []
        for table in tables:
            problems = [live.problem for live in table.buckets if live.problem is not None]
            problems += [f"{live.location} cannot be written" for live in table.buckets if live.is_failed]
            if problems:
                self._left_out[table.definition.name] = problems[0]
            if table.definition.name not in self._left_out:
                usable.append(table)
        return usable

    async def flush(self, tables: Sequence[LiveTable]) -> None:
        """Flushes the open buckets, and then those that were written to in between, so that few writes remain."""
        places = asyncio.Semaphore(_FLUSHES_AT_ONCE)

        async def flush(live: LiveBucket) -> None:
            async with places, live.maintenance:
                bucket = live.open_bucket
                if bucket is not None and bucket.is_writable and bucket.state != flushed.get(live):
                    flushed[live] = bucket.state
                    await live.run(bucket.flush)

        flushed: dict[LiveBucket, BucketState] = {}
        for _ in range(2):
            for table in tables:
                try:
                    await all_ended(flush(live) for live in table.buckets if not self._is_unchanged(table, live))
                except ScanKvError as error:
                    self._left_out[table.definition.name] = error.message

    async def _take(self, tables: Sequence[LiveTable]) -> BackupCut:
        clock = asyncio.get_running_loop().time
        buckets = [live for table in tables for live in table.buckets]
        for table in tables:
            directory = self._path(table) / "buckets"
            await self._executor.run(lambda path=directory: path.mkdir(parents=True))
        for live in buckets:
            # Before the first mutex is held: a transaction may take long, and must not add to the pause of writers.
            await live.mutex.wait_for_barrier()
        started = clock()
        # From here on, because waiting for one mutex pauses the writers of the buckets before it.
        async with asyncio.timeout(MAX_PAUSE_SECONDS), lock_mutexes(buckets):
            micros, times = self._clock.commit_micros(), self._clock.times()
            if self._agree is not None:
                micros = await self._agree(micros)
            # Here, so that exactly the commits are remembered whose rows the copies have.
            committed = self._transactions.remembered()
            cut = [await self._copy(table) for table in tables]
            pause = int((clock() - started) * 1_000_000)
        return BackupCut(
            micros=micros,
            pause_micros=pause,
            times=times,
            tables=[each for each in cut if each is not None],
            epoch=self._transactions.epoch,
            committed=committed,
        )

    def _path(self, table: LiveTable) -> Path:
        return self._copies / table.definition.incarnation

    async def _copy(self, table: LiveTable) -> CutTable | None:
        path, states, durable = self._path(table), dict[int, BucketState](), dict[int, int]()
        marks = {live.number: live.write_mark for live in table.buckets}
        unchanged = frozenset(live.number for live in table.buckets if self._is_unchanged(table, live))
        try:
            for live in table.buckets:
                if live.number in unchanged:
                    continue
                target = path / "buckets" / f"{live.number:04}"
                bucket = live.open_bucket
                if bucket is not None:
                    states[live.number] = bucket.state
                    await live.run(bucket.checkpoint, target)
                elif is_complete(live.path):
                    durable[live.number] = await self._executor.run(_link, live, target)
            read = ConsumerDirectory(table.state.path).read
            consumers = [one for _, one in await self._executor.run(lambda: list(read()))]
        except (ScanKvError, OSError) as error:
            why = error.message if isinstance(error, ScanKvError) else f"its files cannot be linked: {error}"
            self._left_out[table.definition.name] = why
            return None
        kept = tuple(one for one in consumers if isinstance(one, ConsumerRecord))
        return CutTable(
            definition=table.definition,
            path=path,
            states=states,
            durable=durable,
            marks=marks,
            unchanged=unchanged,
            consumers=kept,
        )

    def _is_unchanged(self, table: LiveTable, live: LiveBucket) -> bool:
        return self._before.get((table.definition.incarnation, live.number)) == live.write_mark


def complete_states(cut: CutTable, resources: RocksResources) -> CutTable:
    """Opens the copies of a table for reading, and returns the table with the state of each copied bucket. Blocks.

    Raises:
        DataLoss: A copy is damaged, or lacks acknowledged changes.
    """
    states: dict[int, BucketState] = {}
    for number in sorted({*cut.states, *cut.durable}):
        location = f"the copy of bucket {number} of {cut.definition.name}"
        path, compression = cut.path / "buckets" / f"{number:04}", cut.definition.options.compression
        store = RocksStore(
            path, location, compression=compression, resources=resources, read_only=True, may_be_cut_short=True
        )
        try:
            state = load_state(store)
        finally:
            store.close()
        expected = cut.states.get(number, state)
        if (state.count, state.rows) != (expected.count, expected.rows) or state.count < count_of(
            cut.durable.get(number, 0)
        ):
            raise DataLoss(f"{location} lacks acknowledged changes")
        states[number] = state
    return replace(cut, states=states)


def _link(live: LiveBucket, target: Path) -> int:
    """Links the files of a closed bucket, and returns the offset up to which the bucket is durable."""
    link_files(live.path, target)
    watermark = DurableWatermark(live.path.with_suffix(".durable"))
    try:
        durable = watermark.read()
    finally:
        watermark.close()
    if durable is None:
        raise DataLoss(f"{live.location} is damaged: its durable watermark cannot be read")
    return durable
