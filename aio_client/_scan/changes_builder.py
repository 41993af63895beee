"""The refinements of a scan of the changelog, each of which returns a copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from scankv.model.changes.log_positions import CatchUp, LogSpec, ScanSource, Unmatched
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from scankv.model.changes.log_positions import StartFrom, StopAt
    from scankv.model.scans.scan_spec import ScanSpec


class ChangesBuilder(ABC):
    """What can be said of the changes that a scan reads."""

    __slots__ = ()
    _spec: ScanSpec

    def with_source(self, source: ScanSource) -> Self:
        """Reads the changes of the table (`ScanSource.LOG`), from now on where nothing else is said, or its rows."""
        if source not in tuple(ScanSource):
            raise UsageError(f"with_source takes ScanSource.KV or ScanSource.LOG, not {source!r}")
        return self._with(log=LogSpec() if source == ScanSource.LOG else None)

    def start_from(self, start: StartFrom, *, clamp: bool = False) -> Self:
        """Where a scan of the changelog starts.

        Args:
            start: `StartFrom.FULL`, `EARLIEST`, `LATEST`, `timestamp(...)`, `offsets(...)` or `last(n)`.
            clamp: Whether a start that is older than the oldest change that is kept, or beyond the end, stands for the
                nearest change that is there, instead of PositionExpired and PositionOutOfRange.
        """
        return self._with(log=replace(self._log("start_from"), start=start, clamp=clamp))

    def stop_at(self, stop: StopAt | None) -> Self:
        """Where a scan of the changelog ends: `StopAt.LATEST`, `timestamp(...)`, `offsets(...)`; None for never."""
        return self._with(log=replace(self._log("stop_at"), stop=stop))

    def with_catch_up(self, catch_up: Literal["all", "net"], *, lag_threshold: int | None = None) -> Self:
        """Chooses what a backlog is read as: all changes, or one net change for each key (compacted catch-up).

        With "net", a bucket whose lag is greater than `lag_threshold` returns net changes up to the end of its log: for
        each key that differs from what it was, `+I`, `-D`, or `-U` and `+U`, with the offset and time of its last
        change. That holds at the start, and whenever the lag grows so large again.

        Args:
            catch_up: `"all"` or `"net"`.
            lag_threshold: With `"net"`, a number of changes, at least 1. Default: the server's setting
                `catch_up_changes`, which is 100,000 unless configured.

        Raises:
            UsageError: An argument is none of these, or this is not a scan of the changelog.
        """
        if catch_up not in tuple(CatchUp):
            raise UsageError(f'with_catch_up takes "all" or "net", not {catch_up!r}')
        return self._with(
            log=replace(self._log("with_catch_up"), catch_up=CatchUp(catch_up), lag_threshold=lag_threshold)
        )

    def with_unmatched(self, unmatched: Literal["refuse", "delete"]) -> Self:
        """What comes of rows that do not match the predicate of a scan of the changelog of a table without old rows.

        A table that was created with `changelog="upsert"` does not tell what a row was before it changed. So nobody
        knows which rows cease to match, and a predicate that looks at other columns than the key is refused, unless
        every row that is written and does not match may come as `-D`, with its key. Whoever keeps the rows has exactly
        those that match: it is told of more deletions than there were, but of all that there were.

        For tables whose changelog has the old rows it changes nothing: there, rows that cease to match are `-D`.
        """
        if unmatched not in tuple(Unmatched):
            raise UsageError(f'with_unmatched takes "refuse" or "delete", not {unmatched!r}')
        return self._with(log=replace(self._log("with_unmatched"), unmatched=Unmatched(unmatched)))

    def with_row_kind(self) -> Self:
        """Has the rows of a scan of the changelog come with what happened to them, in four columns before their own.

        `_change_type` is `+I` for a new row, `-U` and `+U` for a row before and after an update, `-D` for one that was
        deleted, as it was. Of a table created with `changelog="upsert"` every row written is `+U`, and `-D` has
        its key alone, with null beside it.

        `_log_offset` counts the changes of `_bucket`, `_commit_timestamp` says when. Of the rows of a start from the
        whole table, which are `+I`, offset and timestamp are null.
        """
        return self._with(log=replace(self._log("with_row_kind"), row_kind=True))

    def with_consumer_id(self, consumer_id: str, *, must_exist: bool = False) -> Self:
        """Reads the changes on behalf of a consumer, whose position the server keeps.

            async with table.changes(consumer_id="billing").stream() as stream:
                async for changes in stream:
                    ...
                    await stream.commit()

        A stream begins where the consumer has committed, in whichever process; where it never has, there where its
        first stream began. `start_from` is for a consumer that there is not yet. What was not committed comes again.
        The changelog is kept for it, from that first moment on, until nothing was heard of it for the server's
        `consumer_ttl_seconds`. A new stream takes the consumer over: the one before it gets ConsumerFenced. So each
        shard needs an id of its own.

        Columns, predicate and buckets may differ from those of the streams before; not while the rows of a start from
        the whole table are read. It has no `limit`.

        Args:
            consumer_id: 1 to 128 of `A-Z a-z 0-9 . _ -`, not `.` or `..`.
            must_exist: Whether the stream of a consumer that there is not raises ConsumerNotFound, instead of beginning
                it: for one that must not start from scratch after it has expired, or by a misspelled id.

        Raises:
            UsageError: It is no such id, or this is no scan of the changelog.
        """
        log = self._log("with_consumer_id")
        if consumer_id is None:  # a setting that is missing: without an id, nothing would be kept
            raise UsageError("with_consumer_id takes the id of a consumer, not None")
        return self._with(log=replace(log, consumer_id=consumer_id, consumer_must_exist=must_exist))

    def with_poll_interval_ms(self, millis: int) -> Self:
        """Changes nothing, and is needless: the server sends changes when they are committed; nobody asks for them.

        For code that is written against interfaces which poll.

        Args:
            millis: At least 0.
        """
        if isinstance(millis, bool) or not isinstance(millis, int | float) or not millis >= 0:
            raise UsageError(f"a poll interval is a number of milliseconds, at least 0, not {millis!r}")
        return self._with()

    def _log(self, method: str) -> LogSpec:
        if self._spec.log is None:
            raise UsageError(f"{method} is for a scan of the changelog: see with_source(ScanSource.LOG)")
        return self._spec.log

    def _readable(self) -> ScanSpec:
        """The spec, if what it reads can be understood."""
        if self._spec.log is not None and not self._spec.log.row_kind:
            raise UsageError(
                "a stream of changes has rows that were deleted, and rows as they were before: ask with "
                "with_row_kind() for the columns that tell them apart"
            )
        return self._spec

    @abstractmethod
    def _with(self, **changes: Any) -> Self:  # noqa: ANN401  # fields of ScanSpec, which validates them
        """A copy with other fields of its spec."""
