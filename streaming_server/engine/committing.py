"""Committing a transaction: its gate closed, verified, decided, rolled forward, and the gate opened."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streaming_server.engine.gate import closed_gate
from streaming_server.engine.open_transaction import touched_by
from streaming_server.engine.roll_forward import RollForward
from streaming_server.engine.verifying import Verification
from streaming_server.storage.decisions import Decision
from streaming_server.storage.staging import StagingDirectory
from streaming_server.storage.writer_states import TRANSACTIONS, WriteIdentity
from table_model.errors import TableNotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from streaming_server.clock import ServerClock
    from streaming_server.engine.executor import StorageExecutor
    from streaming_server.engine.gate import Gate
    from streaming_server.engine.live_table import LiveTable
    from streaming_server.engine.open_transaction import OpenTransaction
    from streaming_server.engine.table_uses import TableUses
    from streaming_server.storage.decisions import Committed, Decisions
    from streaming_server.storage.staging import StagedPart, Touched

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class CommitFigures:
    """What there is to say of the commits of a server.

    Attributes:
        commits: How many there were since the start.
        rows: Rows and keys in them.
        closed_gates: How many are being applied now.
        longest_micros: For how long the gate of one of them was closed at most, in microseconds.
    """

    commits: int = 0
    rows: int = 0
    closed_gates: int = 0
    longest_micros: int = 0


class Committing:
    """Commits transactions, several at a time where their buckets are others. Bound to the event loop.

    Args:
        root: Where the transactions lie.
        decisions: What was decided; its methods run in threads, one at a time.
        executor: Runs what blocks.
        table: Gives a table by its name; raises TableNotFound.
        uses: Keeps tables from being altered meanwhile.
        clock: The server's.

    Attributes:
        figures: What there is to say of it.
    """

    def __init__(
        self,
        root: Path,
        decisions: Decisions,
        executor: StorageExecutor,
        table: Callable[[str], LiveTable],
        uses: TableUses,
        clock: ServerClock,
    ) -> None:
        self._clock = clock
        self.figures = CommitFigures()
        self._root = root
        self._decisions = decisions
        self._executor = executor
        self._table = table
        self._uses = uses
        self._log = asyncio.Lock()

    async def commit(self, transaction: OpenTransaction, sizes: Sequence[tuple[str, int]]) -> Committed:
        """Commits a transaction to which nothing is added any more: durable, and seen by all, when it returns.

        Args:
            transaction: The transaction.
            sizes: The parts that count, and how many requests each has. Empty: all that there are.

        Raises:
            InvalidRequest: A part has other requests.
            TableNotFound: A table was dropped.
            ColumnLocked: Somebody has locked columns that it writes.
            TransactionConflict, InvalidRequest, PositionExpired, PositionOutOfRange, RequestTooLarge, DataLoss: As
                `Verification`; nothing was written.
            Unavailable: It is committed, and cannot be applied before the server is started anew.
        """
        parts = transaction.counted(sizes)
        touched = touched_by(parts)
        async with self._uses.using(touched):
            tables = {name: self._same_table(name, touched[name].incarnation) for name in sorted(touched)}
            await self._executor.run(_sync, transaction.directory, parts)
            with ExitStack() as admitted:
                for name, table in tables.items():
                    for columns, locks in touched[name].access:
                        admitted.enter_context(table.locks.admitted(columns or None, locks))
                return await self._closed(transaction, parts, tables, touched)

    async def _closed(
        self,
        transaction: OpenTransaction,
        parts: Sequence[StagedPart],
        tables: Mapping[str, LiveTable],
        touched: Mapping[str, Touched],
    ) -> Committed:
        buckets = [tables[name].buckets[number] for name in tables for number in sorted(touched[name].buckets)]
        files = [(part.path, part.requests) for part in parts]
        self.figures.closed_gates += 1
        try:
            async with closed_gate(buckets) as gate:
                started = self._clock.monotonic()
                checks = Verification(files=files, tables=tables, touched=touched, since=transaction.since)
                await checks.run(self._executor)
                decision = Decision(
                    number=self._decisions.next_number(),
                    token=transaction.token,
                    id=transaction.terms.id,
                    micros=self._clock.commit_micros(),
                    served_micros=self._clock.service_micros(),
                    rows=sum(part.rows for part in parts),
                    tables={name: touched[name].incarnation for name in tables},
                    files=tuple((part.number, part.requests) for part in parts),
                    writer=transaction.terms.writer,
                )
                offsets = await self._decided(decision, files, tables, gate)
            self.figures.commits += 1
            self.figures.rows += decision.rows
            micros = int((self._clock.monotonic() - started) * 1_000_000)
            self.figures.longest_micros = max(self.figures.longest_micros, micros)
        finally:
            self.figures.closed_gates -= 1
        return decision.committed(offsets)

    async def _decided(
        self, decision: Decision, files: Sequence[tuple[Path, int]], tables: Mapping[str, LiveTable], gate: Gate
    ) -> dict[str, dict[int, int]]:
        """Decides, and applies. Where that fails half way, nobody passes the gate any more: it would show a half."""
        try:
            async with self._log:
                await self._executor.run(self._decisions.decide, decision)
            return await self._rolling(decision, files, tables).run()
        except BaseException as error:
            if not self.is_decided(decision.token):
                raise
            _log.exception("the transaction %s is decided, and could not be applied", decision.token)
            unavailable = Unavailable(
                "a transaction is committed, and could not be written to this table: restart the server once what "
                "keeps it from writing is mended; its log has the cause"
            )
            gate.fail(unavailable)
            raise unavailable from error

    def is_decided(self, token: str) -> bool:
        """Whether a transaction is committed and not yet done, or that cannot be told before a restart."""
        return token in self._decisions.unfinished or self._decisions.is_uncertain

    async def roll_forward(self, decision: Decision) -> Committed | None:
        """Applies what a crash has left out of a decision, before anybody reads the tables.

        None where a bucket is damaged and lacks it: so it stays undone, for a bucket that is put in its place.

        Raises:
            DataLoss: What was staged is damaged.
            ScanKvError: A bucket cannot be written.
        """
        tables = {}
        for name, incarnation in sorted(decision.tables.items()):
            # One that was dropped since was whole when it was.
            with suppress(TableNotFound):
                tables[name] = self._same_table(name, incarnation)
        directory = StagingDirectory(self._root, decision.token)
        files = [(directory.part(number), requests) for number, requests in decision.files]
        rolling = self._rolling(decision, files, tables, beside_damage=True)
        offsets = await rolling.run()
        return None if rolling.damaged else decision.committed(offsets)

    async def finish(self, committed: Committed) -> None:
        """Notes that a decision is carried out, and removes what was staged. Raises OSError."""
        async with self._log:
            await self._executor.run(self._decisions.finish, committed)
        await self._executor.run(StagingDirectory(self._root, committed.token).remove)

    async def rewrite_log(self, remembered: Iterable[Committed]) -> None:
        """Has the log keep no more than it must. Raises OSError."""
        async with self._log:
            await self._executor.run(self._decisions.rewrite, list(remembered))

    def _rolling(
        self,
        decision: Decision,
        files: Sequence[tuple[Path, int]],
        tables: Mapping[str, LiveTable],
        *,
        beside_damage: bool = False,
    ) -> RollForward:
        identity = WriteIdentity(
            writer=TRANSACTIONS,
            epoch=self._decisions.epoch,
            sequence=decision.number,
            settled_below=decision.number,
        )
        writer = decision.writer or None
        return RollForward(identity, files, tables, self._executor, writer=writer, beside_damage=beside_damage)

    def _same_table(self, name: str, incarnation: str) -> LiveTable:
        table = self._table(name)
        if table.definition.incarnation != incarnation:
            raise TableNotFound(f"table {name} was dropped, and made anew, since it was written to", table=name)
        return table


def _sync(directory: StagingDirectory, parts: Sequence[StagedPart]) -> None:
    for part in parts:
        part.sync()
    directory.sync()
