"""A random history of a table with tracked and untracked writes, to compare readers of its changes with the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from aio_client import ConnectionFailed, StartFrom, StopAt, agg

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from aio_client import Client, LogOffsets, Table

_T = TypeVar("_T")

KEYS: Final = 150
BUCKETS: Final = 2
SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("text", pa.string())])

ENGINES: Final[dict[str, dict[str, Any]]] = {
    "last_row": {},
    "upsert_changelog": {"changelog": "upsert"},
    "sequence_column": {"sequence_column": "v"},
    "indexed": {"indexes": ["v"]},
    "first_row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": "versioned", "version_column": "v"},
    "aggregate": {
        "merge_engine": "aggregate",
        "aggregates": {"v": agg.sum(), "text": agg.last_value()},
        "delete_behavior": "allow",
    },
    "partial_update": {"merge_engine": "partial_update", "delete_behavior": "allow"},
}
"""The options of tables of every merge engine."""

Rows = dict[int, dict[str, Any]]


@dataclass
class UntrackedHistory:
    """Writes at random to a table that nothing else writes.

    Attributes:
        table: The table.
        moments: The log offsets of all buckets and the rows after some of the writes.
        untracked: The number of writes without tracking of changes.
    """

    client: Client
    table: Table
    random: Random
    moments: list[tuple[LogOffsets, Rows]] = field(default_factory=list)
    untracked: int = 0

    async def until_done(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeats a call until it succeeds."""
        while True:
            try:
                return await call()
            except ConnectionFailed:
                await self.client.wait_ready()

    async def step(self) -> None:
        """Makes a random write, and sometimes records the state after it."""
        writes = [self._upsert, self._upsert_untracked, self._upsert_partly, self._delete, self._commit]
        await self.random.choices(writes, [4, 5, 2, 3, 2])[0]()
        if self.random.random() < 0.3:
            await self.record()

    async def record(self) -> None:
        """Records the state of the table. Nothing else writes, so offsets and rows belong together."""
        offsets = await self.until_done(self.table.log_offsets)
        self.moments.append((offsets, await self.rows()))

    async def rows(self, where: str | None = None) -> Rows:
        """Returns the rows of the table."""
        found = await self.until_done(lambda: self.table.scan(where=where).to_pylist())
        return {row["k"]: row for row in found}

    async def replay(self, start: int, where: str | None = None) -> Rows:
        """Returns the rows that a reader has who knew the rows of a recorded moment and reads all changes since."""
        offsets, before = self.moments[start]
        matching = before if where is None else {key: row for key, row in before.items() if (row["v"] or 0) > 3}
        rows = dict(matching)
        scan = self.table.changes(StartFrom.offsets(offsets), StopAt.LATEST, where=where)
        scan = scan.with_unmatched("delete").with_untracked("rescan").with_chunk(rows=self.random.choice([7, 64, 4096]))
        if self.random.random() < 0.3:
            scan = scan.with_catch_up("net", lag_threshold=self.random.choice([1, 20]))
        for change in await self.until_done(scan.to_pylist):
            apply(rows, change)
        return rows

    def _row(self, key: int) -> dict[str, Any]:
        return {"k": key, "v": self.random.choice([None, *range(8)]), "text": self.random.choice(["a", "b" * 50])}

    def _keys(self) -> list[int]:
        """Returns random keys: a few anywhere, or many next to each other."""
        if self.random.random() < 0.5:
            return self.random.sample(range(KEYS), self.random.choice([1, 2, 20]))
        first = self.random.randrange(KEYS - 30)
        return [*range(first, first + self.random.randrange(1, 30))]

    async def _upsert(self, *, track_changes: bool = True) -> None:
        data = pa.RecordBatch.from_pylist([self._row(key) for key in self._keys()], schema=SCHEMA)
        await self.until_done(lambda: self.table.upsert(data, track_changes=track_changes))

    async def _upsert_untracked(self) -> None:
        self.untracked += 1
        await self._upsert(track_changes=False)

    async def _upsert_partly(self) -> None:
        if self._takes_complete_rows:
            return
        rows = [{"k": key, "v": self.random.randrange(8)} for key in self._keys()]
        tracked = self.random.random() < 0.5
        await self.until_done(lambda: self.table.upsert(rows, ["k", "v"], track_changes=tracked))

    @property
    def _takes_complete_rows(self) -> bool:
        return self.table.name.endswith(("first_row", "versioned"))

    async def _delete(self) -> None:
        if not self._takes_complete_rows:
            keys = self._keys()
            await self.until_done(lambda: self.table.delete(keys))

    async def _commit(self) -> None:
        rows = [self._row(key) for key in self._keys()]
        try:
            async with self.client.transaction() as tx:
                await tx.upsert(self.table, rows)
        except ConnectionFailed:
            await self.client.wait_ready()  # It may be committed or not; the table says.


def apply(rows: Rows, change: dict[str, Any]) -> None:
    """Applies a change to rows as a reader does that stores the last row of each key."""
    kind, row = change["_change_type"], {name: change[name] for name in SCHEMA.names}
    if kind == "-D":
        rows.pop(row["k"], None)
    elif kind != "-U":
        rows[row["k"]] = row
