"""Streams of the changes of tables with tablets: opens a stream at each tablet, and joins them."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scankv.model.changes.log_positions import PositionKind, StartFrom
from scankv.model.errors import InvalidRequest
from scankv.v1 import scan_pb2, worker_pb2
from streaming_server.engine.changelog.consumer_starts import start_of_consumer
from streaming_server.engine.changelog.log_starts import check_named
from streaming_server.scan.changes.log_plan import OpenedLog
from streaming_server.scan.changes.log_token import LogPosition, LogTokenWriter, read_log_token
from streaming_server.scan.changes.tablet_positions import part_of_position
from streaming_server.services.tablets.changelogs import FIND, TabletChangelogs, changelog_of
from streaming_server.services.tablets.joined_changes import JoinedChanges, TabletStream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.changelog.consumer_starts import FindOffsets
    from streaming_server.scan.changes.log_plan import LogPlan
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_LEAST_HEARTBEAT_MILLIS: Final = 100


class DividedChanges:
    """Opens the stream of changes that one call asks for. See `TableChanges`.

    Args:
        calls: The calls about the table.
        request: The request.
        heartbeat_seconds: The interval of its heartbeats.
    """

    def __init__(self, calls: TabletCalls, request: scan_pb2.ScanKvRequest, heartbeat_seconds: float) -> None:
        self._calls = calls
        self._request = request
        # A heartbeat of the joined stream repeats the latest heartbeats of the tablets.
        self._heartbeat_millis = max(_LEAST_HEARTBEAT_MILLIS, int(heartbeat_seconds * 500))
        self._logs = TabletChangelogs(calls.workers, calls.tables.clock)

    @property
    def table(self) -> TableState:
        """The table, which has no buckets itself."""
        return self._calls.table.state

    async def open(self, plan: LogPlan, owner: str, committed: LogPosition | None = None) -> OpenedLog:
        """Opens a stream. See `TableChanges.open`."""
        definition, buckets = self._calls.definition, self._select_buckets(plan)
        plan.check(definition)
        fingerprint = plan.fingerprint(definition, buckets)
        resumed, position, limit = None, None, plan.limit
        if plan.resume_token:
            resumed, limit = read_log_token(plan.resume_token, fingerprint)
            position = resumed
        elif committed is not None:
            position = await start_of_consumer(committed, plan, buckets, self._finder(plan))
        elif plan.consumer_id and plan.start.kind is PositionKind.FULL:
            # From here on, the tablets keep the changes.
            await self._finder(plan)(buckets, StartFrom.LATEST)
        elif plan.consumer_id or plan.start.kind is PositionKind.LAST:
            position = LogPosition(await self._finder(plan)(buckets, plan.start))
        elif plan.start.kind is PositionKind.OFFSETS:
            check_named(dict(plan.start.by_bucket), buckets, definition)
        if plan.stop is not None and plan.stop.kind is PositionKind.OFFSETS:
            check_named(dict(plan.stop.by_bucket), buckets, definition)
        source = await self._open(plan, buckets, position)
        self.table.abort_on_close(source)
        return OpenedLog(
            source=source,
            tokens=LogTokenWriter(fingerprint),
            definition=definition,
            resumed_from=resumed,
            limit=limit,
            selective=False,
            full=source.scanning,
        )

    def _select_buckets(self, plan: LogPlan) -> list[int]:
        if plan.buckets is None:
            return [*self._calls.definition.read_buckets]
        if len(set(plan.buckets)) != len(plan.buckets):
            raise InvalidRequest("a bucket is named twice: name each once")
        for number in plan.buckets:
            if not 0 <= number < self._calls.definition.buckets:
                _ = self.table.buckets[number]  # raises the error
        return sorted(plan.buckets)

    def _finder(self, plan: LogPlan) -> FindOffsets:
        async def find(buckets: Sequence[int], start: StartFrom) -> dict[int, int]:
            return await self._logs.find(
                self._calls.definition, buckets, start, clamp=plan.clamp, consumer_id=plan.consumer_id
            )

        return find

    async def _open(self, plan: LogPlan, buckets: Sequence[int], position: LogPosition | None) -> JoinedChanges:
        # A stream without buckets has the schema and the heartbeats of a tablet.
        parts = self._calls.buckets_by_tablet(buckets) if buckets else {0: []}
        stops = await self._find_stops(parts) if self._request.log.HasField("stop_latest") else None
        places = {
            tablet: None if position is None else part_of_position(position, own) for tablet, own in parts.items()
        }
        requests = {tablet: self._request_of(plan, tablet, own, places[tablet], stops) for tablet, own in parts.items()}
        begins_now = position is None and plan.start.kind in {PositionKind.FULL, PositionKind.LATEST}
        at_once = begins_now or (position is not None and position.scanning)
        streams = {tablet: TabletStream(self._calls, tablet, each) for tablet, each in requests.items()}
        with ExitStack() as stack:
            for stream in streams.values():
                stack.callback(stream.close)
            async with self._calls.hold(parts) if at_once else nullcontext(dict.fromkeys(parts, "")) as holds:
                for tablet, stream in streams.items():
                    stream.begin(holds[tablet])
                for tablet, stream in streams.items():
                    await stream.open(places[tablet])
            scanned = None if position is None else position.scanned
            joined = JoinedChanges(list(streams.values()), scanned, self._heartbeat_millis / 1000)
            stack.pop_all()
        return joined

    async def _find_stops(self, parts: Mapping[int, list[int]]) -> dict[int, int]:
        """Returns the ends of the changelogs, as of one instant."""
        requests = {
            tablet: worker_pb2.FindOffsetsRequest(
                tablet=self._calls.tablets[tablet].name, buckets=own, start=changelog_of(StartFrom.LATEST)
            )
            for tablet, own in parts.items()
        }
        async with self._calls.hold(parts) as holds:
            answers = await self._calls.ask(FIND, requests, worker_pb2.FindOffsetsResponse, holds)
        return {bucket: at for each in answers.values() for bucket, at in each.log_offsets.items()}

    def _request_of(
        self,
        plan: LogPlan,
        tablet: int,
        buckets: Sequence[int],
        position: LogPosition | None,
        stops: Mapping[int, int] | None,
    ) -> scan_pb2.ScanKvRequest:
        """Returns the request for one tablet."""
        definition, request = self._calls.tablets[tablet], scan_pb2.ScanKvRequest()
        request.CopyFrom(self._request)
        request.table, request.buckets[:], request.heartbeat_millis = definition.name, buckets, self._heartbeat_millis
        request.ClearField("limit")
        log = request.log
        for field in ("consumer_id", "consumer_fence", "consumer_must_exist", "consumer_principal", "rows_elsewhere"):
            log.ClearField(field)
        # A check has shown that these offsets are of the table.
        if log.HasField("offsets"):
            log.offsets.ClearField("table_incarnation")
        if log.HasField("stop_offsets"):
            log.stop_offsets.ClearField("table_incarnation")
        if stops is not None:
            log.stop_offsets.by_bucket.update(stops)
        request.ClearField("resume_token")
        if position is not None:
            fingerprint = replace(plan, limit=None).fingerprint(definition, buckets)
            request.resume_token = LogTokenWriter(fingerprint).token(position, None)
        return request
