"""A random history of a table whose rows expire, against a dict, with a clock that only the history advances."""

from __future__ import annotations

import datetime as dt
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scankv import Resume, StartFrom, StopAt, agg, col
from tests.support.clocks import START, FakeClocks, parts_of, serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from random import Random

    from aio_client import Client, Snapshot, Table
    from streaming_server.server import Server

    Row = dict[str, Any]

TTL = 60
KEYS = 40
SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("version", pa.int64()), ("value", pa.int64())]
)
ENGINES: dict[str, dict[str, Any]] = {
    "last_row": {},
    "first_row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": "versioned", "version_column": "version"},
    "partial_update": {"merge_engine": "partial_update"},
    "aggregate": {"merge_engine": "aggregate", "aggregators": {"value": agg.sum()}},
}


class ExpiryHistory:
    """The table, its model, and everything that was learned about it.

    Args:
        random: Chooses what happens.
        data: The data directory.
        engine: The merge engine.
        by_write: Whether rows expire by their last write, not by `at`.
        options: More options of the table.
        late: Whether the table gets its TTL only after some writes.

    Attributes:
        read_bases: How often all buckets were read from columnar bases.
    """

    def __init__(
        self, random: Random, data: Path, engine: str, *, by_write: bool, options: dict[str, Any], late: bool = False
    ) -> None:
        self.random = random
        self._data, self._engine, self._by_write, self._options = data, engine, by_write, options
        self._clocks = FakeClocks()
        self._rows: dict[int, tuple[Row, dt.datetime | None]] = {}
        self._results: dict[bytes, list[Row]] = {}
        self._pins: list[tuple[Snapshot, list[Row]]] = []
        self._renamed = False
        self._ttl = 0 if late else TTL
        self.read_bases = 0
        self.server: Server
        self.client: Client
        self.table: Table

    @property
    def now(self) -> dt.datetime:
        """The time of the machine."""
        return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=self._clocks.wall_micros)

    async def run(self, steps: int) -> None:
        """Runs some steps, checks after each of them, and checks the changelog at the end."""
        options = {**self._ttl_options, **self._options}
        created = False
        left = steps
        while left > 0:
            async with AsyncExitStack() as stack:
                self.server, self.client = await stack.enter_async_context(
                    serving(self._data, self._clocks, base_maintenance_seconds=0.05)
                )
                if not created:
                    self.table = await self.client.create_table(
                        "t.expiring", SCHEMA, primary_key=["id"], buckets=2, **ENGINES[self._engine], **options
                    )
                    created = True
                self.table = await self.client.table("t.expiring")
                for _ in range(min(left, self.random.randint(10, 25))):
                    left -= 1
                    await self._step()
                    await self._check()
                if left <= 0:
                    await self._check_changelog()

    async def _step(self) -> None:
        steps: list[Callable[[], Awaitable[None]]] = [
            *[self._upsert] * 4,
            self._upsert_in_transaction,
            *[self._upsert_again] * 2,
            self._delete,
            self._delete_selected,
            *[self._pass_time] * 3,
            *[self._sweep] * 2,
            self._pin,
            self._resume,
            self._rename,
            self._alter_ttl,
            *[self._until_based] * 2,
        ]
        await self.random.choice(steps)()

    def _random_rows(self, count: int) -> list[Row]:
        ids = self.random.sample(range(KEYS), count)
        return [
            {
                "id": number,
                "at": self.random.choice([None, self.now - dt.timedelta(seconds=self.random.randint(0, 2 * TTL))]),
                "version": self.random.randint(0, 3),
                "value": self.random.choice([None, *range(5)]),
            }
            for number in ids
        ]

    async def _upsert(self) -> None:
        rows = self._random_rows(self.random.choice([1, 3, 30]))
        self._merge(rows)
        if self.random.random() < 0.5:
            await self.table.upsert([self._named(row) for row in rows])
        else:
            data = pa.Table.from_pylist(rows, SCHEMA).rename_columns(self._names)
            await self.table.upsert(data)

    async def _upsert_again(self) -> None:
        """Writes rows that exist, which may change nothing but the time of the last write."""
        rows = [row for key in self.random.sample(range(KEYS), 10) if (row := self._alive(key)) is not None]
        self._merge(rows)
        await self.table.upsert([self._named(row) for row in rows])

    async def _upsert_in_transaction(self) -> None:
        async with self.client.transaction() as transaction:
            for _ in range(2):
                rows = self._random_rows(self.random.choice([1, 10]))
                self._merge(rows)
                await transaction.upsert(self.table, [self._named(row) for row in rows])
                key = rows[0]["id"]
                alive = self._alive(key)
                assert await transaction.get(self.table, key) == (None if alive is None else self._named(alive))

    async def _delete(self) -> None:
        if self._engine != "last_row":
            return
        keys = self.random.sample(range(KEYS), 5)
        await self.table.delete(keys)
        for key in keys:
            self._rows.pop(key, None)

    async def _delete_selected(self) -> None:
        """Deletes all rows or those with a value, and with them the ones that have expired and are still stored."""
        value = self.random.choice([0, 1, 2, 3, 4, None])
        where = (col("value") == value) if value is not None else (col("id") >= 0)
        selected = [key for key, (row, _) in self._rows.items() if value is None or row["value"] == value]
        alive = sum(self._alive(key) is not None for key in selected)
        deleted = await self.table.delete(where=where, mode="overwrite")
        assert deleted.rows == alive
        for key in selected:
            del self._rows[key]

    async def _pass_time(self) -> None:
        self._clocks.pass_time(self.random.choice([0.3, 1, 5, 20, TTL]))

    async def _sweep(self) -> None:
        self._rows = {key: self._rows[key] for key in self._rows if self._alive(key) is not None}
        for table in parts_of(self.server, "t.expiring"):
            await self.server._tables._sweep.sweep_table(table.state)

    async def _pin(self) -> None:
        if len(self._pins) < 3:
            self._pins.append((await self.table.snapshot(ttl=604_800), self._alive_rows()))

    async def _resume(self) -> None:
        """Reads a part of a scan, lets time pass, and reads the rest."""
        expected, found = self._alive_rows(), []
        scan = self.table.scan().with_chunk(rows=5).resume(Resume.LATEST)
        token: bytes | None = None
        async with scan.stream() as stream:
            async for rows in stream:
                found += rows.to_pylist()
                token = stream.resume_token
                break
        self._clocks.pass_time(self.random.choice([1, TTL]))
        if token is not None:
            async for rows in scan.resume_from(token).stream():
                found += rows.to_pylist()
        assert sorted(found, key=lambda row: row["id"]) == expected

    async def _rename(self) -> None:
        if self.random.random() < 0.3:
            names = ("at", "zeit") if not self._renamed else ("zeit", "at")
            self.table = await self.client.alter_table("t.expiring", rename_columns=dict([names]))
            self._renamed = not self._renamed

    @property
    def _ttl_options(self) -> dict[str, Any]:
        if not self._ttl:
            return {}
        return {"ttl_seconds": self._ttl, **({} if self._by_write else {"ttl_column": self._names[1]})}

    async def _alter_ttl(self) -> None:
        """Changes the TTL. Expired rows that are still stored are visible again if the new TTL includes them."""
        if self.random.random() < 0.5:
            return
        begins = self._by_write and not self._ttl
        if self._options.get("ttl_changes") == "none" and not self._by_write:
            # A reader of the changelog could not tell which rows were removed by a shorter TTL.
            self._ttl = self._ttl * 3 // 4 if self._ttl else TTL
        else:
            self._ttl = self.random.choice([0, TTL // 2, TTL, 2 * TTL])
        if self._ttl and begins:
            self._rows = {key: (row, self.now) for key, (row, _) in self._rows.items()}
        changed = self._ttl_options or {"ttl_seconds": None, "ttl_column": None}
        self.table = await self.client.alter_table("t.expiring", **changed)

    async def _until_based(self) -> None:
        """Reads until all buckets are read from columnar bases, as long as they are being built."""
        for _ in range(100):
            buckets = [each.base for each in await self.table.stats() if each.rows]
            if buckets and all(base is not None and not base.unused_reason for base in buckets):
                self.read_bases += 1
                return
            await self.table.scan().to_arrow()

    @property
    def _names(self) -> list[str]:
        return ["id", "zeit" if self._renamed else "at", "version", "value"]

    def _named(self, row: Row) -> Row:
        return dict(zip(self._names, row.values(), strict=True))

    def _merge(self, rows: list[Row]) -> None:
        for row in rows:
            old = self._alive(row["id"])
            new: Row | None = row
            if old is not None:
                if self._engine == "first_row":
                    new = None
                elif self._engine == "versioned":
                    new = row if row["version"] >= old["version"] else None
                elif self._engine in ("partial_update", "aggregate"):
                    new = {name: old[name] if row[name] is None else row[name] for name in row}
                    if self._engine == "aggregate" and None not in (old["value"], row["value"]):
                        new["value"] = old["value"] + row["value"]
            if new is not None:
                self._rows[row["id"]] = new, self.now

    def _alive(self, key: int) -> Row | None:
        if key not in self._rows:
            return None
        row, written = self._rows[key]
        time = written if self._by_write else row["at"]
        tick = self.now.replace(microsecond=0)
        has_expired = self._ttl and time is not None and time <= tick - dt.timedelta(seconds=self._ttl)
        return None if has_expired else row

    def _alive_rows(self) -> list[Row]:
        return [self._named(row) for key in range(KEYS) if (row := self._alive(key)) is not None]

    async def _check(self) -> None:
        expected = self._alive_rows()
        async with self.table.scan().stream() as stream:
            found = [row for rows in [batch async for batch in stream] for row in rows.to_pylist()]
        found.sort(key=lambda row: row["id"])
        assert found == expected
        values = [row["value"] for row in expected if row["value"] is not None]
        assert await self.table.count() == len(expected)
        assert await self.table.count(where=col("value") == 3) == values.count(3)
        answer = await self.table.aggregate_if_changed(None, {"value": ["sum"]})
        assert answer is not None
        rows = answer.value.to_pylist()
        assert (rows[0]["value_sum"] or 0) == sum(values)
        # Equal versions mean equal results.
        assert self._results.setdefault(answer.version, expected) == expected
        for version, before in list(self._results.items())[-3:]:
            if await self.table.aggregate_if_changed(version, {"value": ["sum"]}) is None:
                assert before == expected
        keys = self.random.sample(range(KEYS), 5)
        gets = [await self.table.get(key) for key in keys]
        assert gets == [None if (row := self._alive(key)) is None else self._named(row) for key in keys]
        looked_up = (await self.table.lookup(list(range(KEYS)))).to_pylist()
        assert looked_up == expected
        for number, (snapshot, pinned) in enumerate(self._pins):
            if self.random.random() < 0.2:
                again = (await self.table.scan().as_of(snapshot).to_arrow()).sort_by("id")
                assert [list(row.values()) for row in again.to_pylist()] == [list(row.values()) for row in pinned], (
                    number
                )

    async def _check_changelog(self) -> None:
        """Replays the changelog strictly: nothing is inserted twice, or deleted that is not there."""
        assert all(bucket.is_consistent for bucket in await self.client.check_table("t.expiring"))
        is_silent = self._options.get("ttl_changes") == "none"
        if self._by_write and not is_silent:
            await self._sweep()
        expected = self._alive_rows()
        for start in (StartFrom.EARLIEST, StartFrom.FULL):
            rows: dict[int, Row] = {}
            changes = await self.table.changes(start, stop=StopAt.LATEST).to_arrow()
            for change in changes.to_pylist():
                kind = change["_change_type"]
                row = {name: change[name] for name in self._names}
                if kind in ("-D", "-U"):
                    assert rows.pop(row["id"]) == row, kind
                else:
                    assert row["id"] not in rows or (is_silent and kind == "+I"), kind
                    rows[row["id"]] = row
            if self._by_write and is_silent:
                continue
            found = [rows[key] for key in sorted(rows) if self._by_write or self._lives(rows[key])]
            assert found == expected

    def _lives(self, row: Row) -> bool:
        time = row[self._names[1]]
        return not self._ttl or time is None or time > self.now.replace(microsecond=0) - dt.timedelta(seconds=self._ttl)


assert START % 1_000_000_000 == 0, "so that ticks of the model are those of the server"
