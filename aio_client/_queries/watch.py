"""Watches the first rows of a table: the query waits at the server, and the reader gets the rows when they differ."""

from __future__ import annotations

import asyncio
import math
import time
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.types as pat

from aio_client._queries.aggregate import decode_rows, top_n, wait_for_changed_top_n
from scankv.model import lazy_compute as pc
from scankv.model.counts import counted
from scankv.model.errors import ScanKvError, SchemaMismatch, UsageError
from scankv.v1 import lookup_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from aio_client._transport.transport import Transport
    from scankv.v1.lookup_pb2 import TopNRequest, TopNResponse

MIN_SECONDS: Final = 0.1
"""The least time between two answers of a watch."""

WAIT_SECONDS: Final = 30.0
"""How long a query waits at the server for a change. Shorter than the idle timeout of most proxies."""


@dataclass(frozen=True, slots=True)
class TopN:
    """The first rows of a table, and the differences from the answer before.

    Ranks are int32 and count from 1. Rows are identified by their primary key: a row whose other columns have changed,
    but not its rank, is in none of the three tables of differences, and `rows` has its new values.

    Attributes:
        rows: The rows, the first one first.
        version: The version that they were computed from, as `Versioned.version`.
        entered: The rows that were not in the answer before: key columns and `rank`, in order of `rank`. In the first
            answer, all rows.
        left: The rows that are no longer there: key columns and `rank`, which is their last rank.
        moved: The rows with another rank: key columns, `rank_before` and `rank`, in order of `rank`.
    """

    rows: pa.Table
    version: bytes
    entered: pa.Table
    left: pa.Table
    moved: pa.Table

    def __repr__(self) -> str:
        changes = ", ".join(f"{getattr(self, name).num_rows:,} {name}" for name in ("entered", "left", "moved"))
        return f"<{type(self).__name__} of {counted(self.rows.num_rows, 'row')}: {changes} since the answer before>"

    def _repr_html_(self) -> str:
        from aio_client._input.notebooks import html_of_rows

        return html_of_rows(repr(self).strip("<>"), self.rows)


@dataclass(frozen=True, slots=True)
class Ranking:
    """One answer about the first rows.

    Attributes:
        rows: The columns that the caller asked for.
        keys: The key columns.
        version: The version that the rows were computed from.
    """

    rows: pa.Table
    keys: pa.Table
    version: bytes

    @classmethod
    def of(cls, rows: pa.Table, version: bytes, primary_key: Sequence[str], hidden: Sequence[str]) -> Ranking:
        """Splits the rows of an answer. `hidden` columns were only requested because they belong to the key.

        Raises:
            SchemaMismatch: Key columns are missing, so the table is another one now.
        """
        if not set(primary_key) <= set(rows.schema.names):
            raise _key_changed_error()
        return cls(rows.drop_columns(list(hidden)), rows.select(list(primary_key)), version)

    def same_rows(self, other: Ranking) -> bool:
        """Returns whether the rows are equal, bit for bit."""
        return (
            self.rows.schema == other.rows.schema
            and _equal_tables(self.keys, other.keys)
            and _equal_tables(self.rows, other.rows)
        )


def compare_rankings(before: Ranking | None, now: Ranking) -> TopN:
    """Returns the current rows, and their differences from the answer before; `before` is None for the first answer.

    Raises:
        SchemaMismatch: The key columns have other types, so the table is another one now.
    """
    schema = now.keys.schema
    earlier = schema.empty_table() if before is None else before.keys
    if earlier.schema != schema:
        raise _key_changed_error()
    names = [str(number) for number in range(len(schema))]
    ranked = [_with_ranks(earlier, names, "before"), _with_ranks(now.keys, names, "now")]
    both = pa.concat_tables(ranked, promote_options="default")
    ranks = both.group_by(names, use_threads=False).aggregate([("before", "max"), ("now", "max")])
    was, is_ = pc.is_valid(ranks["before_max"]), pc.is_valid(ranks["now_max"])

    def select(where: pa.ChunkedArray, order: str, **columns: str) -> pa.Table:
        chosen = ranks.filter(where).sort_by(order)
        fields = [*schema, *(pa.field(name, pa.int32()) for name in columns)]
        return pa.Table.from_arrays([chosen[name] for name in [*names, *columns.values()]], schema=pa.schema(fields))

    moved = pc.fill_null(pc.not_equal(ranks["before_max"], ranks["now_max"]), False)
    return TopN(
        rows=now.rows,
        version=now.version,
        entered=select(pc.invert(was), "now_max", rank="now_max"),
        left=select(pc.invert(is_), "before_max", rank="before_max"),
        moved=select(moved, "now_max", rank_before="before_max", rank="now_max"),
    )


