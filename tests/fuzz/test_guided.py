"""Every decoder of outside bytes with inputs that are changed towards code that no input has reached: `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

SECONDS = int(os.environ.get("SCANKV_FUZZED_SECONDS", "60"))
"""How long each target is fuzzed."""
LIMITS = ("-rss_limit_mb=2048", "-timeout=20", "-max_len=65536", "-print_final_stats=1")
ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_crashes_hangs_or_raises_an_untyped_error(tmp_path: Path, name: str) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    options = [*LIMITS, f"-max_total_time={SECONDS}", f"-artifact_prefix={tmp_path}/"]
    command = [sys.executable, "-m", "tests.fuzz.guided", name, *options, str(corpus)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    found = [(path.name, path.read_bytes().hex()) for path in tmp_path.iterdir() if path.is_file()]
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}{ended.stderr[-3000:]}\ninputs: {found}"
