"""The `scankv` command as tests run it: in this process, or as a process of its own where that matters."""

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
    """How a command ended.

    Attributes:
        code: Its exit code.
        stdout: What it printed.
        stderr: What it said besides.
    """

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """What it printed, as text."""
        return self.stdout.decode()

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.stdout)


class CommandLine:
    """Runs commands against one server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *arguments: str, stdin: bytes | str | None = None, code: int = 0) -> Finished:
        """Runs a command in this process; fails when it does not end with `code`."""
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        stdout, stderr = io.BytesIO(), io.StringIO()
        # Named, because without a name it would close `stdout` too early.
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
        """Runs a command that has to fail with one line; gives what the line says."""
        finished = self(*arguments, stdin=stdin, code=1)
        errors = [line for line in finished.stderr.splitlines() if line.startswith("scankv: error: ")]
        assert len(errors) == 1, finished.stderr
        return errors[0].removeprefix("scankv: error: ")

    def start(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        terminal: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Starts a command as a process of its own; on a terminal its width is that of the terminal."""
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
        """The variables that a command sees."""
        return {"SCANKV_URL": self.url, "COLUMNS": "80", "TERM": "dumb"}
