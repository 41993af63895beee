"""Finds what a system needs on this machine."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from typing import TYPE_CHECKING

from benchmarks.field.process import find_program
from scankv.model.installing import command_to_install

if TYPE_CHECKING:
    from pathlib import Path


def missing_modules(*names: str) -> str | None:
    """Returns which modules are not installed, and how to install them, or None if all are."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed; {command_to_install('bench-field')}" if missing else None


def program(name: str, *folders: Path) -> str:
    """Returns the path of a program that `Competitor.missing` has found."""
    found = find_program(name, *folders)
    assert found is not None, f"{name} was found when the harness started"
    return found


def version_printed_by(path: str) -> str:
    """Returns the version that a program prints."""
    printed = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", printed)
    return found.group() if found else printed.strip()
