"""Writes to a bucket and ends without closing anything, as after SIGKILL.

Run as `python -m tests.support.dying_writer PATH STEPS`; the steps are JSON: `[["upsert", [row, ...]], ["sync"]]`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.forked import run_forked
from tests.support.offline import OfflineBucket
from tests.support.tables import SCORES, define

DEFINITION = define(SCORES)
_EXIT_CODE = 7


def write_and_die(path: Path, *steps: tuple[str, *tuple[list[Any], ...]]) -> None:
    """Runs the steps in another process, which then dies."""
    done = run_forked(sys.executable, "-m", __name__, str(path), json.dumps(steps), timeout=600)
    assert done.returncode == _EXIT_CODE, done.stderr.decode()


def main(path: str, steps: str) -> None:
    """Runs the steps and dies."""
    offline = OfflineBucket(Path(path), DEFINITION)
    for name, *rows in json.loads(steps):
        getattr(offline, name)(*(rows[0] if rows else ()))
    os._exit(_EXIT_CODE)


if __name__ == "__main__":
    main(*sys.argv[1:])
