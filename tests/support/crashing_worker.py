"""Runs a server of several workers, of which one kills itself at a given step of a commit.

`ServerProcess(data, "--workers", "2", wrapper=crashing_workers(points))` starts it; writing a point such as
`1 append 2 before` into the file `points` arms it: worker 1 dies before it appends its second record from then on to
its transaction log, and removes the file right before. With `before-all` and `after-all`, its supervisor dies, too.
With `-frozen` in place of `-all`, the worker freezes instead; with `-drain`, it continues while the server is stopped.

- `append N`: around the Nth record of the transaction log.
- `write N`: around the Nth WriteBatch of any bucket.
- `prepare N`: around the Nth request to another worker to prepare its share.
- `notify N`: around the Nth message that notifies another worker of the outcome.
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

from streaming_server.engine.transactions.transactions import Transactions
from streaming_server.services.worker import OtherWorkers
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.transactions.transaction_log import TransactionLog

_SIGNALS = {
    "all": [(os.getppid, signal.SIGKILL), (os.getpid, signal.SIGKILL)],
    "frozen": [(os.getpid, signal.SIGSTOP)],
    "drain": [(os.getppid, signal.SIGTERM)],
}


def crashing_workers(points: Path) -> tuple[str, ...]:
    """Returns the wrapper for a server whose workers crash at the point in the file."""
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


class WorkerCrash(Crash):
    """Kills the worker that the file names, and maybe its supervisor."""

    number = -1
    _text = ""

    def _point(self) -> tuple[str, int, str] | None:
        try:
            text = self._points.read_text()
            worker, kind, number, moment = text.split()
        except (FileNotFoundError, ValueError):
            return None
        if text != self._text:
            # The last point may not have been reached.
            self._text = text
            self._seen.clear()
        return (kind, int(number), moment) if int(worker) == self.number else None

    def _end_at(self, place: tuple[str, int, str], point: tuple[str, int, str] | None) -> None:
        if point is not None:
            moment, _, how = point[2].partition("-")
            if how and (*point[:2], moment) == place:
                self._points.unlink()
                for pid, number in _SIGNALS[how]:
                    os.kill(pid(), number)
        super()._end_at(place, point)

    def around_async(self, cls: type, method: str, what: str) -> None:
        """As `around`, for a coroutine."""
        original = getattr(cls, method)

        async def counted(*args: Any) -> Any:
            number = self.before(what)
            result = await original(*args)
            self.after(what, number)
            return result

        setattr(cls, method, counted)


def _run_server(points: str, module: str, arguments: list[str]) -> None:
    """Runs `python -m MODULE ARGUMENTS` in this process, whose forks are workers that crash."""
    crash = WorkerCrash(Path(points))
    crash.around(TransactionLog, "append", "append")
    crash.around(RocksStore, "write", "write")
    crash.around_async(OtherWorkers, "prepare", "prepare")
    crash.around_async(OtherWorkers, "conclude", "notify")
    set_peers = Transactions.set_peers

    def learn_number(transactions: Transactions, peers: Any) -> Any:
        crash.number = peers.number
        return set_peers(transactions, peers)

    Transactions.set_peers = learn_number  # type: ignore[method-assign, assignment]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _, points, _, _, module, *arguments = sys.argv
    _run_server(points, module, arguments)
