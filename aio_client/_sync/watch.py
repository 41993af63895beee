"""`scankv.sync.TopNWatch`: watches the first rows of a table in blocking code."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from aio_client._queries.watch import compare_rankings
from aio_client._scan.read_ahead import WAKE_SECONDS

if TYPE_CHECKING:
    from types import TracebackType

    from aio_client._queries.watch import Ranking, TopN, TopNPolls
    from aio_client._queries.watch import TopNWatch as AsyncTopNWatch
    from aio_client._sync.runner import Runner
    from scankv.model.errors import ScanKvError


class TopNWatch:
    """The first rows of a table, now and whenever they differ: a blocking iterator of `TopN`.

        with table.watch_top_n(10, order_by="score", every=2.0) as watch:
            for top in watch:
                show(top.rows, top.moved)

    The watch asks in the background from the start until it is closed or dropped, so `latest` has the newest answer at
    any time. The iterator returns the current rows, with the differences from the answer that it returned before.
    Changes of the table that leave the rows equal are not returned.

    The query waits at the server, which answers when a write has changed the table. The client thus gets a change at
    once, or `every` seconds after the answer before if that is later, so a busy table costs at most one answer in that
    time. While nothing changes, the server answers about every half minute, from memory. A server with too many waiting
    calls answers at once, and the watch asks every `every` seconds instead.

    If the server is away, for example to restart, the watch waits for the operation timeout. If the server stays away
    longer, and after any other error, the watch ends and raises the error. Versions survive a restart of the server, so
    a restart without changes causes no answer.

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
        """Waits for the next rows that differ from the last ones returned.

        Returns:
            The rows, with the differences from the last answer returned.

        Raises:
            StopIteration: The watch was closed.
            TableNotFound: The table was dropped.
            SchemaMismatch: A column is missing, because the table was dropped and created again with other columns.
            Unavailable, ServerDraining: The server was away for longer than the operation timeout.
            UsageError: The client was closed.
            ScanKvError: As for `Table.top_n`.
        """
        feed = self._feed
        with feed.changed:
            while not self._closed:
                now, before = feed.ranking, self._given
                if now is not None and now is not before:
                    self._given = now
                    if before is None or not before.same_rows(now):
                        return compare_rankings(before, now)
                if feed.error is not None:
                    raise feed.error
                if feed.ended:
                    break
                feed.changed.wait(WAKE_SECONDS)
        raise StopIteration

    def latest(self) -> TopN | None:
        """Returns the newest rows, with their differences from the answer before. Never blocks.

        Returns:
            The rows. None before the first answer.

        Raises:
            ScanKvError: The error that ended the watch.
        """
        feed = self._feed
        with feed.changed:
            if feed.error is not None and not self._closed:
                raise feed.error
            return feed.top

    @property
    def unchanged(self) -> int:
        """How many answers in a row had the rows of the answer before."""
        return self._polls.unchanged

    @property
    def current_error(self) -> ScanKvError | None:
        """Why the server has not answered since its last answer, while the watch retries. None while it answers."""
        return self._polls.current_error

    def close(self) -> None:
        """Ends the watch. A read that waits ends as at the end of the iteration. Idempotent."""
        with self._feed.changed:
            self._closed = True
            self._feed.changed.notify_all()
        self._runner.soon(self._polls.close)


class _Feed:
    """The answers of the watch, passed from the client's thread to others. `changed` guards the fields."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ranking: Ranking | None = None
        self.top: TopN | None = None
        self.error: Exception | None = None
        self.ended = False

    def put(self, ranking: Ranking) -> None:
        with self.changed:
            self.top = compare_rankings(self.ranking, ranking)
            self.ranking = ranking
            self.changed.notify_all()

    def end(self, error: Exception | None) -> None:
        with self.changed:
            self.error, self.ended = error, True
            self.changed.notify_all()


async def _pump(polls: TopNPolls, feed: _Feed) -> None:
    """Asks until the polls are closed. Holds no reference that would keep the client open."""
    failure: Exception | None = None
    try:
        while (ranking := await polls.next()) is not None:
            feed.put(ranking)
    except Exception as error:
        # The frames of its traceback would keep the connection.
        failure = error.with_traceback(None)
    finally:
        feed.end(failure)
