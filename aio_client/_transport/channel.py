"""The gRPC options of the client's connections."""

from __future__ import annotations

from typing import Final

# A row of 16 MiB, the largest possible, fits into one message with its Arrow framing.
_MAX_RECEIVE_BYTES: Final = 48 * 1024 * 1024


def channel_options(window: int) -> list[tuple[str, int]]:
    """The options of a connection.

    Args:
        window: The receive window in bytes.
    """
    return [
        ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
        ("grpc.max_send_message_length", _MAX_RECEIVE_BYTES),
        # Both are needed to bound the read-ahead: with probing, gRPC widens the window to tens of MiB.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", window),
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
