"""A random history of a table with tracked and untracked writes, to compare readers of its changes with the table.

The table's option `changelog` may change in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from aio_client import ConnectionFailed, RangeNotTracked, StartFrom, StopAt, agg

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

CHANGING: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "changing": ("last_row", ("full", "upsert")),
    "changing_indexed": ("indexed", ("full", "upsert")),
    "changing_partial_update": ("partial_update", ("full", "upsert")),
    "changing_versioned": ("versioned", ("full", "upsert")),
    "interrupted": ("last_row", ("full", "upsert", "none")),
    "interrupted_indexed": ("indexed", ("full", "upsert", "none")),
}
"""Tables whose option `changelog` changes: the merge engine, and the values."""

Rows = dict[int, dict[str, Any]]


@dataclass
class UntrackedHistory:
    """Writes at random to a table that nothing else writes.

    Attributes:
        table: The table.
        moments: The log offsets of all buckets and the rows after some of the writes.
        changelogs: The values between which the option `changelog` changes. Empty: it does not change.
        untracked: The number of writes without tracking of changes.
        changed: How often the option `changelog` has changed.
        expired: Log offsets from before a time without changelog.
        recorded_as: The value of the option `changelog` at each of the moments, by its number.
    """

    client: Client
    table: Table
    random: Random
    moments: list[tuple[LogOffsets, Rows]] = field(default_factory=list)
    changelogs: tuple[str, ...] = ()
    untracked: int = 0
    changed: int = 0
    expired: list[LogOffsets] = field(default_factory=list)
    recorded_as: dict[int, str] = field(default_factory=dict)

    async def until_done(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeats a call until it succeeds."""
        while True:
            try:
                return await call()
            except ConnectionFailed:
                await self.client.wait_ready()

    async def step(self) -> None:
        """Makes a random write, and sometimes records the state after it."""
        if self.changelogs and self.random.random() < 0.2:
            await self._change_changelog()
        # Tables whose changelog changes have fewer untracked writes, so that some readers get far.
        writes = [self._upsert, self._upsert_untracked, self._upsert_partly, self._delete, self._commit]
        await self.random.choices(writes, [4, 1 if self.changelogs else 5, 2, 3, 2])[0]()
        if self.random.random() < 0.3:
            await self.record()

    @property
    def changelog(self) -> str:
        """The current value of the option `changelog`."""
        return self.table.options.get("changelog", "full")

    async def _change_changelog(self) -> None:
        chosen = self.random.choice([each for each in self.changelogs if each != self.changelog])
        self.table = await self.until_done(lambda: self.client.alter_table(self.table.name, changelog=chosen))
        self.changed += 1
        if chosen == "none":
            self.expired += [offsets for offsets, _ in self.moments]
            self.moments.clear()

    async def end(self) -> int:
        """Makes the last writes, which are tracked. Returns the moment before them, and records the one after them."""
        while self.changelog == "none":
            await self._change_changelog()
        await self.record()
        for _ in range(3):
            await self._upsert()
        await self.record()
        return len(self.moments) - 2

    async def record(self) -> None:
        """Records the state of the table. Nothing else writes, so offsets and rows belong together."""
        if self.changelog != "none":
            offsets = await self.until_done(self.table.log_offsets)
            self.moments.append((offsets, await self.rows()))
            self.recorded_as[len(self.moments) - 1] = self.changelog

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

    async def replay_strictly(self, start: int) -> Rows | None:
        """As `replay`, as a reader that needs every change with the row before it. None: the stream fails in between.

        Checks each change of a reader that starts where the changelog has these rows.
        """
        offsets, before = self.moments[start]
        rows, is_full = dict(before), self.recorded_as[start] == "full"
        scan = self.table.changes(StartFrom.offsets(offsets), StopAt.LATEST)
        scan = scan.with_chunk(rows=self.random.choice([7, 64, 4096]))
        if self.random.random() < 0.3:
            scan = scan.with_catch_up("net", lag_threshold=self.random.choice([1, 20]))
        updating: dict[str, Any] | None = None
        try:
            async for batch in scan.stream():
                for change in batch.to_pylist():
                    kind, row = change["_change_type"], {name: change[name] for name in SCHEMA.names}
                    if is_full:
                        assert (kind == "+U") == (updating is not None), "a +U without its -U"
                        assert kind in ("+I", "+U") or rows[row["k"]] == row, "the row before is another one"
                        assert kind != "+I" or row["k"] not in rows, "a +I of a row that exists"
                        assert kind != "+U" or updating is None or updating["k"] == row["k"]
                        updating = row if kind == "-U" else None
                    apply(rows, change)
        except RangeNotTracked:
            return None
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
