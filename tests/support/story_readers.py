"""What readers of an altered table do: changes, consumers, watches, polls, and reads of rows that nobody changes."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from scankv import LogOffsets, StartFrom, StopAt
from scankv.model.errors import (
    InvalidResumeToken,
    ScanKvError,
    SchemaMismatch,
    TableNotFound,
    TableRecreated,
)
from streaming_server.storage.changelog.offsets import count_of
from tests.model.replayed_table import ReplayedTable
from tests.support.story_writers import FIRST, StoryPart, names_of, numbers_of
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import scankv

STILL: Final = 300
"""How many rows nobody changes. The number of each is its key and one."""

OLD: Final = 200
"""How many rows are two hours old."""

_META: Final = 4


def still_rows() -> pa.Table:
    """Returns the rows that nobody changes, for the columns with which the table is created."""
    return _rows("still", range(1, STILL + 1), dt.datetime(2200, 1, 1, tzinfo=dt.UTC))


def old_rows() -> pa.Table:
    """Returns rows that are two hours old."""
    return _rows("old", range(1, OLD + 1), dt.datetime.now(dt.UTC) - dt.timedelta(hours=2))


def _rows(who: str, numbers: range, at: dt.datetime) -> pa.Table:
    size = len(numbers)
    return pa.table(
        {
            "who": [who] * size,
            "k": [n - 1 for n in numbers],
            "a": list(numbers),
            "b": [-n for n in numbers],
            "at": pa.array([at] * size, pa.timestamp("us", "UTC")),
        }
    )


def _plain(batch: pa.RecordBatch, ids: tuple[int, ...]) -> pa.RecordBatch:
    """Returns changes with a key of one column, and without the columns that were added."""
    assert list(ids) == sorted(ids), f"columns {ids}"
    rows = []
    names = batch.schema.names[:_META]
    for given in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        who, k, one, other = given[_META : _META + 4]
        assert other == -one or (other is None and who == "partial"), f"a change to {one} and {other} of {who}"
        rows.append({**dict(zip(names, given[:_META], strict=True)), "k": f"{who} {k}", "one": one, "other": other})
    schema = pa.schema([*list(batch.schema)[:_META], ("k", pa.string()), ("one", pa.int64()), ("other", pa.int64())])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


class FollowsChanges(StoryPart):
    """Follows the changes, each step up to the latest one, and applies them.

    Args:
        start: Returns where it starts.
        by_token: Whether it continues with a token; otherwise with offsets.
        whole: Whether it begins with all rows or changes, so that it knows the table.
    """

    def __init__(
        self,
        client: scankv.Client,
        name: str,
        who: str,
        start: Callable[[], StartFrom],
        *,
        by_token: bool,
        whole: bool,
    ) -> None:
        super().__init__(client, name, who)
        self._start = start
        self._by_token = by_token
        self._whole = whole
        self._begin_again()

    def _begin_again(self) -> None:
        is_full = self._whole and self._start() is StartFrom.FULL
        self.replay = ReplayedTable({} if self._whole else None, selective=is_full)
        self._token: bytes | None = None
        self._offsets: LogOffsets | None = None

    async def step(self, table: scankv.Table) -> None:
        start = self._start() if self._offsets is None else StartFrom.offsets(self._offsets)
        changes = table.changes(start, StopAt.LATEST)
        if self._token is not None:
            changes = changes.resume_from(self._token)
        try:
            async with changes.stream() as stream:
                async for batch in stream:
                    self.replay.play(_plain(batch, stream.column_ids))
                    # Rows of the start have no offsets to continue with.
                    if self._by_token or stream.phase == "rows":
                        self._token = stream.resume_token
                    else:
                        self._token, self._offsets = None, stream.next_offsets
            self.outcomes["read"] += 1
        except (TableRecreated, TableNotFound):
            self._begin_again()
            raise
        except (InvalidResumeToken, SchemaMismatch) as error:
            self.outcomes[type(error).__name__] += 1
            self._begin_again()

    async def check(self, table: scankv.Table) -> None:
        with suppress(TableRecreated):
            await self.step(table)
        await self.step(table)
        columns = [column.to_pylist() for column in (await table.scan().to_arrow()).columns[:_META]]
        now = {f"{who} {k}": (one, other) for who, k, one, other in zip(*columns, strict=True)}
        known = {key: (row.get("one"), row.get("other")) for key, row in self.replay.table.items()}
        keys = known.keys() | now.keys() if self._whole else known.keys()
        wrong = {key: (known.get(key), now.get(key)) for key in keys if known.get(key) != now.get(key)}
        assert not wrong, f"{len(wrong)} rows differ, such as {next(iter(wrong.items()))}"


class ConsumesChanges(StoryPart):
    """Reads changes as a consumer, commits after some batches, and begins again after the last commit."""

    def __init__(self, client: scankv.Client, name: str, who: str) -> None:
        super().__init__(client, name, who)
        self._committed: list[dict[int, int]] = [{}]
        """What the next change of each bucket may be: more than one possibility after an unanswered commit."""
        self._incarnation = ""

    async def step(self, table: scankv.Table) -> None:
        places: dict[int, int] = {}
        changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id=self.who).with_chunk(rows=500)
        async with changes.stream() as stream:
            if stream.table_incarnation != self._incarnation:
                # Consumers are dropped with their table.
                self._committed, self._incarnation = [{}], stream.table_incarnation
            candidates, number = self._committed, 0
            async for batch in stream:
                bucket = batch.column("_bucket")[0].as_py()
                counts = [count_of(offset) for offset in batch.column("_log_offset").to_pylist()]
                _plain(batch, stream.column_ids)
                if bucket in places:
                    assert counts[0] == places[bucket], f"bucket {bucket}: {counts[0]} follows {places[bucket]}"
                else:
                    candidates = [each for each in candidates if each.get(bucket, 0) == counts[0]]
                    assert candidates, f"bucket {bucket}: starts with {counts[0]} after {self._committed}"
                assert counts == list(range(counts[0], counts[0] + len(counts))), f"bucket {bucket}: {counts}"
                places[bucket] = counts[-1] + 1
                number += 1
                if (number + self.steps) % 3 == 0:
                    known = [{**each, **places} for each in candidates]
                    self._committed = [*candidates, *known]
                    await stream.commit()
                    self._committed = candidates = known
                    self.outcomes["committed"] += 1
        self.outcomes["read"] += 1


class WatchesRows(StoryPart):
    """Watches the first rows by their number, and polls a count and an aggregate."""

    def __init__(self, client: scankv.Client, name: str, who: str) -> None:
        super().__init__(client, name, who)
        self._watch: Any = None
        self._top: pa.Table | None = None
        self._polls: dict[str, tuple[bytes, object]] = {}

    async def step(self, table: scankv.Table) -> None:
        if self._watch is None:
            self._watch = table.watch_top_n(20, order_by="k", every=0.1)
        try:
            async with asyncio.timeout(0.5):
                self._top = (await anext(self._watch)).rows
        except TimeoutError:
            pass
        except (ScanKvError, StopAsyncIteration):
            self._watch, self._top = None, None
            raise
        await self._poll(table)
        if self._top is not None:
            for one, other in zip(
                self._top.column(FIRST).to_pylist(), self._top.column(FIRST + 1).to_pylist(), strict=True
            ):
                assert other in (None, -one), f"first rows with {one} and {other}"

    async def _poll(self, table: scankv.Table) -> None:
        since, _ = self._polls.get("count", (None, None))
        counted = await table.count_if_changed(since, "who = 'old'")
        if counted is not None:
            self._polls["count"] = counted.version, counted.value
            assert counted.value in (0, OLD), f"{counted.value} old rows"
        first, second = names_of(table)
        since, _ = self._polls.get("sums", (None, None))
        found = await table.aggregate_if_changed(since, {first: "sum", second: "sum"}, "who = 'still'")
        if found is not None:
            sums = {row for column in found.value.columns for row in column.to_pylist()}
            self._polls["sums"] = found.version, sums
            right = STILL * (STILL + 1) // 2
            assert sums in ({right, -right}, {None}), f"sums {sums}"

    async def check(self, table: scankv.Table) -> None:
        await self._poll(table)
        assert self._polls["count"][1] == await table.count("who = 'old'"), "a poll has missed a change"
        if self._watch is None:
            self._watch = table.watch_top_n(20, order_by="k", every=0.1)

        async def is_up_to_date() -> bool:
            now = await table.top_n(20, order_by="k")
            if self._top is not None and sorted(map(str, now.to_pylist())) == sorted(map(str, self._top.to_pylist())):
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    self._top = (await anext(self._watch)).rows
            return False

        await await_until(is_up_to_date, "the watch has what the table has", 20)

    async def aclose(self) -> None:
        if self._watch is not None:
            await self._watch.aclose()


class ReadsStillRows(StoryPart):
    """Reads the rows that nobody changes in every other way."""

    ways: ClassVar[tuple[str, ...]] = (
        "get",
        "lookup",
        "prefix",
        "range",
        "ordered",
        "index",
        "top_n",
        "resumed",
        "where",
        "snapshot",
        "large",
    )

    async def step(self, table: scankv.Table) -> None:
        way = self.ways[self.steps % len(self.ways)]
        try:
            await getattr(self, f"_{way}")(table)
        except AssertionError as error:
            raise AssertionError(f"{way}: {error}") from error
        self.outcomes[way] += 1

    async def _get(self, table: scankv.Table) -> None:
        for k in range(0, STILL, 30):
            row = await table.get(("still", k))
            values = [] if row is None else list(row.values())[FIRST : FIRST + 2]
            assert values in ([], [k + 1, -k - 1]), f"get({k}) has {values}"

    async def _lookup(self, table: scankv.Table) -> None:
        rows = await table.lookup([("still", k) for k in range(0, STILL, 3)])
        self._check_still(rows, len(range(0, STILL, 3)))

    async def _large(self, table: scankv.Table) -> None:
        """More keys than fit into one request."""
        rows = await table.lookup([("still", k % STILL) for k in range(12_000)])
        assert [n - 1 for n in numbers_of(rows)] == rows.column("k").to_pylist()

    async def _prefix(self, table: scankv.Table) -> None:
        self._check_still(await table.scan().prefix("still").to_arrow(), STILL)

    async def _range(self, table: scankv.Table) -> None:
        self._check_still(await table.scan().key_range(("still", 10), ("still", 109)).to_arrow(), 100)

    async def _ordered(self, table: scankv.Table) -> None:
        rows = await table.scan().prefix("still").ordered().to_arrow()
        self._check_still(rows, STILL)
        assert rows.column("k").to_pylist() == sorted(rows.column("k").to_pylist())

    async def _index(self, table: scankv.Table) -> None:
        first, second = names_of(table)
        for name, sign in ((first, 1), (second, -1)):
            rows = await table.scan(where=f"who = 'still' AND {name} = {sign * 7}").to_arrow()
            assert numbers_of(rows) in ([], [7])

    async def _top_n(self, table: scankv.Table) -> None:
        first, _ = names_of(table)
        rows = await table.top_n(10, order_by=first, where="who = 'still'")
        numbers = numbers_of(rows)
        assert not numbers or set(numbers) in (set(range(1, 11)), set(range(STILL - 9, STILL + 1))), f"top {numbers}"

    async def _where(self, table: scankv.Table) -> None:
        first, second = names_of(table)
        assert await table.count(f"who = 'still' AND {first} > {second}") in (0, STILL)

    async def _snapshot(self, table: scankv.Table) -> None:
        async with table.snapshot(ttl=60) as snapshot:
            rows = await table.scan().prefix("still").as_of(snapshot).to_arrow()
            self._check_still(rows, STILL)
            assert await table.count("who = 'still'", as_of=snapshot) == len(rows)

    async def _resumed(self, table: scankv.Table) -> None:
        scan, batches = table.scan().prefix("still").with_chunk(rows=20), list[pa.RecordBatch]()
        try:
            for _ in range(4):
                async with scan.stream() as stream:
                    batch = await anext(stream, None)
                    if batch is None:
                        break
                    batches.append(batch)
                    assert stream.resume_token is not None
                    scan = scan.resume_from(stream.resume_token)
            async with scan.stream() as stream:
                batches += [batch async for batch in stream]
        except (InvalidResumeToken, SchemaMismatch) as error:
            self.outcomes[type(error).__name__] += 1
            return
        numbers = [n for batch in batches for n in numbers_of(batch)]
        assert sorted(numbers) in ([], list(range(1, STILL + 1))), f"{Counter(numbers).most_common(3)}"

    @staticmethod
    def _check_still(rows: pa.Table, size: int) -> None:
        numbers = numbers_of(rows)
        assert len(numbers) in (0, size), f"{len(numbers)} rows instead of {size}"
        assert sorted(n - 1 for n in numbers) == sorted(rows.column("k").to_pylist())
