"""Writes and lookups of tables with tablets: each tablet gets the rows or keys of its buckets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from scankv.model.errors import InvalidRequest, RequestTooLarge, ScanKvError, TableRecreated
from scankv.model.limits import MAX_ENCODED_KEYS, MAX_ENCODED_ROWS, MAX_LOOKUP_KEYS
from scankv.v1 import lookup_pb2, write_pb2
from streaming_server.engine.bucket.request_rows import read_request
from streaming_server.services.tablets.dividing import (
    DELETE_CALL,
    UPSERT_CALL,
    divide_rows,
    join_found,
    places_of,
    without,
)
from streaming_server.services.tablets.transactions import stage_write
from streaming_server.services.write import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streaming_server.services.tablets.dividing import Places
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_OPEN_WRITER = "scankv.v1.WriteService/OpenWriter"
_LOOKUP = "scankv.v1.LookupService/Lookup"


async def upsert(request: write_pb2.UpsertRequest, calls: TabletCalls) -> write_pb2.WriteResponse:
    """Writes rows: see `WriteService.Upsert`. The request is checked completely before any tablet gets its rows."""
    if request.HasField("transaction"):
        return await stage_write(request, calls)
    _check_terms(request, calls)
    table, run = calls.table, calls.table.state.executor.run
    if request.encoded_rows:
        return await _write_few(request, "encoded_rows", UPSERT_CALL, calls, _keys_of_rows(request.encoded_rows, calls))
    schema_id = request.schema_id or calls.definition.schema.id
    await run(table.writes.check_upsert(request.rows, request.schema_id, kind_of(request)))
    parts = await run(divide_rows, request.rows, calls)
    requests = {}
    for tablet, (_, data) in parts.items():
        each = requests[tablet] = without(request, "rows")
        each.table, each.rows, each.schema_id = calls.tablets[tablet].name, data, schema_id
    return await _write(UPSERT_CALL, requests, {}, calls)


async def delete(request: write_pb2.DeleteRequest, calls: TabletCalls) -> write_pb2.WriteResponse:
    """Deletes rows: see `WriteService.Delete`. The request is checked as in `upsert`."""
    if request.HasField("transaction"):
        return await stage_write(request, calls)
    _check_terms(request, calls)
    table, run = calls.table, calls.table.state.executor.run
    if request.encoded_keys:
        return await _write_few(request, "encoded_keys", DELETE_CALL, calls, list(request.encoded_keys))
    await run(table.writes.check_delete(request.keys, kind_of(request), request.schema_id))
    parts = await run(divide_rows, request.keys, calls)
    requests = {}
    for tablet, (_, data) in parts.items():
        each = requests[tablet] = without(request, "keys")
        each.table, each.keys = calls.tablets[tablet].name, data
    return await _write(DELETE_CALL, requests, {}, calls)


def _check_terms(request: write_pb2.UpsertRequest | write_pb2.DeleteRequest, calls: TabletCalls) -> None:
    """Refuses what tables with tablets do not have."""
    name = calls.definition.name
    if request.HasField("unchanged_since"):
        raise InvalidRequest(
            f"table {name} has tablets, which cannot be checked together: leave out unchanged_since, or use a table "
            "without tablets",
            table=name,
        )


def _keys_of_rows(rows: Sequence[bytes], calls: TabletCalls) -> list[bytes]:
    """Returns the encoded keys of encoded rows. One that cannot be read has an empty key."""
    single = calls.table.state.codec.single
    found = []
    for number, row in enumerate(rows):
        try:
            found.append(b"" if single is None else single.read(row, number)[0])
        except ScanKvError:
            found.append(b"")
    return found


async def _write_few(
    request: write_pb2.UpsertRequest | write_pb2.DeleteRequest,
    field: str,
    method: str,
    calls: TabletCalls,
    keys: Sequence[bytes],
) -> write_pb2.WriteResponse:
    if len(keys) > MAX_ENCODED_ROWS:
        raise RequestTooLarge(
            f"the request has {len(keys):,} encoded rows; the limit is {MAX_ENCODED_ROWS:,}: send Arrow data"
        )
    _check_incarnation(request.table_incarnation, calls)
    places = places_of(calls, map(calls.table.state.codec.keys.bucket_of, keys))
    if not request.independent and len(places) > 1:
        # A row that is refused refuses the whole request, so one call checks all rows first.
        data = list(getattr(request, field))
        read = partial(calls.table.writes.check_few, data, deletes=isinstance(request, write_pb2.DeleteRequest))
        await calls.table.state.executor.run(read)
    data, requests = list(getattr(request, field)), {}
    for tablet, numbers in places.items():
        each = without(request, field)
        each.table, each.table_incarnation = calls.tablets[tablet].name, calls.tablets[tablet].incarnation
        getattr(each, field).extend([data[number] for number in numbers.tolist()])
        requests[tablet] = each
    return await _write(method, requests, places, calls)


async def _write(
    method: str, requests: Mapping[int, Any], places: Places, calls: TabletCalls
) -> write_pb2.WriteResponse:
    """Has each tablet write its rows, and joins the answers."""
    answers = await calls.ask(method, requests, write_pb2.WriteResponse)
    joined = write_pb2.WriteResponse(table_incarnation=calls.definition.incarnation)
    buckets = [0] * sum(map(len, places.values()))
    for tablet, answer in answers.items():
        joined.rows += answer.rows
        for bucket, offset in answer.log_offsets.items():
            joined.log_offsets[bucket] = offset
        if tablet not in places:
            continue
        numbers = places[tablet].tolist()
        for number, bucket in zip(numbers, answer.buckets, strict=True):
            buckets[number] = bucket
        for failure in answer.failures:
            rows = [numbers[row] for row in failure.rows]
            joined.failures.append(write_pb2.WriteFailure(rows=rows, status=failure.status))
    joined.buckets.extend(buckets)
    return joined


def _check_incarnation(incarnation: str, calls: TabletCalls) -> None:
    if incarnation != calls.definition.incarnation:
        name = calls.definition.name
        raise TableRecreated(f"table {name} was dropped and created again: open it again", table=name)


async def open_writer(request: write_pb2.OpenWriterRequest, calls: TabletCalls) -> write_pb2.OpenWriterResponse:
    """Begins the same new epoch of a writer at every tablet: see `WriteService.OpenWriter`."""

    def requests(tablets: Iterable[int], epoch: int) -> dict[int, write_pb2.OpenWriterRequest]:
        return {
            number: write_pb2.OpenWriterRequest(table=calls.tablets[number].name, id=request.id, least_epoch=epoch)
            for number in tablets
        }

    answers = await calls.ask(_OPEN_WRITER, requests(range(len(calls.tablets)), 0), write_pb2.OpenWriterResponse)
    epoch = max(each.epoch for each in answers.values())
    behind = [number for number, each in answers.items() if each.epoch < epoch]
    if behind:
        answers |= await calls.ask(_OPEN_WRITER, requests(behind, epoch), write_pb2.OpenWriterResponse)
    if any(each.epoch != epoch for each in answers.values()):
        # Another client opens it at the same time, so this epoch is fenced already.
        epoch = min(each.epoch for each in answers.values())
    sequence = max(each.next_sequence for each in answers.values())
    return write_pb2.OpenWriterResponse(epoch=epoch, next_sequence=sequence)


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
    answers = await calls.ask(_LOOKUP, requests, lookup_pb2.LookupResponse)
    places = {tablet: numbers for tablet, (numbers, _) in parts.items()}
    return await run(join_found, answers, places, calls)


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
    answers = await calls.ask(_LOOKUP, requests, lookup_pb2.LookupResponse)
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
