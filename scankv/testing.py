"""Tools for test suites of programs that use ScanKV: a server to kill and restart, and a network that fails on demand.

- `ServerProcess` is a real server in its own process. It needs the extra `server`.
- `FaultProxy` sits between a client and a real server. It cuts, resets, stalls and slows down connections, at bytes
  that the test names or that are drawn from a seed.
- `ScriptedServer` replaces the server and the network: each scan gets the answer that the test has scripted.
"""

from aio_client.testing import (
    Direction,
    Fault,
    FaultKind,
    FaultProxy,
    InjectedFault,
    Script,
    ScriptedServer,
    Step,
)
from streaming_server.testing import ServerProcess

__all__ = [
    "Direction",
    "Fault",
    "FaultKind",
    "FaultProxy",
    "InjectedFault",
    "Script",
    "ScriptedServer",
    "ServerProcess",
    "Step",
]
