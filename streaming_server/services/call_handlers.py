"""Finds the handler of every call, and keeps what its client has sent before the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from streaming_server.current_call import CALL_METADATA

if TYPE_CHECKING:
    from collections.abc import Mapping


class CallHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic only in its stub
    """The handlers of all services, by method.

    gRPC asks for the handler in the task that then runs it, and passes the metadata. The metadata are kept for the
    task, because `invocation_metadata` of a call converts them once more each time.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def add(self, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """Adds handlers by method, as `package.Service/Method`."""
        self._handlers |= {f"/{method}": handler for method, handler in handlers.items()}

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[Any, Any] | None:  # noqa: ANN401  # the stub of gRPC lacks its metadata
        """Returns the handler of a call; None if the server has no such call."""
        CALL_METADATA.set(handler_call_details.invocation_metadata or ())
        return self._handlers.get(handler_call_details.method)
