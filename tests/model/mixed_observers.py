"""Readers of a `World`, which check what they read. Followers of a table keep a copy to compare at the end."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING

from aio_client import ConnectionFailed, StartFrom
from aio_client.mirror import mirror
from streaming_server.storage.changelog.offsets import count_of
from tests.model.mixed_world import WRITERS, accounts_of, check_view, group_stamps, is_group_key
from tests.model.replayed_table import ReplayedTable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    import pyarrow as pa

    from aio_client import Scan, Table
    from aio_client.mirror import MirrorState
    from tests.model.mixed_world import Account, Window, World, WorldTables


class Readers:
    """Scans, pinned snapshots, resumed scans and conditional polls.

    Attributes:
        views: The number of views that were checked.
        pins: The number of pinned views that were read twice.
    """

    def __init__(self, world: World, table: Table, random: Random) -> None:
        self.views = 0
        self.pins = 0
        self._world = world
        self._table = table
        self._random = random
        self._seen = dict.fromkeys(range(WRITERS), 0)

    async def scan(self) -> None:
        """Reads the live table repeatedly."""
        while not self._world.stopping.is_set():
            async with self._world.forgiving():
                scan = self._table.scan().with_chunk(rows=self._random.choice([7, 50, 1000]))
                if self._random.random() < 0.3:
                    scan = scan.ordered()
                self._check(*await self._read(scan))

    async def pin(self) -> None:
        """Pins the table and reads it twice, once with a cut and a resume. Both reads must return the same rows."""
        while not self._world.stopping.is_set():
            async with self._world.forgiving():
                with self._world.accounts.window() as window:
                    snapshot = await self._table.snapshot(ttl=600)
                try:
                    first = accounts_of(await self._table.scan().as_of(snapshot).to_arrow())
                    check_view(window, first)
                    assert await self._read_in_two(self._table.scan().as_of(snapshot)) == first
                    count = await self._table.count(as_of=snapshot)
                    assert count == len(first)
                    self.pins += 1
                finally:
                    # Not released, since an error of the release would hide the cancellation. The lease ends by itself.
                    with suppress(ConnectionFailed):
                        await snapshot.release()

    async def _read(self, scan: Scan) -> tuple[Window, pa.Table]:
        with self._world.accounts.window() as window:
            return window, await scan.to_arrow()

    async def _read_in_two(self, scan: Scan) -> dict[int, Account]:
        """Returns the rows of a scan that is dropped after its first batch and resumed by another scan."""
        scan = scan.with_chunk(rows=30)
        found: dict[int, Account] = {}
        async with scan.stream() as stream:
            async for batch in stream:
                found |= accounts_of(batch)
                break
            token = stream.resume_token
        if token is None:
            return found  # The table has no rows yet.
        rest = accounts_of(await scan.resume_from(token).to_arrow())
        assert not found.keys() & rest.keys(), "a row came twice"
        return found | rest

    def _check(self, window: Window, rows: pa.Table) -> None:
        found = accounts_of(rows)
        check_view(window, found)
        for owner in range(WRITERS):
            (stamp,) = group_stamps(found, owner)
            assert (stamp or 0) >= self._seen[owner], "a view is older than a previous one"
            self._seen[owner] = stamp or 0
        self.views += 1


class ChangeFollower:
    """A consumer of all changes of `accounts`, which stops at random and restarts at its last commit.

    Attributes:
        replay: The rows as of the last received change.
        runs: The number of starts.
    """

    def __init__(self, world: World, table: Table, random: Random, consumer_id: str) -> None:
        self.replay = ReplayedTable({})
        self.runs = 0
        self._world = world
        self._table = table
        self._random = random
        self._id = consumer_id
        self._commit_times: dict[tuple[int, int], set[object]] = {}
        # Has two entries while it is unknown whether a commit was applied.
        self._saved = [deepcopy(self.replay)]

    async def run(self) -> None:
        """Follows the table until cancelled."""
        changes = self._table.changes(StartFrom.EARLIEST, consumer_id=self._id)
        while True:
            self.runs += 1
            async with self._world.forgiving():
                await self._follow(changes)

    async def _follow(self, changes: Scan) -> None:
        async with changes.stream() as stream:
            self.replay = self._saved_at(stream.next_offsets)
            async for batch in stream:
                self.replay.play(batch)
                self._check_commit_times(batch)
                if self._random.random() < 0.5:
                    self._saved.append(deepcopy(self.replay))
                    await stream.commit()
                    del self._saved[:-1]
                elif self._random.random() < 0.02:
                    return

    def _saved_at(self, offsets: Mapping[int, int]) -> ReplayedTable:
        """Returns the saved state that a stream from these offsets continues."""
        starts = {bucket: count_of(offset) for bucket, offset in offsets.items()}
        found = [each for each in self._saved if all(each.places.get(b, 0) == start for b, start in starts.items())]
        assert found, f"the stream starts at {starts}, committed was one of {[each.places for each in self._saved]}"
        return deepcopy(found[-1])

    def _check_commit_times(self, batch: pa.RecordBatch) -> None:
        """Checks that all changes of one transaction have the same commit time in all buckets."""
        columns = (
            batch.column(name).to_pylist() for name in ("_change_type", "k", "owner", "stamp", "_commit_timestamp")
        )
        for kind, key, owner, stamp, time in zip(*columns, strict=True):
            if is_group_key(key) and kind in ("+I", "+U"):
                assert stamp > 0, "a change that the same transaction overwrote"
                times = self._commit_times.setdefault((owner, stamp), set())
                times.add(time)
                assert len(times) == 1, f"transaction {stamp} of writer {owner} was committed at {times}"


class Copies:
    """A mirror of `totals`, and a watch of the best scores in `accounts`.

    Attributes:
        totals: The mirror's rows, by key.
        best: The last result of the watch.
        mirrors: The number of times that the mirror was created.
    """

    def __init__(self, world: World, tables: WorldTables, random: Random) -> None:
        self.best: list[dict[str, object]] | None = None
        self.totals: dict[int, int] = {}
        self.mirrors = 0
        self._world = world
        self._tables = tables
        self._random = random

    async def mirror(self) -> None:
        """Maintains a copy of `totals` until cancelled. Ends and continues the mirror at random."""
        state: MirrorState | None = None
        while True:
            self.mirrors += 1
            async with self._world.forgiving():
                async with mirror(self._tables.totals, state=state) as local:
                    for _ in range(self._random.randrange(20, 200)):
                        self.totals = {row["k"]: row["amount"] for row in local.to_arrow().to_pylist()}
                        await local.wait_for_change()
                    state = local.state()

    async def watch(self) -> None:
        """Watches the ten best scores until cancelled."""
        async for top in self._tables.accounts.watch_top_n(10, order_by="score", every=0.1):
            self.best = top.rows.to_pylist()
