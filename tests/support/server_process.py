"""A real server in its own process, which tests start, kill and restart: the shipped server, forked."""

from __future__ import annotations

import subprocess
import sys
from typing import BinaryIO

from streaming_server import testing
from tests.support.forked import ForkedProcess

__all__ = ["ServerProcess"]


class ServerProcess(testing.ServerProcess):
    """The server of `scankv.testing`, forked from the zygote unless its wrapper is another program."""

    def _popen(self, command: list[str], log: BinaryIO) -> subprocess.Popen[str]:
        if command[0] != sys.executable:
            return super()._popen(command, log)
        return ForkedProcess(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
