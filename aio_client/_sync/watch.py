"""Watching the first rows of a table for code that blocks; part of `scankv.sync`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from aio_client._queries.watch import compared
from aio_client._sync.runner import WAKE_SECONDS

if TYPE_CHECKING:
    from types import TracebackType

    from aio_client._queries.watch import Ranking, TopN, TopNPolls
    from aio_client._queries.watch import TopNWatch as AsyncTopNWatch
    from aio_client._sync.runner import Runner
    from scankv.model.errors import ScanKvError


class TopNWatch:
    """The first rows of a table, now and whenever they are others: a blocking iterator of `TopN`.

        with table.watch_top_n(10, by="score", every=2.0) as watch:
            for top in watch:
                show(top.rows, top.moved)

    It asks in the background from the start on until it is closed, or dropped, so that `latest` has an answer at any
    time; of what changed while nobody waited, the iterator gives the rows of now, with what has moved since those that
    it gave before. Changes of the table that do not change the rows are not told.

    The question waits at the server, which answers when a write has changed the table. So a change is told at once, or
    `every` seconds after the answer before, if that is later: a busy table costs at most one answer in that time. While
    nothing changes, the server says so every half minute or so, from memory. One at which too many calls wait already
    says it at once, and is asked every `every` seconds instead.

    A server that is away, as for a restart, is waited for, for the operation timeout; other errors, and that it was
    away for longer, are raised and end the watch. Versions outlive a restart, so it costs nothing when nothing changed.

    Thread-safe.
    """

    def __init__(self, runner: Runner, watch: AsyncTopNWatch) -> None:
        """Called by `Table.watch_top_n`; starts asking."""
        self._runner = runner
        self._polls = watch._polls
        self._given: Ranking | None = None
        self._closed = False
        self._feed = _Feed()
        runner.start(_pump, self._polls, self._feed)

    def __del__(self) -> None:
        # May happen in any thread, also in the client's own, so it must not wait.
        if hasattr(self, "_feed") and not self._closed:
            self._runner.soon(self._polls.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TopN:
        """The next rows, as soon as they differ from those that were given last.

        Raises:
            StopIteration: The watch was closed.
            TableNotFound: The table was dropped.
            SchemaMismatch: A column is no more: the table was dropped and created anew, differently.
            Unavailable, ServerDraining: The server was away for longer than the operation timeout.
            UsageError: The client was closed.
            ScanKvError: As `Table.top_n`.
        """
        feed = self._feed
        with feed.changed:
            while not self._closed:
                now, before = feed.ranking, self._given
                if now is not None and now is not before:
                    self._given = now
                    if before is None or not before.same_rows(now):
                        return compared(before, now)
                if feed.error is not None:
                    raise feed.error
                if feed.ended:
                    break
                feed.changed.wait(WAKE_SECONDS)
        raise StopIteration

    def latest(self) -> TopN | None:
        """The newest rows, with what moved when they came; None before the first. Never blocks.

        Raises:
            ScanKvError: What ended the watch.
        """
        feed = self._feed
        with feed.changed:
            if feed.error is not None and not self._closed:
                raise feed.error
            return feed.top

    @property
    def unchanged(self) -> int:
        """How many answers in a row had the rows of the one before."""
        return self._polls.unchanged

    @property
    def current_error(self) -> ScanKvError | None:
        """Why the server has not answered since its last answer, while it is asked again; None while it answers."""
        return self._polls.current_error

    def close(self) -> None:
        """Ends the watch; whoever waits for its next rows finds the end. Idempotent."""
        with self._feed.changed:
            self._closed = True
            self._feed.changed.notify_all()
        self._runner.soon(self._polls.close)


class _Feed:
    """What the watch has found so far, handed from the client's thread to others; `changed` guards it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ranking: Ranking | None = None
        self.top: TopN | None = None
        self.error: Exception | None = None
        self.ended = False

    def put(self, ranking: Ranking) -> None:
        with self.changed:
            self.top = compared(self.ranking, ranking)
            self.ranking = ranking
            self.changed.notify_all()

    def end(self, error: Exception | None) -> None:
        with self.changed:
            self.error, self.ended = error, True
            self.changed.notify_all()


async def _pump(polls: TopNPolls, feed: _Feed) -> None:
    """Asks until it is told to stop. Refers to nothing that keeps the client."""
    failure: Exception | None = None
    try:
        while (ranking := await polls.next()) is not None:
            feed.put(ranking)
    except Exception as error:
        # Without its traceback: its frames would keep the connection.
        failure = error.with_traceback(None)
    finally:
        feed.end(failure)
