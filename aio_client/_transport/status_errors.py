"""Maps the status of a call to an error: by its typed detail if the server sent it, else by its code."""

from __future__ import annotations

import re
from typing import Final

from aio_client._transport.config import is_loopback
from scankv.model.errors import (
    DataLoss,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    PermissionDenied,
    RequestTooLarge,
    ScanKvError,
    TlsHandshakeFailed,
    Unauthenticated,
    Unavailable,
    UnknownCall,
)

_ERROR_OF_STATUS: Final[dict[str, type[ScanKvError]]] = {
    "UNAVAILABLE": Unavailable,
    # A server that stops at once cancels its calls. A proxy resets them, which gRPC reports as INTERNAL.
    "CANCELLED": Unavailable,
    "INTERNAL": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "RESOURCE_EXHAUSTED": RequestTooLarge,
    "INVALID_ARGUMENT": InvalidRequest,
    "DATA_LOSS": DataLoss,
    "UNIMPLEMENTED": UnknownCall,
    # Without a typed detail, these two come from a proxy in front of the server.
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
}


# gRPC says in the text only why a handshake failed. These reasons do not go away by themselves.
_HANDSHAKE_FAILURES: Final = (
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED: ([\w ]+)"),
        "its certificate is not trusted ({}); name the authority that issued it in SCANKV_TLS_CA, or in `ca` of `tls`",
    ),
    (
        re.compile(r"(Hostname Verification Check failed)"),
        "its certificate is for another host ({}); connect to that host, or name it in `server_name` of `tls`",
    ),
    (
        re.compile(r"(WRONG_VERSION_NUMBER)"),
        "it does not use TLS ({}); connect to scankv://{address}, without TLS settings",
    ),
    (
        re.compile(r"handshake failed.*OPENSSL_internal:(\w+)"),
        "the TLS handshake failed ({}); check `ca` of `tls`, and the server's certificate",
    ),
    (re.compile(r"(Failed to create security handshaker)"), "the TLS settings of the client cannot be used ({})"),
)
_DEFAULT_PORT: Final = "7070"
_REFUSED: Final = re.compile("Connection refused")
# Frame type 80 is the letter P of "HTTP/1.1".
_ANSWERS_HTTP: Final = re.compile(r"http1\.x server|got frame type 80\b")
_CLOSED_BY_SERVER: Final = re.compile(
    r"failed to connect to all addresses.*(?:Socket closed|recvmsg: ?Connection reset by peer)"
)


def error_of_status(status: str, said: str, address: str, timeout: float, *, tls: bool) -> ScanKvError:
    """Returns the error for the status of a call.

    Args:
        status: The name of the status.
        said: The text that came with it.
        address: The server.
        timeout: The seconds that the call had.
        tls: Whether the client uses TLS.
    """
    cls = _ERROR_OF_STATUS.get(status, InternalError)
    if cls is Unavailable and (why := _handshake_failure(said, address)):
        return TlsHandshakeFailed(f"no encrypted connection to the ScanKV server at {address}: {why}", address=address)
    return cls(_message_of(cls, said, address, timeout, tls=tls), address=address)


def _handshake_failure(said: str, address: str) -> str | None:
    """Returns why a TLS handshake failed for good, and what to do. None: that is not what happened."""
    for pattern, why in _HANDSHAKE_FAILURES:
        if found := pattern.search(said):
            return why.format(found[1].strip(), address=address)
    return None


def _message_of(cls: type[ScanKvError], said: str, address: str, timeout: float, *, tls: bool) -> str:
    if cls is Unavailable:
        return f"no ScanKV server answers at {address}: {explain_failure(said, address, tls=tls)}"
    if cls is DeadlineExceeded:
        return f"the ScanKV server at {address} did not answer within {readable_seconds(timeout)} s"
    if cls is RequestTooLarge:
        return f"a message between here and {address} is over its limit: {said}"
    if cls is UnknownCall:
        return f"{address} does not know this call; is it a ScanKV server of this version? It says: {said}"
    return f"the ScanKV server at {address} failed: {said}"


def explain_failure(said: str, address: str, *, tls: bool) -> str:
    """Returns why a connection failed and what to do, if gRPC's text has a known reason; else gRPC's text.

    Args:
        said: The text.
        address: The server.
        tls: Whether the client uses TLS.
    """
    if _REFUSED.search(said):
        return f"the connection was refused; {how_to_start(address, tls=tls)}"
    if _ANSWERS_HTTP.search(said):
        return (
            "it answers HTTP/1.1, as the HTTP gateway and the metrics port of a server do; connect to the port of the "
            "server itself, which is 7070 unless `scankv serve --port` names another"
        )
    if _CLOSED_BY_SERVER.search(said):
        # Servers do this with a connection without TLS, or without a certificate that they require.
        return (
            "it closes the connection; it may require TLS, or a client certificate: connect to "
            f"scankvs://{address} or give TLS settings"
        )
    return said


def how_to_start(address: str, *, tls: bool) -> str:
    """Returns how to start a server at an address: with a command if a server without TLS on this machine will do."""
    host, _, port = address.rpartition(":")
    if tls or not is_loopback(host):
        return "start a server there, or connect to another address"
    option = "" if port == _DEFAULT_PORT else f" --port {port}"
    return f"start a server there with `scankv serve --data DIR{option}`, or connect to another address"


def readable_seconds(timeout: float) -> str:
    """Returns seconds for messages, rounded to a readable number of digits."""
    return f"{round(timeout, 2) or timeout:g}"
