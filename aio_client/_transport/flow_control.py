"""Flow control of a scan's stream: how far the server may send ahead of the reader.

The client keeps no queue of its own. HTTP/2's receive window is the bounded read-ahead: when the window is full, the
server's writes wait, and with them the iterators of the scan.
"""

from __future__ import annotations


def flow_control_options(window: int) -> list[tuple[str, int]]:
    """Returns the gRPC options that fix the receive window.

    Args:
        window: Its size in bytes.
    """
    return [
        ("grpc.http2.lookahead_bytes", window),
        # With probing, gRPC widens the window to tens of MiB.
        ("grpc.http2.bdp_probe", 0),
    ]
