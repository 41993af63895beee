"""Runs a server that ends itself, as `kill -9` does, at a given step of a write.

`ServerProcess(data, wrapper=crashing(points))` starts it; writing a point such as `write 3 before` into the file
`points` arms it, and the server removes the file when it gets there. Then the third WriteBatch from now on is not made.

- `write N before`, `write N after`: around the Nth WriteBatch of any bucket.
- `sync N before`, `sync N after`: around the Nth sync of a write-ahead log.
- `answer N before`: when the Nth write is done, before it is answered.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any

from streaming_server.services.write import WriteService
from streaming_server.storage.rocks.store import RocksStore


def crashing(points: Path) -> tuple[str, ...]:
    """The wrapper for a server that crashes at the point that the file says."""
    return (sys.executable, "-m", __name__, str(points))


class Crash:
    """Counts the steps since the file is there, and ends the process at the one that it names."""

    def __init__(self, points: Path) -> None:
        self._points = points
        self._seen: Counter[str] = Counter()
        self._counting = Lock()

    def before(self, what: str) -> int:
        """Notes that a step is about to be done: its number."""
        with self._counting:  # steps of several buckets run side by side, in threads
            point = self._point()
            self._seen = self._seen + Counter([what]) if point else Counter()
            number = self._seen[what]
        self._end_at((what, number, "before"), point)
        return number

    def after(self, what: str, number: int) -> None:
        """Notes that the step of this number was done."""
        self._end_at((what, number, "after"), self._point())

    def _point(self) -> tuple[str, int, str] | None:
        try:
            kind, number, moment = self._points.read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return kind, int(number), moment

    def _end_at(self, place: tuple[str, int, str], point: tuple[str, int, str] | None) -> None:
        if place == point:
            self._points.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, cls: type, method: str, what: str) -> None:
        """Has a method counted."""
        original = getattr(cls, method)

        def counted(*args: Any) -> Any:
            number = self.before(what)
            result = original(*args)
            self.after(what, number)
            return result

        setattr(cls, method, counted)

    def before_answer(self, method: str) -> None:
        """Has the answers of a call counted."""
        original = getattr(WriteService, method)

        async def answered(*args: Any) -> Any:
            response = await original(*args)
            self.before("answer")
            return response

        setattr(WriteService, method, answered)


def main(points: str, _: str, __: str, module: str, *arguments: str) -> None:
    """Runs `python -m MODULE ARGUMENTS` in this process."""
    crash = Crash(Path(points))
    crash.around(RocksStore, "write", "write")
    crash.around(RocksStore, "sync", "sync")
    crash.before_answer("Upsert")
    crash.before_answer("Delete")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
