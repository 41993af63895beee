"""Merges and divides transaction logs when the number of worker processes changes, while no server runs.

Each worker process has a transaction log of its own, for the tables that it owns. Who owns a table depends on the
number of workers. So when that changes, the logs are first merged into one, in which every decision has been applied,
and then divided again. Transactions that are open are lost, as their writers learn from `TransactionLost`.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from scankv.model.errors import DataLoss
from streaming_server.storage.files.checked_json import sync_directory
from streaming_server.storage.tables.clock_file import ClockFile
from streaming_server.storage.tables.placement import Placement
from streaming_server.storage.transactions.decisions import Decisions
from streaming_server.storage.transactions.staging import StagingDirectory, list_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from streaming_server.clock import ServerClock
    from streaming_server.engine.transactions.shares import TransactionShares
    from streaming_server.engine.transactions.transactions import Transactions
    from streaming_server.engine.transactions.two_phase import CommitOutcome, LogOffsetsOfTables, ShareRequest
    from streaming_server.storage.tables.data_directory import DataDirectory

_DRAFT: Final = "new-workers"


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
    others = {number: read(part / "transactions") for number, part in enumerate(directory.parts())}
    try:
        shares: dict[int, TransactionShares] = {}
        for number, other in others.items():
            shares[number] = other.set_peers(_Logs(number, shares))
        # A coordinator has a smaller number than the workers that it notifies, which have to know their shares.
        for other in reversed(others.values()):
            await other.recover()
        for other in others.values():
            # Shares whose coordinator has not decided ask it.
            await other.retry()
            await into.take_over(other)
    finally:
        for other in others.values():
            await other.close()
    directory.remove_parts()


@dataclass(frozen=True, slots=True)
class _Logs:
    """The workers of the last server, by their logs, as the transactions of one of them ask the others: see `Peers`.

    No transaction begins or is prepared any more.
    """

    number: int
    workers: Mapping[int, TransactionShares]

    def owns(self, table: str) -> bool:
        """Whether the worker owned a table."""
        return Placement(self.number, len(self.workers)).owns(table)

    async def prepare(self, worker: int, request: ShareRequest) -> NoReturn:
        """Not called."""
        raise AssertionError(f"no transaction is prepared: {worker} {request}")

    async def conclude(self, worker: int, token: str, attempt: str, micros: int | None) -> LogOffsetsOfTables:
        """Has the log of a worker apply or undo a prepared share."""
        applied = await self.workers[worker].conclude(token, attempt, micros)
        return {} if applied is None else applied.log_offsets

    async def outcome(self, worker: int, token: str, attempt: str) -> int | CommitOutcome:
        """Asks the log of a coordinator."""
        return self.workers[worker].outcome(token, attempt)

    async def remaining(self, token: str) -> float:
        """Not called: nothing expires."""
        raise AssertionError(f"no transaction expires: {token}")


def divide_log(directory: DataDirectory, workers: int, clock: ServerClock) -> None:
    """Makes a directory for each worker process, with the commits that its tables remember. Blocks.

    After a crash, all of it has happened, or nothing. What open transactions have staged is removed.

    Args:
        directory: The data directory, which no server uses.
        workers: How many worker processes the next server has; more than one.
        clock: The clock of the server.

    Raises:
        DataLoss: A decided transaction is not applied everywhere. Nothing is lost: a server of one process can start.
        ScanKvError, OSError: The log cannot be read, or a new one cannot be written.
    """
    draft = directory.trash / _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    with closing(Decisions(directory.transactions, clock)) as log:
        committed, epoch = log.take_finished(), log.epoch
        for token in log.unfinished:
            raise DataLoss(
                f"the transaction {token} is committed, and cannot be applied everywhere: start the server with "
                "--workers 1, and see why it is stuck: its log and `client.transactions()` say what to do"
            )
    times = ClockFile(directory.path).read(is_new=True)
    next_number = 1 + max((each.number for each in committed), default=0)
    for number in range(workers):
        place = Placement(number, workers)
        own = draft / str(number)
        own.mkdir(parents=True, mode=0o700)
        if times is not None:
            ClockFile(own).write(times)
        with closing(Decisions(own / "transactions", clock)) as log:
            log.continue_after(epoch, next_number)
            log.rewrite([each for each in committed if is_remembered_by(place, each.tables)])
        sync_directory(own)
    directory.place_parts(workers, draft)
    for token in list_tokens(directory.transactions):
        StagingDirectory(directory.transactions, token).remove()


def is_remembered_by(place: Placement, tables: Collection[str]) -> bool:
    """Returns whether a worker process remembers the commit of a transaction that wrote to these tables."""
    # Its id counts, even if it has written nothing.
    return any(map(place.owns, tables)) or (not tables and place.number == 0)
