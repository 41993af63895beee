"""Moves transaction logs between a server of one process and worker processes, while no server runs.

Each worker process has a transaction log of its own, for the tables that it owns. Who owns a table depends on the
number of workers. So when that changes, the logs are first merged into one, in which every decision has been applied,
and then divided again. Transactions that are open are lost, as their writers learn from `TransactionLost`.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Final

from streaming_server.storage.tables.placement import Placement
from streaming_server.storage.transactions.decisions import Decisions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streaming_server.clock import ServerClock
    from streaming_server.engine.transactions.transactions import Transactions
    from streaming_server.storage.tables.data_directory import DataDirectory
    from streaming_server.storage.transactions.decisions import CommittedTransaction

_DRAFT: Final = "new-workers"
_COPIED: Final = "clock.json"


async def merge_logs(directory: DataDirectory, into: Transactions, read: Callable[[Path], Transactions]) -> None:
    """Applies what the worker processes of the last server have decided, and remembers it in one log.

    After a crash, it is called again.

    Args:
        directory: The data directory, of which this process owns all tables.
        into: The transactions of the process, which have been recovered.
        read: Returns the transactions in a directory.

    Raises:
        ScanKvError: A decided transaction cannot be applied, or a log cannot be read. Nothing is lost: a server with as
            many workers as before can start.
    """
    for part in directory.parts():
        other = read(part / "transactions")
        try:
            await other.recover()
            await into.take_over(other)
        finally:
            await other.close()
    directory.remove_parts()


def divide_log(directory: DataDirectory, workers: int, clock: ServerClock) -> None:
    """Makes a directory for each worker process, with the commits that its tables remember. Blocks.

    After a crash, all of it has happened, or nothing. Call it once all decisions in the log are applied.

    Args:
        directory: The data directory, which no server uses.
        workers: How many worker processes the next server has; more than one.
        clock: The clock of the server.

    Raises:
        ScanKvError, OSError: The log cannot be read, or a new one cannot be written.
    """
    draft = directory.trash / _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    with closing(Decisions(directory.transactions, clock)) as log:
        committed, epoch = log.take_finished(), log.epoch
    next_number = 1 + max((each.number for each in committed), default=0)
    for number in range(workers):
        place = Placement(number, workers)
        own = draft / str(number)
        own.mkdir(parents=True, mode=0o700)
        if (directory.path / _COPIED).exists():
            shutil.copy2(directory.path / _COPIED, own / _COPIED)
        with closing(Decisions(own / "transactions", clock)) as log:
            log.continue_after(epoch, next_number)
            log.rewrite([each for each in committed if _is_of(each, place)])
    directory.place_parts(workers, draft)


def _is_of(committed: CommittedTransaction, place: Placement) -> bool:
    return any(map(place.owns, committed.tables))
