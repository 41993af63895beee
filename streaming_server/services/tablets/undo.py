"""Undo in tables with tablets: all tablets check what is to be reverted before the first tablet reverts anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.changes.log_offsets import check_incarnation
from scankv.v1 import write_pb2
from streaming_server.services.write import check_is_for_tablet, offsets_to_undo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.services.tablets.tablet_calls import TabletCalls

_UNDO: Final = "scankv.v1.WriteService/Undo"


async def undo(request: write_pb2.UndoRequest, calls: TabletCalls) -> write_pb2.UndoResponse:
    """Reverts the changes of a writer: see `WriteService.Undo`."""
    check_is_for_tablet(request)
    offsets, definition = offsets_to_undo(request), calls.definition
    definition.require_key("its rows are only appended, so nothing can be undone")
    check_incarnation(offsets.table_incarnation, definition.name, definition.incarnation)
    requests = _requests_of(request, offsets, calls)
    for each in requests.values():
        each.only_checks = True
    checked = await calls.ask(_UNDO, requests, write_pb2.UndoResponse)
    for each in requests.values():
        each.only_checks = False
    columns = {name for each in checked.values() for name in each.columns}
    with calls.table.writes.locks.admit(columns, request.column_locks):
        answers = await calls.ask(_UNDO, requests, write_pb2.UndoResponse)
    joined = write_pb2.UndoResponse(table_incarnation=definition.incarnation)
    for answer in answers.values():
        joined.restored += answer.restored
        joined.deleted += answer.deleted
        joined.conflicts += answer.conflicts
        for bucket, offset in answer.log_offsets.items():
            joined.log_offsets[bucket] = offset
    return joined


def _requests_of(
    request: write_pb2.UndoRequest, offsets: Mapping[int, int], calls: TabletCalls
) -> dict[int, write_pb2.UndoRequest]:
    """Returns the request for each tablet with one of the buckets. Without buckets, the first tablet gets it."""
    buckets = calls.buckets_by_tablet(offsets) if offsets else {0: []}
    requests = {}
    for tablet, numbers in buckets.items():
        each = requests[tablet] = write_pb2.UndoRequest(
            table=calls.tablets[tablet].name, writer=request.writer, any_incarnation=request.any_incarnation
        )
        if request.log_offsets.table_incarnation:
            each.log_offsets.table_incarnation = calls.tablets[tablet].incarnation
        for bucket in numbers:
            each.log_offsets.by_bucket[bucket] = request.log_offsets.by_bucket[bucket]
    return requests
