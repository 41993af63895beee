"""Giving up what a committed transaction has written where it can never be applied: what exactly is lost.

Rule: an operator says so, and never the server by itself; all that can be applied is applied before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.errors import DiskFull, ScanKvError, TransactionCommitted, Unavailable
from streaming_server.engine.transactions.staged_rows import staged_rows
from streaming_server.storage.transactions.staging import READ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.roll_forward import RollForward
    from streaming_server.storage.transactions.decisions import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWrites:
    """What one bucket never gets of a transaction that was given up.

    Attributes:
        table: The bucket's table.
        bucket: Its number.
        rows: How many rows and keys of the transaction fall to it. None: not known, because they cannot be read.
        applied: How many of the first of these, each key once, it has all the same.
        reason: Why it cannot have the others.
    """

    table: str
    bucket: int
    rows: int | None
    applied: int
    reason: str


def check_hopeless(rolling: RollForward, unreadable: Mapping[str, ScanKvError]) -> None:
    """Raises TransactionCommitted unless everything that a transaction lacks is lacking for good.

    Args:
        rolling: The transaction, once all that can be applied is.
        unreadable: Why tables of it cannot be used.
    """
    for error in [*rolling.failed.values(), *unreadable.values()]:
        if isinstance(error, DiskFull | Unavailable):
            raise TransactionCommitted(
                f"the transaction cannot be given up, because it may be applied yet: {error.message}; nothing was "
                "changed: remove that cause, and the server applies it by itself"
            )


async def find_lost(
    decision: Decision,
    rolling: RollForward,
    unreadable: Mapping[str, ScanKvError],
    files: Sequence[tuple[Path, int]],
    tables: Mapping[str, LiveTable],
    executor: StorageExecutor,
) -> list[LostWrites]:
    """What is lost when a transaction is given up as it is, by table and bucket, ascending.

    Args:
        decision: The transaction, with all that is applied.
        rolling: What has applied it.
        unreadable: Why tables of it cannot be used.
        files: What it has staged.
        tables: Its tables that can be used.
        executor: Runs what blocks.
    """
    rows = await _rows_of_buckets(files, tables, executor)
    lost = [
        LostWrites(
            table=live.table,
            bucket=live.number,
            rows=None if rows is None else rows[live.table, live.number],
            applied=rolling.applied_to(live),
            reason=error.message if isinstance(error, ScanKvError) else "see the server's log",
        )
        for live, error in rolling.failed.items()
    ]
    lost += [
        LostWrites(table=name, bucket=number, rows=None, applied=0, reason=error.message)
        for name, error in unreadable.items()
        for number in decision.buckets[name]
        if decision.is_pending(name, decision.tables[name], number)
    ]
    return sorted(lost, key=lambda each: (each.table, each.bucket))


async def _rows_of_buckets(
    files: Sequence[tuple[Path, int]], tables: Mapping[str, LiveTable], executor: StorageExecutor
) -> Counter[tuple[str, int]] | None:
    """How many staged rows and keys fall to each bucket; None where they cannot be read."""
    counts: Counter[tuple[str, int]] = Counter()
    try:
        async with staged_rows(files, tables, executor, lambda request: request.action != READ) as requests:
            async for staged in requests:
                for part in staged.parts:
                    counts[staged.table.definition.name, part.bucket] += len(part.keys)
    except ScanKvError:
        return None
    return counts
