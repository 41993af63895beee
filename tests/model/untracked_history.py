"""A random history of a table with tracked and untracked writes, to compare readers of its changes with the table.

Writes also delete by predicate, delete key ranges, truncate and replace. The table's option `changelog` may change in
between.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from aio_client import (
    ConnectionFailed,
    InvalidRequest,
    PositionExpired,
    RangeNotTracked,
    StartFrom,
    StopAt,
    UndoConflict,
    WriteConflict,
    agg,
)
from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from aio_client import ClearedRange, Client, LogOffsets, Scan, Snapshot, Table
    from aio_client._write.merging import WriteMode

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
        "aggregators": {"v": agg.sum(), "text": agg.last_value()},
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
        markers: The number of writes that have left range markers.
        markers_at: That number at each of the moments.
        pinned: Pinned snapshots, with the rows that the table had.
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
    markers: int = 0
    markers_at: list[int] = field(default_factory=list)
    pinned: list[tuple[Snapshot, Rows]] = field(default_factory=list)

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
        untracked = 1 if self.changelogs else 3
        writes = {
            self._upsert: 4,
            self._upsert_untracked: untracked,
            self._upsert_partly: 2,
            self._delete: 2,
            self._commit: 2,
            self._delete_where: 2,
            self._delete_range: untracked,
            self._truncate: 1,
            self._replace: 2,
            self._write_conditionally: 2,
            self._undo: 1,
        }
        await self.random.choices([*writes], [*writes.values()])[0]()
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
        self.markers += 1
        if chosen == "none":
            self.expired += [offsets for offsets, _ in self.moments]
            self.moments.clear()
            self.markers_at.clear()

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
            self.markers_at.append(self.markers)
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
        await self._read_to_end(scan, rows)
        return rows

    async def _read_to_end(self, scan: Scan, rows: Rows) -> None:
        """Applies all changes of a scan to rows. Sometimes continues in another stream, by a token."""
        part = self.random.choice([1, 3, 1000])
        while True:
            stream = scan.stream()
            stream.on_cleared(lambda cleared: clear(rows, cleared))
            read = 0
            try:
                async for batch in stream:
                    for change in batch.to_pylist():
                        apply(rows, change)
                    read += 1
                    if read == part:
                        break
                else:
                    return
            except ConnectionFailed:
                await self.client.wait_ready()
            token = stream.resume_token
            await stream.aclose()
            scan = scan if token is None else scan.resume_from(token)
            part = self.random.choice([1, 3, 1000])

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
        await self._write_untracked(lambda: self._upsert(track_changes=False))

    async def _write_untracked(self, write: Callable[[], Awaitable[object]]) -> None:
        before = await self.until_done(self.table.log_offsets)
        await self.until_done(write)
        after = await self.until_done(self.table.log_offsets)
        self.untracked += 1
        # A write that changes nothing leaves no marker. An unclean restart changes the epoch of an offset only.
        self.markers += any(count_of(after[bucket]) != count_of(offset) for bucket, offset in before.items())

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

    @property
    def _mode(self) -> WriteMode:
        return "overwrite" if self._takes_complete_rows else "merge"

    async def _delete_where(self) -> None:
        least, before = self.random.randrange(9), await self.rows()
        where = self.random.choice([f"v = {least}", f"v > {least} and k < 100", f"k >= {10 * least}"])
        matching = await self.rows(where)
        await self.until_done(lambda: self.table.delete(where=where, mode=self._mode))
        await self._check_rows({key: row for key, row in before.items() if key not in matching})

    async def _delete_range(self) -> None:
        first, before = self.random.randrange(KEYS), await self.rows()
        end = first + self.random.choice([0, 1, 30, KEYS])
        where = f"k >= {first} and k < {end}"
        await self._write_untracked(lambda: self.table.delete(where=where, mode=self._mode, track_changes=False))
        await self._check_rows({key: row for key, row in before.items() if not first <= key < end})

    async def _truncate(self) -> None:
        if self.random.random() < 0.5:
            await self.until_done(self.table.truncate)
        else:
            await self._write_untracked(lambda: self.table.truncate(track_changes=False))
        await self._check_rows({})

    async def _replace(self) -> None:
        before, rows = await self.rows(), [self._row(key) for key in self._keys()]
        first, last = min(row["k"] for row in rows), max(row["k"] for row in rows) + self.random.randrange(9)
        where, key_range = self.random.choice(
            [(None, None), (f"k between {first} and {last}", None), (None, (first, last))]
        )
        scope = (
            before if where is None and key_range is None else {k: r for k, r in before.items() if first <= k <= last}
        )
        await self.until_done(lambda: self.table.replace(rows, where=where, key_range=key_range))
        after = await self.rows()
        assert {key: row for key, row in after.items() if key not in {each["k"] for each in rows}} == {
            key: row for key, row in before.items() if key not in scope
        }
        assert {each["k"] for each in rows} <= after.keys()

    async def _write_conditionally(self) -> None:
        """Writes only if a key is unchanged since some moment. If the server accepts that, its row must be the same."""
        if not self.moments or self.changelog == "none":
            return
        (offsets, before), now = self.random.choice(self.moments), await self.rows()
        row = self._row(self.random.randrange(KEYS))
        with suppress(WriteConflict):
            await self.until_done(lambda: self.table.upsert([row], if_version=offsets))
            assert before.get(row["k"]) == now.get(row["k"]), "a conditional write has overlooked a change"

    async def _undo(self) -> None:
        """Reverts writes of a writer. No undo passes a write without tracking of changes."""
        if self.changelog != "full" or self._takes_complete_rows or not self.moments:
            return
        rows = [self._row(key) for key in self._keys()]
        with suppress(ConnectionFailed):
            async with self.client.transaction(writer="w") as tx:
                await tx.upsert(self.table, rows)
        await self.client.wait_ready()
        number = self.random.randrange(len(self.moments))
        # The moment was recorded after the undo of a repeated call may have begun.
        with suppress(RangeNotTracked, UndoConflict, InvalidRequest, PositionExpired):
            await self.until_done(lambda: self.table.undo("w", self.moments[number][0]))
            assert self.markers_at[number] == self.markers, "an undo has passed a range marker"

    async def pin(self) -> None:
        """Pins a snapshot, to be compared with the rows of the table now."""
        snapshot = await self.until_done(self.table.snapshot)
        self.pinned.append((snapshot, await self.rows()))

    async def check_pinned(self) -> None:
        """Checks that the pinned snapshots have the rows that the table had."""
        for snapshot, expected in self.pinned:
            found = await self.until_done(lambda snapshot=snapshot: self.table.scan().as_of(snapshot).to_pylist())  # type: ignore[misc]
            assert {row["k"]: row for row in found} == expected
            await snapshot.release()

    async def _check_rows(self, expected: Rows) -> None:
        assert await self.rows() == expected
        assert await self.until_done(self.table.count) == len(expected)

    async def _commit(self) -> None:
        rows = [self._row(key) for key in self._keys()]
        try:
            async with self.client.transaction() as tx:
                await tx.upsert(self.table, rows)
        except ConnectionFailed:
            await self.client.wait_ready()  # It may be committed or not; the table says.


def clear(rows: Rows, cleared: ClearedRange) -> None:
    """Drops the rows of a deleted range."""
    for key, is_gone in zip([*rows], cleared.contains([*rows]).to_pylist(), strict=True):
        if is_gone:
            del rows[key]


def apply(rows: Rows, change: dict[str, Any]) -> None:
    """Applies a change to rows as a reader does that stores the last row of each key."""
    kind, row = change["_change_type"], {name: change[name] for name in SCHEMA.names}
    if kind == "-D":
        rows.pop(row["k"], None)
    elif kind != "-U":
        rows[row["k"]] = row
