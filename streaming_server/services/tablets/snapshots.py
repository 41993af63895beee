"""Snapshots of tables with tablets: one lease on each tablet, all taken at one instant.

The first part is the record of the snapshot: it is announced last, once all parts are pinned, and released last. A
reader of the snapshot names the parts of one pin, so parts of different instants are never read together. If a part is
lost, the snapshot is lost, and the other parts end with their time to live at the latest.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import ScanKvError, SnapshotLost, SnapshotNotTaken
from scankv.v1 import snapshot_pb2
from streaming_server.engine.snapshots.part_ids import PartId
from streaming_server.engine.snapshots.splits import KeySample, split_sample
from streaming_server.services.forwarding import RETRY_SECONDS
from streaming_server.services.scan_request import bucket_numbers
from streaming_server.services.snapshot_request import split_request, split_response, ttl_of
from streaming_server.services.tablets.joined_snapshots import join_parts, join_snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.services.tablets.owner_calls import OwnerCalls
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_PIN: Final = "scankv.v1.SnapshotService/PinSnapshot"
_RENEW: Final = "scankv.v1.SnapshotService/RenewSnapshot"
_RELEASE: Final = "scankv.v1.SnapshotService/ReleaseSnapshot"
_LIST: Final = "scankv.v1.SnapshotService/ListSnapshots"
_SPLIT: Final = "scankv.v1.SnapshotService/SplitSnapshot"

UNDO_SECONDS: Final = 5.0
"""How long the release of the leases of a failed pin may take."""

PENDING_MILLIS: Final = 60_000
"""The time to live of parts until all of them are pinned. Parts that a crash leaves end after this time."""


async def pin(request: snapshot_pb2.PinSnapshotRequest, calls: TabletCalls) -> snapshot_pb2.PinSnapshotResponse:
    """Pins all tablets as of one instant: see `SnapshotService.PinSnapshot`."""
    snapshots, first = calls.tables.snapshots, calls.tables.table(calls.tablets[0].name).pinning.table
    lease_id, ttl = request.lease_id or uuid.uuid4().hex, ttl_of(request.ttl_millis)
    snapshots.check_pin(lease_id, ttl, shared=request.shared, name=request.name)
    async with calls.table.pinning.exclude_others():
        there = await snapshots.find_pinned(first, lease_id, request.name)
        if there is not None:
            is_shared = there.shared
            try:
                answers = await _renew_all(_part_of(there.lease_id), snapshots.renewed_ttl(there, ttl), calls)
                return snapshot_pb2.PinSnapshotResponse(snapshot=join_parts(answers))
            except SnapshotLost:
                if is_shared:
                    raise
        parts = PartId.new(lease_id, len(calls.tablets), shared=request.shared).all_parts
        try:
            pause_micros = await _pin_all(parts, request, calls)
            try:
                answers = await _renew_all(parts[0], snapshots.default_ttl if ttl is None else ttl, calls)
                await snapshots.announce(parts[0], shared=request.shared, name=request.name)
            except SnapshotLost as error:
                raise not_taken([calls.definition.name]) from error
        except BaseException:
            await asyncio.shield(release_all(_ids(parts), calls, within=UNDO_SECONDS))
            raise
    pinned = join_parts(answers)
    pinned.name = request.name
    return snapshot_pb2.PinSnapshotResponse(snapshot=pinned, write_pause_micros=pause_micros)


async def _pin_all(parts: Mapping[int, PartId], request: snapshot_pb2.PinSnapshotRequest, calls: TabletCalls) -> int:
    """Pins all parts, for some seconds. Returns for how many microseconds writers were paused."""
    requests = {
        number: snapshot_pb2.PinSnapshotRequest(
            table=calls.tablets[number].name,
            lease_id=str(part),
            ttl_millis=PENDING_MILLIS,
            principal=request.principal,
        )
        for number, part in parts.items()
    }
    if request.same_view_as:
        same = _existing(request.same_view_as, calls).all_parts
        for number, each in requests.items():
            each.same_view_as = str(same[number])
        await calls.ask(_PIN, requests, snapshot_pb2.PinSnapshotResponse)
        return 0
    return (await pin_at_once(requests, calls))[1]


async def pin_at_once(
    requests: Mapping[int, snapshot_pb2.PinSnapshotRequest], calls: OwnerCalls
) -> tuple[dict[int, snapshot_pb2.Snapshot], int]:
    """Pins tablets as of one instant.

    Returns the snapshots by tablet, and for how many microseconds writers were paused.
    """
    async with calls.hold(requests, pins=True) as holds:
        began = time.monotonic()
        answers = await calls.ask(_PIN, requests, snapshot_pb2.PinSnapshotResponse, holds)
    paused = int((time.monotonic() - began) * 1_000_000)
    pinned = {number: each.snapshot for number, each in answers.items()}
    return pinned, paused if any(each.write_pause_micros for each in answers.values()) else 0


async def renew(request: snapshot_pb2.RenewSnapshotRequest, calls: TabletCalls) -> snapshot_pb2.RenewSnapshotResponse:
    """Renews all parts of a snapshot: see `SnapshotService.RenewSnapshot`."""
    answers = await _renew_all(_existing(request.snapshot_id, calls), ttl_of(request.ttl_millis), calls)
    return snapshot_pb2.RenewSnapshotResponse(snapshot=join_parts(answers))


async def _renew_all(part: PartId, ttl: float | None, calls: TabletCalls) -> dict[int, snapshot_pb2.Snapshot]:
    """Renews all parts. If one of them is lost, ends the others and raises SnapshotLost."""
    try:
        return await renew_all(_ids(part.all_parts), 0 if ttl is None else round(ttl * 1000), calls)
    except SnapshotLost:
        await asyncio.shield(release_all(_ids(part.all_parts), calls, within=UNDO_SECONDS))
        raise


async def renew_all(
    ids: Mapping[int, str], ttl_millis: int, calls: OwnerCalls, *, announces: bool = False
) -> dict[int, snapshot_pb2.Snapshot]:
    """Renews leases at their owners.

    Args:
        ids: The ids of the leases, by tablet.
        ttl_millis: Their new time to live. 0: unchanged.
        calls: Asks the owners.
        announces: Whether the leases are on first tablets, and all parts of their snapshots are pinned.

    Raises:
        SnapshotLost: One of them has ended.
    """
    requests = {
        number: snapshot_pb2.RenewSnapshotRequest(snapshot_id=each, ttl_millis=ttl_millis, announces=announces)
        for number, each in ids.items()
    }
    answers = await calls.ask(_RENEW, requests, snapshot_pb2.RenewSnapshotResponse)
    return {number: each.snapshot for number, each in answers.items()}


async def release(
    request: snapshot_pb2.ReleaseSnapshotRequest, calls: TabletCalls
) -> snapshot_pb2.ReleaseSnapshotResponse:
    """Releases all parts of a snapshot, the first part last: see `SnapshotService.ReleaseSnapshot`."""
    ids = _ids(_existing(request.snapshot_id, calls).all_parts)
    first = ids.pop(0)
    found = await release_all(ids, calls)
    for error in found.values():
        if isinstance(error, ScanKvError) and not isinstance(error, SnapshotLost):
            raise error
    await calls.ask(
        _RELEASE, {0: snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=first)}, snapshot_pb2.ReleaseSnapshotResponse
    )
    return snapshot_pb2.ReleaseSnapshotResponse()


async def release_all(ids: Mapping[int, str], calls: OwnerCalls, *, within: float | None = None) -> dict[int, Any]:
    """Releases leases at their owners, as far as that is possible. Returns the answers and errors by tablet.

    Args:
        ids: The ids of the leases, by tablet.
        calls: Asks the owners.
        within: How many seconds it may take, even if the client has gone. None: as long as the client waits.
    """
    requests = {number: snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=each) for number, each in ids.items()}
    return {**await calls.ask_each(_RELEASE, requests, snapshot_pb2.ReleaseSnapshotResponse, seconds=within)}


async def list_snapshots(
    request: snapshot_pb2.ListSnapshotsRequest, calls: TabletCalls
) -> snapshot_pb2.ListSnapshotsResponse:
    """Lists the snapshots of a table: see `SnapshotService.ListSnapshots`."""
    requests = {
        number: snapshot_pb2.ListSnapshotsRequest(table=tablet.name) for number, tablet in enumerate(calls.tablets)
    }
    answers = await calls.ask(_LIST, requests, snapshot_pb2.ListSnapshotsResponse)
    found = (each for answer in answers.values() for each in answer.snapshots)
    return snapshot_pb2.ListSnapshotsResponse(snapshots=join_snapshots(found))


async def split(request: snapshot_pb2.SplitSnapshotRequest, calls: TabletCalls) -> snapshot_pb2.SplitSnapshotResponse:
    """Splits the keys of all tablets by a sample of each: see `SnapshotService.SplitSnapshot`."""
    parts = _existing(request.snapshot_id, calls).all_parts
    cut, named = split_request(request), bucket_numbers(request.buckets)
    calls.check_buckets(named)
    requests: dict[int, Any] = {}
    for tablet, buckets in calls.buckets_by_tablet(request.buckets).items():
        each = requests[tablet] = snapshot_pb2.SplitSnapshotRequest()
        each.CopyFrom(request)
        each.snapshot_id, each.buckets[:], each.sample = str(parts[tablet]), buckets, True
    answers = await calls.ask(_SPLIT, requests, snapshot_pb2.SplitSnapshotResponse)

    def split_all() -> snapshot_pb2.SplitSnapshotResponse:
        sample = KeySample({}, {}, {})
        for answer in answers.values():
            sample.include(KeySample.from_json(json.loads(answer.sample)))
        ranges = split_sample(sample, cut, sorted(named or range(calls.definition.buckets)))
        return split_response(ranges)

    return await calls.table.state.executor.run(split_all)


def not_taken(tables: Sequence[str]) -> SnapshotNotTaken:
    """Returns the error for leases that have ended before all of them were pinned."""
    return SnapshotNotTaken(
        f"taking a snapshot of {', '.join(tables)} took over {PENDING_MILLIS // 1000} s, so some of its parts were "
        "given up: no snapshot was taken; try again when the server has less load",
        retry_after=RETRY_SECONDS,
        table=tables[0],
    )


def _ids(parts: Mapping[int, PartId]) -> dict[int, str]:
    return {number: str(part) for number, part in parts.items()}


def _existing(snapshot_id: str, calls: TabletCalls) -> PartId:
    """Returns the first part of a snapshot. Raises SnapshotLost or InvalidRequest unless the table has it."""
    return calls.tables.snapshots.first_part(snapshot_id, calls.tablets[0].name)[0]


def _part_of(lease_id: str) -> PartId:
    part = PartId.parse(lease_id)
    assert part is not None
    return part
