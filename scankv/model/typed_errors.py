"""Reads the typed detail of a gRPC status as an error."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from scankv.model.errors import ScanKvError, error_for_reason


def typed_error_of(data: bytes) -> ScanKvError | None:
    """Returns the error that a serialized google.rpc.Status describes. None: it has no error that is known here."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    try:
        status = status_pb2.Status.FromString(data)
    except DecodeError:
        return None
    for detail in status.details:
        if not detail.Unpack(info):
            detail.Unpack(retry)
    cls = error_for_reason(info.reason) if info.domain == "scankv" else None
    if cls is None:
        return None
    wait = retry.retry_delay.ToTimedelta().total_seconds()
    typed = cls(status.message, retry_after=wait or None)
    typed.details.update(info.metadata)
    return typed
