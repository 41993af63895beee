"""How a worker reports the error of a call that it has made to another one."""

from __future__ import annotations

import grpc
import pytest

from scankv.model.errors import InternalError, ScanKvError, SnapshotLost, Unavailable
from streaming_server.services.errors import status_of
from streaming_server.services.forwarding import error_of, is_absent

NOTHING = grpc.aio.Metadata()


def answered(code: str, error: ScanKvError | None = None) -> grpc.aio.AioRpcError:
    """Returns the status of a call. Without an error, it is gRPC's own."""
    details = NOTHING if error is None else grpc.aio.Metadata(("grpc-status-details-bin", _bytes_of(error)))
    return grpc.aio.AioRpcError(grpc.StatusCode[code], NOTHING, details, "what gRPC says", None)


def _bytes_of(error: ScanKvError) -> bytes:
    status: bytes = status_of(error).SerializeToString()
    return status


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL"])
def test_a_call_that_ended_without_an_answer_can_be_tried_again(code: str) -> None:
    """A worker that ends may reset a stream, which gRPC reports as INTERNAL."""
    error = answered(code)
    assert is_absent(error)
    found = error_of(error, 1, "tablet 2 of game.scores")
    assert type(found) is Unavailable
    assert "worker 1 of the server, which owns tablet 2 of game.scores" in found.message
    assert found.retry_after is not None


@pytest.mark.parametrize("sent", [InternalError("the server failed", incident="1234"), SnapshotLost("it has ended")])
def test_the_error_of_a_worker_is_raised_as_it_is(sent: ScanKvError) -> None:
    error = answered(sent.code, sent)
    assert not is_absent(error)
    found = error_of(error, 1, "the table")
    assert type(found) is type(sent)
    assert found.message == sent.message
    assert found.details == sent.details


def test_a_status_that_no_worker_sends_is_an_error_of_the_server() -> None:
    assert type(error_of(answered("UNKNOWN"), 1, "the table")) is InternalError
