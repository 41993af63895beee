"""Lookups and writers of tables with tablets: each tablet gets the keys of its buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_ENCODED_KEYS, MAX_LOOKUP_KEYS
from scankv.v1 import lookup_pb2, scan_pb2, write_pb2
from streaming_server.engine.bucket.request_rows import read_request
from streaming_server.engine.writes.found_writer import FoundWriter
from streaming_server.services.tablets.dividing import (
    check_size,
    divide_rows,
    join_found,
    places_of,
    without,
)
from streaming_server.services.write import check_is_for_tablet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from streaming_server.services.tablets.tablet_calls import TabletCalls

_OPEN_WRITER = "scankv.v1.WriteService/OpenWriter"
_LOOKUP = "scankv.v1.LookupService/Lookup"


async def open_writer(request: write_pb2.OpenWriterRequest, calls: TabletCalls) -> write_pb2.OpenWriterResponse:
    """Begins the same new epoch of a writer at every tablet: see `WriteService.OpenWriter`."""

    def ask(**fields: Any) -> Awaitable[dict[int, write_pb2.OpenWriterResponse]]:  # noqa: ANN401  # of the request
        requests = {
            number: write_pb2.OpenWriterRequest(table=tablet.name, id=request.id, **fields)
            for number, tablet in enumerate(calls.tablets)
        }
        return calls.ask(_OPEN_WRITER, requests, write_pb2.OpenWriterResponse)

    check_is_for_tablet(request)
    # A request of an earlier epoch is written by all of its tablets, or refused by all.
    async with calls.tables.tablets.writers.altering(f"{calls.definition.incarnation} {request.id}"):
        # A tablet forgets a writer that writes nothing to it, so it knows neither its owner nor its epoch by itself.
        found = FoundWriter()
        for each in (await ask(only_looks=True)).values():
            owner = each.owner if each.HasField("owner") else None
            found = found.joined(FoundWriter(epoch=each.epoch, next_sequence=each.next_sequence, owner=owner))
        if not found.epoch:
            # Otherwise a tablet could refuse a new writer that others have opened by then.
            await ask(only_looks=True, least_epoch=1)
        epoch = 1 + found.epoch
        answers = await ask(least_epoch=epoch, owner=found.owner_after_opening)
    if any(each.epoch != epoch for each in answers.values()):
        # Another client opens it at the same time, so this epoch is fenced already.
        epoch = min(each.epoch for each in answers.values())
    sequence = max(each.next_sequence for each in answers.values())
    return write_pb2.OpenWriterResponse(epoch=epoch, next_sequence=sequence, history=calls.definition.history)


async def look_up(request: lookup_pb2.LookupRequest, calls: TabletCalls) -> lookup_pb2.LookupResponse:
    """Reads rows by key: see `LookupService.Lookup`."""
    if request.encoded_keys:
        return await _get(request, calls)
    run = calls.table.state.executor.run
    batch = await run(read_request, request.keys, calls.definition.key_schema)
    if batch.num_rows > MAX_LOOKUP_KEYS:
        raise RequestTooLarge(
            f"the lookup has {batch.num_rows:,} keys; the limit is {MAX_LOOKUP_KEYS:,}: ask for fewer"
        )
    parts = await run(divide_rows, request.keys, calls)
    requests = {}
    for tablet, (_, data) in parts.items():
        each = requests[tablet] = without(request, "keys")
        each.table, each.keys = calls.tablets[tablet].name, data
    answers = await _ask(request, requests, calls)
    places = {tablet: numbers for tablet, (numbers, _) in parts.items()}
    return await run(join_found, answers, places, calls)


async def _ask(
    request: lookup_pb2.LookupRequest, requests: Mapping[int, lookup_pb2.LookupRequest], calls: TabletCalls
) -> dict[int, lookup_pb2.LookupResponse]:
    """Has all tablets read their rows at one instant, so that the answer has all of a transaction or nothing of it."""
    if request.isolation == scan_pb2.ISOLATION_READ_LATEST:
        return await calls.ask(_LOOKUP, requests, lookup_pb2.LookupResponse)
    async with calls.hold(requests) as holds:
        return await calls.ask(_LOOKUP, requests, lookup_pb2.LookupResponse, holds)


async def _get(request: lookup_pb2.LookupRequest, calls: TabletCalls) -> lookup_pb2.LookupResponse:
    """Reads the rows of few encoded keys."""
    keys = list(request.encoded_keys)
    if len(keys) > MAX_ENCODED_KEYS:
        raise RequestTooLarge(
            f"the lookup has {len(keys):,} encoded keys; the limit is {MAX_ENCODED_KEYS:,}: send them as Arrow data"
        )
    places = places_of(calls, map(calls.table.state.codec.keys.bucket_of, keys))
    requests = {}
    for tablet, numbers in places.items():
        each = requests[tablet] = without(request, "encoded_keys")
        each.table = calls.tablets[tablet].name
        each.encoded_keys.extend([keys[number] for number in numbers.tolist()])
    answers = await _ask(request, requests, calls)
    check_size(len(row) for each in answers.values() for row in each.encoded_rows)
    joined = lookup_pb2.LookupResponse(
        table_incarnation=calls.definition.incarnation, schema_id=max(each.schema_id for each in answers.values())
    )
    found, buckets, rows = bytearray(len(keys)), [0] * len(keys), [b""] * len(keys)
    for tablet, answer in answers.items():
        there = iter(answer.encoded_rows)
        for number, is_there, bucket in zip(places[tablet].tolist(), answer.found, answer.buckets, strict=True):
            found[number], buckets[number] = is_there, bucket
            if is_there:
                rows[number] = next(there)
        for bucket, offset in answer.log_offsets.items():
            joined.log_offsets[bucket] = offset
    joined.found, joined.buckets[:] = bytes(found), buckets
    joined.encoded_rows[:] = [row for row, is_there in zip(rows, found, strict=True) if is_there]
    return joined
