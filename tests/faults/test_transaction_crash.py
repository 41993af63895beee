"""A server that dies at every step of a transaction, or of an undo: all of it is there afterwards, once, or nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def deaths_of(module: str, directory: Path) -> int:
    """Has a module of the tests die in all places; in how many."""
    command = [sys.executable, "-m", f"tests.support.{module}", str(directory)]
    done = subprocess.run(command, check=False, timeout=900, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_transaction_is_whole_or_not_at_all_wherever_the_server_dies(tmp_path: Path) -> None:
    # It has six requests, and a dozen write batches in three buckets of two tables.
    assert deaths_of("dying_transaction", tmp_path) > 40


def test_an_undo_is_finished_by_its_repetition_wherever_the_server_dies(tmp_path: Path) -> None:
    assert deaths_of("dying_undo", tmp_path) > 5
