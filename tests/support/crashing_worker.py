"""Runs a server of several workers, of which one kills itself at a given step of a commit.

`ServerProcess(data, "--workers", "2", wrapper=crashing_workers(points))` starts it; writing a point such as
`1 append 2 before` into the file `points` arms it: worker 1 dies before it appends its second record from then on to
its transaction log, and removes the file right before. With `after-all`, its supervisor dies, too. With `after-frozen`,
the worker freezes instead.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from streaming_server.engine.transactions.transactions import Transactions
from streaming_server.storage.transactions.transaction_log import TransactionLog

_SIGNALS = {
    "": [(os.getpid, signal.SIGKILL)],
    "all": [(os.getppid, signal.SIGKILL), (os.getpid, signal.SIGKILL)],
    "frozen": [(os.getpid, signal.SIGSTOP)],
}


def crashing_workers(points: Path) -> tuple[str, ...]:
    """Returns the wrapper for a server whose workers crash at the point in the file."""
    return (sys.executable, "-m", __name__, str(points))


class WorkerCrash:
    """Counts the records since the file names a point of this worker, and ends the worker there."""

    def __init__(self, points: Path) -> None:
        self.number = -1
        self._points = points
        self._text = ""
        self._seen = 0

    def wrap(self, append: Any) -> Any:
        """Makes each record of the transaction log a step."""

        def appended(*args: Any, **options: Any) -> Any:
            self._text, before = self._read(), self._text
            self._seen = self._seen + 1 if self._text == before else 1
            self._end_at("before")
            result = append(*args, **options)
            self._end_at("after")
            return result

        return appended

    def _read(self) -> str:
        return self._points.read_text() if self._points.exists() else ""

    def _end_at(self, moment: str) -> None:
        worker, _, number, when, how = (*self._text.replace("-", " ").split(), "", "", "", "", "")[:5]
        if self._text and (int(worker), int(number), when) == (self.number, self._seen, moment):
            self._points.unlink()
            for pid, signal_number in _SIGNALS[how]:
                os.kill(pid(), signal_number)


def _run_server(points: str, module: str, arguments: list[str]) -> None:
    """Runs `python -m MODULE ARGUMENTS` in this process, whose forks are workers that crash."""
    crash = WorkerCrash(Path(points))
    TransactionLog.append = crash.wrap(TransactionLog.append)  # type: ignore[method-assign]
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
