"""The gRPC options of the client's connections."""

from __future__ import annotations

from typing import Final

from aio_client._transport.flow_control import flow_control_options

# A row of 16 MiB, the largest possible, fits into one message with its Arrow framing.
_MAX_RECEIVE_BYTES: Final = 48 * 1024 * 1024


def channel_options(window: int, server_name: str | None = None) -> list[tuple[str, int | str]]:
    """Returns the options of a connection.

    Args:
        window: The receive window in bytes.
        server_name: The name that must be in the server's certificate. None: the host that is connected to.
    """
    return [
        *([] if server_name is None else [("grpc.ssl_target_name_override", server_name)]),
        ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
        ("grpc.max_send_message_length", _MAX_RECEIVE_BYTES),
        *flow_control_options(window),
        # Only the client knows which calls may be repeated.
        ("grpc.enable_retries", 0),
        # With gRPC's defaults, a server that is back is noticed after up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Two clients of one process must not share a connection, because they would share its window.
        ("grpc.use_local_subchannel_pool", 1),
        # $http_proxy is meant for web pages, but gRPC would tunnel even loopback addresses through it.
        ("grpc.enable_http_proxy", 0),
    ]
