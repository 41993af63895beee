"""A server that dies at every step of a transaction: all of it is there afterwards, once, or nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_transaction_is_whole_or_not_at_all_wherever_the_server_dies(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.dying_transaction", str(tmp_path)]
    done = subprocess.run(command, check=False, timeout=900, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    # Of a transaction with six requests, and a dozen write batches in four buckets of two tables.
    assert int(done.stdout) > 40
