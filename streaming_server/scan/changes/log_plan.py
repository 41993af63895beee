"""The plan of a request for changes, and the stream that is opened for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scankv.model.changes.log_offsets import check_offsets_of
from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import InvalidRequest
from scankv.model.expressions.binding import columns_of
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.read_plan import ReadPlan
from streaming_server.scan.resume_token import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from scankv.model.changes.log_positions import StartFrom, StopAt
    from scankv.model.errors import ScanKvError
    from scankv.model.expressions import Predicate
    from scankv.model.tables.columns import ColumnDefinition
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.changes.log_token import LogPosition, LogTokenWriter
    from streaming_server.scan.chunk_source import Chunk, View, Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """The changes that one request asks for. Immutable.

    Attributes:
        buckets: The buckets. None: all. May be empty.
        columns: The columns of the table. None: all.
        where: The predicate on the rows. None: all rows.
        where_message: The predicate as it was sent.
        limit: The most rows of the complete stream. None: no limit.
        resume_token: Where the stream resumes; empty at its beginning.
        start: Where it starts.
        stop: Where it ends. None: never.
        clamp: Whether a start that no longer exists is replaced by the nearest existing one.
        net_changes: Whether buckets with a long backlog return one net change for each key.
        consumer_id: The consumer that the stream belongs to; empty for none.
        consumer_fence: The fence of the stream among those of its consumer; 0 for a stream that takes over the
            consumer.
        consumer_must_exist: Whether to refuse a consumer that does not exist.
        lag_threshold: A bucket with a greater lag, in changes, returns net changes. None: the server's setting.
        unmatched_delete: Whether a row that does not match is returned as a delete if it may have matched before.
        rescans: Whether the rows of a key range are returned as upserts where their changes were not tracked. If not,
            the stream fails there.
        clears: Whether the reader drops its rows of a range that was deleted without tracking. If not, the stream fails
            there.
        latest: Whether changes are returned as soon as they are applied, durable or not.
        rows_elsewhere: Whether the consumer's reader takes the rows that come before the changes from elsewhere.
    """

    buckets: tuple[int, ...] | None
    columns: tuple[str, ...] | None
    where: Predicate | None
    where_message: bytes
    limit: int | None
    resume_token: bytes
    start: StartFrom
    stop: StopAt | None
    clamp: bool
    net_changes: bool = False
    consumer_id: str = ""
    consumer_fence: int = 0
    consumer_must_exist: bool = False
    lag_threshold: int | None = None
    unmatched_delete: bool = False
    rescans: bool = False
    clears: bool = False
    latest: bool = False
    rows_elsewhere: bool = False

    def check(self, definition: TableDefinition) -> None:
        """Checks that the table has a changelog, and that the offsets are its own.

        Raises:
            InvalidRequest: The table has no changelog; or no primary key, and net changes are requested.
            TableRecreated: The offsets of the start or the stop belong to an earlier table of the same name.
        """
        for position in (self.start, self.stop):
            if position is not None and position.kind is PositionKind.OFFSETS:
                check_offsets_of(definition, position.table_incarnation)
        check_has_changes(definition)
        if self.net_changes:
            definition.require_key('it has no net changes: read with catch_up="all"')
        if definition.options.changelog == "input":
            self._check_inputs(definition)

    def _check_inputs(self, definition: TableDefinition) -> None:
        """Refuses what needs the rows after each change, in a changelog that has the rows as they were written."""
        table = definition.name
        what = None
        if self.start.kind is PositionKind.FULL:
            what = (
                "a stream cannot begin with all rows, because a reader could not apply what follows to them: start at "
                "offsets, at a time, or with EARLIEST, LATEST or last; mirrors need another changelog"
            )
        elif self.net_changes:
            what = 'it has no net changes: read with catch_up="all"'
        elif self.rescans:
            what = 'rows of the table cannot take the place of changes: read with untracked="fail"'
        elif self.where is not None:
            beside = set(columns_of(self.where, definition.schema.arrow)).difference(definition.primary_key)
            if beside:
                what = (
                    f"`where` can use the key ({', '.join(definition.primary_key)}), but not "
                    f'"{min(beside)}", whose value in the row depends on other writes: filter in the reader'
                )
        if what is not None:
            raise InvalidRequest(
                f'table {table} has changelog="input", which records what is written before it is merged, so {what}',
                table=table,
            )

    def check_predicate(self, definition: TableDefinition, *, before_images: bool) -> None:
        """Checks that the predicate can be evaluated on the changes.

        Args:
            definition: The table.
            before_images: Whether all changes from the start of the stream on have the rows before them.

        Raises:
            InvalidRequest: It is not known which rows cease to match the predicate.
        """
        table = definition.name
        if self.where is None or self.unmatched_delete or (before_images and not self.rescans):
            return
        for column in columns_of(self.where, definition.schema.arrow):
            if column not in definition.primary_key:
                if before_images:
                    raise InvalidRequest(
                        f'a stream that rescans ranges whose changes were not tracked (untracked="rescan") cannot tell '
                        f'which rows have ceased to match: `where` can use the key, but not "{column}"; or read with '
                        'unmatched="delete", which returns rows that do not match as deletions',
                        table=table,
                        column=column,
                    )
                since = ", or had it where the stream starts," if definition.options.before_images else ""
                raise InvalidRequest(
                    f'table {table} has changelog="upsert"{since} which does not record whether a row matched '
                    f"before it changed: `where` can use the key ({', '.join(definition.primary_key)}), but not "
                    f'"{column}"; or read with unmatched="delete", which returns rows that do not match as deletions',
                    table=table,
                    column=column,
                )

    def fingerprint(self, definition: TableDefinition, buckets: Sequence[int]) -> Fingerprint:
        """Returns the fingerprint of the stream's tokens. It excludes start and stop: a token contains the position."""
        return Fingerprint.of(
            table=_table(definition),
            schema=b"",
            query=(
                sorted(buckets),
                self.columns,
                self.where_message,
                self.limit,
                # Nothing for `read_committed`, so that tokens of earlier servers fit.
                *(("latest",) if self.latest else ()),
                *self._reused_names(definition),
            ),
        )

    def _reused_names(self, definition: TableDefinition) -> tuple[tuple[str, int], ...]:
        named = () if self.where is None else columns_of(self.where, definition.schema.arrow)
        return definition.reused_names((*(self.columns or ()), *named))

    def of_rows(self) -> ReadPlan:
        """Returns the plan of the scan of the table's rows, which come before the changes."""
        return ReadPlan(
            buckets=self.buckets,
            columns=self.columns,
            where=self.where,
            where_message=self.where_message,
            key_range=KeyRange(),
            reverse=False,
            limit=None,
            resume_token=b"",
        )


