"""The changes of a table in one call, and those who follow them: consumers, listed, moved and deleted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal, Self

from aio_client._scan.protocol import changelog
from aio_client._transport.repeatable_calls import call_again
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.changes.log_positions import LogSpec, ScanSource, StartFrom
from scankv.model.errors import ConsumerNotFound, InvalidRequest, UsageError
from scankv.model.names import check_consumer_id
from scankv.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._scan.scan import Scan
    from aio_client._transport.transport import Transport
    from scankv.model.changes.log_positions import StopAt
    from scankv.model.expressions import Where

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer of a table, as of when it was asked for.

    Attributes:
        id: Its id.
        log_offsets: For every bucket that it has read, the offset of the first change that it has not committed.
        lag: How many changes there are from there on, without those in damaged buckets. With `phase` "rows", the rows
            that it has not committed come before them and are not counted.
        committed_at: When it committed last, in UTC, by the server's clock. None: never.
        live: Whether it has a stream.
        phase: Whether it has to commit `rows` of the table that its start began with, or `changes` alone.
        expires_in: Seconds until it is forgotten when nothing is heard of it; of no meaning while it is live.
        damage: Why it cannot be read: it can only be deleted. None: it can.
    """

    id: str
    log_offsets: LogOffsets
    lag: int
    committed_at: datetime | None
    live: bool
    phase: Literal["rows", "changes"]
    expires_in: float
    damage: str | None

    @classmethod
    def of(cls, message: consumer_pb2.Consumer) -> Self:
        """One consumer of an answer."""
        micros = message.committed_micros
        return cls(
            id=message.consumer_id,
            log_offsets=LogOffsets.of(message.log_offsets, message.table_incarnation),
            lag=message.lag,
            committed_at=_EPOCH + timedelta(microseconds=micros) if micros else None,
            live=message.live,
            phase="rows" if message.full else "changes",
            expires_in=message.remaining_millis / 1000,
            damage=message.damage or None,
        )


