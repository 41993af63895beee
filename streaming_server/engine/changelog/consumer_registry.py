"""The consumers of a server: their progress, the streams that own them, and the task that ends expired ones."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from scankv.model.changes.log_offsets import check_offsets_of
from scankv.model.changes.log_positions import PositionKind, StartFrom
from scankv.model.errors import (
    ConsumerNotFound,
    DataLoss,
    PositionExpired,
    PositionOutOfRange,
    ScanKvError,
    TableNotFound,
    TooManyConsumers,
)
from scankv.model.names import check_consumer_id
from streaming_server.access.owners import (
    assignment_refusal,
    continuing_principal,
    current_principal,
    new_owner,
    share_refusal,
)
from streaming_server.engine.bucket.locking import lock_buckets, wait_until_durable
from streaming_server.engine.changelog.consumer import (
    ConsumerInfo,
    ConsumerLags,
    ConsumerSession,
    ConsumerState,
    TableConsumers,
    check_consumer_owner,
    check_fence,
    check_query,
    check_sound,
    check_usable,
    consumer_info,
    fenced_error,
    lag_of,
    next_fence,
    owner_of,
    progress_after_open,
    reset_advice,
)
from streaming_server.engine.changelog.log_starts import LogStarts
from streaming_server.engine.tasks.reaper import Reaper
from streaming_server.scan.changes.consumer_progress import ConsumerProgress
from streaming_server.scan.changes.log_token import LogPosition, parse_log_token
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.tables.catalog import table_directory
from streaming_server.storage.tables.consumers import ConsumerDirectory, ConsumerRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.config import ServerConfig
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.changelog.tablet_logs import TabletLogs
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.changes.log_plan import LogPlan, OpenedLog

_log: Final = logging.getLogger(__name__)


class OpensChanges(Protocol):
    """Opens streams of the changes of one table; see `TableChanges`."""

    @property
    def table(self) -> TableState:
        """The table."""

    async def open(self, plan: LogPlan, owner: str, committed: LogPosition | None = None) -> OpenedLog:
        """Opens a stream. See `TableChanges.open`."""


class ConsumerRegistry:
    """The consumers of all tables of a server. Bound to its event loop.

    Consumers are on disk and survive a restart, which restarts their time to live. Rule: time is measured with the
    monotonic clock, so that setting the machine's clock ends no consumer.

    Args:
        config: The time to live, and the limit of consumers.
        executor: Runs blocking work.
        live: Returns the table of a name, if it is in use.
        clock: The server's clock.
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
        self._limit, self._share = config.max_consumers, config.max_caller_share
        self._executor = executor
        self._live = live
        self._groups: dict[str, TableConsumers] = {}
        self._tablets: TabletLogs | None = None
        self._reaper = Reaper(self._next_expiry, self._expire, clock)

    def set_tablets(self, tablets: TabletLogs) -> None:
        """Sets the changelogs of the tablets of tables."""
        self._tablets = tablets

    def _tablets_of(self, definition: TableDefinition) -> TabletLogs | None:
        """Returns the changelogs of the tablets of a table. None: the table has no tablets."""
        return self._tablets if definition.is_divided else None

    def add(self, definition: TableDefinition, path: Path) -> TableConsumers:
        """Adds a new table."""
        group = self._groups[definition.name] = TableConsumers(definition, path)
        return group

    def load(self, definition: TableDefinition, path: Path) -> None:
        """Loads the consumers of a table from disk. Blocks.

        For a tablet, loads the positions of the consumers of its table, which the owner of the table stores.
        """
        group = self.add(definition, path)
        if definition.tablet is not None:
            group.kept = _read_positions(definition, table_directory(path))
            return
        for consumer_id, record in group.directory.read():
            consumer = ConsumerState(consumer_id=consumer_id, expires=self._clock.monotonic() + self._ttl)
            group.consumers[consumer_id] = consumer
            try:
                if isinstance(record, DataLoss):
                    raise record
                consumer.committed, is_current = ConsumerProgress.of_any(record.token, group.digest)
                consumer.is_restored = not is_current
                consumer.fence, consumer.committed_micros = record.fence, record.committed_micros
                consumer.rows_position, consumer.moved_micros = record.rows_position, record.moved_micros
                consumer.principal = record.principal
            except ScanKvError as error:
                consumer.damage = error.message

    def start(self) -> None:
        """Starts the task that ends expired consumers. It runs until `close`."""
        self._reaper.start()

    async def close(self) -> None:
        """Stops the task that ends expired consumers. Consumers stay on disk."""
        await self._reaper.close()

    def retention_holds(self, table: str, bucket: int) -> dict[str, int]:
        """Returns the first retained offset of a bucket's changelog, by owner. Safe in any thread."""
        group = self._groups.get(table)
        if group is None:
            return {}
        known = {
            one.consumer_id: one.committed.position.offsets
            for one in list(group.consumers.values())
            if one.committed is not None
        }
        return {
            owner_of(consumer_id): offsets[bucket]
            for consumer_id, offsets in {**known, **group.kept}.items()
            if bucket in offsets
        }

    def keep(self, table: TableState, consumer_id: str, offsets: Mapping[int, int]) -> None:
        """Keeps the changes of a tablet from these offsets on, and no others, for a consumer of its table."""
        group = self._group(table)
        before = group.kept.pop(consumer_id, {})
        if offsets:
            group.kept[consumer_id] = dict(offsets)
        for number in before.keys() - offsets.keys():
            table.buckets[number].release_log(owner_of(consumer_id))
        _retain_logs(table, consumer_id, offsets)

    def keep_from(self, table: TableState, consumer_id: str, offsets: Mapping[int, int]) -> None:
        """Keeps changes as `keep` does, and earlier changes that are kept already. Hold the mutexes of the buckets."""
        kept = self._group(table).kept.get(consumer_id, {})
        both = {n: min(offset, kept.get(n, offset), key=count_of) for n, offset in offsets.items()}
        self.keep(table, consumer_id, {**kept, **both})

    @asynccontextmanager
    async def stream(
        self, changes: OpensChanges, plan: LogPlan, scan_id: str, end: Callable[[ScanKvError], None]
    ) -> AsyncIterator[OpenedLog]:
        """Opens a stream that owns a consumer for the length of the block. Its start is durable before the block.

        A stream that takes the consumer over ends the stream that owned it.

        Args:
            changes: The changes that it reads.
            plan: The requested stream; names the consumer.
            scan_id: Names the stream's own retention hold on the changes.
            end: Ends the stream with an error when another stream takes the consumer over.

        Raises:
            ConsumerFenced: The stream was to resume, but another stream owns the consumer now.
            ConsumerNotFound: The consumer must exist, and does not.
            TooManyConsumers: The server has reached its limit of consumers.
            PermissionDenied: The consumer belongs to another principal.
            InvalidRequest: The stream asks for other rows than the consumer is reading.
            TableRecreated: The consumer's position is of another incarnation of the table.
            DataLoss: The consumer is damaged.
            ScanKvError: As `TableChanges.open`.
        """
        group, session = self._group(changes.table), ConsumerSession(end)
        opened = await self._open(group, changes, plan, scan_id, session)
        try:
            yield opened
        finally:
            opened.source.close()
            consumer = group.consumers.get(plan.consumer_id)
            if consumer is not None and consumer.session is session:
                consumer.session = None
                self._start_idle_time(consumer)

    async def _open(
        self, group: TableConsumers, changes: OpensChanges, plan: LogPlan, scan_id: str, session: ConsumerSession
    ) -> OpenedLog:
        table = changes.table
        async with self._lock_or_create(group, plan) as consumer:
            check_consumer_owner(group, consumer)
            check_usable(group, consumer)
            if plan.consumer_fence:
                check_fence(group, consumer, plan.consumer_fence)
            committed = consumer.committed
            reads_rows = committed is not None and committed.is_reading_rows and not plan.rows_elsewhere
            if committed is not None and not plan.resume_token and reads_rows:
                check_query(group, consumer, committed, plan, table)
            try:
                opened = await changes.open(plan, scan_id, None if committed is None else committed.position)
            except (PositionExpired, PositionOutOfRange) as error:
                if committed is None or plan.resume_token:
                    raise
                raise error.with_advice(reset_advice(group.table, consumer.consumer_id)) from error
            try:
                if not plan.resume_token:
                    position = opened.source.position()
                    at = progress_after_open(committed, position, rows_elsewhere=plan.rows_elsewhere)
                    fence = plan.consumer_fence or next_fence(consumer)
                    principal, micros = consumer.principal, consumer.committed_micros
                    if principal is None and fence != consumer.fence and committed is not None and current_principal():
                        # Anyone may take over a consumer that has no owner, so that makes nobody its owner.
                        principal = ""
                    if at != committed or fence != consumer.fence:
                        rows = consumer.rows_position if plan.rows_elsewhere else b""
                        await self._store(group, table, consumer, at, fence, micros, rows, principal=principal)
            except BaseException:
                opened.source.close()
                raise
            before, consumer.session = consumer.session, session
            if before is not None:
                before.end(fenced_error(group, consumer.consumer_id, "another stream has taken it over"))
            return replace(opened, consumer_fence=consumer.fence)

    async def commit(
        self, table: TableState, consumer_id: str, fence: int, token: bytes, rows_position: bytes = b""
    ) -> tuple[dict[int, int], int]:
        """Advances a consumer, durably, to the position of a token of its stream; never moves it back.

        Args:
            table: The table.
            consumer_id: The consumer.
            fence: The fence of its stream.
            token: The token.
            rows_position: Instead of a token, how far the reader has read rows elsewhere.

        Returns:
            The committed offsets, and the time of the commit in microseconds since 1970 UTC.

        Raises:
            ConsumerFenced: The stream no longer owns the consumer.
            PermissionDenied: The consumer belongs to another principal.
            TableRecreated: The consumer's position is of another incarnation of the table.
            InvalidResumeToken: The token is damaged, or belongs to something else.
            DataLoss: The consumer is damaged.
        """
        group = self._group(table)
        async with self._lock(group, consumer_id, _raise_gone) as consumer:
            check_consumer_owner(group, consumer)
            committed = advanced = check_fence(group, consumer, fence)
            rows = rows_position if committed.position.scanning else b""
            if not rows_position:
                advanced = committed.advance_to(ConsumerProgress.from_token(token, group.digest))
            # The stream was open before the server knew whose it is.
            principal = consumer.principal
            if principal is None:
                principal = continuing_principal(group.table) or None
            changed = (advanced, rows, principal) != (committed, consumer.rows_position, consumer.principal)
            if changed or not consumer.committed_micros:
                micros = self._clock.commit_micros()
                await self._store(group, table, consumer, advanced, fence, micros, rows, principal=principal)
            self._renew(consumer)
            return dict(advanced.position.offsets), consumer.committed_micros

    async def reset(self, table: TableState, consumer_id: str, start: StartFrom, *, clamp: bool) -> dict[int, int]:
        """Moves a consumer to any position, in all buckets that it has read, and ends its stream.

        Returns:
            The committed offsets.

        Raises:
            ConsumerNotFound: The consumer does not exist.
            PermissionDenied: It belongs to another principal.
            InvalidRequest, PositionExpired, PositionOutOfRange: The position does not exist.
            TableRecreated: The position belongs to another table of the same name.
            DataLoss: A bucket is damaged, or the consumer is.
        """
        group = self._group(table)
        async with self._lock(group, consumer_id, _raise_not_found) as consumer:
            check_consumer_owner(group, consumer)
            check_sound(consumer)
            assert consumer.committed is not None
            before = consumer.committed.position.offsets
            if start.kind is PositionKind.OFFSETS:
                check_offsets_of(table.definition, start.table_incarnation)
            offsets = await self._find_reset(table, consumer_id, before, start, clamp=clamp)
            committed = ConsumerProgress(LogPosition(offsets, scanning=start.kind is PositionKind.FULL), b"")
            fence, micros = next_fence(consumer), consumer.committed_micros
            await self._store(group, table, consumer, committed, fence, micros, principal=consumer.principal)
            self._end(group, consumer, "it was reset")
            return offsets

    async def accept(self, table: TableState, consumer_id: str) -> dict[int, int]:
        """Has a consumer continue at its restored position. Does nothing if its position is of this incarnation.

        Returns:
            The committed offsets.

        Raises:
            ConsumerNotFound: The consumer does not exist.
            PermissionDenied: It belongs to another principal.
            PositionExpired, PositionOutOfRange: The restored table does not have the position.
            DataLoss: A bucket is damaged, or the consumer is.
        """
        group = self._group(table)
        async with self._lock(group, consumer_id, _raise_not_found) as consumer:
            check_consumer_owner(group, consumer)
            check_sound(consumer)
            assert consumer.committed is not None
            committed = consumer.committed
            if consumer.is_restored:
                before = committed.position.offsets
                offsets = await self._find_reset(table, consumer_id, before, StartFrom.offsets(before), clamp=False)
                if not committed.position.scanning:
                    committed = committed.with_offsets(offsets)
                fence, rows, micros = next_fence(consumer), consumer.rows_position, consumer.committed_micros
                owner = consumer.principal
                await self._store(group, table, consumer, committed, fence, micros, rows, principal=owner)
            return dict(committed.position.offsets)

    async def _find_reset(
        self, table: TableState, consumer_id: str, before: Mapping[int, int], start: StartFrom, *, clamp: bool
    ) -> dict[int, int]:
        """Returns the offsets to which a consumer moves. From now on, the changes after them are kept."""
        tablets = self._tablets_of(table.definition)
        if tablets is not None:
            return await tablets.find(table.definition, sorted(before), start, clamp=clamp, consumer_id=consumer_id)
        async with lock_buckets([table.buckets[number] for number in sorted(before)]) as opened:
            buckets = {live.number: (live, bucket) for live, bucket in opened}
            offsets = await LogStarts(table.definition, buckets, self._clock).of(start, clamp=clamp)
            states = {number: bucket.state for number, (_, bucket) in buckets.items()}
            # Trimming needs the mutexes. From here on the hold keeps what either position needs.
            earlier = {n: min(offset, before[n], key=count_of) for n, offset in offsets.items()}
            _retain_logs(table, consumer_id, earlier)
        await wait_until_durable(table.buckets, states)
        return offsets

    async def delete(self, table: TableState, consumer_id: str) -> None:
        """Forgets a consumer, durably, and ends its stream. Raises ConsumerNotFound, PermissionDenied."""
        group = self._group(table)
        async with self._lock(group, consumer_id, _raise_not_found) as consumer:
            check_consumer_owner(group, consumer)
            await self._forget(group, consumer)
            self._end(group, consumer, "it was deleted")

    async def assign(self, table: TableState, before: str, principal: str) -> int:
        """Gives the consumers that belong to a principal (empty: to nobody) to another one, and returns how many.

        Their positions stay as they are stored. Damaged consumers are left out.
        """
        group, given = self._group(table), 0
        for consumer_id in list(group.consumers):
            with suppress(ConsumerNotFound):
                async with self._lock(group, consumer_id, _raise_not_found) as consumer:
                    if consumer.committed is not None and (consumer.principal or "") == before:
                        await self._executor.run(group.directory.assign, consumer_id, principal)
                        consumer.principal = principal
                        given += 1
        return given

    def check_assignment(self, table: TableState, before: str, principal: str) -> None:
        """Raises TooManyConsumers if the caller may not give a principal as many as `assign` would."""
        group, more = self._group(table), 0
        if before != principal:
            known = group.consumers.values()
            more = sum(each.committed is not None and (each.principal or "") == before for each in known)
        mine = self._count_of(principal)
        refusal = assignment_refusal("consumers", principal, mine, more, self._limit, self._share)
        if refusal is not None:
            raise TooManyConsumers(refusal)

    async def list_consumers(self, table: TableState) -> list[ConsumerInfo]:
        """Returns the consumers of a table by id, ascending. Opens the buckets in which they have positions."""
        numbers = {
            number for one in self._known_consumers(table) if one.committed for number in one.committed.position.offsets
        }
        tablets = self._tablets_of(table.definition)
        ends = await (ends_of(table, numbers) if tablets is None else tablets.ends(table.definition, sorted(numbers)))
        known, now = sorted(self._known_consumers(table), key=lambda one: one.consumer_id), self._clock.monotonic()
        return [consumer_info(consumer, ends, now) for consumer in known]

    def lags(self, table: TableState) -> ConsumerLags:
        """Returns how far the consumers of a table lag, from memory. Opens nothing."""
        known, kept = self._known_consumers(table), self._group(table).kept.values()
        ends = {live.number: live.state.log_offset for live in table.buckets if live.state is not None}
        infos = [consumer_info(consumer, ends, 0.0) for consumer in known]
        most = max((*(info.lag for info in infos), *(lag_of(offsets, ends) for offsets in kept)), default=0)
        return ConsumerLags(consumers=len(infos), live=sum(info.live for info in infos), most=most)

    async def drop(self, table: str) -> None:
        """Forgets the consumers of a table that is being dropped. Call it once the table is closed."""
        group = self._groups.pop(table, None)
        if group is None:
            return
        consumers = list(group.consumers.values())
        group.consumers.clear()
        for consumer in consumers:
            async with consumer.lock:  # wait until its file is no longer written
                pass

    def _group(self, table: TableState) -> TableConsumers:
        name = table.definition.name
        if name not in self._groups:
            raise TableNotFound(f'table "{name}" was dropped', table=name)
        return self._groups[name]

    def _known_consumers(self, table: TableState) -> list[ConsumerState]:
        """Returns the consumers of a table, without those whose first stream is still being opened."""
        return [one for one in self._group(table).consumers.values() if one.committed is not None or one.damage]

    @asynccontextmanager
    async def _lock(
        self, group: TableConsumers, consumer_id: str, absent: Callable[[TableConsumers, str], ConsumerState]
    ) -> AsyncIterator[ConsumerState]:
        """Yields a consumer with its lock held. If it does not exist, `absent` creates it or raises."""
        check_consumer_id(consumer_id)
        while True:
            consumer = group.consumers.get(consumer_id) or absent(group, consumer_id)
            async with consumer.lock:
                if group.consumers.get(consumer_id) is consumer:  # otherwise it was deleted concurrently
                    yield consumer
                    return

    @asynccontextmanager
    async def _lock_or_create(self, group: TableConsumers, plan: LogPlan) -> AsyncIterator[ConsumerState]:
        """Yields the consumer of a new stream with its lock held. Removes a new consumer if the opening fails.

        Raises:
            ConsumerFenced: The stream resumes, and the consumer does not exist.
            ConsumerNotFound: The consumer must exist, and does not.
            TooManyConsumers: The server has reached its limit of consumers.
        """
        absent: Callable[[TableConsumers, str], ConsumerState] = (
            _raise_not_found if plan.consumer_must_exist else self._new
        )
        async with self._lock(group, plan.consumer_id, _raise_gone if plan.consumer_fence else absent) as consumer:
            try:
                yield consumer
            finally:
                if consumer.committed is None and not consumer.damage:
                    group.consumers.pop(plan.consumer_id, None)
                    if (tablets := self._tablets_of(group.definition)) is not None:
                        await tablets.keep(group.definition, plan.consumer_id, {})

    def _new(self, group: TableConsumers, consumer_id: str) -> ConsumerState:
        principal = new_owner() or None
        there = sum(len(each.consumers) for each in self._groups.values())
        if there >= self._limit:
            raise TooManyConsumers(
                f"the server has {there:,} consumers; the limit is {self._limit:,}: delete some, or raise max_consumers"
            )
        refusal = share_refusal("consumers", self._count_of(principal), there, self._limit, self._share)
        if refusal is not None:
            raise TooManyConsumers(refusal)
        consumer = group.consumers[consumer_id] = ConsumerState(
            consumer_id=consumer_id, expires=0.0, principal=principal
        )
        self._start_idle_time(consumer)
        return consumer

    def _count_of(self, principal: str | None) -> int:
        return sum(each.principal == principal for one in self._groups.values() for each in one.consumers.values())

    async def _store(
        self,
        group: TableConsumers,
        table: TableState,
        consumer: ConsumerState,
        committed: ConsumerProgress,
        fence: int,
        micros: int,
        rows_position: bytes = b"",
        *,
        principal: str | None,
    ) -> None:
        """Stores the new state of a consumer durably."""
        is_moved = (committed, rows_position) != (consumer.committed, consumer.rows_position)
        moved = self._clock.commit_micros() if is_moved else consumer.moved_micros
        record = ConsumerRecord(
            consumer_id=consumer.consumer_id,
            fence=fence,
            token=committed.token(group.digest),
            committed_micros=micros,
            rows_position=rows_position,
            moved_micros=moved,
            principal=principal,
        )
        written: list[ConsumerRecord] = []

        def write() -> None:
            group.directory.write(record)
            written.append(record)

        try:
            await self._executor.run(write)
        finally:
            if written:  # also if the caller has cancelled in the meantime
                consumer.committed, consumer.fence, consumer.committed_micros = committed, fence, micros
                consumer.rows_position, consumer.moved_micros = rows_position, moved
                consumer.is_restored, consumer.principal = False, principal
                if not table.definition.is_divided:
                    _retain_logs(table, consumer.consumer_id, committed.position.offsets)
        if (tablets := self._tablets_of(table.definition)) is not None:
            # Until then, the tablets keep more.
            await tablets.keep(table.definition, consumer.consumer_id, committed.position.offsets)

    async def _forget(self, group: TableConsumers, consumer: ConsumerState) -> None:
        await self._executor.run(group.directory.remove, consumer.consumer_id)
        group.consumers.pop(consumer.consumer_id, None)
        if (tablets := self._tablets_of(group.definition)) is not None:
            await tablets.keep(group.definition, consumer.consumer_id, {})
            return
        table = self._live(group.table)
        if table is None or consumer.committed is None:
            return
        for number in consumer.committed.position.offsets:
            table.buckets[number].release_log(owner_of(consumer.consumer_id))

    def _end(self, group: TableConsumers, consumer: ConsumerState, why: str) -> None:
        session, consumer.session = consumer.session, None
        if session is not None:
            session.end(fenced_error(group, consumer.consumer_id, why))
        self._start_idle_time(consumer)

    def _renew(self, consumer: ConsumerState) -> None:
        consumer.expires = self._clock.monotonic() + self._ttl

    def _start_idle_time(self, consumer: ConsumerState) -> None:
        self._renew(consumer)
        self._reaper.notify(consumer.expires)

    def _idle(self) -> list[tuple[TableConsumers, ConsumerState]]:
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

    async def _end_expired(self, group: TableConsumers, consumer: ConsumerState) -> None:
        try:
            async with consumer.lock:
                if consumer.session is None and consumer.expires <= self._clock.monotonic():
                    _log.info('the consumer "%s" of %s has expired', consumer.consumer_id, group.table)
                    await self._forget(group, consumer)
        except Exception:
            _log.exception('ending the consumer "%s" of %s', consumer.consumer_id, group.table)
            self._renew(consumer)


