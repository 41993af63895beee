"""A real server in a process of its own, as tests start, kill and restart it: the one that is shipped."""

from __future__ import annotations

from streaming_server.testing import ServerProcess

__all__ = ["ServerProcess"]
