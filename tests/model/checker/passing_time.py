"""Runs a server for which time passes as the checker says: `ServerProcess(data, wrapper=passing(file))`.

The file contains by how many seconds all clocks of the server are ahead of those of the machine, and by how many more
its wall clock is. So for the server, the time has passed, or its wall clock has jumped. Some rows are many for this
server: what takes it thousands of rows otherwise happens with those of the checker.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from streaming_server import clock
from streaming_server.clock import SystemClocks

_MANY: Final = 4
_NUMBERS_OF_ROWS: Final = (
    ("merging.reading_few", "_MOST_ROWS"),
    ("merging.appended_rows", "_FEW_ROWS"),
    ("indexes.index_builds", "STEP_ROWS"),
    ("writes.expiry_sweep", "_SLICE_ROWS"),
    ("writes.bucket_steps", "_MAX_BATCH_ROWS"),
    ("bucket.range_deletion", "_STEP_ROWS"),
    ("bucket.range_deletion", "_INDEXED_ROWS"),
)
"""The modules and names of what the server does with so many rows at once, at most."""


def passing(ahead: Path) -> tuple[str, ...]:
    """Returns the wrapper for a server whose clocks are ahead by the numbers in the file."""
    return (sys.executable, "-m", __name__, str(ahead))


def main(ahead: str, _: str, __: str, module: str, *arguments: str) -> None:
    """Runs `python -m MODULE ARGUMENTS` in this process, the forks of which have the same clocks."""
    file = Path(ahead)

    def passed() -> int:
        return int(file.read_text().split()[0])

    class AheadClocks(SystemClocks):
        """The machine's clocks, and the seconds in the file. The first of them have passed."""

        def monotonic(self) -> float:
            return super().monotonic() + passed()

        def uptime_nanos(self) -> int:
            return super().uptime_nanos() + passed() * 1_000_000_000

        def wall_nanos(self) -> int:
            return super().wall_nanos() + sum(map(int, file.read_text().split())) * 1_000_000_000

    clock.SystemClocks = AheadClocks  # type: ignore[misc]
    for place, name in _NUMBERS_OF_ROWS:
        changed = import_module(f"streaming_server.engine.{place}")
        assert hasattr(changed, name)
        setattr(changed, name, _MANY)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
