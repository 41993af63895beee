"""A server that wants tokens, and answers scans, `ListTables` and health checks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]  # not in the stubs

from scankv.model.limits import MESSAGE_BYTES
from scankv.v1 import table_pb2
from scankv.v1.scan_pb2_grpc import add_ScanServiceServicer_to_server
from scankv.v1.table_pb2_grpc import add_TableServiceServicer_to_server
from tests.unit.client.misbehaving import KeepsItsContract, OnlyTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class WantsTokens(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls without one of the tokens. Records the tokens that have come.

    Attributes:
        valid: The tokens that are accepted.
        came: The authorization of every call.
        announced: The size of its message that every call announces, by the name of its method.
        code: The status of the refusal.
    """

    def __init__(self, *valid: str) -> None:
        self.valid = set(valid)
        self.came: list[str | None] = []
        self.announced: dict[str, str | None] = {}
        self.code = grpc.StatusCode.UNAUTHENTICATED

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        came = dict(details.invocation_metadata).get("authorization")
        self.came.append(came)
        size = dict(details.invocation_metadata).get(MESSAGE_BYTES)
        self.announced[details.method.rpartition("/")[2]] = size
        if came is not None and came.removeprefix("Bearer ") in self.valid:
            return await continuation(details)
        handler = await continuation(details)

        async def refuse(_request: object, context: Any) -> None:
            await context.abort(self.code, "who are you?")

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(refuse)
        return grpc.unary_unary_rpc_method_handler(refuse)


class HasNoTables(OnlyTables):
    async def ListTables(self, request: Any, context: Any) -> table_pb2.ListTablesResponse:
        return table_pb2.ListTablesResponse()


@asynccontextmanager
async def serving(
    tokens: WantsTokens,
    credentials: grpc.ServerCredentials | None = None,
    scans: KeepsItsContract | None = None,
    *,
    host: str = "localhost",
) -> AsyncIterator[str]:
    """Runs a server that answers scans, `ListTables` and health checks; yields its address."""
    server = grpc.aio.server(interceptors=[tokens])
    add_ScanServiceServicer_to_server(scans or KeepsItsContract(), server)
    add_TableServiceServicer_to_server(HasNoTables(), server)
    servicer = health_aio.HealthServicer()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop(None)
