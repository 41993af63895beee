"""For tests of code that uses ScanKV: a network that fails on demand, and a server that plays a script.

- `FaultProxy` stands between a client and a real server, and cuts, resets, stalls and slows connections, at bytes that
the test names or that a seed draws. - `ScriptedServer` is not a server: a real client talks to it without a connection,
and every scan gets the answer that the test has written.

`scankv.testing` has a real server in a process of its own.
"""

from aio_client.testing._fault_proxy import FaultProxy
from aio_client.testing._faults import Direction, Fault, FaultKind, InjectedFault
from aio_client.testing._script import Script, Step
from aio_client.testing._scripted import ScriptedServer
from scankv.model.public_names import set_public_module

__all__ = ["Direction", "Fault", "FaultKind", "FaultProxy", "InjectedFault", "Script", "ScriptedServer", "Step"]

set_public_module("scankv.testing", globals(), __all__)
