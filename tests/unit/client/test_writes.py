"""A repeated write reports its age to the server, measured by a clock that cannot be set."""

from __future__ import annotations

import time
from typing import Any, cast

import grpc
import pytest

from aio_client import connect
from aio_client._write.repeatable_writes import _uptime, write_until_answered
from scankv.v1 import write_pb2
from scankv.v1.write_pb2_grpc import WriteServiceServicer, add_WriteServiceServicer_to_server
from tests.unit.client.misbehaving import RefusesTables, end_with, serving


class AnswersTheThirdTime(WriteServiceServicer):
    def __init__(self) -> None:
        self.ages: list[int] = []

    def add_to(self, server: grpc.aio.Server) -> None:
        add_WriteServiceServicer_to_server(self, server)

    async def Upsert(self, request: write_pb2.UpsertRequest, context: Any) -> Any:
        self.ages.append(request.writer.sent_millis_ago)
        if len(self.ages) < 3:
            await end_with(context, grpc.StatusCode.UNAVAILABLE, None, None)
        return write_pb2.WriteResponse(rows=1)

    async def Delete(self, request: write_pb2.DeleteRequest, context: Any) -> Any:
        raise NotImplementedError

    async def Undo(self, request: write_pb2.UndoRequest, context: Any) -> Any:
        raise NotImplementedError

    async def OpenWriter(self, request: write_pb2.OpenWriterRequest, context: Any) -> Any:
        raise NotImplementedError


@pytest.mark.asyncio
async def test_the_age_of_a_request_is_what_has_passed_since_it_was_first_sent() -> None:
    server, instants = AnswersTheThirdTime(), iter([100.0, 100.0, 101.25, 7300.0001])
    refuses = RefusesTables(grpc.StatusCode.UNIMPLEMENTED)
    async with serving(refuses, cast("Any", server)) as url, connect(url) as client:
        await write_until_answered(client._transport, write_pb2.UpsertRequest(table="a.b"), lambda: next(instants))
    assert server.ages == [0, 1250, 7_200_001]


def test_the_clock_of_ages_advances_and_is_not_the_wall_clock() -> None:
    before, started = _uptime(), time.monotonic()
    while time.monotonic() < started + 0.01:
        pass
    assert _uptime() - before >= 0.01
    assert abs(_uptime() - time.time()) > 86_400
