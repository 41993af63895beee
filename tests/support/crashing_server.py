"""Runs a server that kills itself with SIGKILL at a given step of a write.

`ServerProcess(data, wrapper=crashing(points))` starts it; writing a point such as `write 3 before` into the file
`points` arms it: the server dies before its third WriteBatch from then on, and removes the file right before.

- `write N before`, `write N after`: around the Nth WriteBatch of any bucket.
- `sync N before`, `sync N after`: around the Nth sync of a write-ahead log.
- `answer N before`: after the Nth write is done, before its response is sent.
- `definition N before`, `definition N after`: around the Nth time that the definition of a table is stored.
- `store N before`, `store N after`: around the Nth file that is stored for a backup.
- `checkpoint N before`, `checkpoint N after`: around the Nth checkpoint of a bucket.
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
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.tables.catalog import Catalog


def crashing(points: Path) -> tuple[str, ...]:
    """Returns the wrapper for a server that crashes at the point in the file."""
    return (sys.executable, "-m", __name__, str(points))


class Crash:
    """Counts the steps since the file exists, and kills the process at the step that the file names."""

    def __init__(self, points: Path) -> None:
        self._points = points
        self._seen: Counter[str] = Counter()
        self._counting = Lock()

    def before(self, what: str) -> int:
        """Counts a step that is about to begin, and returns its number."""
        with self._counting:  # steps of several buckets run concurrently, in threads
            point = self._point()
            self._seen = self._seen + Counter([what]) if point else Counter()
            number = self._seen[what]
        self._end_at((what, number, "before"), point)
        return number

    def after(self, what: str, number: int) -> None:
        """Records that the step with this number is done."""
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
        """Wraps a method such that its calls are counted."""
        original = getattr(cls, method)

        def counted(*args: Any, **kwargs: Any) -> Any:
            number = self.before(what)
            result = original(*args, **kwargs)
            self.after(what, number)
            return result

        setattr(cls, method, counted)

    def before_answer(self, method: str) -> None:
        """Wraps a call such that its responses are counted."""
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
    crash.around(RocksStore, "checkpoint", "checkpoint")
    crash.around(Catalog, "replace", "definition")
    crash.around(BackupStore, "_put", "store")
    crash.before_answer("Upsert")
    crash.before_answer("Delete")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
