"""Servers that ask for tokens, and calls with them over generated descriptors."""

from __future__ import annotations

import contextlib
import importlib
import json
import pkgutil
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import scankv.v1
from scankv.model.limits import MESSAGE_BYTES
from scankv.v1 import worker_pb2
from streaming_server.access.token_file import create_token, revoke_tokens
from streaming_server.services.reflection import REFLECTION_V1
from tests.support.wire import Refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.message import Message

_TIMEOUT_SECONDS = 30.0


def served_methods() -> dict[str, MethodDescriptor]:
    """Returns every call of every service of a server, by `package.Service/Method`, from the descriptors.

    Without those that only workers of the server can make.
    """
    modules: list[Any] = [
        importlib.import_module(f"scankv.v1.{module.name}")
        for module in pkgutil.iter_modules(scankv.v1.__path__)
        if module.name.endswith("_pb2") and module.name != "worker_pb2"
    ]
    return {
        f"{service.full_name}/{method.name}": method
        for file in (*(each.DESCRIPTOR for each in (*modules, health_pb2, reflection_pb2)), REFLECTION_V1)
        for service in file.services_by_name.values()
        for method in service.methods
    }


METHODS = served_methods()


METHODS_OF_WORKERS = [
    f"{service.full_name}/{method.name}"
    for service in worker_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
"""The calls that only workers of a server can make."""


def code_before_message(channel: Any, method: str, metadata: Any = ()) -> str:
    """Begins a call, and returns the name of its status, which the server sends before the call has a message."""
    is_answered = threading.Event()

    def messages() -> Iterator[bytes]:
        is_answered.wait()
        yield b""

    call = channel.stream_stream(f"/{method}")(messages(), metadata=metadata, timeout=_TIMEOUT_SECONDS)
    try:
        return str(call.code().name)
    finally:
        is_answered.set()


def request_type(method: str) -> type[Message]:
    """Returns the message type of the request of a call."""
    return message_factory.GetMessageClass(METHODS[method].input_type)


class TokenIssuer:
    """Creates tokens in the token file of a server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = self.create("admin:*")

    def create(self, *grants: str, principal: str = "someone", **options: Any) -> str:
        """Creates a token."""
        return create_token(self.path, principal, grants, now=datetime.now(UTC), **options)[1]

    def revoke(self, token: str) -> None:
        """Revokes a token."""
        assert revoke_tokens(self.path, [token.split("_")[1]], now=datetime.now(UTC)) == []

    def regrant(self, token: str, *grants: str) -> None:
        """Replaces the grants of a token, as an operator does with an editor."""
        records = [json.loads(line) for line in self.path.read_text().splitlines()]
        for record in records:
            if record["id"] == token.split("_")[1]:
                record["grants"] = grants
        partial = self.path.with_suffix(".new")
        partial.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        partial.chmod(0o600)
        partial.replace(self.path)


class TokenCaller:
    """Calls a server with a token, or with other metadata."""

    def __init__(self, channel: grpc.Channel, token: str | None = None, scheme: str = "Bearer ") -> None:
        self._channel = channel
        self.metadata: tuple[tuple[str, str], ...] = () if token is None else (("authorization", f"{scheme}{token}"),)

    def stream(self, method: str, request: Message) -> Any:
        """Starts a call, and returns its responses."""
        descriptor = METHODS[method]
        read = message_factory.GetMessageClass(descriptor.output_type).FromString
        write = request_type(method).SerializeToString
        if descriptor.client_streaming:
            return self._channel.stream_stream(f"/{method}", write, read)(
                iter([request]), metadata=self._announce(request), timeout=_TIMEOUT_SECONDS
            )
        return self._channel.unary_stream(f"/{method}", write, read)(
            request, metadata=self._announce(request), timeout=_TIMEOUT_SECONDS
        )

    def __call__(self, method: str, request: Message | None = None, **fields: Any) -> Any:
        """Makes a call. Returns its response; for a stream, the first one, or None if the stream is empty."""
        if request is None:
            request = request_type(method)(**fields)
        if METHODS[method].server_streaming:
            call = self.stream(method, request)
            with contextlib.closing(_Cancelling(call)):
                return next(iter(call), None)
        read = message_factory.GetMessageClass(METHODS[method].output_type).FromString
        make = self._channel.unary_unary(f"/{method}", request_type(method).SerializeToString, read)
        return make(request, metadata=self._announce(request), timeout=_TIMEOUT_SECONDS)

    def _announce(self, request: Message) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of a call. On a busy machine, a call without a size may claim too much memory."""
        return (*self.metadata, (MESSAGE_BYTES, str(request.ByteSize())))

    def refusal(self, method: str, request: Message | None = None, **fields: Any) -> Refusal | None:
        """Makes a call. Returns its error, or None if it has none."""
        try:
            self(method, request, **fields)
        except grpc.RpcError as error:
            return refusal_of(error)
        return None

    def code(self, method: str, request: Message | None = None, **fields: Any) -> str:
        """Makes a call. Returns the name of its status."""
        refused = self.refusal(method, request, **fields)
        return "OK" if refused is None else refused.code


class _Cancelling:
    def __init__(self, call: Any) -> None:
        self._call = call

    def close(self) -> None:
        self._call.cancel()


class SecuredServer:
    """A server that asks for tokens, with callers on one channel. `address` is its address."""

    def __init__(self, address: str, issuer: TokenIssuer, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self.address = address
        self.issuer = issuer
        self.root = TokenCaller(self.channel, issuer.root)

    def caller(self, *grants: str, **options: Any) -> TokenCaller:
        """Returns a caller with a new token."""
        return TokenCaller(self.channel, self.issuer.create(*grants, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
