"""For test suites of code that uses ScanKV: a real server to kill and restart, a network that fails on demand.

- `ServerProcess` is a real server in a process of its own. It needs `pip install 'scankv[server]'`.
- `FaultProxy` stands between a client and a real server and cuts, resets, stalls and slows connections, at bytes that
  the test names or that a seed draws.
- `ScriptedServer` answers a real client without a connection: every scan gets the answer that the test wrote down.
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
