"""The standard health service of gRPC, with the method that its library leaves out."""

from __future__ import annotations

from typing import Any, Final

from grpc_health.v1 import health, health_pb2

from scankv.model.errors import InvalidRequest
from streaming_server.services.errors import end_with

_LONGEST_NAME: Final = 256


class HealthService(health.aio.HealthServicer):  # type: ignore[name-defined,misc]  # its stub lacks aio
    """Reports whether each service serves. `Check` and the changes of status are the library's."""

    def __init__(self) -> None:
        """Creates a service that reports that the server does not serve yet, unlike the service of the library."""
        super().__init__()
        self._server_status[health.OVERALL_HEALTH] = health_pb2.HealthCheckResponse.NOT_SERVING

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> health_pb2.HealthListResponse:  # noqa: ANN401
        """Returns the status of every service.

        The library does not implement this method, and logs a traceback for each call of it.
        """
        statuses = {name: health_pb2.HealthCheckResponse(status=status) for name, status in self._server_status.items()}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: ANN401
        """Reports the status of a service, and its changes.

        Refuses long names, because each open call keeps its name in memory.
        """
        if len(request.service) > _LONGEST_NAME:
            await end_with(context, InvalidRequest(f"the name of a service has at most {_LONGEST_NAME} characters"))
        await super().Watch(request, context)
