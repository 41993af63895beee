"""How a connection of the client is set up, in gRPC's options."""

from __future__ import annotations

from typing import Final

# One row of 16 MiB, as large as rows may be, and its Arrow framing fit into one message.
_MAX_RECEIVE_BYTES: Final = 48 * 1024 * 1024


def channel_options(window: int) -> list[tuple[str, int]]:
    """The options of a connection.

    Args:
        window: The receive window, in bytes.
    """
    return [
        ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
        ("grpc.max_send_message_length", _MAX_RECEIVE_BYTES),
        # Only both together bound what is read ahead; with probing, gRPC widens the window to tens of MiB.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", window),
        # Whether a call may be repeated is for the client to know.
        ("grpc.enable_retries", 0),
        # By default, a server that comes back is noticed after up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Two clients of one process share nothing: neither a connection nor its window.
        ("grpc.use_local_subchannel_pool", 1),
        # $http_proxy is meant for web pages; gRPC would tunnel even loopback addresses through it.
        ("grpc.enable_http_proxy", 0),
    ]
