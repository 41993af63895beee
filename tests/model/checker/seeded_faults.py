"""Faults of the product that the checker must find: each is planted into a copy of the source, where the checker runs.

A fault is one that a programmer might make, in what one feature owes another. No operation is worth its time unless one
of these faults needs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.model.checker.faults_of_clients import FAULTS_OF_CLIENTS
from tests.model.checker.faults_of_crashes import FAULTS_OF_CRASHES
from tests.model.checker.faults_of_features import FAULTS_OF_FEATURES
from tests.model.checker.faults_of_histories import FAULTS_OF_HISTORIES
from tests.model.checker.faults_of_hosts import FAULTS_OF_HOSTS
from tests.model.checker.faults_of_reads import FAULTS_OF_READS
from tests.model.checker.faults_of_tables import FAULTS_OF_TABLES
from tests.model.checker.faults_of_times import FAULTS_OF_TIMES
from tests.model.checker.seeded_fault import SeededFault

__all__ = ["FAULTS", "ROOT", "SCRIPTS", "SeededFault", "edit", "plant", "run_checker"]

ROOT: Final = Path(__file__).parents[3]
SCRIPTS: Final = Path(__file__).parent / "scripts"
"""Scripts that find a fault which random steps seldom find."""
_PACKAGES: Final = ("aio_client", "scankv", "streaming_server", "tests")
_END_SECONDS: Final = 180.0
"""A fault may keep the last step waiting for an answer that never comes."""


def plant(fault: SeededFault, directory: Path) -> None:
    """Copies the packages that the checker runs with to a directory, and changes one file."""
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = directory / fault.file
    path.write_text(edit(fault, path.read_text()))


def edit(fault: SeededFault, text: str) -> str:
    """Returns the text of a file with a fault. Raises ValueError if the fault does not fit it."""
    for old, new in fault.edits:
        if text.count(old) != 1:
            raise ValueError(f"{fault.name}: {fault.file} has {text.count(old)} times, not once: {old}")
        text = text.replace(old, new)
    return text


def run_checker(directory: Path, seed: int, seconds: float, script: Path | None = None) -> tuple[int, str]:
    """Runs the checker with the packages of a directory. Returns its exit code, 1 if a fault was found, and output.

    Args:
        directory: Where `plant` has copied the packages to.
        seed: Decides the steps.
        seconds: The time after which no step begins.
        script: Has the steps instead.
    """
    command = [sys.executable, "-m", "tests.model.checker", f"--seed={seed}", f"--seconds={seconds}", "--shorten=0"]
    command += [] if script is None else [f"--script={script}"]
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    limit = seconds + _END_SECONDS
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=directory, env=environment, timeout=limit
    )
    return done.returncode, done.stdout + done.stderr


FAULTS: Final = (
    *FAULTS_OF_TABLES,
    *FAULTS_OF_CRASHES,
    *FAULTS_OF_HOSTS,
    *FAULTS_OF_READS,
    *FAULTS_OF_CLIENTS,
    *FAULTS_OF_FEATURES,
    *FAULTS_OF_HISTORIES,
    *FAULTS_OF_TIMES,
)
"""All faults."""
