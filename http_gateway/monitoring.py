"""Metrics, liveness and readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from http_gateway.answers import BodyResponse, fields_text
from http_gateway.problems import HttpRefusal
from scankv.model.errors import ScanKvError

if TYPE_CHECKING:
    from starlette.responses import Response

    from http_gateway.gateway import Gateway
    from http_gateway.operation import Call

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_READY_SECONDS: Final = 2.0


async def metrics(gateway: Gateway, call: Call) -> Response:
    """Answers with the metrics of the server."""
    return BodyResponse((await gateway.client.metrics()).encode(), gateway.unsent, METRICS_TYPE)


async def alive(gateway: Gateway, call: Call) -> Response:
    """Answers that the gateway runs."""
    return BodyResponse(fields_text({"alive": True}), gateway.unsent)


async def ready(gateway: Gateway, call: Call) -> Response:
    """Answers whether the server can take requests."""
    try:
        await gateway.client.wait_ready(_READY_SECONDS)
    except ScanKvError as error:
        raise HttpRefusal(503, "NOT_READY", error.message) from error
    return BodyResponse(fields_text({"ready": True}), gateway.unsent)