class TopNPolls:
    """Repeats a top-N query, and returns the answers whose rows differ from those of the answer before.

    A query waits at the server until something has changed, so it is answered at once then. The next query follows
    `every` seconds after an answer with rows, and at once after an answer that waited and found nothing changed. A
    server may answer "unchanged" without waiting; it is asked every `every` seconds.

    Belongs to the event loop of its client.

    Attributes:
        unchanged: How many answers in a row had the rows of the answer before.
        current_error: Why the server has not answered since the last answer. None while it answers.
    """

    def __init__(
        self,
        transport: Transport,
        request: TopNRequest,
        primary_key: Sequence[str],
        hidden: Sequence[str],
        every: float,
        wait: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks nothing yet.

        Args:
            transport: The client's connection.
            request: The query.
            primary_key: The key columns in key order.
            hidden: The key columns that are only requested to identify rows.
            every: The least time from an answer with rows to the next query, in seconds.
            wait: How long a query waits at the server for a change, in seconds.
            clock: Monotonic seconds.

        Raises:
            UsageError: `every` is out of range.
        """
        if not isinstance(every, int | float) or isinstance(every, bool) or not MIN_SECONDS <= every < math.inf:
            raise UsageError(
                f"every must be a number of seconds of at least {MIN_SECONDS:g}, not {every!r}", option="every"
            )
        self.unchanged: int = 0
        self.current_error: ScanKvError | None = None
        self._transport = transport
        self._request = request
        self._primary_key = primary_key
        self._hidden = hidden
        self._every = every
        self._wait = wait
        self._clock = clock
        self._due = -math.inf
        self._took = 0.0  # seconds until the first rows came
        self._last: Ranking | None = None
        self._waiting: asyncio.Timeout | None = None
        self._closed = False

    async def next(self) -> Ranking | None:
        """Waits for rows that differ from the last ones. None once the object is closed. Cancelling it loses nothing.

        Raises:
            TableNotFound: The table was dropped.
            Unavailable, ServerDraining: The server was away for longer than the operation timeout.
            ScanKvError: As for `Table.top_n`.
        """
        try:
            # No timeout of its own: `close` sets one to end the wait.
            async with asyncio.timeout(None) as self._waiting:
                while not self._closed:
                    await self._until_due()
                    ranking = await self._poll()
                    if ranking is not None:
                        return ranking
        except TimeoutError:
            if not self._closed:
                raise
        finally:
            self._waiting = None
        return None

    def close(self) -> None:
        """Stops asking; a waiting `next` returns None. Idempotent."""
        self._closed = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0)

    async def _until_due(self) -> None:
        seconds = self._due - self._clock()
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._transport.wait_closed()
        except TimeoutError:
            return

    async def _poll(self) -> Ranking | None:
        """Asks once. Returns the rows unless they equal the last ones."""
        asked, last = self._clock(), self._last
        # Set before the query, so that reads that are cancelled early do not cause more queries.
        self._due = asked + self._every
        response = await (self._first() if last is None else self._next_since(last.version))
        self.current_error = None
        answered, ranking = self._clock(), None
        if not response.unchanged:
            self._due = answered + self._every
            now = Ranking.of(decode_rows(response.rows), response.version, self._primary_key, self._hidden)
            self._last = now
            ranking = None if last is not None and last.same_rows(now) else now
        elif answered - asked >= self._wait / 2:  # Otherwise the server did not wait.
            self._due = answered
        self.unchanged = self.unchanged + 1 if ranking is None else 0
        return ranking

    async def _first(self) -> TopNResponse:
        asked = self._clock()
        response = await top_n(self._transport, self._request, self._record_error)
        self._took = self._clock() - asked
        return response

    async def _next_since(self, version: bytes) -> TopNResponse:
        request = lookup_pb2.TopNRequest()
        request.CopyFrom(self._request)
        request.if_changed_since = version
        config = self._transport.config
        # With the complete operation timeout, the client would notice only after that time that a server is silent.
        timeout = min(config.operation_timeout, config.call_timeout + 2 * self._took)
        return await wait_for_changed_top_n(
            self._transport, request, self._record_error, wait=self._wait, timeout=timeout
        )

    def _record_error(self, error: ScanKvError) -> None:
        # A copy has no traceback, whose frames would keep the call.
        self.current_error = copy(error)


class TopNWatch:
    """The first rows of a table, now and whenever they differ: an asynchronous iterator of `TopN`.

    The first answer comes at once. Then the query waits at the server, which answers when a write has changed the
    table. The reader thus gets a change at once, or `every` seconds after the answer before if that is later, so a busy
    table costs at most one answer in that time. Nothing is asked between reads: a slow reader gets, with its next read,
    the rows as of that time and the differences from the last answer that it got. Changes of the table that leave the
    rows equal are not returned.

    While nothing changes, the server answers about every half minute, from memory. A server with too many waiting calls
    answers at once, and the watch asks every `every` seconds instead.

    If the server is away, for example to restart, the watch waits for the operation timeout. If the server stays away
    longer, and after any other error, the watch ends and raises the error. Versions survive a restart of the server, so
    a restart without changes causes no answer.

    One reader at a time. Cancelling a read loses nothing: read again. Belongs to the event loop of its client. Nothing
    runs between reads, so `aclose` and `async with` are only needed to end a read that waits.
    """

    def __init__(self, polls: TopNPolls) -> None:
        """Called by `Table.watch_top_n`; asks nothing yet."""
        self._polls = polls
        self._last: Ranking | None = None
        self._reading = False
        self._closed = False
        self._failure: ScanKvError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TopN:
        """Waits for the next rows that differ from the last ones returned.

        Returns:
            The rows, with the differences from the last answer returned.

        Raises:
            StopAsyncIteration: The watch was closed.
            TableNotFound: The table was dropped.
            SchemaMismatch: A column is missing, because the table was dropped and created again with other columns.
            Unavailable, ServerDraining: The server was away for longer than the operation timeout.
            UsageError: Another task is reading this watch, or the client was closed.
            ScanKvError: As for `Table.top_n`.
        """
        if self._reading:
            raise UsageError("the watch is being read by another task; give each task its own")
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise StopAsyncIteration
        self._reading = True
        try:
            ranking = await self._polls.next()
            if ranking is None:
                raise StopAsyncIteration
            top = compare_rankings(self._last, ranking)
        except ScanKvError as error:
            self._failure = error
            raise
        finally:
            self._reading = False
        self._last = ranking
        return top

    @property
    def unchanged(self) -> int:
        """How many answers in a row had the rows that were returned last."""
        return self._polls.unchanged

    @property
    def current_error(self) -> ScanKvError | None:
        """Why the server has not answered since its last answer, while the watch retries. None while it answers."""
        return self._polls.current_error

    async def aclose(self) -> None:
        """Ends the watch. A read that waits ends as at the end of the iteration. Idempotent."""
        self._closed = True
        self._polls.close()


def _with_ranks(keys: pa.Table, names: Sequence[str], rank: str) -> pa.Table:
    ranks = pa.array(range(1, keys.num_rows + 1), pa.int32())
    return pa.Table.from_arrays([*keys.columns, ranks], names=[*names, rank])


def _equal_tables(one: pa.Table, other: pa.Table) -> bool:
    if one.num_rows != other.num_rows:
        return False
    return all(_equal_columns(*columns) for columns in zip(one.columns, other.columns, strict=True))


def _equal_columns(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if pat.is_floating(one.type):
        # Compared as bits, because Arrow treats NaN as different from itself.
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[one.type.bit_width]
        one, other = (pa.chunked_array([part.view(bits) for part in each.chunks], bits) for each in (one, other))
    return bool(one.equals(other))


def _key_changed_error() -> SchemaMismatch:
    return SchemaMismatch(
        "the table was dropped and created again with another key: open it again and watch the new one"
    )
