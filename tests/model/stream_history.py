"""A random history of one table, followed by streams that are cut, resumed elsewhere and cancelled, over restarts."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from aio_client import ConnectionFailed, ScanSource, StartFrom, StopAt, col, connect
from aio_client.testing import Fault, FaultProxy
from scankv.model.keys.buckets import bucket_of_one
from scankv.model.keys.key_codec import KeyCodec
from streaming_server.storage.changelog.offsets import count_of
from tests.model.replayed_table import ReplayedTable, Row
from tests.support.table_kinds import TableKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from aio_client import Client, Predicate, Scan, ScanStream, Table
    from tests.model.restarts import Restarts
    from tests.support.server_process import ServerProcess

_T = TypeVar("_T")

KEYS = 120
BUCKETS = 3
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("text", pa.string())])
_BUCKET_OF = {key: bucket_of_one(KeyCodec([pa.int64()]).encode_one([key]), BUCKETS) for key in range(KEYS)}
_MOST_ADDED_COLUMNS = 3

Rows = dict[int, Row]


@dataclass(frozen=True)
class Moment:
    """A moment between two writes.

    Attributes:
        offsets: The next offset of each bucket.
        time: The wall clock of this machine.
        rows: The rows of each bucket.
    """

    offsets: dict[int, int]
    time: datetime
    rows: dict[int, Rows]


@dataclass
class WrittenTable:
    """A table that nothing else writes, and all of its earlier states."""

    table: Table
    client: Client
    random: Random
    changelog: str = "full"
    kind: TableKind = TableKind.PLAIN
    rows: Rows = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    at: dict[tuple[int, int], Rows] = field(default_factory=dict)
    """The rows of a bucket after a number of changes, by bucket and number."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    @property
    def now(self) -> Moment:
        """The current moment."""
        return self.moments[-1]

    def note(self, offsets: dict[int, int]) -> None:
        """Records the state after a write."""
        before = self.moments[-1].offsets if self.moments else dict.fromkeys(range(BUCKETS), 0)
        by_bucket: dict[int, Rows] = {bucket: {} for bucket in range(BUCKETS)}
        for key, row in self.rows.items():
            by_bucket[_BUCKET_OF[key]][key] = row
        self.moments.append(Moment({**before, **offsets}, datetime.now(UTC), by_bucket))
        for bucket, offset in self.moments[-1].offsets.items():
            self.at[bucket, count_of(offset)] = by_bucket[bucket]

    async def step(self) -> None:
        """Makes one random write."""
        action = self.random.choices([self._upsert, self._rewrite, self._delete, self._alter], [10, 2, 4, 1])[0]
        self.log.append(action.__name__)
        await action()

    async def until_done(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeats a call until it succeeds."""
        while True:
            try:
                return await call()
            except ConnectionFailed as error:
                self.log.append(error.reason)
                await self.client.wait_ready()

    async def _upsert(self) -> None:
        count = self.random.choice([1, 1, 5, 40, 200])
        await self._put([self._row(key) for key in self.random.choices(range(KEYS), k=count)])

    async def _rewrite(self) -> None:
        """Upserts unchanged and changed rows. If the table reads old rows, unchanged rows cause no change."""
        there = self.random.sample(sorted(self.rows), min(len(self.rows), 20))
        await self._put([self.rows[key] for key in there] + [self._row(self.random.randrange(KEYS))])

    async def _put(self, rows: list[Row]) -> None:
        data = pa.RecordBatch.from_pylist(rows, schema=self.table.schema)
        result = await self.until_done(lambda: self.table.upsert(data))
        self.rows |= {row["k"]: row for row in rows}
        self.note(dict(result.log_offsets))

    async def _delete(self) -> None:
        keys = self.random.sample(range(KEYS), self.random.choice([1, 3, 30]))
        result = await self.until_done(lambda: self.table.delete([self.kind.key(key) for key in keys]))
        self.rows = {key: row for key, row in self.rows.items() if key not in keys}
        self.note(dict(result.log_offsets))

    async def _alter(self) -> None:
        added = len(self.table.schema) - len(self.kind.columns(SCHEMA))
        if added == _MOST_ADDED_COLUMNS:
            return
        column = pa.schema([(f"added{added}", pa.int32())])
        try:
            await self.client.alter_table(self.table.name, add_columns=column)
        except ConnectionFailed:
            await self.client.wait_ready()
        self.table = await self.until_done(lambda: self.client.table(self.table.name))

    def _row(self, key: int) -> Row:
        row: Row = {"k": key, "v": self.random.choice([None, *range(10)]), "text": self.random.choice(["a", "b" * 200])}
        added = self.table.schema.names[len(self.kind.columns(SCHEMA)) :]
        row = self.kind.row(row) | {name: self.random.randrange(3) for name in added}
        return {name: value for name, value in row.items() if value is not None}


@dataclass(frozen=True)
class Kind:
    """The arguments of a stream of changes."""

    start: str
    buckets: tuple[int, ...]
    where: Predicate | None
    matches: Callable[[Row], bool]
    chunk_rows: int

    @classmethod
    def random(cls, random: Random) -> Kind:
        """Returns random arguments; most are for everything."""
        where, matches = random.choice(
            [
                (None, lambda _: True),
                (None, lambda _: True),
                (col("v") >= 5, lambda row: row.get("v", 0) >= 5),
                (
                    (col("k") < KEYS // 2) & (col("text") == "a"),
                    lambda row: row["k"] < KEYS // 2 and row["text"] == "a",
                ),
            ]
        )
        start = random.choice(["full", "full", "earliest", "latest", "offsets", "timestamp", "last"])
        buckets = random.choice([tuple(range(BUCKETS)), tuple(range(BUCKETS)), (1,), (2, 0)])
        return cls(start, buckets, where, matches, random.choice([1, 2, 7, 50, 1000]))


class ChangeReader:
    """One stream of changes, over all its cuts, and its replay."""

    def __init__(self, kind: Kind, written: WrittenTable, clients: list[Client], random: Random) -> None:
        self.kind = kind
        self.cuts: Counter[str] = Counter()
        self._written = written
        self._clients = clients
        self._random = random
        self._token: bytes | None = None
        self._replay, self._start = self._beginning()

    async def follow(self, done: asyncio.Event) -> None:
        """Reads until all writes are done, then up to the end, and compares the replay with the table."""
        while not done.is_set():
            await self._read_for_a_while(done)
        await self._read_to_the_end()
        wanted = {bucket: self._seen(self._written.now.rows[bucket]) for bucket in self.kind.buckets}
        if self._replay.whole:
            found = {bucket: self._replay.rows.get(bucket, {}) for bucket in self.kind.buckets}
            assert found == wanted
        for bucket, rows in self._replay.rows.items():
            assert rows.items() <= {**wanted[bucket]}.items()

    def _beginning(self) -> tuple[ReplayedTable, StartFrom]:
        kind, moment = self.kind, self._random.choice(self._written.moments)
        selective = kind.where is not None
        match kind.start:
            case "full":
                # After a cut, the rows belong to several moments.
                return self._replayed({}, selective=True), StartFrom.FULL
            case "earliest":
                return self._replayed({}, selective=selective), StartFrom.EARLIEST
            case "offsets":
                picked = {bucket: self._random.choice(self._written.moments) for bucket in kind.buckets}
                rows = {bucket: self._seen(each.rows[bucket]) for bucket, each in picked.items()}
                offsets = {bucket: each.offsets[bucket] for bucket, each in picked.items()}
                return self._replayed(rows, selective=selective), StartFrom.offsets(offsets)
            case "timestamp":
                rows = {bucket: self._seen(moment.rows[bucket]) for bucket in kind.buckets}
                return self._replayed(rows, selective=selective), StartFrom.timestamp(moment.time)
            case "last":
                last = StartFrom.last(self._random.choice([1, 10, 1000]))
                return self._replayed(None, selective=selective), last
        return self._replayed(None, selective=selective), StartFrom.LATEST

    def _replayed(self, start: dict[int, Rows] | None, *, selective: bool) -> ReplayedTable:
        written = self._written
        key, full = written.table.primary_key, written.changelog == "full"
        return ReplayedTable(start, key_columns=key, selective=selective, before_images=full)

    def _seen(self, rows: Rows) -> Rows:
        return {key: row for key, row in rows.items() if self.kind.matches(row)}

    def _scan(self, stop: StopAt | None) -> Scan:
        kind, client = self.kind, self._random.choice(self._clients)
        scan = client.scan(self._written.table.scan().with_source(ScanSource.LOG).with_row_kind().spec)
        scan = scan.with_buckets(kind.buckets).with_chunk(rows=kind.chunk_rows).start_from(self._start).stop_at(stop)
        scan = scan if kind.where is None else scan.where(kind.where).with_unmatched("delete")
        return scan if self._token is None else scan.resume_from(self._token)

    async def _read_for_a_while(self, done: asyncio.Event) -> None:
        """Reads for some time and leaves the stream. A later read resumes it in any client."""
        reading = asyncio.create_task(self._read(None, self._random.choice([3, 30, 10_000])))
        ending = asyncio.create_task(done.wait())
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            self.cuts["cancelled"] += not reading.done()
        finally:
            ending.cancel()
            reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()

    async def _read_to_the_end(self) -> None:
        offsets = {bucket: self._written.now.offsets[bucket] for bucket in self.kind.buckets}
        while not await self._read(StopAt.offsets(offsets), None):
            pass

    async def _read(self, stop: StopAt | None, batches: int | None) -> bool:
        """Reads some batches, or up to the stop. Returns whether the stop was reached."""
        stream = self._scan(stop).stream()
        try:
            async with stream:
                assert self._token is not None or not self._replay.rows_seen, "rows were returned without a token"
                while batches is None or batches > 0:
                    batch = await anext(stream, None)
                    if batch is None:
                        return True
                    self._play(batch, stream)
                    batches = None if batches is None else batches - 1
            self.cuts["left"] += 1
        except ConnectionFailed as error:
            self.cuts[error.reason] += 1
            await self._written.client.wait_ready()
        finally:
            self._token = stream.resume_token or self._token
            self.cuts["resumed"] += len(stream.resumptions)
        return False

    def _play(self, batch: pa.RecordBatch, stream: ScanStream) -> None:
        self._replay.play(batch)
        if self.kind.start == "full" or not self._replay.whole:
            return
        (bucket,) = set(batch.column("_bucket").to_pylist())
        then = self._written.at.get((bucket, count_of(stream.next_offsets[bucket])))
        if then is not None:
            assert self._replay.rows.get(bucket, {}) == self._seen(then), (
                "the replay differs from the table as of its offset"
            )
            self.cuts["compared"] += 1


async def check_stream_history(
    server: ServerProcess,
    random: Random,
    restarts: Restarts,
    *,
    name: str,
    steps: int,
    readers: int,
    changelog: str = "full",
    kind: TableKind = TableKind.PLAIN,
) -> Counter[str]:
    """Makes random writes while readers follow. Returns how often the readers were cut, by the reason."""
    # With asyncio's debug mode, most of the time would go into the tracebacks that it keeps for each callback.
    asyncio.get_running_loop().set_debug(False)
    done = asyncio.Event()
    async with (
        FaultProxy(server.url, seed=random.randrange(1 << 32)) as proxy,
        connect(server.url) as direct,
        connect(proxy.address, read_ahead_bytes=64 << 10) as cut,
        asyncio.TaskGroup() as group,
    ):
        table = await kind.create(direct, name, SCHEMA, buckets=BUCKETS, changelog=changelog)
        written = WrittenTable(table, direct, random, changelog, kind)
        written.note({})
        following: list[ChangeReader] = []
        group.create_task(restarts.run())
        try:
            for step in range(steps):
                restarts.count_step()
                await written.step()
                if step * readers // steps >= len(following):
                    reader = ChangeReader(Kind.random(random), written, [direct, cut, cut], random)
                    following.append(reader)
                    written.log.append(f"reader {len(following)}: {reader.kind}")
                    group.create_task(_noted(reader, written, proxy, done))
                if random.random() < 0.15:
                    proxy.apply(Fault(random.choice(["reset", "cut"]), after_bytes=random.choice([0, 500, 20_000])))
        finally:
            done.set()
    seen: defaultdict[str, int] = defaultdict(int)
    for reader in following:
        for what, times in reader.cuts.items():
            seen[what] += times
    return Counter(seen)


async def _noted(reader: ChangeReader, written: WrittenTable, proxy: FaultProxy, done: asyncio.Event) -> None:
    try:
        await reader.follow(done)
    except Exception as error:
        error.add_note(f"{reader.kind}, {reader.cuts}; the last steps: {', '.join(written.log)}\n{proxy}")
        raise
