"""What `AdminService.Activity` answers, added up as the console does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aio_client import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.v1 import admin_pb2


@dataclass(frozen=True)
class Counted:
    """What all processes of a server have counted for a table, or for all tables."""

    rows_written: int
    writes: int
    rows_read: int
    reads: int
    live_scans: int
    latencies: int


def ask_activity(
    url: str, token: str | None = None, since: admin_pb2.ActivityResponse | None = None, names: Sequence[str] = ()
) -> admin_pb2.ActivityResponse:
    """Asks a server for its activity, or for what has changed since an earlier answer."""
    known = {each.incarnation: each.read_at_micros for each in ([] if since is None else since.processes)}

    async def ask() -> admin_pb2.ActivityResponse:
        async with connect(url, token=token) as client:
            return await client._activity(known, names)

    return asyncio.run(ask())


def count_table(answer: admin_pb2.ActivityResponse, name: str) -> Counted:
    """Adds up the counters of a table."""
    return _add([each.counters for process in answer.processes for each in process.tables if each.table == name])


def count_server(answer: admin_pb2.ActivityResponse) -> Counted:
    """Adds up the counters of all tables."""
    return _add([process.server for process in answer.processes if process.HasField("server")])


def _add(found: list[admin_pb2.ActivityCounters]) -> Counted:
    return Counted(
        rows_written=sum(each.rows_written for each in found),
        writes=sum(each.writes.calls for each in found),
        rows_read=sum(each.rows_read for each in found),
        reads=sum(each.reads.calls for each in found),
        live_scans=len({scan for each in found for scan in each.live_scans}),
        latencies=sum(sum(each.writes.classes) + sum(each.reads.classes) for each in found),
    )
