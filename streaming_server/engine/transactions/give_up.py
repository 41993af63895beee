"""Gives up the rows of a committed transaction that can never be applied, and finds exactly which rows are lost.

Rule: only an operator gives up rows, never the server. First, everything that can be applied is applied.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DiskFailed, DiskFull, ScanKvError, TransactionCommitted, Unavailable
from streaming_server.engine.transactions.staged_rows import read_staged_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.roll_forward import RollForward
    from streaming_server.storage.transactions.decisions import Decision


_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLoss:
    """The rows of a given-up transaction that one bucket never gets.

    Attributes:
        table: The bucket's table.
        bucket: Its number.
        rows: How many rows and keys the transaction has for the bucket. None: unknown, because they cannot be read.
        applied: How many of them the bucket has, from the first one on; each key counts once.
        reason: Why the bucket cannot get the remaining ones.
    """

    table: str
    bucket: int
    rows: int | None
    applied: int
    reason: str


def check_hopeless(decision: Decision, rolling: RollForward, unreadable: Mapping[str, ScanKvError]) -> None:
    """Raises TransactionCommitted if anything that a transaction lacks may still be applied later.

    Args:
        decision: The transaction.
        rolling: The transaction, after all that can be applied was applied.
        unreadable: Its tables that cannot be used, and why.
    """
    if decision.unacknowledged:
        raise TransactionCommitted(
            "the transaction cannot be given up here, because other worker processes have yet to apply it; nothing was "
            "changed"
        )
    for error in [*rolling.failed.values(), *unreadable.values()]:
        if isinstance(error, DiskFull | DiskFailed | Unavailable):
            raise TransactionCommitted(
                f"the transaction cannot be given up, because it may still be applied: {error.message}; nothing was "
                "changed: remove that cause, and the server applies it by itself"
            )


async def find_losses(
    decision: Decision,
    rolling: RollForward,
    unreadable: Mapping[str, ScanKvError],
    files: Sequence[tuple[Path, int]],
    tables: Mapping[str, LiveTable],
    executor: StorageExecutor,
) -> list[BucketLoss]:
    """Returns what is lost when a transaction is given up now, by table and bucket, ascending.

    Args:
        decision: The transaction, with its applied offsets.
        rolling: The roll-forward that has applied what it could.
        unreadable: Its tables that cannot be used, and why.
        files: The files of its parts, and how many requests each has.
        tables: Its tables that can be used.
        executor: Runs blocking work.
    """
    rows = await _rows_of_buckets(files, tables, executor)
    lost = [
        BucketLoss(
            table=live.table,
            bucket=live.number,
            rows=None if rows is None else rows[live.table, live.number],
            applied=rolling.keys_applied_to(live),
            reason=error.message if isinstance(error, ScanKvError) else "see the server's log",
        )
        for live, error in rolling.failed.items()
    ]
    lost += [
        BucketLoss(table=name, bucket=number, rows=None, applied=0, reason=error.message)
        for name, error in unreadable.items()
        for number in decision.buckets.get(name, ())
        if decision.is_pending(name, decision.tables[name], number)
    ]
    return sorted(lost, key=lambda each: (each.table, each.bucket))


async def _rows_of_buckets(
    files: Sequence[tuple[Path, int]], tables: Mapping[str, LiveTable], executor: StorageExecutor
) -> Counter[tuple[str, int]] | None:
    """Counts the staged rows and keys of each bucket; None if they cannot be read."""
    counts: Counter[tuple[str, int]] = Counter()
    try:
        async with read_staged_rows(files, tables, executor, lambda request: request.has_rows) as requests:
            async for staged in requests:
                for part in staged.parts:
                    counts[staged.table.definition.name, part.bucket] += len(part.keys)
    except Exception as error:
        # What keeps the rows from being written may also keep them from being counted.
        if not isinstance(error, ScanKvError):
            _log.exception("the rows of a transaction that is given up cannot be counted")
        return None
    return counts
