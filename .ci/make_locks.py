"""Writes the locks in `packaging/`: the packages of the image, with the hashes of their files.

Versions that are locked stay as they are while pyproject.toml allows them; `--upgrade` takes the newest ones.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {"server": ("server", "oidc", "http"), "all": ("server", "oidc", "http", "sketches", "lake", "otel")}
"""The extras of each lock, by the value of `EXTRAS` in the Containerfile."""


def lock(name: str, source: str, *options: str, text: str = "") -> None:
    """Writes the lock with a name. `source` is what uv reads; `-` is the text."""
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", oldest, "--generate-hashes"]
    command += ["--no-annotate", "--no-emit-index-url", "--custom-compile-command", "make lock"]
    output = ROOT / "packaging" / f"requirements-{name}.txt"
    command += [*sys.argv[1:], *options, "--output-file", str(output), source]
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, input=text, text=True, check=True)


if __name__ == "__main__":
    lock("build", "-", text="\n".join(PROJECT["build-system"]["requires"]))
    for name, extras in EXTRAS.items():
        lock(name, "pyproject.toml", *(f"--extra={extra}" for extra in extras))
