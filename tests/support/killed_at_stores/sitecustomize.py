"""Kills the process that stores the definition of a table while the file `KILL` exists. Python runs it at the start."""

import os
import signal
from pathlib import Path

_real = os.replace


def _replace(source: str, target: str, **terms: int) -> None:
    _real(source, target, **terms)
    kill = Path(os.environ["KILL"])
    if Path(target).name == "table.json" and kill.exists():
        kill.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


os.replace = _replace  # type: ignore[assignment]  # less general
