"""Tools for tests of code that uses ScanKV: a network that fails on demand, and a server that follows a script.

- `FaultProxy` sits between a client and a real server. It cuts, resets, stalls and slows down connections, at bytes
  that the test names or that are drawn from a seed.
- `ScriptedServer` replaces the server and the network: each scan gets the answer that the test has scripted.

`scankv.testing` also has a real server in its own process.
"""

from aio_client.testing._fault_proxy import FaultProxy
from aio_client.testing._faults import Direction, Fault, FaultKind, InjectedFault
from aio_client.testing._script import Script, Step
from aio_client.testing._scripted import ScriptedServer
from scankv.model.public_names import set_public_module

__all__ = ["Direction", "Fault", "FaultKind", "FaultProxy", "InjectedFault", "Script", "ScriptedServer", "Step"]

set_public_module("scankv.testing", globals(), __all__)
