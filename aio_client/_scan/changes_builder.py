"""The methods that refine a scan of the changelog. Each returns a refined copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from aio_client._input.arguments import principal_of
from aio_client._input.near_misses import NearMisses
from scankv.model.changes.log_positions import CatchUp, LogSpec, Unmatched, Untracked
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from scankv.model.changes.log_positions import StartFrom, StopAt
    from scankv.model.scans.scan_spec import ScanSpec


class ChangesBuilder(ABC, NearMisses):
    """The methods of a scan that concern its changes."""

    __slots__ = ()
    _spec: ScanSpec

    def start_from(self, start: StartFrom, *, clamp: bool = False) -> Self:
        """Chooses where a scan of the changelog starts.

        Args:
            start: `StartFrom.FULL`, `EARLIEST`, `LATEST`, `timestamp(...)`, `offsets(...)`, `last(count)` or
                `lake(uri)`.
            clamp: Whether to start at the nearest change that exists if `start` lies before the oldest change kept, or
                after the end. By default, such a start raises PositionExpired or PositionOutOfRange.

        Raises:
            UsageError: `start` is not a `StartFrom`, or the scan does not read the changelog.
        """
        return self._with(log=replace(self._log("start_from"), start=start, clamp=clamp))

    def stop_at(self, stop: StopAt | None) -> Self:
        """Chooses where a scan of the changelog ends.

        Args:
            stop: `StopAt.LATEST`, `timestamp(...)` or `offsets(...)`. None: never.

        Raises:
            UsageError: `stop` is not a `StopAt`, or the scan does not read the changelog.
        """
        return self._with(log=replace(self._log("stop_at"), stop=stop))

    def with_catch_up(self, catch_up: Literal["all", "net"], *, lag_threshold: int | None = None) -> Self:
        """Chooses how a scan of the changelog reads a backlog: every change, or one net change per key.

        Reading a backlog as net changes is called compacted catch-up.

        With "net", a bucket whose lag is greater than `lag_threshold` returns its backlog as net changes: for each key
        that differs, deleted keys included, `+I`, `-D`, or `-U` and `+U`, with the offset and time of the key's last
        change. The lag is checked at the start, and again whenever the stream falls behind.

        Args:
            catch_up: "all" or "net".
            lag_threshold: With "net", a number of changes, at least 1. Default: the server's setting
                `catch_up_changes`, which is 100,000 unless configured.

        Raises:
            UsageError: An argument is invalid, or the scan does not read the changelog.
        """
        if catch_up not in tuple(CatchUp):
            raise UsageError(f'catch_up must be "all" or "net", not {catch_up!r}')
        return self._with(
            log=replace(self._log("with_catch_up"), catch_up=CatchUp(catch_up), lag_threshold=lag_threshold)
        )

    def with_unmatched(self, unmatched: Literal["refuse", "delete"]) -> Self:
        """Chooses what happens to rows that do not match the predicate, in the changelog of a table without old rows.

        A table created with `changelog="upsert"` does not record what a row was before a change. The server therefore
        cannot tell which rows cease to match. By default, it refuses predicates on columns outside the key. With
        "delete", every row that is written and does not match is returned as `-D`, with its key. A reader that stores
        the rows then has exactly the matching ones: it gets more deletions than there were, and misses none.

        If the changelog has the old rows, this changes nothing: rows that cease to match are `-D`.

        Args:
            unmatched: "refuse" or "delete".

        Raises:
            UsageError: `unmatched` has another value, or the scan does not read the changelog.
        """
        if unmatched not in tuple(Unmatched):
            raise UsageError(f'unmatched must be "refuse" or "delete", not {unmatched!r}')
        return self._with(log=replace(self._log("with_unmatched"), unmatched=Unmatched(unmatched)))

    def with_untracked(self, untracked: Literal["fail", "rescan"]) -> Self:
        """Chooses what happens where the changelog lacks what a reader may need.

        There are two such places: writes with `track_changes=False`, and a change of the table's option `changelog`.

        Of a write, the changelog has only the range of the keys. By default, the stream fails there with
        `RangeNotTracked`. With "rescan", the server sends all rows of the range as `+U`, as they are when the stream
        gets there. All of them have the offset and the time of the write. The stream then continues with the changes
        after the write. Some of them may be older than the rows, but lead to the same state: a reader that stores the
        last row of each key, and deletes at `-D`, has the table. A reader that needs each change, for example to add up
        `-U` and `+U`, must not use "rescan", because no `-U` precedes these rows. Rows of a stream that stops may be
        newer than the stop. After an interruption, the stream continues with the next row of the range.

        A predicate on columns outside the key needs `with_unmatched("delete")`: rows of the range that do not match
        come as `-D`.

        After a change of `changelog` from "full" to "upsert", updates come without `-U`, and `-D` has only the key. By
        default, the stream fails there with `RangeNotTracked`, too. With "rescan", it continues. No rows come again.

        Args:
            untracked: "fail" or "rescan".

        Raises:
            UsageError: `untracked` has another value, or the scan does not read the changelog.
        """
        if untracked not in tuple(Untracked):
            raise UsageError(f'untracked must be "fail" or "rescan", not {untracked!r}')
        return self._with(log=replace(self._log("with_untracked"), untracked=Untracked(untracked)))

    def with_row_kind(self) -> Self:
        """Returns the rows of a scan of the changelog with four additional columns before their own.

        `_change_type` is the row kind: `+I` for a new row, `-U` and `+U` for a row before and after an update, `-D` for
        a deleted row with its last values. In a table created with `changelog="upsert"`, every row written is `+U`, and
        `-D` has only its key, with null in all other columns.

        `_log_offset` is the offset of the change in the changelog of `_bucket`, and `_commit_timestamp` its commit
        time. The rows that a start with `StartFrom.FULL` or `lake` begins with are `+I`; their offset and timestamp are
        null.

        Raises:
            UsageError: The scan does not read the changelog.
        """
        return self._with(log=replace(self._log("with_row_kind"), row_kind=True))

    def with_consumer_id(self, consumer_id: str, *, must_exist: bool = False, principal: str | None = None) -> Self:
        """Reads the changes as a consumer, whose position the server stores.

            async with table.changes(consumer_id="billing").stream() as stream:
                async for changes in stream:
                    ...
                    await stream.commit()

        A stream begins after the changes that the consumer has committed, in any process. If the consumer has committed
        nothing, the stream begins where the consumer's first stream began. `start_from` applies only to a new consumer.
        Changes that were not committed are delivered again. The consumer has a retention hold from its first stream on,
        until it neither reads nor commits for the server's `consumer_ttl_seconds`. A new stream takes the consumer
        over, and the earlier stream gets ConsumerFenced, so each shard needs an id of its own.

        Columns, predicate and buckets may differ between the streams of a consumer, but not while the rows of a start
        with `StartFrom.FULL` are read. The scan cannot have a `limit`.

        Args:
            consumer_id: 1 to 128 of `A-Z a-z 0-9 . _ -`, not `.` or `..`.
            must_exist: Whether a stream of a consumer that does not exist raises ConsumerNotFound instead of creating
                the consumer. For a reader that must not start from scratch after its consumer has expired, or because
                of a misspelled id.
            principal: The principal to whom a new consumer belongs. Only an admin of the table may name another
                principal than that of its token; others get PermissionDenied when the stream starts. A consumer that
                exists keeps its owner. Default: the principal of the token.

        Raises:
            UsageError: `consumer_id` is not a valid id, or the scan does not read the changelog.
        """
        log = self._log("with_consumer_id")
        # None is probably a missing setting of the caller. Without an id, the server would store no position.
        if consumer_id is None:
            raise UsageError("consumer_id must be the id of a consumer, not None")
        named = principal_of(principal) or None
        log = replace(log, consumer_id=consumer_id, consumer_must_exist=must_exist, consumer_principal=named)
        return self._with(log=log)

    def _log(self, method: str) -> LogSpec:
        if self._spec.log is None:
            raise UsageError(f"{method} is for a scan of the changelog: see with_source(ScanSource.LOG)")
        return self._spec.log

    def _readable(self) -> ScanSpec:
        """Returns the spec. Raises UsageError if it lacks something: the row kinds of changes, the lake of `as_of`."""
        if self._spec.as_of is not None and self._spec.lake is None:
            raise UsageError(
                "as_of reads a published version, and the server has none: say where the table is published, with "
                'read_path("lake", uri)',
                option="as_of",
            )
        if self._spec.log is not None and not self._spec.log.row_kind:
            raise UsageError(
                "a stream of changes also has deleted rows, and rows as they were before: add their row kinds with "
                "with_row_kind()"
            )
        return self._spec

    @abstractmethod
    def _with(self, **changes: Any) -> Self:  # noqa: ANN401  # fields of ScanSpec, which validates them
        """Returns a copy with other fields of its spec."""
