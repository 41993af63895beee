"""A random history of writes, scans, pins and resumes over failing connections, during restarts of the server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from aio_client import ConnectionFailed, Resume, ScanKvError, SnapshotLost, connect
from aio_client.testing import Fault, FaultProxy
from tests.model.model_table import ModelTable
from tests.model.resumed_scan import BUCKETS, KEYS, SCHEMA, ResumedScan, ScanCase, View, rows_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from aio_client import Client, Snapshot, Table
    from aio_client.testing import FaultKind
    from tests.model.restarts import Restarts
    from tests.support.server_process import ServerProcess
    from tests.support.table_kinds import TableKind

_T = TypeVar("_T")

_LOG_LINES = 60
_MOST_READINGS = 4
_MOST_LEASES = 4
_FAULT_SECONDS = 0.5
"""How long a connection stays stalled or slow: longer than the client waits for the next chunk."""


@dataclass(eq=False)
class PinnedSnapshot:
    """A pinned snapshot.

    Attributes:
        snapshot: The snapshot.
        view: The rows at the pin.
        asked_at: The monotonic clock before the pin. The snapshot cannot expire before its time to live from then.
        taken_at: The monotonic clock after the pin.
        released: Whether it was released.
    """

    snapshot: Snapshot
    view: View
    asked_at: float
    taken_at: float
    released: bool = False

    @property
    def may_be_lost(self) -> bool:
        """Returns whether the snapshot may have ended."""
        return self.released or time.monotonic() >= self.asked_at + self.snapshot.ttl

    def is_over(self, restarts: Restarts) -> bool:
        """Returns whether the snapshot must have ended. A restart starts the time to live again."""
        since = max(self.taken_at, restarts.ready_at)
        expired = not restarts.underway and time.monotonic() > since + self.snapshot.ttl + 0.1
        return self.released or expired


class ResumeHistory:
    """One table, its model, and all of its readers. Nothing else writes the table.

    So the state of the table is known exactly at every read, even after a repeated write.

    Attributes:
        model: What the table must be.
        steps: Steps so far.
        log: The last of them.
        seen: How often scans came to their end (`complete`), went on after a cut or elsewhere over a pinned snapshot
            (`resumed pinned`) and the live table (`resumed live`), and lost their snapshot (`lost`).
    """

    def __init__(
        self, client: Client, direct: Client, proxy: FaultProxy, table: Table, kind: TableKind, random: Random
    ) -> None:
        self.model = ModelTable(table)
        self.steps = 0
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        self.seen: Counter[str] = Counter()
        self._client = client
        self._direct = direct
        self._proxy = proxy
        self._table = table
        self._kind = kind
        self._random = random
        self._readings: list[ResumedScan] = []
        self._leases: list[PinnedSnapshot] = []
        self._over: list[PinnedSnapshot] = []
        self._lease_of: dict[ResumedScan, PinnedSnapshot] = {}

    async def run(self, steps: int, restarts: Restarts) -> None:
        """Runs random steps, then reads all scans to their ends and releases all snapshots."""
        self._restarts = restarts
        actions: dict[Callable[[], Awaitable[None]], int] = {
            self._upsert: 3,
            self._delete: 1,
            self._open_live: 4,
            self._pin: 1,
            self._open_pinned: 4,
            self._read_on: 14,
            self._read_to_the_end: 5,
            self._hand_over: 2,
            self._break_off: 1,
            self._release: 1,
            self._ask_for_what_is_over: 1,
            self._look_up: 1,
            self._fault: 2,
        }
        try:
            for _ in range(steps):
                await self._step(self._random.choices(list(actions), list(actions.values()))[0])
            while self._readings:
                await self._step(self._read_to_the_end)
            while self._leases:
                await self._step(self._release)
        except BaseException as error:
            error.add_note("\n".join([f"the last of {self.steps} steps on {self._table.name}:", *self.log]))
            error.add_note(str(self._proxy))
            raise

    async def check(self) -> None:
        """Reads everything, bypassing the proxy."""
        rows = await self._direct.scan(self._table.scan().spec).to_arrow()
        assert self.model.by_key(rows) == self.model.rows

    async def _step(self, action: Callable[[], Awaitable[None]]) -> None:
        self.steps += 1
        self.log.append(f"{self.steps}: {action.__name__}")
        self._restarts.count_step()
        await action()

    def _note(self, what: str) -> None:
        self.log[-1] += f" {what}"

    def _now(self) -> View:
        return {key[-1]: row for key, row in self.model.rows.items()}

    async def _until_done(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeats a call until it succeeds. A call whose response was lost may have been applied."""
        while True:
            try:
                return await call()
            except ConnectionFailed as error:
                self._note(f"[{error.reason}]")
                await self._direct.wait_ready()

    async def _upsert(self) -> None:
        keys = self._random.choices(range(KEYS), k=self._random.choice([1, 10, 100, 300]))
        texts = [f"{self.steps}" * self._random.choice([1, 1, 60]) for _ in keys]
        batch = self._kind.batch(pa.record_batch([keys, [self.steps] * len(keys), texts], schema=SCHEMA))
        self._note(f"{len(keys)} rows")
        await self._until_done(lambda: self._table.upsert(batch))
        self.model.upsert(batch)

    async def _delete(self) -> None:
        start = self._random.randrange(KEYS)
        keys = list(range(start, min(KEYS, start + self._random.choice([1, 10, 100]))))
        self._note(f"{keys[0]} to {keys[-1]}")
        whole = [self._kind.key(key) for key in keys]
        await self._until_done(lambda: self._table.delete(whole))
        self.model.delete(whole)

    async def _look_up(self) -> None:
        keys = [self._kind.key(key) for key in self._random.sample(range(KEYS), 20)]
        rows = await self._until_done(lambda: self._table.lookup(keys))
        found = [row for batch in rows.to_batches() for row in rows_of(batch)]
        assert found == [self.model.rows[key] for key in keys if key in self.model.rows]

    async def _pin(self) -> None:
        if len(self._leases) == _MOST_LEASES:
            await self._release()
        asked_at = time.monotonic()
        ttl = self._random.choice([1.0, 600.0])
        snapshot = await self._until_done(lambda: self._table.snapshot(ttl))
        self._note(f"{snapshot.id} for {ttl:g} s")
        assert snapshot.rows == len(self.model.rows)
        self._leases.append(PinnedSnapshot(snapshot, self._now(), asked_at, time.monotonic()))

    async def _release(self) -> None:
        if not self._leases:
            return
        lease = self._leases.pop(self._random.randrange(len(self._leases)))
        self._note(lease.snapshot.id)
        await self._until_done(lease.snapshot.release)
        lease.released = True
        self._over.append(lease)

    async def _ask_for_what_is_over(self) -> None:
        """Checks that reading a view that is gone is an error and never returns rows of another view."""
        over = [lease for lease in self._over + self._leases if lease.is_over(self._restarts)]
        if not over:
            return
        lease, restarts = self._random.choice(over), self._restarts.done
        self._note(lease.snapshot.id)
        try:
            rows = await self._table.scan().as_of(lease.snapshot).to_arrow()
        except SnapshotLost:
            self.seen["lost"] += 1
            return
        assert not lease.released, f"a released snapshot gave {rows.num_rows} rows"
        assert self._restarts.done > restarts or self._restarts.underway, "an expired snapshot was read"

    async def _open_live(self) -> None:
        await self._open(None, self._random.choice([None, Resume.NEVER, Resume.LATEST, Resume.LATEST]))

    async def _open_pinned(self) -> None:
        if self._leases:
            await self._open(self._random.choice(self._leases), None)

    async def _open(self, lease: PinnedSnapshot | None, resume: Resume | None) -> None:
        if len(self._readings) == _MOST_READINGS:
            await self._read_to_the_end()
        question = ScanCase.random(self._random, self._kind)
        if self._table.options.get("columnar_base", "off") != "off" and self._random.random() < 0.3:
            question = replace(question, read_path="rocksdb")
        snapshot, view = (None, None) if lease is None else (lease.snapshot, lease.view)
        reading = ResumedScan(f"S{self.steps}", question, snapshot, resume, view)
        if lease is not None:
            self._lease_of[reading] = lease
        source = "live" if lease is None else lease.snapshot.id
        self._note(f"{reading.name}: {source} {resume} {question}")
        await self._start(reading, self._client)

    async def _start(self, reading: ResumedScan, client: Client) -> None:
        """Starts or resumes a scan."""
        try:
            await self._until_done(lambda: reading.open(client, self._table, self._now()))
        except SnapshotLost:
            await self._is_lost(reading)
        else:
            if reading not in self._readings:
                self._readings.append(reading)

    async def _is_lost(self, reading: ResumedScan) -> None:
        lease = self._lease_of[reading]
        assert lease.may_be_lost, "a snapshot was lost before its time"
        self._note("[lost]")
        self.seen["lost"] += 1
        await self._drop(reading)

    async def _drop(self, reading: ResumedScan) -> None:
        reading.check()
        self.seen["resumed live" if reading.snapshot is None else "resumed pinned"] += reading.resumptions
        await reading.close()
        if reading in self._readings:
            self._readings.remove(reading)

    async def _read_on(self) -> None:
        if self._readings:
            await self._read(self._random.choice(self._readings), self._random.randint(1, 4))

    async def _read_to_the_end(self) -> None:
        if self._readings:
            await self._read(self._random.choice(self._readings), None)

    async def _read(self, reading: ResumedScan, chunks: int | None) -> None:
        """Reads some or all chunks. Resumes by the token after a cut that the scan does not survive itself."""
        self._note(reading.name)
        now = self._now()
        while chunks is None or chunks > 0:
            try:
                if not await reading.read(now):
                    self._note(f"[{reading.rows} rows]")
                    self.seen["complete"] += 1
                    await self._drop(reading)
                    return
            except SnapshotLost:
                return await self._is_lost(reading)
            except ConnectionFailed as error:
                self._note(f"[{error.reason}]")
                await self._after_a_cut(reading, error)
                if reading not in self._readings:
                    return
            chunks = None if chunks is None else chunks - 1

    async def _after_a_cut(self, reading: ResumedScan, error: ScanKvError) -> None:
        assert reading.snapshot is None, "a pinned scan did not resume by itself"
        assert reading.resume is not Resume.LATEST, "a scan did not resume although it should"
        reading.check()
        assert error.resume_token == reading.resume_token
        if self._random.random() < 0.3:
            await self._drop(reading)
        else:
            await self._start(reading, self._random.choice([self._client, self._direct]))

    async def _hand_over(self) -> None:
        """Resumes a scan in another client."""
        if self._readings:
            reading = self._random.choice(self._readings)
            self._note(reading.name)
            await reading.close()
            reading.check()
            await self._start(reading, self._direct)

    async def _break_off(self) -> None:
        if self._readings:
            await self._drop(self._random.choice(self._readings))

    async def _fault(self) -> None:
        random = self._random
        kinds: list[FaultKind] = ["cut", "reset", "reset", "half_close", "stall", "slow"]
        kind = random.choice(kinds)
        fault = Fault(
            kind,
            after_bytes=random.choice([0, random.randrange(2000), random.randrange(80_000)]),
            direction=random.choice(["to_client", "to_client", "to_server"]),
            bytes_per_second=200_000 if kind == "slow" else None,
        )
        self._note(f"{fault} after {fault.after_bytes} bytes")
        self._proxy.apply(fault)


