"""A random history of a partitioned table, next to a dict of its rows and the set of its partitions."""

from __future__ import annotations

import asyncio
import datetime as dt
import operator
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client import col
from tests.model.untracked_history import ENGINES as UNPARTITIONED_ENGINES
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from aio_client import Client, Predicate, Snapshot, Table
    from aio_client._write.merging import WriteMode
    from tests.support.server_process import ServerProcess

Row = dict[str, Any]
Key = tuple[dt.date, str, int]
Rows = dict[Key, Row]
Partition = tuple[Any, ...]

DAYS: Final = range(-1, 4)
"""The days of rows, counted from the present one."""
REGIONS: Final = ("", "a", "a\0b")
IDS: Final = range(12)
KEY: Final = ["day", "region", "id"]
SCHEMA: Final = pa.schema(
    [("day", pa.date32()), ("region", pa.string()), ("id", pa.int64()), ("v", pa.int64()), ("text", pa.string())]
)
STEP: Final = dt.timedelta(hours=12)
"""By how much time passes: from 6 to 18 o'clock, and to the next morning. Nothing expires near these hours."""
PARTITION_TTL: Final = dt.timedelta(days=2)
ROW_TTL: Final = dt.timedelta(hours=45)
ENGINES: Final = {name: options for name, options in UNPARTITIONED_ENGINES.items() if name != "upsert_changelog"}
"""The options of tables of every merge engine."""


def by_key(rows: list[Row]) -> Rows:
    """Returns rows by their key."""
    return {key_of(row): row for row in rows}


def key_of(row: Row) -> Key:
    """Returns the key of a row."""
    return row["day"], row["region"], row["id"]


class VirtualTime:
    """The wall clock of a server, which only the history advances. It begins at 6 o'clock in UTC.

    Args:
        offset: The file from which the server reads by how many seconds its clock is off: see `jumping`.
    """

    def __init__(self, offset: Path) -> None:
        self._offset = offset
        now = dt.datetime.now(dt.UTC)
        self.now = now.replace(hour=6, minute=0, second=0, microsecond=0)
        self._seconds = round((self.now - now).total_seconds())
        self._offset.write_text(str(self._seconds))

    def advance(self) -> None:
        """Advances the clock by `STEP`."""
        self.now += STEP
        self._seconds += round(STEP.total_seconds())
        self._offset.write_text(str(self._seconds))

    def day(self, number: int) -> dt.date:
        """Returns a day by its distance from the present one."""
        return self.now.date() + dt.timedelta(days=number)


