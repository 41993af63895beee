"""A real server in its own process, which tests start, kill and restart: the shipped server, forked."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import BinaryIO

from streaming_server import testing
from tests.support.forked import ForkedProcess

__all__ = ["ServerProcess"]

WORKERS = int(os.environ.get("SCANKV_TEST_WORKERS", "1"))
"""How many worker processes each server has. Tests with the marker `one_process` need 1."""


class ServerProcess(testing.ServerProcess):
    """The server of `scankv.testing`, forked from a zygote unless its wrapper is another program.

    The wrapper `env LD_PRELOAD=FILE NAME=VALUE` does not count: the zygote has the library, its fork the variables.
    """

    def _popen(self, command: list[str], log: BinaryIO) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        if WORKERS > 1 and "--workers" not in command:
            command = [*command, "--workers", str(WORKERS)]
        if command[0] == "env" and command[1].startswith("LD_PRELOAD="):
            start = command.index(sys.executable)
            for variable in command[1:start]:
                name, value = variable.split("=", 1)
                environment[name] = value
            command = command[start:]
        if command[0] != sys.executable:
            return super()._popen(command, log)
        return ForkedProcess(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
