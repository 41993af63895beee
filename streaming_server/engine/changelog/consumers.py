"""Consumers of a server: how far each has come, which stream has it, and the one task that ends forgotten ones."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from scankv.model.changes.log_offsets import check_incarnation
from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import ConsumerNotFound, DataLoss, ScanKvError, TableNotFound, TooManyConsumers
from scankv.model.names import check_consumer_id
from streaming_server.engine.bucket.locking import lock_buckets, wait_until_durable
from streaming_server.engine.changelog.consumer import (
    Consumer,
    ConsumerInfo,
    Group,
    Session,
    begun,
    check_fence,
    check_query,
    check_sound,
    fenced,
    info_of,
    next_fence,
    owner_of,
)
from streaming_server.engine.changelog.log_starts import LogStarts
from streaming_server.engine.tasks.reaper import Reaper
from streaming_server.scan.changes.consumer_progress import ConsumerProgress
from streaming_server.scan.changes.log_token import LogPosition
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.tables.consumers import ConsumerRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from scankv.model.changes.log_positions import StartFrom
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.config import ServerConfig
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.changelog.table_changes import TableChanges
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.changes.log_plan import LogPlan, OpenedLog

_log: Final = logging.getLogger(__name__)


class Consumers:
    """The consumers of all tables of a server. Bound to its event loop.

    They are on disk, and outlive the server; each one's time to live begins anew with it. Rule: time is measured by the
    monotonic clock, so that setting the machine's clock ends none.

    Args:
        config: The time to live, and how many there may be.
        executor: Runs what blocks.
        live: Gives a table by its name, if it is in use.
        clock: The server's.
    """

    def __init__(
        self,
        config: ServerConfig,
        executor: StorageExecutor,
        live: Callable[[str], TableState | None],
        clock: ServerClock,
    ) -> None:
        self._clock = clock
        self._ttl = config.consumer_ttl_seconds
        self._limit = config.max_consumers
        self._executor = executor
        self._live = live
        self._groups: dict[str, Group] = {}
        self._reaper = Reaper(self._next_expiry, self._expire, clock)

    def add(self, definition: TableDefinition, path: Path) -> Group:
        """Begins to know a table, which is new."""
        group = self._groups[definition.name] = Group(definition, path)
        return group

    def load(self, definition: TableDefinition, path: Path) -> None:
        """Finds the consumers of a table that are on disk. Blocks."""
        group = self.add(definition, path)
        for consumer_id, record in group.directory.read():
            consumer = Consumer(consumer_id=consumer_id, expires=self._clock.monotonic() + self._ttl)
            group.consumers[consumer_id] = consumer
            try:
                if isinstance(record, DataLoss):
                    raise record
                consumer.committed = ConsumerProgress.from_token(record.token, group.digest)
                consumer.fence, consumer.committed_micros = record.fence, record.committed_micros
            except ScanKvError as error:
                consumer.damage = error.message

    def start(self) -> None:
        """Starts ending consumers that expire. Call `close` in the end."""
        self._reaper.start()

    async def close(self) -> None:
        """Stops that; the consumers stay on disk."""
        await self._reaper.close()

    def retention_holds(self, table: str, bucket: int) -> dict[str, int]:
        """From where on the changelog of a bucket is kept, by owner. May be called in any thread."""
        group = self._groups.get(table)
        known = [] if group is None else [(one.consumer_id, one.committed) for one in list(group.consumers.values())]
        return {
            owner_of(consumer_id): committed.position.offsets[bucket]
            for consumer_id, committed in known
            if committed is not None and bucket in committed.position.offsets
        }

    @asynccontextmanager
    async def stream(
        self, changes: TableChanges, plan: LogPlan, scan_id: str, end: Callable[[ScanKvError], None]
    ) -> AsyncIterator[OpenedLog]:
        """Opens a stream of a consumer, which has it for the length of the block; its position is durable before that.

        One that takes the consumer over ends the stream that had it.

        Args:
            changes: The changes that it reads.
            plan: What it asks for; names the consumer.
            scan_id: Names its own hold on the changes.
            end: Ends it with an error, when another one takes the consumer over.

        Raises:
            ConsumerFenced: It was to go on, and another one has the consumer now.
            ConsumerNotFound: There is none, and it must exist.
            TooManyConsumers: There are as many as the server allows.
            InvalidRequest: It asks for other rows than the consumer is reading; or as `TableChanges.open`.
            DataLoss: The consumer is damaged; or as `TableChanges.open`, as all else.
        """
        group, session = self._group(changes.table), Session(end)
        opened = await self._opened(group, changes, plan, scan_id, session)
        try:
            yield opened
        finally:
            opened.source.close()
            consumer = group.consumers.get(plan.consumer_id)
            if consumer is not None and consumer.session is session:
                consumer.session = None
                self._idle_from_now(consumer)

    async def _opened(
        self, group: Group, changes: TableChanges, plan: LogPlan, scan_id: str, session: Session
    ) -> OpenedLog:
        table = changes.table
        async with self._locked_or_new(group, plan) as consumer:
            check_sound(consumer)
            if plan.consumer_fence:
                check_fence(group, consumer, plan.consumer_fence)
            committed = consumer.committed
            if committed is not None and not plan.resume_token and committed.is_reading_rows:
                check_query(group, consumer, committed, plan, table)
            opened = await changes.open(plan, scan_id, None if committed is None else committed.position)
            try:
                if not plan.resume_token:
                    at = begun(committed, opened.source.position())
                    fence = plan.consumer_fence or next_fence(consumer)
                    if at != committed or fence != consumer.fence:
                        await self._store(group, table, consumer, at, fence, consumer.committed_micros)
            except BaseException:
                opened.source.close()
                raise
            before, consumer.session = consumer.session, session
            if before is not None:
                before.end(fenced(group, consumer.consumer_id, "another stream has taken it over"))
            return replace(opened, consumer_fence=consumer.fence)

    async def commit(self, table: TableState, consumer_id: str, fence: int, token: bytes) -> tuple[dict[int, int], int]:
        """Moves a consumer to where a token of its stream goes on, durable when this returns; never back.

        Returns:
            The offsets that are committed now, and when that was, in microseconds since 1970.

        Raises:
            ConsumerFenced: The stream does not have the consumer any more.
            InvalidResumeToken: The token is damaged, or is of something else.
            DataLoss: The consumer is damaged.
        """
        group = self._group(table)
        async with self._locked(group, consumer_id, _gone) as consumer:
            committed = check_fence(group, consumer, fence)
            advanced = committed.advance_to(ConsumerProgress.from_token(token, group.digest))
            if advanced is not committed or not consumer.committed_micros:
                await self._store(group, table, consumer, advanced, fence, self._clock.commit_micros())
            self._heard_of(consumer)
            return dict(advanced.position.offsets), consumer.committed_micros

    async def reset(self, table: TableState, consumer_id: str, start: StartFrom, *, clamp: bool) -> dict[int, int]:
        """Moves a consumer to any place, in all buckets where it has one, and ends its stream.

        Returns:
            The offsets that are committed now.

        Raises:
            ConsumerNotFound: There is no such consumer.
            InvalidRequest, PositionExpired, PositionOutOfRange: There is no such place.
            TableRecreated: The place is of another table of the same name.
            DataLoss: A bucket is damaged, or the consumer is.
        """
        group = self._group(table)
        async with self._locked(group, consumer_id, _unknown) as consumer:
            check_sound(consumer)
            assert consumer.committed is not None
            before = consumer.committed.position.offsets
            check_incarnation(start.table_incarnation, table.definition.name, table.definition.incarnation)
            async with lock_buckets([table.buckets[number] for number in sorted(before)]) as opened:
                buckets = {live.number: (live, bucket) for live, bucket in opened}
                offsets = await LogStarts(table.definition, buckets, self._clock).of(start, clamp=clamp)
                states = {number: bucket.state for number, (_, bucket) in buckets.items()}
                # Nothing is trimmed while the mutexes are held, nor, from here on, what either position needs.
                earlier = {n: min(offset, before[n], key=count_of) for n, offset in offsets.items()}
                _hold(table, consumer_id, earlier)
            await wait_until_durable(table.buckets, states)
            committed = ConsumerProgress(LogPosition(offsets, scanning=start.kind is PositionKind.FULL), b"")
            await self._store(group, table, consumer, committed, next_fence(consumer), consumer.committed_micros)
            self._end(group, consumer, "it was reset")
            return offsets

    async def delete(self, table: TableState, consumer_id: str) -> None:
        """Forgets a consumer, durably, and ends its stream. Raises ConsumerNotFound."""
        group = self._group(table)
        async with self._locked(group, consumer_id, _unknown) as consumer:
            await self._forget(group, consumer)
            self._end(group, consumer, "it was deleted")

    async def listed(self, table: TableState) -> list[ConsumerInfo]:
        """The consumers of a table by their ids, ascending. Opens the buckets in which they have positions."""
        numbers = {number for one in self._known(table) if one.committed for number in one.committed.position.offsets}
        ends = await _ends(table, numbers)
        known, now = sorted(self._known(table), key=lambda one: one.consumer_id), self._clock.monotonic()
        return [info_of(consumer, ends, now) for consumer in known]

    async def drop(self, table: str) -> None:
        """Forgets the consumers of a table that is being dropped. Call it when the table is closed."""
        group = self._groups.pop(table, None)
        if group is None:
            return
        consumers = list(group.consumers.values())
        group.consumers.clear()
        for consumer in consumers:
            async with consumer.lock:  # so that nobody is writing a file of it any more
                pass

    def _group(self, table: TableState) -> Group:
        name = table.definition.name
        if name not in self._groups:
            raise TableNotFound(f'table "{name}" was dropped', table=name)
        return self._groups[name]

    def _known(self, table: TableState) -> list[Consumer]:
        """Those of a table that are more than just being made."""
        return [one for one in self._group(table).consumers.values() if one.committed is not None or one.damage]

    @asynccontextmanager
    async def _locked(
        self, group: Group, consumer_id: str, absent: Callable[[Group, str], Consumer]
    ) -> AsyncIterator[Consumer]:
        """A consumer, with its lock held; where there is none, `absent` gives it or raises."""
        check_consumer_id(consumer_id)
        while True:
            consumer = group.consumers.get(consumer_id) or absent(group, consumer_id)
            async with consumer.lock:
                if group.consumers.get(consumer_id) is consumer:  # else it was deleted meanwhile
                    yield consumer
                    return

    @asynccontextmanager
    async def _locked_or_new(self, group: Group, plan: LogPlan) -> AsyncIterator[Consumer]:
        """The consumer of a stream that is being opened, with its lock held; one that begins goes if that fails.

        Raises:
            ConsumerFenced: There is none for a stream that goes on.
            ConsumerNotFound: There is none for a stream that needs one.
            TooManyConsumers: There cannot be another one.
        """
        absent: Callable[[Group, str], Consumer] = _unknown if plan.consumer_must_exist else self._new
        async with self._locked(group, plan.consumer_id, _gone if plan.consumer_fence else absent) as consumer:
            try:
                yield consumer
            finally:
                if consumer.committed is None and not consumer.damage:
                    group.consumers.pop(plan.consumer_id, None)

    def _new(self, group: Group, consumer_id: str) -> Consumer:
        there = sum(len(each.consumers) for each in self._groups.values())
        if there >= self._limit:
            raise TooManyConsumers(
                f"there are {there} consumers, and the limit is {self._limit}: delete some, or raise max_consumers"
            )
        consumer = group.consumers[consumer_id] = Consumer(consumer_id=consumer_id, expires=0.0)
        self._idle_from_now(consumer)
        return consumer

    async def _store(
        self, group: Group, table: TableState, consumer: Consumer, committed: ConsumerProgress, fence: int, micros: int
    ) -> None:
        """Keeps what a consumer is from now on, durably."""
        record = ConsumerRecord(
            consumer_id=consumer.consumer_id, fence=fence, token=committed.token(group.digest), committed_micros=micros
        )
        written: list[ConsumerRecord] = []

        def write() -> None:
            group.directory.write(record)
            written.append(record)

        try:
            await self._executor.run(write)
        finally:
            if written:  # also for a caller who has given up meanwhile
                consumer.committed, consumer.fence, consumer.committed_micros = committed, fence, micros
                _hold(table, consumer.consumer_id, committed.position.offsets)

    async def _forget(self, group: Group, consumer: Consumer) -> None:
        await self._executor.run(group.directory.remove, consumer.consumer_id)
        group.consumers.pop(consumer.consumer_id, None)
        table = self._live(group.table)
        if table is None or consumer.committed is None:
            return
        for number in consumer.committed.position.offsets:
            table.buckets[number].release_log(owner_of(consumer.consumer_id))

    def _end(self, group: Group, consumer: Consumer, why: str) -> None:
        session, consumer.session = consumer.session, None
        if session is not None:
            session.end(fenced(group, consumer.consumer_id, why))
        self._idle_from_now(consumer)

    def _heard_of(self, consumer: Consumer) -> None:
        consumer.expires = self._clock.monotonic() + self._ttl

    def _idle_from_now(self, consumer: Consumer) -> None:
        self._heard_of(consumer)
        self._reaper.notify(consumer.expires)

    def _idle(self) -> list[tuple[Group, Consumer]]:
        return [
            (group, consumer)
            for group in self._groups.values()
            for consumer in group.consumers.values()
            if consumer.session is None
        ]

    def _next_expiry(self) -> float | None:
        return min((consumer.expires for _, consumer in self._idle()), default=None)

    async def _expire(self) -> None:
        for group, consumer in self._idle():
            if consumer.expires <= self._clock.monotonic():
                await self._end_expired(group, consumer)

    async def _end_expired(self, group: Group, consumer: Consumer) -> None:
        try:
            async with consumer.lock:
                if consumer.session is None and consumer.expires <= self._clock.monotonic():
                    _log.info('the consumer "%s" of %s has expired', consumer.consumer_id, group.table)
                    await self._forget(group, consumer)
        except Exception:
            _log.exception('ending the consumer "%s" of %s', consumer.consumer_id, group.table)
            self._heard_of(consumer)


def _gone(group: Group, consumer_id: str) -> NoReturn:
    raise fenced(group, consumer_id, "it was deleted, or has expired")


def _unknown(group: Group, consumer_id: str) -> NoReturn:
    raise ConsumerNotFound(
        f'the table {group.table} has no consumer "{consumer_id}": it was deleted, has expired, or never was',
        table=group.table,
    )


def _hold(table: TableState, consumer_id: str, offsets: Mapping[int, int]) -> None:
    for number, offset in offsets.items():
        live = table.buckets[number]
        # What is not there any more cannot be kept, and would keep all that comes after it.
        if live.state is not None and count_of(offset) >= live.state.log_first:
            live.retain_log(owner_of(consumer_id), offset)


async def _ends(table: TableState, numbers: set[int]) -> dict[int, int]:
    """The offset that the next change of some buckets gets, but for damaged ones."""
    ends: dict[int, int] = {}
    for number in sorted(numbers):
        live = table.buckets[number]
        if live.state is None:
            async with live.mutex:
                with suppress(DataLoss):
                    await live.open()
        if live.state is not None:
            ends[number] = live.state.log_offset
    return ends
