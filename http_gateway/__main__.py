"""The gateway as a child of a server: `python -m http_gateway FD`, with its settings as one line on standard input.

It listens on the inherited socket FD, and logs to standard error in lines of JSON. It ends when its standard input
ends, which it does however the server ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys

from http_gateway.child_log import LineFormatter
from http_gateway.serving import serve
from http_gateway.settings import GatewaySettings
from scankv.model.errors import ScanKvError

_log = logging.getLogger("http_gateway")


def main() -> int:
    """Serves until standard input ends. Returns the exit code."""
    # The server decides when the gateway ends. Ctrl-C in a terminal and systemd signal both.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    settings = GatewaySettings.from_json(_read_line())
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    listener = socket.socket(fileno=int(sys.argv[1]))
    try:
        asyncio.run(serve(settings, listener, _wait_for_end))
    except ScanKvError as error:
        _log.error("the gateway cannot start: %s", error.message)
        return 1
    return 0


def _read_line() -> str:
    # Unbuffered, so that the rest stays for the event loop.
    data = b""
    while not data.endswith(b"\n"):
        part = os.read(0, 4096)
        if not part:
            raise SystemExit(0)
        data += part
    return data.decode()


async def _wait_for_end() -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(0, lambda: ended.set() if not os.read(0, 4096) else None)
    await ended.wait()
    loop.remove_reader(0)


if __name__ == "__main__":
    sys.exit(main())
