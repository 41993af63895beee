"""Gives what belongs to a principal in a table with tablets to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.v1 import admin_pb2
from streaming_server.engine.tables.owners import assign_owner, check_assignment

if TYPE_CHECKING:
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_ASSIGN: Final = "scankv.v1.AdminService/AssignOwner"


async def assign(request: admin_pb2.AssignOwnerRequest, calls: TabletCalls) -> admin_pb2.AssignOwnerResponse:
    """Asks all tablets, which have the parts of snapshots and the writers: see `AdminService.AssignOwner`.

    Then gives the consumers and column locks, which the table itself has: if a tablet refuses the snapshots, they stay.
    """
    check_assignment(calls.tables, calls.table, request.current, request.principal)
    requests = {
        number: admin_pb2.AssignOwnerRequest(table=tablet.name, current=request.current, principal=request.principal)
        for number, tablet in enumerate(calls.tablets)
    }
    answers = await calls.ask(_ASSIGN, requests, admin_pb2.AssignOwnerResponse)
    own = await assign_owner(calls.tables, calls.table, request.current, request.principal)
    return admin_pb2.AssignOwnerResponse(
        # Each tablet has a part of every snapshot, and may have forgotten a writer.
        snapshots=max(each.snapshots for each in answers.values()),
        consumers=own.consumers,
        column_locks=own.locks,
        writers=sorted({writer for each in answers.values() for writer in each.writers}),
    )
