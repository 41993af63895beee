"""Runs the `scankv` command in this process, or in its own process where that matters."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from scankv.cli.app import app
from tests.support.forked import ForkedProcess


@dataclass(frozen=True)
class Finished:
    """The result of a command.

    Attributes:
        code: Its exit code.
        stdout: What it printed.
        stderr: What it printed to stderr.
    """

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Returns stdout as text."""
        return self.stdout.decode()

    @property
    def json(self) -> Any:
        """Returns stdout parsed as JSON."""
        return json.loads(self.stdout)


class CommandLine:
    """Runs commands against one server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *arguments: str, stdin: bytes | str | None = None, code: int = 0) -> Finished:
        """Runs a command in this process. Fails unless it exits with `code`."""
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        stdout, stderr = io.BytesIO(), io.StringIO()
        # Kept in a variable: when the wrapper is garbage-collected, it closes `stdout`.
        output = io.TextIOWrapper(stdout, write_through=True)
        with (
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))),
            mock.patch.object(sys, "stdout", output),
            mock.patch.object(sys, "stderr", stderr),
            mock.patch.dict(os.environ, self.environment),
            pytest.raises(SystemExit) as ended,
        ):
            app(arguments, prog_name="scankv")
        assert ended.value.code == code, f"{arguments}: {ended.value.code}\n{stdout.getvalue()!r}\n{stderr.getvalue()}"
        return Finished(code, stdout.getvalue(), stderr.getvalue())

    def fails(self, *arguments: str, stdin: bytes | str | None = None) -> str:
        """Runs a command that must end with one message about its failure, and returns the message."""
        finished = self(*arguments, stdin=stdin, code=1)
        _, *messages = f"\n{finished.stderr}".split("\nscankv: error: ")
        assert len(messages) == 1, finished.stderr
        return messages[0].removesuffix("\n")

    def start(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        terminal: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Starts a command in its own process; on a terminal, with the width of the terminal."""
        environment = {"SCANKV_URL": self.url, "TERM": "xterm"} if terminal else self.environment
        return ForkedProcess(
            [sys.executable, "-m", "scankv", *arguments],
            env={**{name: value for name, value in os.environ.items() if name != "COLUMNS"}, **environment},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a command."""
        return {"SCANKV_URL": self.url, "COLUMNS": "80", "TERM": "dumb"}
