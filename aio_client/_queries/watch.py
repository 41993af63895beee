"""Watching the first rows of a table: asked once until something changes, told only what does, and what moved."""

from __future__ import annotations

import asyncio
import math
import time
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.types as pat

from aio_client._queries.aggregate import changed_top_n, decode_rows, top_n
from scankv.model import lazy_compute as pc
from scankv.model.errors import ScanKvError, SchemaMismatch, UsageError
from scankv.v1 import lookup_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from aio_client._transport.transport import Transport
    from scankv.v1.lookup_pb2 import TopNRequest, TopNResponse

MIN_SECONDS: Final = 0.1
"""Between two answers of a watch."""

WAIT_SECONDS: Final = 30.0
"""How long a question waits at the server for a change. Shorter than what most proxies allow a call that is silent."""


@dataclass(frozen=True, slots=True)
class TopN:
    """The first rows of a table, and what has moved since those that were given before.

    Ranks are int32 and count from 1. Rows are told apart by their primary key: one whose other columns changed, but not
    its rank, is in none of the three, and `rows` has it as it is now.

    Attributes:
        rows: The rows, the first one first.
        version: What they were computed from, as `Versioned.version`.
        entered: The rows that were not there before: key columns and `rank`, by rank. All of them the first time.
        left: Those that are there no more: key columns and `rank`, which is the last one they had.
        moved: Those with another rank: key columns, `rank_before` and `rank`, by the latter.
    """

    rows: pa.Table
    version: bytes
    entered: pa.Table
    left: pa.Table
    moved: pa.Table


@dataclass(frozen=True, slots=True)
class Ranking:
    """One answer about the first rows.

    Attributes:
        rows: The columns that were asked for.
        keys: The key columns.
        version: What it was computed from.
    """

    rows: pa.Table
    keys: pa.Table
    version: bytes

    @classmethod
    def of(cls, rows: pa.Table, version: bytes, primary_key: Sequence[str], hidden: Sequence[str]) -> Ranking:
        """An answer, of which some columns were asked for only because they are in the key.

        Raises:
            SchemaMismatch: Key columns are missing: it is another table by now.
        """
        if not set(primary_key) <= set(rows.schema.names):
            raise _another_key()
        return cls(rows.drop_columns(list(hidden)), rows.select(list(primary_key)), version)

    def same_rows(self, other: Ranking) -> bool:
        """Whether the rows are the same, to the bit."""
        return (
            self.rows.schema == other.rows.schema
            and _same_values(self.keys, other.keys)
            and _same_values(self.rows, other.rows)
        )


def compared(before: Ranking | None, now: Ranking) -> TopN:
    """The rows of now, and what has moved since those before; None: since there were none.

    Raises:
        SchemaMismatch: The keys are of other types: it is another table by now.
    """
    schema = now.keys.schema
    earlier = schema.empty_table() if before is None else before.keys
    if earlier.schema != schema:
        raise _another_key()
    names = [str(number) for number in range(len(schema))]
    ranked = [_ranked(earlier, names, "before"), _ranked(now.keys, names, "now")]
    both = pa.concat_tables(ranked, promote_options="default")
    ranks = both.group_by(names, use_threads=False).aggregate([("before", "max"), ("now", "max")])
    was, is_ = pc.is_valid(ranks["before_max"]), pc.is_valid(ranks["now_max"])

    def found(where: pa.ChunkedArray, order: str, **columns: str) -> pa.Table:
        chosen = ranks.filter(where).sort_by(order)
        fields = [*schema, *(pa.field(name, pa.int32()) for name in columns)]
        return pa.Table.from_arrays([chosen[name] for name in [*names, *columns.values()]], schema=pa.schema(fields))

    moved = pc.fill_null(pc.not_equal(ranks["before_max"], ranks["now_max"]), False)
    return TopN(
        rows=now.rows,
        version=now.version,
        entered=found(pc.invert(was), "now_max", rank="now_max"),
        left=found(pc.invert(is_), "before_max", rank="before_max"),
        moved=found(moved, "now_max", rank_before="before_max", rank="now_max"),
    )