async def check_resume_histories(
    server: ServerProcess, randoms: list[Random], steps: int, restarts: Restarts, columnar_base: str, kind: TableKind
) -> list[ResumeHistory]:
    """Runs a history for each `random` concurrently, each through its own proxy, and returns the histories."""
    # With asyncio's debug mode, most of the time would go into the tracebacks that it keeps for each callback.
    asyncio.get_running_loop().set_debug(False)
    async with asyncio.TaskGroup() as group:
        restarting = group.create_task(restarts.run())
        tasks = [
            group.create_task(_history(server, random, number, steps, restarts, columnar_base, kind))
            for number, random in enumerate(randoms)
        ]
    assert restarting.done()
    return [task.result() for task in tasks]


async def _history(
    server: ServerProcess,
    random: Random,
    number: int,
    steps: int,
    restarts: Restarts,
    columnar_base: str,
    kind: TableKind,
) -> ResumeHistory:
    seed = random.randrange(1 << 32)
    async with (
        FaultProxy(server.url, seed=seed) as proxy,
        connect(server.url) as direct,
        connect(proxy.address, next_chunk_timeout=_FAULT_SECONDS * 0.6, read_ahead_bytes=64 << 10) as client,
    ):
        name = f"test.resumed{number}"
        await kind.create(direct, name, SCHEMA, buckets=BUCKETS, columnar_base=columnar_base)
        healing = asyncio.create_task(_healed(proxy))
        try:
            history = ResumeHistory(client, direct, proxy, await client.table(name), kind, random)
            await history.run(steps, restarts)
        finally:
            healing.cancel()
        await history.check()
    return history


async def _healed(proxy: FaultProxy) -> None:
    """Ends stalls and slow connections after at most `_FAULT_SECONDS`."""
    while True:
        await asyncio.sleep(_FAULT_SECONDS)
        proxy.resume()
