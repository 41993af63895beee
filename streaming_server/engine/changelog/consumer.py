"""The state of one consumer: its progress, the stream that owns it, and the fence against earlier streams."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scankv.model.errors import ConsumerFenced, DataLoss, InvalidRequest, TableRecreated
from streaming_server.access.owners import owner_check
from streaming_server.scan.changes.consumer_progress import ConsumerProgress
from streaming_server.scan.changes.log_plan import table_digest
from streaming_server.scan.changes.log_token import LogPosition
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.tables.consumers import ConsumerDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.scan.changes.log_plan import LogPlan


@dataclass(slots=True, eq=False)
class ConsumerSession:
    """A stream that owns a consumer.

    Attributes:
        end: Ends the stream with an error.
    """

    end: Callable[[ScanKvError], None]


@dataclass(slots=True, eq=False, kw_only=True)
class ConsumerState:
    """The state of a consumer. It changes with the lock held, after its file is written.

    Attributes:
        consumer_id: Its id.
        expires: When it expires unless a call renews it, on the monotonic clock.
        lock: Serializes all operations on the consumer.
        committed: Its committed progress. None: its first stream is being opened, or it is damaged.
        rows_position: How far its reader has read rows elsewhere, as the reader says it. Empty: not known, or all rows
            were read.
        fence: The number of the stream that was opened last.
        committed_micros: When it committed last; 0 for never.
        moved_micros: When its position was set last. 0: not known.
        session: The stream that owns it now.
        damage: Why its file cannot be read; empty if it can.
        is_restored: Whether its position is of another incarnation of the table, and was not accepted in this one.
        principal: The principal that it belongs to, as in `ConsumerRecord`.
    """

    consumer_id: str
    expires: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    committed: ConsumerProgress | None = None
    rows_position: bytes = b""
    fence: int = 0
    committed_micros: int = 0
    moved_micros: int = 0
    session: ConsumerSession | None = None
    damage: str = ""
    is_restored: bool = False
    principal: str | None = None


class TableConsumers:
    """The consumers of one table, by id.

    Attributes:
        kept: In a tablet, the offsets from which its changes are kept for the consumers of the table, by their ids.
    """

    def __init__(self, definition: TableDefinition, path: Path) -> None:
        self.table = definition.name
        self.definition = definition
        self.kept: dict[str, dict[int, int]] = {}
        self.digest = table_digest(definition)
        self.directory = ConsumerDirectory(path)
        self.consumers: dict[str, ConsumerState] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """A consumer as shown to clients.

    Attributes:
        consumer_id: Its id.
        offsets: For every bucket that it has read, the offset of the first change that it has not committed.
        lag: How many changes follow from these offsets on. Changes of damaged buckets are not counted.
        committed_micros: When it committed last, in microseconds since 1970 UTC; 0 for never.
        live: Whether a stream owns it.
        full: Whether it has yet to commit some rows of its full start.
        remaining: Seconds until it expires unless a call renews it.
        damage: Why its file cannot be read; empty if it can.
        rows_position: How far its reader has read rows elsewhere. Empty: not known, or all rows were read.
        is_restored: Whether its position is of another incarnation of the table, and was not accepted in this one.
        principal: The principal that it belongs to. Empty: it belongs to nobody.
    """

    consumer_id: str
    offsets: Mapping[int, int]
    lag: int
    committed_micros: int
    live: bool
    full: bool
    remaining: float
    damage: str
    rows_position: bytes
    is_restored: bool
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLags:
    """How far the consumers of a table lag.

    Attributes:
        consumers: The number of consumers.
        live: The number of consumers that a stream owns.
        most: The lag of the consumer that lags most. Changes of buckets that were not opened are not counted.
    """

    consumers: int
    live: int
    most: int


def lag_of(offsets: Mapping[int, int], ends: Mapping[int, int]) -> int:
    """Returns how many changes follow from some offsets on, in changelogs that end at `ends`."""
    # A restored position may be beyond the end.
    return sum(max(0, count_of(ends[number]) - count_of(at)) for number, at in offsets.items() if number in ends)


def owner_of(consumer_id: str) -> str:
    """Returns the owner name of the consumer's retention hold."""
    return f"consumer:{consumer_id}"


def next_fence(consumer: ConsumerState) -> int:
    """Returns the fence of the next stream that takes the consumer over."""
    # Rule: a recreated consumer never gets a fence of its predecessor, even if the clock was set back.
    return consumer.fence + 1 if consumer.fence else secrets.randbelow(2**62) + 1


