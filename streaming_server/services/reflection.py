"""The reflection service, by which grpcurl and other clients find services and messages, in both of its versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor import FileDescriptor

    from streaming_server.services.guarded_method import GuardedServer

_EARLIER, _CURRENT = "grpc.reflection.v1alpha", "grpc.reflection.v1"
_METHOD: Final = "ServerReflectionInfo"


def _describe_v1() -> FileDescriptor:
    """Returns the descriptor of `grpc.reflection.v1`, which differs from `v1alpha` in its name only."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "grpc/reflection/v1/reflection.proto", _CURRENT
    fields = (field for message in file.message_type for field in message.field if field.HasField("type_name"))
    for field in fields:
        field.type_name = field.type_name.replace(_EARLIER, _CURRENT)
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(_EARLIER, _CURRENT)
        method.output_type = method.output_type.replace(_EARLIER, _CURRENT)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(file.name)


REFLECTION_V1: Final = _describe_v1()
"""The descriptor of the current version, which grpcio-reflection lacks."""
_NAME_OF_V1: Final = REFLECTION_V1.services_by_name["ServerReflection"].full_name


def add_reflection(server: GuardedServer, services: Iterable[str]) -> None:
    """Lets a server describe services, and its reflection service itself."""
    names = (*services, reflection.SERVICE_NAME, _NAME_OF_V1)
    # `enable_server_reflection` only works with gRPC's own server class.
    servicer = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]  # not in its stub
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_registered_method_handlers(_NAME_OF_V1, {_METHOD: handler})
