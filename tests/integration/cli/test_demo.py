from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(180)  # loads and streams 336,776 flights
def test_the_demo_ends_with_all_checks_true() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "scankv", "demo"],
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stderr == ""
    assert "rows streamed: 336,776" in finished.stdout
    assert "all 9 checks are true" in finished.stdout
    assert "✗" not in finished.stdout
