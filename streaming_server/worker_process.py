"""The program of one worker process. Its supervisor sends it the settings, and then keeps its standard input open."""

from __future__ import annotations

import os
import pickle
import sys

from streaming_server.server import run


def main() -> int:
    """Serves until the supervisor ends the process, or has ended itself. Returns the exit code of `run`."""
    size = int.from_bytes(_read(8), "big")
    # From the parent process.
    config, worker = pickle.loads(_read(size))
    return run(config, worker)


def _read(size: int) -> bytes:
    """Reads some bytes, and no more, because the event loop is to see the end of the input."""
    data = b""
    while len(data) < size:
        read = os.read(sys.stdin.fileno(), size - len(data))
        if not read:
            sys.exit("the supervisor has ended")
        data += read
    return data


if __name__ == "__main__":
    sys.exit(main())
