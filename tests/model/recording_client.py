"""A client that makes random calls about the tables of one worker, and records what it wrote and saw."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client import (
    ConnectionFailed,
    ServerBusy,
    SnapshotNotTaken,
    TransactionConflict,
    TransactionLost,
)
from tests.model.model_table import ModelTable
from tests.model.operations import FOREVER

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from random import Random

    from aio_client import Client, Snapshot, Table, Transaction
    from tests.model.operations import Key, OperationRecorder, Value

SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
KEYS: Final = 8
"""How many keys of each table the clients use: few, so that they use the same ones at once."""

_NOT_COMMITTED: Final = (TransactionConflict, TransactionLost)
"""Refusals of a commit after which the transaction has no effect, now and later."""

_REFUSED: Final = (*_NOT_COMMITTED, ServerBusy, SnapshotNotTaken)
"""Refusals that may come at any time."""


@dataclass
class _Pin:
    """A pinned snapshot, the ticks around its pin, and the rows of its first scan."""

    table: Table
    snapshot: Snapshot
    start: int
    end: int
    rows: Mapping[Key, Value] | None = None


@dataclass
class RecordingClient:
    """Makes one call after another. A call that fails is recorded as one that may have taken effect, if it writes.

    Attributes:
        name: Begins the ids of its transactions.
        client: Where it calls.
        tables: Tables of one worker, opened by the client.
        recorder: Where it records.
        random: What decides its calls.
        is_plain: Whether it makes only calls that need no worker but the owner of the tables, so that it makes progress
            whatever happens to the others.
        failures: How many calls failed, by the class of the error.
    """

    name: str
    client: Client
    tables: Sequence[Table]
    recorder: OperationRecorder
    random: Random
    is_plain: bool = False
    failures: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self._buckets = ModelTable(self.tables[0])  # All tables have the same keys and buckets.
        self._pins: list[_Pin] = []

    async def run(self, until: asyncio.Event) -> None:
        """Makes random calls until an event is set."""
        calls = {self._upsert: 5, self._delete: 2, self._get: 4, self._lookup: 3, self._scan: 4}
        if not self.is_plain:
            calls |= {self._pin: 1, self._scan_pin: 2, self._commit: 3, self._update: 3}
        while not until.is_set():
            call = self.random.choices(list(calls), list(calls.values()))[0]
            try:
                await call()
            except (ConnectionFailed, *_REFUSED) as error:
                self.failures[type(error).__name__] += 1

    async def write(self, table: Table, writes: Mapping[Key, Value]) -> None:
        """Upserts and deletes rows of a table. Those of one bucket change at one instant."""
        deletes: dict[Key, Value] = {key: None for key, value in writes.items() if value is None}
        upserts = {key: value for key, value in writes.items() if value is not None}
        if upserts:
            await self._write("upsert", lambda: table.upsert(_rows(upserts, table)), upserts)
        if deletes:
            await self._write("delete", lambda: table.delete([(k,) for _, k in deletes]), deletes)

    async def _write(self, name: str, call: Callable[[], Awaitable[object]], writes: Mapping[Key, Value]) -> None:
        start, end = self.recorder.tick(), FOREVER
        try:
            await call()
            end = self.recorder.tick()
        finally:
            self._record_by_bucket(name, start, end, writes=writes)

    async def _upsert(self) -> None:
        table = self.random.choice(self.tables)
        keys = self._some_keys(self.random.choice([1, 1, 3]))
        await self.write(table, {(table.name, k): self.recorder.new_value() for k in keys})

    async def _delete(self) -> None:
        table = self.random.choice(self.tables)
        await self.write(table, dict.fromkeys((table.name, k) for k in self._some_keys(self.random.choice([1, 1, 2]))))

    async def _get(self) -> None:
        table, k = self.random.choice(self.tables), self.random.randrange(KEYS)
        start = self.recorder.tick()
        row = await table.get((k,))
        value = None if row is None else row["v"]
        self.recorder.record("get", start, self.recorder.tick(), {(table.name, k): value})

    async def _lookup(self) -> None:
        """Reads some rows. Those of one bucket are read at one instant."""
        table, keys = self.random.choice(self.tables), self._some_keys(4)
        start = self.recorder.tick()
        found = await table.lookup([(k,) for k in keys])
        self._record_by_bucket("lookup", start, self.recorder.tick(), reads=values_of(table, found, keys))

    async def scan_all(self) -> None:
        """Reads each table once."""
        for table in self.tables:
            await self._scan_table(table)

    async def _scan(self) -> None:
        await self._scan_table(self.random.choice(self.tables))

    async def _scan_table(self, table: Table) -> None:
        start = self.recorder.tick()
        batches = [batch async for batch in table.scan().with_chunk(rows=self.random.choice([1, 1000])).stream()]
        rows = pa.Table.from_batches(batches, table.schema)
        self.recorder.record("scan", start, self.recorder.tick(), values_of(table, rows, range(KEYS)))

    async def _pin(self) -> None:
        table = self.random.choice(self.tables)
        start = self.recorder.tick()
        snapshot = await table.snapshot(ttl=600)
        self._pins.append(_Pin(table, snapshot, start, self.recorder.tick()))

    async def _scan_pin(self) -> None:
        """Reads a pinned view, which is of the instant of the pin, however late and often it is read."""
        if not self._pins:
            return
        pin = self.random.choice(self._pins)
        rows = await pin.table.scan().as_of(pin.snapshot).with_chunk(rows=self.random.choice([1, 1000])).to_arrow()
        seen = values_of(pin.table, rows, range(KEYS))
        if pin.rows is None:
            pin.rows = seen
            self.recorder.record("pinned scan", pin.start, pin.end, seen)
        assert seen == pin.rows, f"snapshot {pin.snapshot.id} has changed from {pin.rows} to {seen}"
        if self.random.random() < 0.3:
            self._pins.remove(pin)
            await pin.snapshot.release()

    async def _commit(self) -> None:
        """Writes rows of all tables in one transaction, some of them twice, of which the last write counts."""
        writes = {
            (table.name, k): self.recorder.new_value() if self.random.random() < 0.8 else None
            for table in self.tables
            for k in self._some_keys(self.random.choice([1, 2, 3]))
        }
        await self.transact((), writes)

    async def _update(self) -> None:
        """Reads a row of each table in a transaction, and writes them, and others, if they are still the same then."""
        reads = {(table.name, self.random.randrange(KEYS)) for table in self.tables}
        table = self.random.choice(self.tables)
        keys = sorted(reads | {(table.name, k) for k in self._some_keys(1)})
        await self.transact(reads, {key: self.recorder.new_value() for key in keys})

    async def transact(self, reads: Collection[Key], writes: Mapping[Key, Value]) -> None:
        """Commits a transaction, with an id or without one, and records whether it took effect, as far as is known."""
        id_ = f"{self.name}:{self.recorder.new_value()}" if self.random.random() < 0.5 else None
        start = self.recorder.tick()
        seen: dict[Key, Value] = {}
        committed: bool | None = None
        try:
            async with self.client.transaction(id=id_) as tx:
                seen |= await self._read_for_update(tx, reads)
                await self._stage(tx, writes)
            committed = True
        except _NOT_COMMITTED:
            committed = False
            raise
        except (ConnectionFailed, ServerBusy):
            if id_ is not None:
                committed = await self._was_committed(id_)
            raise
        finally:
            if committed is not False:
                end = self.recorder.tick() if committed else FOREVER
                self.recorder.record(f"transaction {id_ or 'without id'}", start, end, seen, writes)

    async def _read_for_update(self, tx: Transaction, keys: Collection[Key]) -> dict[Key, Value]:
        seen: dict[Key, Value] = {}
        for table in self.tables:
            wanted = sorted(k for name, k in keys if name == table.name)
            if wanted:
                seen |= values_of(table, await tx.get_for_update(table, [(k,) for k in wanted]), wanted)
        return seen

    async def _stage(self, tx: Transaction, writes: Mapping[Key, Value]) -> None:
        for table in self.tables:
            rows = _rows(writes, table)
            deleted = [(k,) for (name, k), value in writes.items() if name == table.name and value is None]
            if deleted and self.random.random() < 0.5:
                await tx.upsert(table, [{"k": k, "v": -1} for (k,) in deleted])
            if rows:
                await tx.upsert(table, rows)
            if deleted:
                await tx.delete(table, deleted)

    async def _was_committed(self, id_: str) -> bool:
        """Returns whether a transaction with an id was committed, after which it will not be committed any more."""
        while True:
            with suppress(ConnectionFailed, *_REFUSED):
                again = await self.client.transaction(id=id_)
                if again.result is not None:
                    return True
                await again.abort()
                return False

    def key_in(self, table: Table, bucket: int) -> Key:
        """Returns the first key of a bucket."""
        return (table.name, next(k for k in range(KEYS) if self._buckets.bucket_of((k,)) == bucket))

    def _some_keys(self, count: int) -> list[int]:
        return sorted(self.random.sample(range(KEYS), count))

    def _record_by_bucket(
        self,
        name: str,
        start: float,
        end: float,
        reads: Mapping[Key, Value] | None = None,
        writes: Mapping[Key, Value] | None = None,
    ) -> None:
        """Records what one call did to each bucket as an operation of its own."""
        parts: defaultdict[int, tuple[dict[Key, Value], dict[Key, Value]]] = defaultdict(lambda: ({}, {}))
        for place, values in enumerate((reads or {}, writes or {})):
            for key, value in values.items():
                parts[self._buckets.bucket_of((key[1],))][place][key] = value
        for bucket_reads, bucket_writes in parts.values():
            self.recorder.record(name, start, end, bucket_reads, bucket_writes)


def _rows(writes: Mapping[Key, Value], table: Table) -> list[dict[str, Any]]:
    return [{"k": k, "v": value} for (name, k), value in writes.items() if name == table.name and value is not None]


def values_of(table: Table, rows: pa.Table, keys: Sequence[int]) -> dict[Key, Value]:
    """Returns the values of keys in rows that were read, None where no row was found."""
    found = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows, "a key is there twice"
    assert found.keys() <= set(keys), "a row was found that was not asked for"
    return {(table.name, k): found.get(k) for k in keys}
