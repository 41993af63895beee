"""A program that a shell starts in the tests: has `ForkedPrograms` fork the process, and stands for it until it ends.

Run with `-ISE` as `forked_program.py SOCKET MODULE ARGUMENTS`, so that it imports next to nothing.
"""

import json
import os
import signal
import socket
import sys


def main(path: str, module: str, *arguments: str) -> None:
    request = {"module": module, "arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as tests:
        tests.connect(path)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: tests.send(str(number).encode()))
        socket.send_fds(tests, [json.dumps(request).encode()], [0, 1, 2])
        code = int(tests.recv(16))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
