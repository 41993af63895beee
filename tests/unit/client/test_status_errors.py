from __future__ import annotations

import pytest

from aio_client import TlsHandshakeFailed, Unavailable
from aio_client._transport.status_errors import error_of_status, how_to_start

# What gRPC says, without its prefix `failed to connect to all addresses; last error: `.
GATEWAY = (
    "UNIMPLEMENTED: ipv4:127.0.0.1:7483: Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame "
    "type 80) (Trying to connect an http1.x server (HTTP status 404))"
)
REFUSED = "UNKNOWN: ipv4:127.0.0.1:7070: Failed to connect to remote host: Connection refused"
CLOSED = "UNAVAILABLE: ipv4:127.0.0.1:7491: Socket closed"
RESET = "UNAVAILABLE: ipv4:127.0.0.1:7491: recvmsg:Connection reset by peer (104)"
OTHER = "UNKNOWN: ipv4:127.0.0.1:7491: No route to host"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (GATEWAY, "it answers HTTP/1.1, as the HTTP gateway and the metrics port of a server do"),
        (REFUSED, "the connection was refused; start a server there with `scankv serve --data DIR`, or connect"),
        (CLOSED, "it may require TLS, or a client certificate: connect to scankvs://localhost:7070"),
        (RESET, "it may require TLS, or a client certificate: connect to scankvs://localhost:7070"),
        (OTHER, f"failed to connect to all addresses; last error: {OTHER}"),
    ],
)
def test_what_grpc_says_about_a_connection_becomes_what_to_do(said: str, message: str) -> None:
    text = f"failed to connect to all addresses; last error: {said}"
    error = error_of_status("UNAVAILABLE", text, "localhost:7070", 1.0, tls=False)
    assert type(error) is Unavailable
    assert str(error).startswith("no ScanKV server answers at localhost:7070: ")
    assert message in str(error)


@pytest.mark.parametrize(
    ("address", "tls", "command"),
    [
        ("localhost:7070", False, " with `scankv serve --data DIR`"),
        ("[::1]:7071", False, " with `scankv serve --data DIR --port 7071`"),
        ("localhost:7070", True, ""),
        ("db.example.com:7070", False, ""),
    ],
)
def test_a_command_that_starts_a_server_is_named_if_it_would_do(address: str, tls: bool, command: str) -> None:
    assert how_to_start(address, tls=tls) == f"start a server there{command}, or connect to another address"


def test_a_server_without_tls_is_named_with_the_url_to_use() -> None:
    error = error_of_status(
        "UNAVAILABLE", "...OPENSSL_internal:WRONG_VERSION_NUMBER: ...", "localhost:7070", 1.0, tls=True
    )
    assert type(error) is TlsHandshakeFailed
    assert "it does not use TLS (WRONG_VERSION_NUMBER); connect to scankv://localhost:7070" in str(error)
