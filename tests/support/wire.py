"""Calls a server without the client library: generated stubs, and errors as they are on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from scankv.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    lock_pb2_grpc,
    lookup_pb2_grpc,
    scan_pb2_grpc,
    snapshot_pb2,
    snapshot_pb2_grpc,
    table_pb2,
    table_pb2_grpc,
    transaction_pb2_grpc,
    write_pb2_grpc,
)
from tests.support.divided_tables import tablets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

_MAX_MESSAGE_BYTES = 64 << 20
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Refusal:
    """An error of a server: its status code and message, and its typed details if it has them."""

    code: str
    message: str
    reason: str
    details: Mapping[str, str]
    retry_after: float | None = None


class Wire:
    """The blocking stubs of all services on one channel. With a token, every call has it."""

    def __init__(self, address: str, token: str | None = None) -> None:
        options = [
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            # Without probing, the window stays small, so that the server stops when the reader stops.
            ("grpc.http2.bdp_probe", 0),
        ]
        self.channel = grpc.insecure_channel(address, options)
        if token is not None:
            self.channel = grpc.intercept_channel(self.channel, SendsToken(token))
        self.tables = table_pb2_grpc.TableServiceStub(self.channel)
        self.writes = write_pb2_grpc.WriteServiceStub(self.channel)
        self.locks = lock_pb2_grpc.LockServiceStub(self.channel)
        self.lookups = lookup_pb2_grpc.LookupServiceStub(self.channel)
        self.scans: Any = scan_pb2_grpc.ScanServiceStub(self.channel)
        self.snapshots = snapshot_pb2_grpc.SnapshotServiceStub(self.channel)
        self.transactions = transaction_pb2_grpc.TransactionServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)

    def create(self, name: str, schema: pa.Schema, key: Sequence[str] = (), buckets: int = 3) -> None:
        """Creates a table. The key is the first column unless given. It has tablets if new tables have any."""
        self.tables.CreateTable(
            table_pb2.CreateTableRequest(
                name=name,
                arrow_schema=schema.serialize().to_pybytes(),
                primary_key=key or schema.names[:1],
                buckets=buckets,
                tablets=tablets_of(buckets),
            ),
            timeout=_TIMEOUT_SECONDS,
        )

    def statistics(self, name: str) -> list[table_pb2.BucketStatistics]:
        """Returns the server's statistics of each bucket of a table."""
        request = table_pb2.GetTableRequest(name=name, statistics=True)
        return list(self.tables.GetTable(request, timeout=_TIMEOUT_SECONDS).buckets)

    def written(self, name: str) -> list[tuple[int, int, int]]:
        """Returns what only writes change, by bucket: the rows, the next log offset, and the bytes of the changelog."""
        return [(each.rows, each.log_offset, each.log_bytes) for each in self.statistics(name)]

    def pin(self, table: str, **fields: Any) -> snapshot_pb2.PinSnapshotResponse:
        """Pins a table."""
        request = snapshot_pb2.PinSnapshotRequest(table=table, **fields)
        pinned: snapshot_pb2.PinSnapshotResponse = self.snapshots.PinSnapshot(request, timeout=_TIMEOUT_SECONDS)
        return pinned

    def server(self) -> admin_pb2.StatsResponse:
        """Returns the statistics of the server."""
        stats: admin_pb2.StatsResponse = self.admin.Stats(admin_pb2.StatsRequest(), timeout=_TIMEOUT_SECONDS)
        return stats

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


class SendsToken(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Adds a token to every call."""

    def __init__(self, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(client_call_details._replace(metadata=self._metadata), request)

    intercept_unary_stream = intercept_unary_unary
    intercept_stream_stream = intercept_unary_unary  # type: ignore[assignment]


def refusal(method: Callable[..., Any], request: Any) -> Refusal:
    """Makes a call that must fail, and returns the error."""
    try:
        answer = method(request, timeout=_TIMEOUT_SECONDS)
        if hasattr(answer, "__iter__"):
            answer = list(answer)
    except grpc.RpcError as error:
        return refusal_of(error)
    raise AssertionError(f"the server accepted the call and answered {str(answer)[:200]}")


def refusal_of(error: grpc.RpcError) -> Refusal:
    """Converts an error of gRPC."""
    assert isinstance(error, grpc.Call)
    status = rpc_status.from_call(error)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    retry_after = None
    for detail in status.details if status is not None else ():
        detail.Unpack(info)
        if detail.Unpack(retry):
            retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return Refusal(error.code().name, error.details() or "", info.reason, dict(info.metadata), retry_after)