class ChangesOfTable(ABC):
    """The changes of a table, and its consumers."""

    _transport: Transport

    @property
    @abstractmethod
    def name(self) -> str:
        """`database.table`."""

    @abstractmethod
    def scan(
        self, columns: Sequence[str] | None = None, *, where: Where | None = None, limit: int | None = None
    ) -> Scan:
        """A scan of the table, to be refined and started."""

    def changes(
        self,
        start: StartFrom = StartFrom.FULL,
        stop: StopAt | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        consumer_id: str | None = None,
        must_exist: bool = False,
        shard: tuple[int, int] | None = None,
        clamp: bool = False,
    ) -> Scan:
        """The changes of the table as they happen, each with what happened to it, as a scan to be refined and started.

            async for changes in table.changes().stream():
                ...

        The short form of `scan().with_source(ScanSource.LOG).start_from(start).stop_at(stop).with_row_kind()`.

        Args:
            start: Where it starts, as for `Scan.start_from`. Default: with all rows, then every change from there on.
            stop: Where it ends, as for `Scan.stop_at`. Default: never.
            columns: The columns of the table to return behind those of the change. Default: all.
            where: Which rows are seen: one that begins to match is `+I`, one that ceases to is `-D`. Default: all.
            consumer_id: The consumer that keeps the position, as for `Scan.with_consumer_id`. Default: none.
            must_exist: Whether that consumer must be there already, as for `Scan.with_consumer_id`. Default: no.
            shard: `(i, n)` for one of `n` shares of the buckets, as for `Scan.with_shard`. Default: all buckets.
            clamp: Whether a start that is not there stands for the nearest change that is, as for `Scan.start_from`.

        Raises:
            UsageError: An argument is none of these.
            SchemaMismatch: `where` is text and does not fit the table.
        """
        changes = self.scan(columns, where=where).with_source(ScanSource.LOG).start_from(start, clamp=clamp)
        changes = changes.stop_at(stop).with_row_kind()
        if consumer_id is not None:
            changes = changes.with_consumer_id(consumer_id, must_exist=must_exist)
        elif must_exist:
            raise UsageError("must_exist is of a consumer: give its consumer_id", option="must_exist")
        if shard is not None:
            if not isinstance(shard, tuple) or len(shard) != 2:
                raise UsageError(f"shard is (i, n), the i-th of n shares, from 0 on, not {shard!r}")
            changes = changes.with_shard(*shard)
        return changes

    async def consumers(self, pattern: str | None = None) -> list[Consumer]:
        """The consumers of the table, by id, ascending. Opens the buckets in which they have positions.

        Args:
            pattern: Only those whose id matches: `*` stands for any characters, `?` for one, `[a-c]` for one of some.
                Default: all.
        """
        if pattern is not None:
            _check_pattern(pattern)
        request = consumer_pb2.ListConsumersRequest(table=self.name)
        response = await call_again(self._transport, lambda: self._transport.services.consumers.ListConsumers, request)
        found = [Consumer.of(message) for message in response.consumers]
        return found if pattern is None else [each for each in found if fnmatchcase(each.id, pattern)]

    async def reset_consumer(self, consumer_id: str, start: StartFrom, *, clamp: bool = False) -> LogOffsets:
        """Moves a consumer to any place, in all buckets that it has read. A stream of it ends with ConsumerFenced.

        Args:
            consumer_id: Its id.
            start: Where it goes on, as for `Scan.start_from`. With `StartFrom.FULL` the next stream begins with
                all rows.
            clamp: Whether a place that is not there stands for the nearest change that is.

        Returns:
            The offsets that are committed now.

        Raises:
            ConsumerNotFound: There is no such consumer.
            PositionExpired, PositionOutOfRange: The changelog does not have that place.
            InvalidRequest: Offsets are not of all buckets that it has read; those of others are not looked at.
            UsageError: It is no id, or no start.
        """
        _check(consumer_id)
        request = consumer_pb2.ResetConsumerRequest(
            table=self.name, consumer_id=consumer_id, start=changelog(LogSpec(start=start, clamp=clamp))
        )
        # Not repeated: it would fence a stream that was opened meanwhile.
        response = await self._transport.call(
            lambda: self._transport.services.consumers.ResetConsumer, request, repeatable=False
        )
        return LogOffsets.of(response.log_offsets, response.table_incarnation)

    async def delete_consumer(self, consumer_id: str) -> None:
        """Forgets a consumer, so that nothing is kept for it any more. A stream of it ends with ConsumerFenced.

        Raises:
            ConsumerNotFound: There is no such consumer.
            UsageError: It is no id.
        """
        _check(consumer_id)
        request = consumer_pb2.DeleteConsumerRequest(table=self.name, consumer_id=consumer_id)
        await self._transport.call(lambda: self._transport.services.consumers.DeleteConsumer, request, repeatable=False)

    async def delete_consumers(self, pattern: str) -> list[str]:
        """Forgets all consumers whose id matches, one after another, as `delete_consumer` does.

        Args:
            pattern: As for `consumers`; `*` for all.

        Returns:
            The ids of those that were forgotten, ascending. One that has gone in the meantime is not among them.

        Raises:
            UsageError: It is no pattern.
        """
        _check_pattern(pattern)
        deleted = []
        for consumer in await self.consumers(pattern):
            with suppress(ConsumerNotFound):
                await self.delete_consumer(consumer.id)
                deleted.append(consumer.id)
        return deleted


def _check_pattern(pattern: str) -> None:
    if not isinstance(pattern, str) or not pattern:
        raise UsageError(f'pattern is text such as "billing-*", or "*" for all, not {pattern!r}', option="pattern")


def _check(consumer_id: str) -> None:
    try:
        check_consumer_id(consumer_id)
    except InvalidRequest as error:
        raise UsageError(error.message) from error