def _raise_gone(group: TableConsumers, consumer_id: str) -> NoReturn:
    raise fenced_error(group, consumer_id, "it was deleted, or has expired")


def _raise_not_found(group: TableConsumers, consumer_id: str) -> NoReturn:
    raise ConsumerNotFound(
        f'the table {group.table} has no consumer "{consumer_id}": it was deleted, has expired, or never was',
        table=group.table,
    )


def _read_positions(tablet: TableDefinition, table: Path) -> dict[str, dict[int, int]]:
    """Returns the positions of the consumers of a table in one tablet. Blocks."""
    found = {}
    for consumer_id, record in ConsumerDirectory(table).read():
        with suppress(ScanKvError):  # The owner of the table reports it.
            offsets = {} if isinstance(record, DataLoss) else parse_log_token(record.token).position.offsets
            found[consumer_id] = {number: at for number, at in offsets.items() if number in tablet.own_buckets}
    return found


def _retain_logs(table: TableState, consumer_id: str, offsets: Mapping[int, int]) -> None:
    for number, offset in offsets.items():
        live = table.buckets[number]
        # Changes that are already trimmed cannot be retained, and a hold on them would retain all later ones.
        if live.state is not None and count_of(offset) >= live.state.log_first:
            live.retain_log(owner_of(consumer_id), offset)


async def ends_of(table: TableState, numbers: set[int]) -> dict[int, int]:
    """Returns the next offset of some buckets; skips damaged ones."""
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
