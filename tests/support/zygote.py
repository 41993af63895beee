"""A process that has imported everything, and is forked when a test starts a process, which saves a second of imports.

Run as `python -m tests.support.zygote FD`, where FD is a socket. It only forks: it has one thread, and has started no
gRPC, no RocksDB and no event loop. `tests.support.forked` uses it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
from typing import Final, TypedDict

import scankv.cli
from scankv.cli.without_pandas import keep_pandas_out, let_pandas_in

MAX_REQUEST_BYTES: Final = 128 * 1024

_STREAMS: Final = 3
# Typer imports its adapters, and with them pydantic, when it parses the first option, and rich_utils when it prints
# help, which takes 90 ms and 200 ms in each process. Arrow imports the last two with its first conversion.
_MODULES: Final = (
    "anyio._backends._asyncio",
    "aio_client.sync",
    "scankv.cli.app",
    "streaming_server.server",
    "typer._adapters",
    "typer.rich_utils",
    "pydantic.plugin._loader",
    "numpy.ma",
    "dateutil.relativedelta",
)


class Request(TypedDict):
    """What to run. Its standard streams are sent with it as file descriptors."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    new_session: bool


def main(descriptor: str) -> None:
    """Forks a process for every request until the socket is closed."""
    # Arrow would import pandas with its first conversion, but servers must run without pandas.
    keep_pandas_out()
    for module in _MODULES:
        importlib.import_module(module)
    for command in pkgutil.iter_modules(scankv.cli.__path__, "scankv.cli."):
        importlib.import_module(command.name)
    let_pandas_in()
    # Ctrl-C in the terminal is meant for the tests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Freezes all objects, so that garbage collection in the children does not copy their pages.
    gc.collect()
    gc.freeze()
    request = _next_child(socket.socket(fileno=int(descriptor)))
    if request is not None:
        _run(request)


def _next_child(tests: socket.socket) -> Request | None:
    """Returns the request in each child, and None in the zygote when the tests are over."""
    with tests:
        while True:
            message, streams, _, _ = socket.recv_fds(tests, MAX_REQUEST_BYTES, _STREAMS)
            if not message:
                return None
            request: Request = json.loads(message)
            child = _fork_for_parent()
            if child == 0:
                break
            for stream in streams:
                os.close(stream)
            tests.send(str(child).encode())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["directory"])
    if request["new_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return request


def _fork_for_parent() -> int:
    """Forks a child of the process that started this one, which adopts orphans. Returns its id, and 0 in the child."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reader)
        child = os.fork()
        if child == 0:
            os.close(writer)
            return 0
        os.write(writer, str(child).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        child = int(told.read())
    # The child is an orphan from here on.
    os.waitpid(between, 0)
    return child


def _run(request: Request) -> None:
    """Does what `python -m MODULE ARGUMENTS` does in a new process."""
    os.environ.clear()
    os.environ.update(request["environment"])
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        before = getattr(sys, name)
        # As at the start of the interpreter, where only stderr is line-buffered.
        stream = open(
            *(number, mode, 1 if name == "stderr" else -1, before.encoding, before.errors), newline="\n", closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
