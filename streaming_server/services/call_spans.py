"""The spans of the server's calls, which continue the traces of their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scankv.model.tracing import DB_TABLE, RPC_STATUS

if TYPE_CHECKING:
    from scankv.model.tracing import TracedSpan, Tracer
    from streaming_server.current_call import CurrentCall

_PACKAGE: Final = "scankv.v1."

# By OpenTelemetry's conventions, other codes are errors of the client only.
_ERRORS: Final = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


def start_span(tracer: Tracer, call: CurrentCall, metadata: Any) -> TracedSpan:  # noqa: ANN401  # gRPC has no type
    """Starts the span of a call, and makes it current until the end of the present task.

    Args:
        tracer: The program's tracer.
        call: The call. The function sets its trace id and span id.
        metadata: What the client has sent, possibly with the trace context of its own span.
    """
    method = f"{_PACKAGE}{call.method}"
    span = tracer.start(method, "server", parent=tracer.parent(metadata), rpc__system__name="grpc", rpc__method=method)
    call.trace_id, call.span_id = span.ids
    span.activate()
    return span


def end_span(span: TracedSpan, call: CurrentCall, code: str) -> None:
    """Ends the span of a call with the name of its gRPC status."""
    found: dict[str, str | int] = {RPC_STATUS: code}
    if call.table:
        found[DB_TABLE] = call.table
    if call.scan_id:
        found |= {
            "scankv.scan.id": call.scan_id,
            "scankv.scan.rows_scanned": call.rows_scanned,
            "scankv.scan.bytes": call.bytes_returned,
        }
    span.set(found)
    span.end(code if code in _ERRORS else None)