class TopNPolls:
    """Asks for the first rows again and again, and gives the answers whose rows differ from the one before.

    A question waits at the server until something has changed, so that it is answered at once then. The next question
    comes so many seconds after an answer with rows, and at once after one that says, having waited, that nothing has
    changed. A server that says so without having waited, as it may, is asked every so many seconds.

    Belongs to the event loop of its client.

    Attributes:
        unchanged: How many answers in a row had the rows of the one before.
        current_error: Why the server has not answered since the last answer; None while it does.
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
            request: What is asked.
            primary_key: The key columns in key order.
            hidden: Those of them that are asked for only to tell the rows apart.
            every: The least seconds from one answer with rows to the next question.
            wait: Seconds that a question waits at the server for a change.
            clock: Monotonic seconds.

        Raises:
            UsageError: `every` is out of its range.
        """
        if not isinstance(every, int | float) or isinstance(every, bool) or not MIN_SECONDS <= every < math.inf:
            raise UsageError(f"every is a number of seconds, at least {MIN_SECONDS:g}, not {every!r}", option="every")
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
        """The next rows that differ, as soon as they do; None once it is closed. Nothing is lost when it is cancelled.

        Raises:
            TableNotFound: The table was dropped.
            Unavailable, ServerDraining: The server was away for longer than the operation timeout.
            ScanKvError: As `Table.top_n`.
        """
        try:
            # Without an end of its own: `close` ends it.
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
        """Asks no more; whoever waits gets None. Idempotent."""
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
        """Asks once; the rows, unless they are those that were given last."""
        asked, last = self._clock(), self._last
        # Also where it is cancelled: reads that are given up early do not make more questions.
        self._due = asked + self._every
        response = await (self._first() if last is None else self._next_since(last.version))
        self.current_error = None
        answered, ranking = self._clock(), None
        if not response.unchanged:
            self._due = answered + self._every
            now = Ranking.of(decode_rows(response.rows), response.version, self._primary_key, self._hidden)
            self._last = now
            ranking = None if last is not None and last.same_rows(now) else now
        elif answered - asked >= self._wait / 2:  # else it did not wait
            self._due = answered
        self.unchanged = self.unchanged + 1 if ranking is None else 0
        return ranking

    async def _first(self) -> TopNResponse:
        asked = self._clock()
        response = await top_n(self._transport, self._request, self._note)
        self._took = self._clock() - asked
        return response

    async def _next_since(self, version: bytes) -> TopNResponse:
        request = lookup_pb2.TopNRequest()
        request.CopyFrom(self._request)
        request.if_changed_since = version
        config = self._transport.config
        # The whole operation timeout would be how late it is noticed that a server is silent.
        timeout = min(config.operation_timeout, config.call_timeout + 2 * self._took)
        return await changed_top_n(self._transport, request, self._note, wait=self._wait, timeout=timeout)

    def _note(self, error: ScanKvError) -> None:
        # A copy, without the traceback whose frames keep the call.
        self.current_error = copy(error)


class TopNWatch:
    """The first rows of a table, now and whenever they are others: an asynchronous iterator of `TopN`.

    The first one comes at once. Then the question waits at the server, which answers when a write has changed the
    table. So a change is told at once, or `every` seconds after the answer before, if that is later: a busy table costs
    at most one answer in that time. Nothing is asked while nobody waits for the next rows; who takes long gets, next
    time, the rows of then, with what has moved since those that it was given. Changes of the table that do not change
    the rows are not told.

    While nothing changes, the server says so every half minute or so, from memory. One at which too many calls wait
    already says it at once, and is asked every `every` seconds instead.

    A server that is away, as for a restart, is waited for, for the operation timeout; other errors, and that it was
    away for longer, are raised and end the watch. Versions outlive a restart, so it costs nothing when nothing changed.

    One reader at a time. Cancelling a read loses nothing: read again. Belongs to the event loop of its client. Nothing
    runs between reads, so that `aclose` and `async with` are needed only to end a read that waits.
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
        """The next rows, as soon as they differ from those that were given last.

        Raises:
            StopAsyncIteration: The watch was closed.
            TableNotFound: The table was dropped.
            SchemaMismatch: A column is no more: the table was dropped and created anew, differently.
            Unavailable, ServerDraining: The server was away for longer than the operation timeout.
            UsageError: Another task is reading this watch, or the client was closed.
            ScanKvError: As `Table.top_n`.
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
            top = compared(self._last, ranking)
        except ScanKvError as error:
            self._failure = error
            raise
        finally:
            self._reading = False
        self._last = ranking
        return top

    @property
    def unchanged(self) -> int:
        """How many answers in a row had the rows that were given last."""
        return self._polls.unchanged

    @property
    def current_error(self) -> ScanKvError | None:
        """Why the server has not answered since its last answer, while it is asked again; None while it answers."""
        return self._polls.current_error

    async def aclose(self) -> None:
        """Ends the watch; a read that waits ends as at the end. Idempotent."""
        self._closed = True
        self._polls.close()


def _ranked(keys: pa.Table, names: Sequence[str], rank: str) -> pa.Table:
    ranks = pa.array(range(1, keys.num_rows + 1), pa.int32())
    return pa.Table.from_arrays([*keys.columns, ranks], names=[*names, rank])


def _same_values(one: pa.Table, other: pa.Table) -> bool:
    if one.num_rows != other.num_rows:
        return False
    return all(_same_column(*columns) for columns in zip(one.columns, other.columns, strict=True))


def _same_column(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if pat.is_floating(one.type):
        # As bits: to Arrow, NaN differs from itself.
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[one.type.bit_width]
        one, other = (pa.chunked_array([part.view(bits) for part in each.chunks], bits) for each in (one, other))
    return bool(one.equals(other))


def _another_key() -> SchemaMismatch:
    return SchemaMismatch("the table was dropped and created anew with another key: open it anew and watch that")
