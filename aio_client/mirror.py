"""A copy of a table in memory that follows it: all rows once, then every change.

    async with mirror(table) as local:
        local.get("ann")                  # as of now, without a call
        await local.wait_for_change()             # returns when something has
        local.to_arrow()

What dashboards and caches need: reads cost no call, and nothing is asked for again. Keep `state()` to go on after a
restart of the process where the copy stands, without reading the rows again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from copy import copy
from dataclasses import dataclass
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from aio_client._input.keys import is_one_key, keys_of
from aio_client._input.optional import to_pylist
from scankv.model import lazy_compute as pc
from scankv.model.changes.log_offsets import LogOffsets, check_incarnation
from scankv.model.changes.log_positions import ScanSource, StartFrom
from scankv.model.errors import InvalidKey, UsageError
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.public_names import set_public_module
from scankv.model.tables.schema import CHANGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from aio_client._client.table import Table
    from aio_client._scan.scan import Scan
    from aio_client._scan.stream import ScanStream
    from scankv.model.expressions import Where

__all__ = ["Mirror", "MirrorState", "mirror"]

_SPARE_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class MirrorState:
    """Where a mirror stands: to be kept, and given to the next one. Immutable, picklable.

    Attributes:
        rows: Its rows.
        token: What the changes go on behind.
    """

    rows: pa.Table
    token: bytes


def mirror(
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    state: MirrorState | None = None,
) -> Mirror:
    """A copy of a table, or of a part of it, that follows it; to be entered with `async with`.

    Args:
        table: What is copied.
        columns: The columns of the copy; those of the key are always in it. Default: all, also ones added later.
        where: What is true of the rows of the copy. Default: all rows.
        state: Where an earlier mirror of the same columns and rows stood. Default: the rows are read first.

    Raises:
        UsageError: `where` cannot be read.
    """
    chosen = None if columns is None else [*(n for n in table.primary_key if n not in columns), *columns]
    scan = table.scan(chosen, where=where).with_source(ScanSource.LOG).start_from(StartFrom.FULL).with_row_kind()
    # A deletion of what the copy does not have changes nothing in it.
    scan = scan.with_unmatched("delete")
    if state is not None:
        scan = scan.resume_from(state.token)
    return Mirror(scan, table.primary_key, state)


class Mirror:
    """A copy of a table that follows it, while it is entered. Belongs to the event loop that it is entered in.

    Every read is of one moment: changes are applied between two turns of the event loop, a chunk of one bucket at once.
    Rows of several buckets are not of one instant; `wait_for` waits for what was written.

    A cut of the connection, or a restart of the server, is ridden through and leaves the copy as it was meanwhile. What
    ends the stream for good is raised by every read from then on.

    Takes the memory of the rows as Arrow has them, up to twice that between two tidyings, and some 150 bytes a row.
    """

    def __init__(self, scan: Scan, primary_key: Sequence[str], state: MirrorState | None) -> None:
        """Called by `mirror`."""
        assert scan.key_schema is not None
        self._key_schema = scan.key_schema
        self._codec = KeyCodec(self._key_schema.types, self._key_schema.names)
        self._primary_key = list(primary_key)
        self._scan = scan
        self._state = state
        self._stream: ScanStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._batches: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._stored = 0
        self._places: dict[bytes, int] = {}
        self._news = asyncio.Event()
        self._seen = 0
        self._applied = 0

    async def __aenter__(self) -> Self:
        """Reads all rows, and returns when the copy has them.

        Raises:
            SchemaMismatch, TableNotFound, PositionExpired, ...: As when a scan starts.
        """
        self._stream = self._scan.stream()
        try:
            await self._stream.__aenter__()
            if self._state is not None:
                for batch in self._state.rows.combine_chunks().to_batches():
                    self._apply(batch, np.zeros(batch.num_rows, np.bool_))
            self._stream.on_heartbeat(self._news.set)
            self._task = asyncio.create_task(self._follow())
            while self._stream.phase == "rows" and not self._task.done():
                await self._next_news()
            self._check()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stops following. What was read stays readable."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._stream is not None:
            await self._stream.aclose()

    def __len__(self) -> int:
        self._check()
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        self._check()
        return self._encoded(key) in self._places

    def get(self, key: object) -> dict[str, Any] | None:
        """The row with this key as a dictionary, None when there is none.

        Args:
            key: A scalar where the key has one column, a tuple in key order, or a dictionary of all key columns.

        Raises:
            InvalidKey: The key is incomplete, null, or not of its columns' types.
        """
        self._check()
        place = self._places.get(self._encoded(key))
        if place is None:
            return None
        batch = bisect_right(self._starts, place) - 1
        row = self._batches[batch].slice(place - self._starts[batch], 1)
        values: dict[str, Any] = to_pylist(self._widened([row]))[0]
        return values

    def to_arrow(self) -> pa.Table:
        """All rows, in no order."""
        self._check()
        self._tidy()
        return self._widened(self._batches)

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket, the offset of the first change that the copy does not have."""
        return self._following("log_offsets").next_offsets

    def state(self) -> MirrorState:
        """Where it stands, to go on from in another process. Raises UsageError before anything was read."""
        token = self._following("state").resume_token
        if token is None:
            raise UsageError("the mirror has read nothing yet: enter it first")
        return MirrorState(self.to_arrow(), token)

    async def wait_for_change(self) -> None:
        """Waits until the copy has changed since the last call; returns at once if it has already."""
        while self._applied == self._seen:
            self._check()
            await self._next_news()
        self._check()
        self._seen = self._applied

    async def wait_for(self, log_offsets: Mapping[int, int]) -> None:
        """Returns when the copy has every change before these offsets, as those of a write's result.

        Raises:
            TableRecreated: They are of another table of the same name than the copy.
        """
        of_offsets = LogOffsets.incarnation_of(log_offsets)
        check_incarnation(of_offsets, self._scan.spec.table, self.log_offsets.table_incarnation)
        while any(self.log_offsets.get(bucket, offset) < offset for bucket, offset in log_offsets.items()):
            self._check()
            await self._next_news()
        self._check()

    async def _next_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _follow(self) -> None:
        assert self._stream is not None
        try:
            async for rows in self._stream:
                gone = pc.equal(rows.column("_change_type"), "-D").to_numpy(zero_copy_only=False)
                self._apply(rows.select(range(len(CHANGE_COLUMNS), rows.num_columns)), gone)
                self._applied += 1
                self._news.set()
            self._failure = UsageError("the stream of changes has ended")
        except Exception as error:
            # Also an unexpected one: raised by every read, instead of a copy that stands still without a word.
            self._failure = error
        finally:
            self._news.set()

    def _apply(self, rows: pa.RecordBatch, gone: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Takes changes, of which the last one of each key counts; those that are `gone` have no row any more."""
        keys = self._codec.encode([rows.column(name) for name in self._primary_key]).to_pylist()
        last = dict(zip(keys, range(len(keys)), strict=True))
        places = np.fromiter(last.values(), np.int64, len(last))
        is_gone = gone[places]
        deque(map(self._places.pop, compress(last, is_gone), repeat(None)), maxlen=0)
        self._places.update(zip(compress(last, ~is_gone), (places[~is_gone] + self._stored).tolist(), strict=True))
        self._batches.append(rows)
        self._starts.append(self._stored)
        self._stored += rows.num_rows
        if self._stored > 2 * len(self._places) + _SPARE_ROWS:
            self._tidy()

    def _tidy(self) -> None:
        """Drops rows that are no more, and makes one batch of all."""
        if len(self._batches) < 2 and self._stored == len(self._places):
            return
        places = np.fromiter(self._places.values(), np.int64, len(self._places))
        kept = self._widened(self._batches).take(pa.array(places)).combine_chunks()
        self._batches = kept.to_batches() or []
        self._places = dict(zip(self._places, range(len(places)), strict=True))
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)]).tolist()[:-1]
        self._stored = len(places)

    def _widened(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Batches as a table of the current columns; those added since are null."""
        schema = self._row_schema()
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        return pa.concat_tables([schema.empty_table(), *tables], promote_options="default")

    def _row_schema(self) -> pa.Schema:
        fields = list(self._following("the copy").schema)
        return pa.schema(fields[len(CHANGE_COLUMNS) :])

    def _encoded(self, key: object) -> bytes:
        if not is_one_key(key):
            raise InvalidKey(f"this takes one key, not a {type(key).__name__}")
        encoded: bytes = self._codec.encode(keys_of(key, self._key_schema).columns)[0].as_py()
        return encoded

    def _following(self, what: str) -> ScanStream:
        if self._stream is None:
            raise UsageError(f"{what} is known once the mirror is entered: `async with mirror(table) as local`")
        return self._stream

    def _check(self) -> None:
        self._following("the copy")
        if self._failure is not None:
            raise copy(self._failure) from self._failure


set_public_module("scankv.mirror", globals(), __all__)
