"""The Python that Spark starts in the tests: has the zygote of `worker_zygote` fork the process that Spark wants.

Run with `-ISE` as `fork_worker.py SOCKET -m MODULE ARGUMENTS`, so that it imports next to nothing.
"""

import json
import os
import signal
import socket
import sys


def main(path: str, *arguments: str) -> None:
    if arguments[0] != "-m":
        os.execv(sys.executable, [sys.executable, *arguments])
    _, module, *rest = arguments
    request = {"module": module, "arguments": rest, "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as zygote:
        zygote.connect(path)
        socket.send_fds(zygote, [json.dumps(request).encode()], [0, 1, 2])
        child = int(zygote.recv(16))

        def end(number: int, _: object) -> None:
            os.kill(child, number)
            sys.exit(128 + number)

        signal.signal(signal.SIGTERM, end)
        # Until the child has ended, whose copy of the connection is the last one.
        zygote.recv(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