def check_has_changes(definition: TableDefinition) -> None:
    """Raises InvalidRequest if a table has no changelog."""
    if definition.options.changelog == "none":
        raise InvalidRequest(
            f'table {definition.name} has changelog="none", so its changes cannot be read: set changelog="full" or '
            '"upsert", and start with all rows',
            table=definition.name,
        )


def table_digest(definition: TableDefinition) -> bytes:
    """Returns the digest of a table in the tokens of its changes."""
    return Fingerprint.of(table=_table(definition), schema=b"", query=()).table


def _table(definition: TableDefinition) -> tuple[str, str, str]:
    return definition.name, definition.incarnation, "log"


class ChangeSource(Protocol):
    """Returns changes, chunk by chunk, and waits for more. Use it from one thread at a time."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the next chunk. It may have more columns than that of the previous chunk."""

    @property
    def schema_id(self) -> int:
        """The version of the table's schema that the next chunk has."""

    @property
    def columns(self) -> Sequence[ColumnDefinition]:
        """The columns of the table that the next chunk has."""

    @property
    def view(self) -> View:
        """The offsets where the changes begin, and the time of the opening."""

    @property
    def rows_scanned(self) -> int:
        """The number of rows and changes read from storage so far."""

    @property
    def offsets(self) -> Mapping[int, int]:
        """For each bucket the offset of the next change."""

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Does a part of the work of `next_chunk`. See `ChunkSource`."""

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | Waiting | None:
        """Returns the next changes, WAITING if no change has come yet, None at the proven end."""

    async def wait(self, seconds: float) -> None:
        """Returns when there may be more changes, or after `seconds`."""

    @property
    def scanning(self) -> bool:
        """Whether rows of the table are still to come."""

    def watermark(self) -> int | None:
        """Returns the time, in microseconds since 1970 UTC, before which every change was returned. None: unknown."""

    def give_back(self, bucket: int, last: int | None) -> None:
        """Gives back the changes of the last chunk after the offset `last` of a bucket.

        None: the last chunk had rows of the table.
        """

    def position(self) -> LogPosition:
        """Returns how far the chunks returned so far reach."""

    def abort(self, error: ScanKvError) -> None:
        """Releases everything now. The next call of `next_chunk` raises `error`."""

    def close(self) -> None:
        """Releases everything. Closing twice is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """A stream of changes that is ready to be read. The caller must close its source.

    Attributes:
        source: Returns the changes.
        tokens: Creates the tokens that fit it.
        definition: The table as of the opening.
        resumed_from: Where the stream resumes. None: at its beginning.
        limit: The most rows left to return. None: no limit.
        selective: Whether chunks may have fewer rows than were read for them.
        full: Whether rows of the table come first.
        consumer_fence: The fence of the stream among those of its consumer; 0 without a consumer.
    """

    source: ChangeSource
    tokens: LogTokenWriter
    definition: TableDefinition
    resumed_from: LogPosition | None
    limit: int | None
    selective: bool
    full: bool
    consumer_fence: int = 0

    def token(self, remaining: int | None) -> bytes:
        """Returns the token for continuing after the chunks returned so far, with the remaining limit."""
        return self.tokens.token(self.source.position(), remaining)
