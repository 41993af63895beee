"""A real server in a process of its own, as tests start, kill and restart it: the one that is shipped, forked."""

from __future__ import annotations

import subprocess
from typing import BinaryIO

from streaming_server import testing
from tests.support.forked import ForkedProcess

__all__ = ["ServerProcess"]


class ServerProcess(testing.ServerProcess):
    """The server of `streaming_server.testing`, forked from the zygote unless it runs under a wrapper."""

    def _popen(self, command: list[str], log: BinaryIO) -> subprocess.Popen[str]:
        if self._wrapper:
            return super()._popen(command, log)
        return ForkedProcess(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