@dataclass
class PartitionHistory:
    """Writes at random to a table that nothing else writes.

    Attributes:
        table: The table.
        expires: Whether rows expire by their last write.
        rows: Its rows.
        written: When each row was written last.
        expired: Rows that have expired, so that the server may or may not have removed them.
        existing: Its partitions.
        possible: More partitions that may exist: a deletion of rows that do not exist may create them.
        uncounted: The partitions whose rows the server need not have counted.
        pinned: Pinned snapshots, with the rows that the table had.
        counted: How many counts of rows were compared.
        dropped: How many partitions were dropped by calls.
        outlived: How many partitions and rows have expired.
    """

    server: ServerProcess
    client: Client
    table: Table
    time: VirtualTime
    random: Random
    expires: bool = False
    rows: Rows = field(default_factory=dict)
    written: dict[Key, dt.datetime] = field(default_factory=dict)
    expired: set[Key] = field(default_factory=set)
    existing: set[Partition] = field(default_factory=set)
    possible: set[Partition] = field(default_factory=set)
    uncounted: set[Partition] = field(default_factory=set)
    pinned: list[tuple[Snapshot, Rows]] = field(default_factory=list)
    counted: int = 0
    dropped: int = 0
    outlived: int = 0

    @property
    def width(self) -> int:
        """How many columns of the key the table is partitioned by."""
        return len(self.table.partition_by)

    async def step(self) -> None:
        """Makes a random change."""
        changes = {
            self.upsert: 5,
            self._upsert_untracked: 2,
            self._upsert_partly: 2,
            self._commit: 3,
            self._delete: 2,
            self._delete_where: 3,
            self._delete_range: 3,
            self._truncate: 1,
            self._replace: 1,
            self._create: 2,
            self._drop: 3,
            self._pass_time: 3,
            self._change_columns: 2,
            self._pin: 1,
        }
        await self.random.choices([*changes], [*changes.values()])[0]()

    async def restart(self) -> None:
        """Kills or stops the server and starts it again."""
        if self.random.random() < 0.3:
            assert await asyncio.to_thread(self.server.stop) == 0
        else:
            self.server.kill()
        await asyncio.to_thread(self.server.restart)
        await self.client.wait_ready()

    async def check(self) -> None:
        """Compares everything that the server says about the table with the model."""
        assert by_key(await self.table.scan().to_pylist()) == self.rows
        assert await self.table.count() == len(self.rows)
        listed = {tuple(each.values.values()): each.rows for each in await self.table.partitions()}
        assert [*listed] == sorted(listed), "not in key order"
        assert self.existing <= listed.keys() <= self.existing | self.possible
        for partition, count in listed.items():
            self._check_count(partition, count)
        for partition in self.random.sample(sorted(listed), min(3, len(listed))):
            where = _equal(partition)
            assert by_key(await self.table.scan(where=where).to_pylist()) == self._within(partition)
            least = self.random.randrange(2**30)
            found = await self.table.scan(where=where & (col("v") > least)).to_pylist()
            assert by_key(found) == {key: row for key, row in self._within(partition).items() if row["v"] > least}

    def _check_count(self, partition: Partition, count: int | None) -> None:
        least = len(self._within(partition))
        most = least + sum(key[: len(partition)] == partition for key in self.expired)
        if count is None:
            assert partition in self.uncounted, partition
        else:
            assert least <= count <= most, partition
            self.counted += 1

    async def check_pinned(self) -> None:
        """Checks that the pinned snapshots have the rows that the table had."""
        for snapshot, expected in self.pinned:
            assert by_key(await self.table.scan().as_of(snapshot).to_pylist()) == expected
            await snapshot.release()
        self.pinned.clear()

    def check_copy(self, rows: Rows) -> None:
        """Checks a copy that has followed the changes. It keeps expired rows until the server has removed them."""
        assert {key: row for key, row in rows.items() if key not in self.expired} == self.rows

    def _partition(self, key: Key) -> Partition:
        return key[: self.width]

    def _within(self, partition: Partition) -> Rows:
        return {key: row for key, row in self.rows.items() if key[: len(partition)] == partition}

    def _random_day(self) -> dt.date:
        return self.time.day(self.random.choice(DAYS))

    def _random_key(self) -> Key:
        return self._random_day(), self.random.choice(REGIONS), self.random.choice(IDS)

    def _random_rows(self) -> list[Row]:
        """Returns rows with different keys and with values that no other row has."""
        keys = {self._random_key() for _ in range(self.random.choice([1, 3, 50]))}
        return [dict(zip(KEY, key, strict=True)) | self._random_values() for key in sorted(keys)]

    def _random_values(self) -> Row:
        """Returns values of all columns but the key. None of them is null, so that no merge engine keeps old ones."""
        values: Row = {"v": self.random.randrange(2**30)}
        for name in self.table.schema.names[len(KEY) + 1 :]:
            values[name] = self.random.choice(("a", "b" * 50))
        return values

    @property
    def _engine(self) -> str:
        return self.table.name.partition(".")[2]

    @property
    def _takes_complete_rows(self) -> bool:
        return self._engine in ("first_row", "versioned")

    @property
    def _mode(self) -> WriteMode:
        return "overwrite" if self._takes_complete_rows else "merge"

    def _merge(self, rows: list[Row]) -> None:
        """Merges written rows into the model, which creates their partitions."""
        for row in rows:
            key = key_of(row)
            self.existing.add(self._partition(key))
            self.expired.discard(key)
            old = self.rows.get(key)
            if old is None:
                new = dict.fromkeys(self.table.schema.names) | row
            elif self._engine == "aggregate":
                new = old | row | {"v": old["v"] + row["v"]}
            elif self._engine in ("versioned", "sequence_column"):
                new = old if old["v"] > row["v"] else row
            else:
                new = old if self._engine == "first_row" else old | row
            if new is not old:
                self.rows[key] = new
                self.written[key] = self.time.now

    def _remove(self, is_removed: Callable[[Row], bool]) -> None:
        self.rows = {key: row for key, row in self.rows.items() if not is_removed(row)}

    def _forget(self, prefix: Partition) -> int:
        """Removes partitions with everything that is known of them. Returns how many certainly existed."""
        self._remove(lambda row: key_of(row)[: len(prefix)] == prefix)
        self.expired -= {key for key in self.expired if key[: len(prefix)] == prefix}
        before = len(self.existing)
        for partitions in (self.existing, self.possible, self.uncounted):
            partitions -= {each for each in partitions if each[: len(prefix)] == prefix}
        return before - len(self.existing)

    async def upsert(self) -> None:
        """Writes rows."""
        rows = self._random_rows()
        await self.table.upsert(pa.RecordBatch.from_pylist(rows, schema=self.table.schema))
        self._merge(rows)

    async def _upsert_untracked(self) -> None:
        rows = self._random_rows()
        await self.table.upsert(rows, track_changes=False)
        self._merge(rows)
        self.uncounted |= {self._partition(key_of(row)) for row in rows}

    async def _upsert_partly(self) -> None:
        if self._takes_complete_rows or self._engine == "sequence_column":
            return
        rows = [{name: row[name] for name in (*KEY, "v")} for row in self._random_rows()]
        await self.table.upsert(rows, [*KEY, "v"])
        self._merge(rows)

    async def _commit(self) -> None:
        """Writes in a transaction, which may be aborted. Sometimes partitions are dropped before the commit."""
        rows = self._random_rows()
        transaction = await self.client.transaction()
        await transaction.upsert(self.table, rows)
        if self.random.random() < 0.4:
            await self._drop()
        if self.random.random() < 0.2:
            await transaction.abort()
            return
        await transaction.commit()
        self._merge(rows)

    async def _delete(self) -> None:
        if self._takes_complete_rows:
            return
        keys = sorted({self._random_key() for _ in range(self.random.choice([1, 5, 50]))})
        await self.table.delete(keys)
        for key in keys:
            self.rows.pop(key, None)
            self.possible.add(self._partition(key))

    async def _delete_where(self) -> None:
        day, least, end = self._random_day(), self.random.randrange(2**30), self.random.choice(IDS)
        where, is_removed = self.random.choice(
            [
                (col("v") > least, lambda row: row["v"] > least),
                (_equal((day,)) & (col("id") < end), lambda row: row["day"] == day and row["id"] < end),
                (_equal((day,)), lambda row: row["day"] == day),
            ]
        )
        await self.table.delete(where=where, mode=self._mode)
        self._remove(is_removed)

    async def _delete_range(self) -> None:
        """Deletes a key range: some partitions, or a part of one, or parts of two and all between them."""
        day, region, _ = self._random_key()
        first, end = self._random_day(), self._random_day()
        least, most = self.random.choice(IDS), self.random.choice(IDS)
        where, is_removed = self.random.choice(
            [
                ((col("day") >= first) & (col("day") < end), lambda row: first <= row["day"] < end),
                (_equal((day, region)), lambda row: (row["day"], row["region"]) == (day, region)),
                (_equal((day,)) & (col("region") > region), lambda row: row["day"] == day and row["region"] > region),
                (
                    _equal((day, region)) & (col("id") >= least) & (col("id") < most),
                    lambda row: (row["day"], row["region"]) == (day, region) and least <= row["id"] < most,
                ),
            ]
        )
        await self.table.delete(where=where, mode=self._mode, track_changes=False)
        self._remove_range(is_removed)

    def _remove_range(self, is_removed: Callable[[Row], bool]) -> None:
        keys = self.rows.keys() | self.expired
        self.uncounted |= {self._partition(key) for key in keys if is_removed(dict(zip(KEY, key, strict=True)))}
        self._remove(is_removed)

    async def _truncate(self) -> None:
        tracked = self.random.random() < 0.5
        await self.table.truncate(track_changes=tracked)
        if tracked:
            self._remove(lambda _: True)
        else:
            self._remove_range(lambda _: True)
            self.uncounted.clear()

    async def _replace(self) -> None:
        """Replaces the rows of a day."""
        day = self._random_day()
        rows = [*by_key([row | {"day": day} for row in self._random_rows()]).values()]
        await self.table.replace(rows, where=_equal((day,)))
        self._remove(lambda row: row["day"] == day)
        self._merge(rows)

    async def _create(self) -> None:
        partition = self._partition(self._random_key())
        is_new = await self.table.create_partition(dict(zip(KEY, partition, strict=False)))
        assert is_new or partition in self.existing | self.possible
        assert not is_new or partition not in self.existing
        self.existing.add(partition)

    async def _drop(self) -> None:
        prefix = self._random_key()[: self.random.randint(1, self.width)]
        dropped = await self.table.drop_partition(dict(zip(KEY, prefix, strict=False)))
        named = {tuple(each.values.values()): each.rows for each in dropped}
        assert {each for each in self.existing if each[: len(prefix)] == prefix} <= named.keys()
        assert named.keys() <= self.existing | self.possible
        for partition, count in named.items():
            self._check_count(partition, count)
        self._forget(prefix)
        self.dropped += len(named)

    async def _pass_time(self) -> None:
        """Lets time pass, and waits until the server has dropped all partitions whose time is over."""
        self.time.advance()
        last = self.time.day(-PARTITION_TTL.days)

        async def expired_are_gone() -> bool:
            return all(each.values["day"] > last for each in await self.table.partitions())

        await await_until(expired_are_gone, "expired partitions are dropped")
        days = {day for day, *_ in self.existing | self.possible if day <= last}
        self.outlived += sum(self._forget((day,)) for day in days)
        if self.expires:
            expired = {key for key in self.rows if self.written[key] + ROW_TTL < self.time.now}
            self.outlived += len(expired)
            self.expired |= expired
            self.rows = {key: row for key, row in self.rows.items() if key not in expired}

    async def _change_columns(self) -> None:
        """Renames a column, or adds one, or drops that again."""
        last = self.table.schema.names[-1]
        if self.random.random() < 0.5:
            new = f"{last[:5]}{self.random.randrange(2**20)}"
            self.table = await self.client.alter_table(self.table.name, rename_columns={last: new})
            self.rows = {key: _renamed(row, last, new) for key, row in self.rows.items()}
        elif len(self.table.schema.names) == len(SCHEMA):
            self.table = await self.client.alter_table(self.table.name, add_columns=pa.schema([("extra", pa.string())]))
            self.rows = {key: row | {"extra": None} for key, row in self.rows.items()}
        else:
            self.table = await self.client.alter_table(self.table.name, drop_columns=[last])
            self.rows = {key: {n: v for n, v in row.items() if n != last} for key, row in self.rows.items()}

    async def _pin(self) -> None:
        if len(self.pinned) < 3:
            self.pinned.append((await self.table.snapshot(), dict(self.rows)))


def _equal(values: Partition) -> Predicate:
    """Returns the predicate that the first columns of the key have some values."""
    predicates: list[Predicate] = [col(name) == value for name, value in zip(KEY, values, strict=False)]
    predicate: Predicate = reduce(operator.and_, predicates)
    return predicate


def _renamed(row: Row, old: str, new: str) -> Row:
    return {new if name == old else name: value for name, value in row.items()}
