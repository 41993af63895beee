"""Calls of the owner of a table about the changelogs of its tablets: offsets, and changes to keep for consumers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
import numpy as np

from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import ScanKvError
from scankv.v1 import scan_pb2, worker_pb2
from streaming_server.engine.bucket.call_point import CallPoint
from streaming_server.engine.changelog.log_starts import check_named, numbers_of_newest
from streaming_server.services.forwarding import error_of
from streaming_server.services.tablets.table_errors import of_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from google.protobuf.message import Message

    from scankv.model.changes.log_positions import StartFrom
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.services.forwarding import Workers

FIND: Final = "scankv.v1.TabletService/FindOffsets"
_KEEP: Final = "scankv.v1.TabletService/KeepChanges"

_FIND_SECONDS: Final = 10.0
_KEEP_SECONDS: Final = 2.0

_log: Final = logging.getLogger(__name__)


def changelog_of(start: StartFrom, *, clamp: bool = False) -> scan_pb2.Changelog:
    """Returns the message of a start."""
    message = scan_pb2.Changelog(clamp=clamp)
    match start.kind:
        case PositionKind.FULL:
            message.full.SetInParent()
        case PositionKind.EARLIEST:
            message.earliest.SetInParent()
        case PositionKind.TIMESTAMP:
            message.timestamp_micros = start.micros
        case PositionKind.OFFSETS:
            message.offsets.by_bucket.update(dict(start.by_bucket))
        case PositionKind.LAST:
            message.last = start.count
        case _:
            message.latest.SetInParent()
    return message


@dataclass(frozen=True, slots=True)
class TabletChangelogs:
    """Calls the owners of tablets, in the name of the server, which has checked the caller. See `TabletLogs`."""

    workers: Workers
    clock: ServerClock

    async def find(
        self,
        table: TableDefinition,
        buckets: Sequence[int],
        start: StartFrom,
        *,
        clamp: bool = False,
        consumer_id: str = "",
    ) -> dict[int, int]:
        """See `TabletLogs.find`."""
        if start.kind is PositionKind.OFFSETS:
            check_named(dict(start.by_bucket), buckets, table)
        parts = _by_tablet(table, buckets)
        requests = {
            tablet: worker_pb2.FindOffsetsRequest(
                buckets=own, start=changelog_of(start, clamp=clamp), consumer_id=consumer_id
            )
            for tablet, own in parts.items()
        }
        answers = await self._find(table, requests)
        if start.kind is PositionKind.LAST:
            times = {
                bucket: np.frombuffer(data, "<i8")
                for answer in answers.values()
                for bucket, data in answer.commit_micros.items()
            }
            numbers = numbers_of_newest(times, start.count)
            for tablet, own in parts.items():
                requests[tablet].last_of_buckets.update({bucket: numbers[bucket] for bucket in own})
            answers = await self._find(table, requests)
        return {b: at for answer in answers.values() for b, at in sorted(answer.log_offsets.items())}

    async def ends(self, table: TableDefinition, buckets: Sequence[int]) -> dict[int, int]:
        """See `TabletLogs.ends`."""
        requests = {
            tablet: worker_pb2.FindOffsetsRequest(buckets=own, ends_of_sound=True)
            for tablet, own in _by_tablet(table, buckets).items()
        }
        answers = await self._find(table, requests)
        return {bucket: at for answer in answers.values() for bucket, at in answer.log_offsets.items()}

    async def keep(self, table: TableDefinition, consumer_id: str, offsets: Mapping[int, int]) -> None:
        """See `TabletLogs.keep`."""

        async def keep(tablet: TableDefinition) -> None:
            own = {bucket: offsets[bucket] for bucket in tablet.own_buckets if bucket in offsets}
            request = worker_pb2.KeepChangesRequest(tablet=tablet.name, consumer_id=consumer_id, log_offsets=own)
            try:
                await self._ask(tablet, _KEEP, request, _KEEP_SECONDS)
            except ScanKvError as error:
                _log.warning(
                    "%s keeps more changes than consumer %s needs: %s", tablet.name, consumer_id, error.message
                )

        await asyncio.gather(*map(keep, table.all_tablets))

    async def _find(
        self, table: TableDefinition, requests: Mapping[int, worker_pb2.FindOffsetsRequest]
    ) -> dict[int, worker_pb2.FindOffsetsResponse]:
        async def find(number: int, request: worker_pb2.FindOffsetsRequest) -> worker_pb2.FindOffsetsResponse:
            tablet = table.tablet_at(number)
            request.tablet = tablet.name
            return worker_pb2.FindOffsetsResponse.FromString(await self._ask(tablet, FIND, request, _FIND_SECONDS))

        found = await asyncio.gather(*(find(*each) for each in requests.items()), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        answers = (each for each in found if not isinstance(each, BaseException))
        return dict(zip(requests, answers, strict=True))

    async def _ask(self, tablet: TableDefinition, method: str, request: Message, seconds: float) -> bytes:
        owner = self.workers.placement.owner_of(tablet.name)
        point = CallPoint.of(tablet, self.clock).to_bytes()
        try:
            return await self.workers.ask(
                owner, method, request.SerializeToString(), seconds, of_server=True, point=point
            )
        except grpc.aio.AioRpcError as error:
            raise of_table(error_of(error, owner, f"the tablet {tablet.name}"), tablet.name) from error


def _by_tablet(table: TableDefinition, buckets: Iterable[int]) -> dict[int, list[int]]:
    """Returns which of some buckets each tablet has; leaves out tablets that have none of them."""
    chosen = set(buckets)
    found = {number: sorted(chosen & set(each.own_buckets)) for number, each in enumerate(table.all_tablets)}
    return {number: own for number, own in found.items() if own}
