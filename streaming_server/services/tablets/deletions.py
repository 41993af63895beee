"""Deletes matching rows of a table with tablets as a part of a transaction: one request at each tablet."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest, ScanKvError
from scankv.model.limits import MAX_WAIT_MILLIS
from scankv.v1 import transaction_pb2
from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.transactions.delete_all import check_is_range, range_of
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.services.tablets.transactions import Fragments
from streaming_server.services.transaction import rows_to_delete
from streaming_server.services.write import overwrites
from streaming_server.storage.tables.data_directory import DELETIONS_FORMAT
from streaming_server.storage.transactions.staging import DELETE

if TYPE_CHECKING:
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_STAGE: Final = "scankv.v1.TransactionService/StageDeleteAll"


async def stage_delete_all(
    request: transaction_pb2.StageDeleteAllRequest, calls: TabletCalls
) -> transaction_pb2.StageDeleteAllResponse:
    """Stages the deletion of rows as of one instant: see `TransactionService.StageDeleteAll`."""
    if request.wait_millis > MAX_WAIT_MILLIS:
        raise InvalidRequest(f"wait_millis must be at most {MAX_WAIT_MILLIS:,}, not {request.wait_millis:,}")
    request_id = _id_of(request)
    async with calls.tables.transactions.summaries.turn(request_id) as transaction:
        fragments = Fragments(calls, transaction, request_id)
        staged = await fragments.find()
        if staged is not None:
            return transaction_pb2.StageDeleteAllResponse(done=True, rows=staged.rows)
        kind = WriteKind(overwrite=overwrites(request.mode), tracks_changes=not request.untracked)
        with calls.table.writes.locks.admit(kind.columns or None, request.column_locks):
            pass
        attempt, place = uuid.uuid4().hex, (request.part, request.sequence)
        begun = transaction.attempts.setdefault(place, attempt)
        fragments = replace(fragments, request_id=replace(request_id, fragment=f"{request_id.fragment}.{begun}"))
        try:
            answers = await _ask(request, fragments, await _is_range(request, calls), continues=begun is not attempt)
        except ScanKvError:
            # The next attempt selects other rows.
            del transaction.attempts[place]
            raise
        if not all(each.done for each in answers.values()):
            return transaction_pb2.StageDeleteAllResponse()
        transaction.observed.add(calls.definition.incarnation)
        rows = sum(each.rows for each in answers.values())
        await fragments.finish(
            DELETE,
            rows,
            answers,
            schema_id=calls.definition.schema.id,
            overwrite=kind.overwrite,
            column_locks=tuple(sorted(set(request.column_locks))),
        )
        del transaction.attempts[place]
    return transaction_pb2.StageDeleteAllResponse(done=True, rows=rows)


def _id_of(request: transaction_pb2.StageDeleteAllRequest) -> StagedRequestId:
    same = transaction_pb2.StageDeleteAllRequest()
    same.CopyFrom(request)
    same.ClearField("wait_millis")
    digest = hashlib.blake2b(same.SerializeToString(deterministic=True), digest_size=16).hexdigest()
    return StagedRequestId(token=request.token, part=request.part, sequence=request.sequence, fragment=digest)


async def _is_range(request: transaction_pb2.StageDeleteAllRequest, calls: TabletCalls) -> bool:
    """Whether the tablets delete one range of keys, which they select at the commit."""
    calls.definition.require_key("its rows are not deleted")
    is_alone = request.alone and calls.tables.rules.has_format(DELETIONS_FORMAT)
    if not (request.untracked or (is_alone and calls.definition.options.changelog == "none")):
        return False
    keys = await calls.table.state.executor.run(range_of, rows_to_delete(request), calls.table)
    if request.untracked:
        check_is_range(keys, calls.table)
    return keys is not None


async def _ask(
    request: transaction_pb2.StageDeleteAllRequest, fragments: Fragments, is_range: bool, *, continues: bool
) -> dict[int, transaction_pb2.StageDeleteAllResponse]:
    """Has all tablets stage their fragments, or continue with them."""
    calls, requests = fragments.calls, {}
    for number, tablet in enumerate(calls.tablets):
        each = requests[number] = transaction_pb2.StageDeleteAllRequest()
        each.CopyFrom(request)
        each.table, each.fragment = tablet.name, fragments.request_id.fragment
        each.ClearField("column_locks")
    response = transaction_pb2.StageDeleteAllResponse
    if is_range:
        return await fragments.stage(_STAGE, requests, response)
    if continues:
        for each in requests.values():
            each.continues = True
        return await fragments.stage(_STAGE, requests, response)
    loop = asyncio.get_running_loop()
    ends = loop.time() + request.wait_millis / 1000
    for each in requests.values():
        each.wait_millis = 0
    # All tablets select their rows at this instant. A tablet that has selected them continues.
    async with calls.hold(requests) as holds:
        answers = await fragments.stage(_STAGE, requests, response, holds)
    left = {number: requests[number] for number, each in answers.items() if not each.done}
    for each in left.values():
        each.continues = True
        each.wait_millis = max(0, round((ends - loop.time()) * 1000))
    return answers | (await fragments.stage(_STAGE, left, response) if left else {})
