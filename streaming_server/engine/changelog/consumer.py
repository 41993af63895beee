"""One consumer: what is known of it, which stream has it, and what follows for those that had it before."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scankv.model.errors import ConsumerFenced, DataLoss, InvalidRequest
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
class Session:
    """A stream that has a consumer.

    Attributes:
        end: Ends it with an error.
    """

    end: Callable[[ScanKvError], None]


@dataclass(slots=True, eq=False, kw_only=True)
class Consumer:
    """What is known of a consumer; changed with its lock held, after its file.

    Attributes:
        consumer_id: Its id.
        expires: When it ends unless it is heard of, on the monotonic clock.
        lock: Orders whatever concerns it.
        committed: How far it has come. None: its first stream is being opened, or it is damaged.
        fence: Which of its streams was the last one to be opened.
        committed_micros: When it committed last; 0 for never.
        session: The stream that has it now.
        damage: Why its file cannot be read.
    """

    consumer_id: str
    expires: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    committed: ConsumerProgress | None = None
    fence: int = 0
    committed_micros: int = 0
    session: Session | None = None
    damage: str = ""


class Group:
    """The consumers of one table, by their ids."""

    def __init__(self, definition: TableDefinition, path: Path) -> None:
        self.table = definition.name
        self.digest = table_digest(definition)
        self.directory = ConsumerDirectory(path)
        self.consumers: dict[str, Consumer] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """One consumer, as of now.

    Attributes:
        consumer_id: Its id.
        offsets: For every bucket that it has read, the first change that it has not committed.
        lag: How many changes there are from there on; those of damaged buckets are not counted.
        committed_micros: When it committed last, in microseconds since 1970; 0 for never.
        live: Whether it has a stream.
        full: Whether rows of the whole table are still to be committed.
        remaining: Seconds until it ends unless it is heard of.
        damage: Why it cannot be read; empty when it can.
    """

    consumer_id: str
    offsets: Mapping[int, int]
    lag: int
    committed_micros: int
    live: bool
    full: bool
    remaining: float
    damage: str


def owner_of(consumer_id: str) -> str:
    """What the consumer's hold on the changes is called."""
    return f"consumer:{consumer_id}"


def next_fence(consumer: Consumer) -> int:
    """The fence of the stream that takes it over next."""
    # Rule: one that was deleted and made anew must not get a fence that it had, whatever a clock says.
    return consumer.fence + 1 if consumer.fence else secrets.randbelow(2**62) + 1


def fenced(group: Group, consumer_id: str, why: str) -> ConsumerFenced:
    """The error for a stream that had a consumer."""
    return ConsumerFenced(
        f'the consumer "{consumer_id}" of {group.table} is no longer this stream\'s: {why}; '
        "open a stream with its id to take it over",
        table=group.table,
    )


def check_sound(consumer: Consumer) -> None:
    """Raises DataLoss when the consumer's file could not be read: who goes on regardless would lose its position."""
    if consumer.damage:
        raise DataLoss(f"{consumer.damage}; delete the consumer to begin it anew")


def check_fence(group: Group, consumer: Consumer, fence: int) -> ConsumerProgress:
    """Where the consumer stands, if the stream still has it. Raises ConsumerFenced, and DataLoss when it is damaged."""
    check_sound(consumer)
    if consumer.committed is None or consumer.fence != fence:
        raise fenced(group, consumer.consumer_id, "another stream has taken it over, or it was reset")
    return consumer.committed


def check_query(
    group: Group, consumer: Consumer, committed: ConsumerProgress, plan: LogPlan, table: TableState
) -> None:
    """Raises InvalidRequest when a stream asks for other rows than those that the consumer is reading."""
    buckets = range(len(table.buckets)) if plan.buckets is None else plan.buckets
    if plan.fingerprint(table.definition, list(buckets)).query != committed.query:
        raise InvalidRequest(
            f'the consumer "{consumer.consumer_id}" of {group.table} is reading the rows of the whole table that it '
            "started with: until that is done, its streams have the same columns, predicate and buckets; reset or "
            "delete it to ask for others"
        )


def begun(committed: ConsumerProgress | None, position: LogPosition) -> ConsumerProgress:
    """Where a consumer stands when a stream of it has been opened at a position."""
    offsets = dict(position.offsets)
    if committed is None or (committed.position.scanning and not committed.is_reading_rows):
        return ConsumerProgress(LogPosition(offsets, scanning=position.scanning), b"")
    return committed if committed.is_reading_rows else committed.with_offsets(offsets)


def info_of(consumer: Consumer, ends: Mapping[int, int], now: float) -> ConsumerInfo:
    """What there is to say of a consumer at an instant of the monotonic clock, with changelogs that end there."""
    committed = consumer.committed
    offsets = {} if committed is None else dict(committed.position.offsets)
    return ConsumerInfo(
        consumer_id=consumer.consumer_id,
        offsets=offsets,
        lag=sum(count_of(ends[number]) - count_of(at) for number, at in offsets.items() if number in ends),
        committed_micros=consumer.committed_micros,
        live=consumer.session is not None,
        full=committed is not None and committed.position.scanning,
        remaining=max(consumer.expires - now, 0.0),
        damage=consumer.damage,
    )
