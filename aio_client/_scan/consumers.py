"""Lists, moves and deletes the consumers of a table."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal, Self

from aio_client._scan.protocol import changelog_message
from aio_client._table.handle import TableMethods
from aio_client._transport.repeatable_calls import call_again
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.changes.log_positions import LogSpec
from scankv.model.errors import ConsumerNotFound, InvalidRequest, UsageError
from scankv.model.names import check_consumer_id
from scankv.v1 import consumer_pb2

if TYPE_CHECKING:
    from scankv.model.changes.log_positions import StartFrom

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer of a table, as of the call that returned it.

    Attributes:
        id: The consumer's id.
        log_offsets: For every bucket that the consumer has read, the offset of the first change that it has not
            committed.
        lag: The number of changes from these offsets on, without those in damaged buckets. While `phase` is "rows", the
            uncommitted rows come before these changes and are not counted.
        committed_at: When the consumer committed last, in UTC, by the server's clock. None: never.
        live: Whether the consumer has a running stream.
        phase: "rows" while the consumer has not committed all rows of the table that its first stream began with,
            "changes" afterwards.
        remaining: Seconds after which the server forgets the consumer unless it reads or commits. Meaningless while
            `live`.
        damage: Why the consumer cannot be read; such a consumer can only be deleted. None: it can be read.
        rows_position: How far it has committed the rows of a start with `StartFrom.lake`, as a resume token. None: it
            has committed none of them or all of them, or has started otherwise.
        restored: Whether the position comes from another incarnation of the table, because the table was restored or
            recovered. Streams of the consumer raise TableRecreated until the position is accepted or changed.
        principal: The principal that it belongs to. None: it has no owner.
    """

    id: str
    log_offsets: LogOffsets
    lag: int
    committed_at: datetime | None
    live: bool
    phase: Literal["rows", "changes"]
    remaining: float
    damage: str | None
    rows_position: bytes | None = None
    restored: bool = False
    principal: str | None = None

    @classmethod
    def of(cls, message: consumer_pb2.Consumer) -> Self:
        """Decodes a consumer in an answer."""
        micros = message.committed_micros
        return cls(
            id=message.consumer_id,
            log_offsets=LogOffsets.of(message.log_offsets, message.table_incarnation),
            lag=message.lag,
            committed_at=_EPOCH + timedelta(microseconds=micros) if micros else None,
            live=message.live,
            phase="rows" if message.full else "changes",
            remaining=message.remaining_millis / 1000,
            damage=message.damage or None,
            rows_position=message.rows_position or None,
            restored=message.restored,
            principal=message.principal or None,
        )


class ConsumerMethods(TableMethods):
    """Administers the consumers of a table. `Table.changes` reads as a consumer."""

    async def consumers(self, pattern: str | None = None) -> list[Consumer]:
        """Lists the consumers of the table in ascending order of ids. Opens the buckets that they have read.

        Args:
            pattern: Return only consumers whose id matches: `*` stands for any characters, `?` for one character,
                `[a-c]` for one of several. Default: all consumers.

        Raises:
            UsageError: `pattern` is empty or not text.
        """
        if pattern is not None:
            _check_pattern(pattern)
        transport = self._handle.transport
        request = consumer_pb2.ListConsumersRequest(table=self._handle.name)
        response = await call_again(transport, lambda: transport.services.consumers.ListConsumers, request)
        consumers = [Consumer.of(message) for message in response.consumers]
        return consumers if pattern is None else [each for each in consumers if fnmatchcase(each.id, pattern)]

    async def reset_consumer(self, consumer_id: str, start: StartFrom, *, clamp: bool = False) -> LogOffsets:
        """Moves a consumer to another position in all buckets that it has read.

        A running stream of the consumer ends with ConsumerFenced. The call is not repeated if its answer is lost.

        Args:
            consumer_id: The consumer's id.
            start: The new position, as for `Scan.start_from`. With `StartFrom.FULL`, the next stream begins with all
                rows.
            clamp: Whether to move to the nearest change that exists if `start` does not.

        Returns:
            The committed offsets of the new position, by bucket.

        Raises:
            ConsumerNotFound: The consumer does not exist.
            PositionExpired, PositionOutOfRange: The changelog does not have the position.
            InvalidRequest: Offsets are missing for a bucket that the consumer has read. Offsets of other buckets are
                ignored.
            UsageError: `consumer_id` is not a valid id, or `start` is not a `StartFrom`.
        """
        _check_id(consumer_id)
        transport = self._handle.transport
        request = consumer_pb2.ResetConsumerRequest(
            table=self._handle.name, consumer_id=consumer_id, start=changelog_message(LogSpec(start=start, clamp=clamp))
        )
        # Not repeated: a second reset would fence a stream that was opened after the first one.
        response = await transport.call(lambda: transport.services.consumers.ResetConsumer, request, repeatable=False)
        return LogOffsets.of(response.log_offsets, response.table_incarnation)

    async def accept_consumer(self, consumer_id: str) -> LogOffsets:
        """Lets a consumer continue at the position that a restored or recovered table has for it.

        A backup contains the position of each consumer. After a restore, the program behind the consumer may have acted
        on changes that no longer exist. So the consumer's streams raise TableRecreated until you accept the position,
        or choose another one with `reset_consumer`. Does nothing if the consumer is not `Consumer.restored`.

        Args:
            consumer_id: The consumer's id.

        Returns:
            The committed offsets, by bucket.

        Raises:
            ConsumerNotFound: The consumer does not exist.
            PositionExpired, PositionOutOfRange: The changelog does not have the position: reset the consumer.
            UsageError: `consumer_id` is not a valid id.
        """
        _check_id(consumer_id)
        transport = self._handle.transport
        request = consumer_pb2.ResetConsumerRequest(table=self._handle.name, consumer_id=consumer_id, accept=True)
        response = await call_again(transport, lambda: transport.services.consumers.ResetConsumer, request)
        return LogOffsets.of(response.log_offsets, response.table_incarnation)

    async def delete_consumer(self, consumer_id: str) -> None:
        """Deletes a consumer with its position and its retention hold.

        A running stream of the consumer ends with ConsumerFenced.

        Args:
            consumer_id: The consumer's id.

        Raises:
            ConsumerNotFound: The consumer does not exist.
            UsageError: `consumer_id` is not a valid id.
        """
        _check_id(consumer_id)
        transport = self._handle.transport
        request = consumer_pb2.DeleteConsumerRequest(table=self._handle.name, consumer_id=consumer_id)
        await transport.call(lambda: transport.services.consumers.DeleteConsumer, request, repeatable=False)

    async def delete_consumers(self, pattern: str) -> list[str]:
        """Deletes all consumers whose id matches, one after another, as `delete_consumer` does.

        Args:
            pattern: As for `consumers`; `*` for all.

        Returns:
            The ids of the consumers that this call deleted, ascending.

        Raises:
            UsageError: `pattern` is empty or not text.
        """
        _check_pattern(pattern)
        deleted = []
        for consumer in await self.consumers(pattern):
            # Another client may have deleted the consumer since it was listed.
            with suppress(ConsumerNotFound):
                await self.delete_consumer(consumer.id)
                deleted.append(consumer.id)
        return deleted


def _check_pattern(pattern: str) -> None:
    if not isinstance(pattern, str) or not pattern:
        raise UsageError(f'pattern must be text such as "billing-*", or "*" for all, not {pattern!r}', option="pattern")


def _check_id(consumer_id: str) -> None:
    try:
        check_consumer_id(consumer_id)
    except InvalidRequest as error:
        raise UsageError(error.message) from error
