"""What a request asks of the changelog, and the stream that is opened for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scankv.model.changes.log_offsets import check_incarnation
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
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.scan.changes.log_token import LogPosition, LogTokenWriter
    from streaming_server.scan.chunk_source import Chunk, View, Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """Which changes one request asks for. Immutable.

    Attributes:
        buckets: The buckets, None for all; there may be none.
        columns: The columns of the table, None for all.
        where: What is true of the rows that are seen, None for all.
        where_message: The same as it was sent.
        limit: The most rows of the whole stream, None for all.
        resume_token: Where it goes on, empty at the beginning.
        start: Where it begins.
        stop: Where it ends, None for never.
        clamp: Whether a start that is not there stands for the nearest that is.
        net_changes: Whether buckets that are far behind give one net change for each key.
        consumer_id: The consumer that the stream is of, empty for none.
        consumer_fence: Which of its streams it is; 0 for one that takes the consumer over.
        consumer_must_exist: Whether a consumer that there is not is refused.
        lag_threshold: A bucket with a greater lag, in changes, gives net changes. None: the server's setting.
        unmatched_delete: Whether rows that do not match come as deleted ones where nobody knows if they did before.
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

    def check(self, definition: TableDefinition) -> None:
        """Refuses what the table's changelog cannot tell.

        Raises:
            InvalidRequest: It cannot tell that.
            TableRecreated: The offsets of the start or the stop are of another table of the same name.
        """
        options, table = definition.options, definition.name
        for position in (self.start, self.stop):
            if position is not None:
                check_incarnation(position.table_incarnation, table, definition.incarnation)
        if options.changelog == "none":
            raise InvalidRequest(
                f'table {table} was created with changelog="none", so its changes cannot be followed: for that, create '
                'one with changelog="full" or "upsert"',
                table=table,
            )
        if options.before_images or self.where is None or self.unmatched_delete:
            return
        for column in columns_of(self.where, definition.schema.arrow):
            if column not in definition.primary_key:
                raise InvalidRequest(
                    f'table {table} was created with changelog="upsert", which does not tell whether a row matched '
                    f"before it changed: `where` can look at the key ({', '.join(definition.primary_key)}), but not at "
                    f'"{column}", unless rows that do not match may come as deleted ones: unmatched="delete"',
                    table=table,
                    column=column,
                )

    def fingerprint(self, definition: TableDefinition, buckets: Sequence[int]) -> Fingerprint:
        """What its tokens belong to. Its start and stop may change: tokens know where they are."""
        return Fingerprint.of(
            table=_table(definition),
            schema=b"",
            query=(sorted(buckets), self.columns, self.where_message, self.limit),
        )

    def of_rows(self) -> ReadPlan:
        """The scan that reads the rows of the table which come first."""
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


def table_digest(definition: TableDefinition) -> bytes:
    """The digest of a table in the tokens of its changes."""
    return Fingerprint.of(table=_table(definition), schema=b"", query=()).table


def _table(definition: TableDefinition) -> tuple[str, str, str]:
    return definition.name, definition.incarnation, "log"


class ChangeSource(Protocol):
    """Gives changes, chunk by chunk, and waits for more; used from one thread at a time."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the next chunk, which may have more columns than the one before."""

    @property
    def schema_id(self) -> int:
        """The version of the table's schema that it has."""

    @property
    def view(self) -> View:
        """Where the changes begin."""

    @property
    def rows_scanned(self) -> int:
        """Rows and changes read from storage so far."""

    @property
    def offsets(self) -> Mapping[int, int]:
        """For each bucket the offset of the next change."""

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | Waiting | None:
        """The next changes, WAITING where there are none yet, None at the end, which is proven."""

    async def wait(self, seconds: float) -> None:
        """Returns when there may be more, or after so many seconds."""

    @property
    def scanning(self) -> bool:
        """Whether rows of the table are still to come."""

    def watermark(self) -> int | None:
        """The time, in microseconds since 1970, before which all that was committed was given; None: not known now."""

    def give_back(self, bucket: int, last: int | None) -> None:
        """Takes back what of the last chunk, of a bucket, came behind this offset; None: it had rows of the table."""

    def position(self) -> LogPosition:
        """How far the chunks given so far reach."""

    def abort(self, error: ScanKvError) -> None:
        """Lets go of everything now; whoever asks for the next chunk gets the error."""

    def close(self) -> None:
        """Lets go of everything. Closing twice is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """A stream of changes that is ready to be read; who got it closes its source.

    Attributes:
        source: Gives the changes.
        tokens: Makes the tokens that fit it.
        definition: The table as of the opening.
        resumed_from: Where it goes on, None when it begins.
        limit: The most rows that are left to be returned, None for all.
        selective: Whether chunks have fewer rows than were read for them.
        full: Whether rows of the table come first.
        consumer_fence: Which stream of its consumer it is; 0 for one of none.
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
        """The token for what comes behind the chunks given so far, with what is left of the limit."""
        return self.tokens.token(self.source.position(), remaining)
