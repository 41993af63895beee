"""Descriptions and checks of tables with tablets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from scankv.v1 import admin_pb2, table_pb2
from streaming_server.services.forwarding import error_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from streaming_server.services.tablets.tablet_calls import TabletCalls

_GET: Final = "scankv.v1.TableService/GetTable"
_CHECK: Final = "scankv.v1.AdminService/CheckTable"
_ANSWER_SECONDS: Final = 5.0


async def describe(request: table_pb2.GetTableRequest, calls: TabletCalls) -> table_pb2.GetTableResponse:
    """Describes a table with the statistics of all tablets: see `TableService.GetTable`."""
    del request
    requests = {
        number: table_pb2.GetTableRequest(name=tablet.name, statistics=True)
        for number, tablet in enumerate(calls.tablets)
    }
    answers = await calls.ask(_GET, requests, table_pb2.GetTableResponse)
    joined = await _describe_alone(calls)
    for answer in answers.values():
        joined.buckets.extend(answer.buckets)
        _add(joined.disk, answer.disk)
    joined.indexes.extend(_join_indexes(answers))
    return joined


async def _describe_alone(calls: TabletCalls) -> table_pb2.GetTableResponse:
    """Returns the description of the table, which this worker owns, without statistics of tablets."""
    data = table_pb2.GetTableRequest(name=calls.definition.name).SerializeToString()
    number = calls.workers.placement.number
    try:
        answer = await calls.workers.ask(number, _GET, data, _ANSWER_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise error_of(error, number, calls.definition.name) from error
    return table_pb2.GetTableResponse.FromString(answer)


def _add(sum_: table_pb2.DiskUse, more: table_pb2.DiskUse) -> None:
    for field, value in more.ListFields():
        setattr(sum_, field.name, getattr(sum_, field.name) + value)


def _join_indexes(answers: Mapping[int, table_pb2.GetTableResponse]) -> list[table_pb2.IndexStatus]:
    """Returns how far each index is built in all tablets."""
    joined: dict[int, table_pb2.IndexStatus] = {}
    for answer in answers.values():
        for each in answer.indexes:
            known = joined.setdefault(each.id, each)
            if known is each:
                continue
            known.ready = known.ready and each.ready
            known.rows_done += each.rows_done
            known.failure = known.failure or each.failure
            if known.HasField("rows") and each.HasField("rows"):
                known.rows += each.rows
            else:
                known.ClearField("rows")
    return list(joined.values())


async def check(
    request: admin_pb2.CheckTableRequest, calls: TabletCalls, send: Callable[[bytes], Awaitable[None]]
) -> None:
    """Checks one tablet after another, in the order of their buckets: see `AdminService.CheckTable`."""
    del request
    for number, tablet in enumerate(calls.tablets):
        with calls.open(_CHECK, number, admin_pb2.CheckTableRequest(table=tablet.name), "") as call:
            async for message in calls.messages(number, call):
                await send(message)