def fenced_error(group: TableConsumers, consumer_id: str, why: str) -> ConsumerFenced:
    """Returns the error for a stream that no longer owns its consumer."""
    return ConsumerFenced(
        f'the consumer "{consumer_id}" of {group.table} is no longer this stream\'s: {why}; '
        "open a stream with its id to take it over",
        table=group.table,
    )


def check_consumer_owner(group: TableConsumers, consumer: ConsumerState) -> None:
    """Raises PermissionDenied if a consumer is another principal's, and the caller is no admin of its table."""
    what = f'the consumer "{consumer.consumer_id}" of {group.table}'
    owner_check(what, [group.table])(consumer.principal or "")


def check_sound(consumer: ConsumerState) -> None:
    """Raises DataLoss if the consumer's file could not be read, because a new start would lose its position."""
    if consumer.damage:
        raise DataLoss(f"{consumer.damage}; delete the consumer to start from scratch")


def reset_advice(table: str, consumer_id: str) -> str:
    """Returns how a consumer gets another position."""
    return f"move the consumer with `scankv consumers reset {table} {consumer_id} --to START`"


def check_usable(group: TableConsumers, consumer: ConsumerState) -> None:
    """Checks that a stream may continue from a consumer's position.

    Raises:
        TableRecreated: The position is of another incarnation. The table knows it, but the program behind the consumer
            may have acted on changes that no longer exist.
        DataLoss: Its file could not be read.
    """
    check_sound(consumer)
    if consumer.is_restored:
        raise TableRecreated(
            f"table {group.table} was restored or recovered, and the consumer "
            f'"{consumer.consumer_id}" may have read changes that no longer exist; nothing was done: continue at its '
            f"restored position with `scankv consumers accept {group.table} {consumer.consumer_id}` "
            f"(Table.accept_consumer), or {reset_advice(group.table, consumer.consumer_id)}",
            table=group.table,
        )


def check_fence(group: TableConsumers, consumer: ConsumerState, fence: int) -> ConsumerProgress:
    """Returns the progress of a consumer that the stream still owns. Raises ConsumerFenced, or as `check_usable`."""
    check_usable(group, consumer)
    if consumer.committed is None or consumer.fence != fence:
        raise fenced_error(group, consumer.consumer_id, "another stream has taken it over, or it was reset")
    return consumer.committed


def check_query(
    group: TableConsumers, consumer: ConsumerState, committed: ConsumerProgress, plan: LogPlan, table: TableState
) -> None:
    """Raises InvalidRequest if a stream asks for other rows than the consumer is reading."""
    buckets = table.definition.read_buckets if plan.buckets is None else plan.buckets
    if plan.fingerprint(table.definition, list(buckets)).query != committed.query:
        raise InvalidRequest(
            f'the consumer "{consumer.consumer_id}" of {group.table} is still reading the rows of the table that it '
            "started with: until it has read all of them, its streams must have the same columns, predicate and "
            "buckets; reset or delete it to ask for others"
        )


def progress_after_open(
    committed: ConsumerProgress | None, position: LogPosition, *, rows_elsewhere: bool
) -> ConsumerProgress:
    """Returns the progress of a consumer after a stream was opened at a position."""
    offsets = dict(position.offsets)
    if rows_elsewhere and (committed is None or committed.position.scanning):
        return ConsumerProgress(LogPosition(offsets, scanning=True), b"")
    if committed is None or (committed.position.scanning and not committed.is_reading_rows):
        return ConsumerProgress(LogPosition(offsets, scanning=position.scanning), b"")
    return committed if committed.is_reading_rows else committed.with_offsets(offsets)


def consumer_info(consumer: ConsumerState, ends: Mapping[int, int], now: float) -> ConsumerInfo:
    """Describes a consumer at a time `now` of the monotonic clock, with changelogs that end at `ends`."""
    committed = consumer.committed
    offsets = {} if committed is None else dict(committed.position.offsets)
    return ConsumerInfo(
        consumer_id=consumer.consumer_id,
        offsets=offsets,
        lag=lag_of(offsets, ends),
        committed_micros=consumer.committed_micros,
        live=consumer.session is not None,
        full=committed is not None and committed.position.scanning,
        remaining=max(consumer.expires - now, 0.0),
        damage=consumer.damage,
        rows_position=consumer.rows_position,
        is_restored=consumer.is_restored,
        principal=consumer.principal or "",
    )
