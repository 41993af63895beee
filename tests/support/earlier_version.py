"""A released version of ScanKV, unpacked from its wheel, whose client and server run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Final, Self

from tests.support.fixture_data import FIXTURES

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

WHEELS: Final = sorted(FIXTURES.glob("*/*.whl"))
"""The wheels of all released versions."""

_READY: Final = "scankv ready on "


def unpack(wheel: Path, into: Path) -> Path:
    """Unpacks a wheel, whose dependencies are those of this version. Returns the directory to import from."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(into)
    return into


def environment(packages: Path) -> dict[str, str]:
    """Returns the environment of a process that imports ScanKV from a directory."""
    return {**os.environ, "PYTHONPATH": str(packages)}


def run_python(packages: Path, code: str, *arguments: str) -> str:
    """Runs a program with the ScanKV of a directory. Returns its output. Its failure is an AssertionError."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        env=environment(packages),
        cwd=packages,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class EarlierServer:
    """The server of a released version, until the end of the `with` block.

    Attributes:
        url: Where it listens.
    """

    def __init__(self, packages: Path, data: Path) -> None:
        code = "import sys; sys.argv[0] = 'scankv'; from scankv.cli import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, "serve", "--data", str(data), "--port", "0"],
            env=environment(packages),
            cwd=packages,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_READY):
            self.stop()
            raise AssertionError(f"the server did not start: {line}{self.log}")
        self.url = f"scankv://{line.removeprefix(_READY).split()[0]}"

    def stop(self) -> int:
        """Stops the server, and returns its exit code."""
        self._process.terminate()
        _, self.log = self._process.communicate(timeout=60)
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.stop()
