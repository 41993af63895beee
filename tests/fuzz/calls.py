"""Makes fuzzed calls of a server in its own process, and checks how each of them ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from scankv.model.errors import error_for_reason
from tests.support.wire import Refusal, SendsToken

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, MethodDescriptor
    from google.protobuf.message import Message

_STREAM_SECONDS: Final = 0.15
_STREAM_MESSAGES: Final = 6
CALL_SECONDS: Final = 20.0
"""Within this time the server answers a fuzzed call, even on a busy machine."""

_SEND_FAILED: Final = "Internal error from Core"
"""What gRPC's own client says of a call that the server refused while the client was sending another request."""


@dataclass(frozen=True)
class Method:
    """A method of a service.

    Attributes:
        path: Its path in HTTP/2.
        request: The type of its requests.
        response: The type of its responses.
        streams_requests: Whether it takes a stream of requests.
        streams_responses: Whether it answers with a stream.
    """

    path: str
    request: Descriptor
    response: Descriptor
    streams_requests: bool
    streams_responses: bool

    @classmethod
    def of(cls, method: MethodDescriptor) -> Method:
        path = f"/{method.containing_service.full_name}/{method.name}"
        streams = method.client_streaming, method.server_streaming
        return cls(path, method.input_type, method.output_type, *streams)


def methods_of(url: str, token: str | None = None) -> list[Method]:
    """Returns all methods of all services of a server, as its reflection service lists them."""
    with grpc.insecure_channel(url) as channel:
        listed: Any = channel if token is None else grpc.intercept_channel(channel, SendsToken(token))
        names = sorted(ProtoReflectionDescriptorDatabase(listed).get_services())
    pool = descriptor_pool.Default()
    return [Method.of(method) for name in names for method in pool.FindServiceByName(name).methods]


@dataclass(frozen=True)
class CallResult:
    """How a call ended.

    Attributes:
        responses: Its responses, at most a few of a stream.
        code: The status, or CANCELLED for a stream that was cancelled here.
        refusal: The error. None: the call had none.
        seconds: How long it took.
    """

    responses: list[Message]
    code: grpc.StatusCode
    refusal: Refusal | None
    seconds: float


async def call(
    channel: grpc.aio.Channel, method: Method, requests: list[bytes], token: str | None = None
) -> CallResult:
    """Makes a call, with a token if one is given, reads a few responses, and cancels what is left of a stream."""
    kind: Any = getattr(
        channel,
        f"{'stream' if method.streams_requests else 'unary'}_{'stream' if method.streams_responses else 'unary'}",
    )
    parse, began = GetMessageClass(method.response).FromString, time.monotonic()
    argument: Any = iter(requests) if method.streams_requests else requests[0]
    metadata = None if token is None else (("authorization", f"Bearer {token}"),)
    make = kind(method.path, request_serializer=None, response_deserializer=parse)
    running = make(argument, timeout=CALL_SECONDS, metadata=metadata)
    responses: list[Message] = []
    code = grpc.StatusCode.OK
    try:
        if not method.streams_responses:
            responses.append(await running)
        else:
            async with asyncio.timeout(_STREAM_SECONDS):
                while len(responses) < _STREAM_MESSAGES:
                    response = await running.read()
                    if response is grpc.aio.EOF:  # type: ignore[attr-defined]  # not in its stub
                        break
                    responses.append(response)
    except TimeoutError:
        code = grpc.StatusCode.CANCELLED
    except grpc.aio.AioRpcError as error:
        return CallResult(responses, error.code(), _refusal_of(error), time.monotonic() - began)
    finally:
        running.cancel()
    return CallResult(responses, code, None, time.monotonic() - began)


def _refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    status, info = status_pb2.Status(), error_details_pb2.ErrorInfo()
    metadata: Any = error.trailing_metadata()  # its stub is not iterable
    for name, value in metadata or ():
        if name == "grpc-status-details-bin":
            status.ParseFromString(value)
    for detail in status.details:
        detail.Unpack(info)
    return Refusal(error.code().name, error.details() or "", info.reason, dict(info.metadata))


def check_outcome(method: Method, outcome: CallResult) -> None:
    """Asserts that a call was carried out, or refused with a typed error that blames its sender."""
    refusal = outcome.refusal
    if refusal is None:
        return
    shown = f"{method.path}: {refusal} after {outcome.seconds:.2f} s"
    if method.streams_requests and refusal.message == _SEND_FAILED:
        return
    size = len(refusal.message.encode()) + sum(len(k) + len(v.encode()) for k, v in refusal.details.items())
    assert size < 4096, shown
    if not method.path.startswith("/scankv.") and not refusal.reason:
        # The services of gRPC have no typed errors for unknown names.
        assert outcome.code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED), shown
        return
    assert refusal.reason, shown
    assert refusal.reason not in ("INTERNAL", "DATA_LOSS"), shown
    error = error_for_reason(refusal.reason)
    assert error is not None, shown
    assert error.code == refusal.code, shown
