"""The transactions of a server: begun, staged, committed or aborted, and rolled forward after a crash."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from scankv.model.errors import (
    DataLoss,
    InvalidRequest,
    RequestTooLarge,
    ScanKvError,
    TableNotFound,
    TooManyTransactions,
    TransactionCommitted,
    Unavailable,
)
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.engine.tasks.reaper import Reaper
from streaming_server.engine.transactions.commit import CommitCoordinator
from streaming_server.engine.transactions.committed_transactions import CommittedTransactions
from streaming_server.engine.transactions.delete_all import DeleteAll
from streaming_server.engine.transactions.open_transaction import (
    OpenTransaction,
    TransactionOptions,
    footprints_of,
    lost,
)
from streaming_server.engine.transactions.staged_lookup import with_staged
from streaming_server.engine.transactions.staged_rows import check_of
from streaming_server.engine.transactions.stuck import RETRY_SECONDS
from streaming_server.engine.transactions.table_usage_lock import TableUsageLock
from streaming_server.storage.transactions.decisions import Decisions
from streaming_server.storage.transactions.staging import (
    DELETE,
    READ,
    StagedRequest,
    StagingDirectory,
    list_tokens,
    read_staged_request,
)
from streaming_server.storage.transactions.transaction_log import UnreadableLog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    import pyarrow as pa

    from streaming_server.clock import ServerClock
    from streaming_server.engine.merging.preparing import WriteKind
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.commit import CommitStats
    from streaming_server.engine.transactions.give_up import LostWrites
    from streaming_server.storage.transactions.decisions import CommittedTransaction, Decision
    from streaming_server.storage.transactions.staging import TableFootprint

T = TypeVar("T")

_RETRY_SECONDS: Final = 1.0

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """What bounds transactions.

    Attributes:
        open: How many there may be at once that are neither committed nor aborted.
        bytes: How many bytes each may stage.
        ttl_seconds: How long one is kept when nothing is heard of it, if it does not say.
        remembered_seconds: How long a commit is remembered.
    """

    open: int
    bytes: int
    ttl_seconds: float
    remembered_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRequestId:
    """Which request of a transaction a staged one is: of the transaction `token`, number `sequence` of `part`."""

    token: str
    part: str
    sequence: int


class Transactions:
    """All of them. Bound to the event loop.

    What has begun to be committed comes to its end, also when its caller gives up.

    Args:
        root: Where they lie; made when it is not there.
        executor: Runs what blocks.
        table: Gives a table by its name; raises TableNotFound.
        limits: What bounds them.
        clock: The server's.

    Attributes:
        uses: Keeps the tables of commits from being altered.

    When it cannot be read which transactions were committed, every method raises that, and the tables are served.
    """

    def __init__(
        self,
        root: Path,
        executor: StorageExecutor,
        table: Callable[[str], LiveTable],
        limits: TransactionLimits,
        clock: ServerClock,
    ) -> None:
        self._clock = clock
        self.uses = TableUsageLock()
        self._root = root
        self._executor = executor
        self._table = table
        self._limits = limits
        self._damage: ScanKvError | None = None
        try:
            self._decisions = Decisions(root, clock)
        except ScanKvError as error:
            _log.error("%s: transactions cannot be used: %s", error.reason, error.message)
            self._damage = error
            self._decisions = Decisions(root, clock, UnreadableLog(error))
        self._committing = CommitCoordinator(root, self._decisions, executor, table, self.uses, clock)
        self._committed = CommittedTransactions(limits.remembered_seconds, self._is_there)
        for committed in self._decisions.take_finished():
            self._committed.add(committed)
        self._open: dict[str, OpenTransaction] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reaper = Reaper(self._next_expiry, self._expire, clock)
        self._retrying = Background(partial(repeat, RETRY_SECONDS, self._retry))

    @property
    def open(self) -> list[OpenTransaction]:
        """Those that are neither committed nor aborted, the oldest first."""
        return sorted(self._open.values(), key=lambda each: each.begun)

    @property
    def default_ttl(self) -> float:
        """For how many seconds one is kept that does not say."""
        return self._limits.ttl_seconds

    @property
    def figures(self) -> CommitStats:
        """What there is to say of the commits since the start."""
        return self._committing.figures

    async def recover(self) -> None:
        """Carries out what was decided before a crash, and loads what was staged. Nobody reads or writes meanwhile.

        Rule: no transaction keeps other tables from being served. Buckets to which a committed one cannot be applied
        are blocked, see `LiveBucket.block`; if the log cannot be read, all to which one may have been committed.
        """
        # First, since they hold changes of the buckets that are opened then.
        for token in await self._executor.run(list_tokens, self._root):
            try:
                await self._recover_staged(StagingDirectory(self._root, token))
            except Exception:
                _log.exception("what the transaction %s has staged is left as it is", token)
        for decision in list(self._decisions.unfinished.values()):
            _log.info("applying the transaction %s, which was committed before the last stop", decision.token)
            committed = await self._committing.roll_forward(decision)
            if committed is not None:
                await self._conclude(committed)
        self._committed.forget(self._clock.service_micros())
        await self._shorten_log()

    async def _recover_staged(self, directory: StagingDirectory) -> None:
        token = directory.path.name
        if self._damage is not None:
            parts = await self._executor.run(directory.load_parts)
            self._block(footprints_of(parts), self._damage)
        elif self._committed.find(token, "") is not None:
            await self._executor.run(directory.remove)
        elif token not in self._decisions.unfinished:
            await self._executor.run(self._load, directory)

    def _block(self, tables: Mapping[str, TableFootprint], damage: ScanKvError) -> None:
        """Blocks the buckets for which a transaction has staged rows, because nobody knows if they are to be there."""
        for name, touched in tables.items():
            if self._is_there(name, touched.incarnation):
                for number in touched.buckets:
                    live = self._table(name).buckets[number]
                    live.block(
                        type(damage)(
                            f"{live.location} may lack what a committed transaction has written, and is not served: "
                            f"{damage.message}",
                            table=name,
                            bucket=number,
                        )
                    )

    async def _shorten_log(self) -> None:
        if self._damage is None:
            try:
                await self._committing.rewrite_log(self._committed)
            except (ScanKvError, OSError) as error:
                # It stays as long as it is, until the next time.
                _log.warning("the transaction log cannot be made shorter: %s", error)

    def _load(self, directory: StagingDirectory) -> None:
        try:
            transaction = OpenTransaction.load(directory, self._clock)
        except (DataLoss, TypeError, ValueError, LookupError) as error:
            _log.error("DATA_LOSS: the transaction staged in %s is given up: %s", directory.path, error)
            transaction = None
        if transaction is None:
            directory.remove()
        else:
            self._open[transaction.token] = transaction

    def start(self) -> None:
        """Starts letting transactions expire, and applying what could not be applied, until `close`."""
        self._reaper.start()
        self._retrying.start()

    async def close(self) -> None:
        """Stops that, once commits that have begun are at their end. What is staged stays."""
        await self._reaper.close()
        await self._retrying.close()
        for deleting in [task for each in self._open.values() for task in each.deleting.values()]:
            deleting.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        self._decisions.close()

    async def begin(self, terms: TransactionOptions) -> OpenTransaction | CommittedTransaction:
        """Begins a transaction; or gives the commit of its id, when there was one. See transaction.proto.

        Raises:
            InvalidRequest: The id, or the time to live.
            TooManyTransactions: There are as many as there may be.
        """
        terms.check()
        self._check_log()
        if terms.id:
            while (before := self._open_of(terms.id)) is not None:
                if before.terms.attempt == terms.attempt:
                    before.renew()
                    return before
                await self._settle(before)
            committed = self._committed.find("", terms.id)
            if committed is not None:
                return committed
            self._check_not_stuck("", terms.id)
        if len(self._open) >= self._limits.open:
            raise TooManyTransactions(
                f"there are {len(self._open)} open transactions, which is the limit: commit or abort some, or raise "
                "max_transactions",
                retry_after=_RETRY_SECONDS,
            )
        token = uuid.uuid4().hex
        directory = StagingDirectory(self._root, token)
        transaction = self._open[token] = OpenTransaction(
            token=token, terms=terms, directory=directory, clock=self._clock
        )
        try:
            # Others who begin it meanwhile have its token, and wait here with what they stage.
            async with transaction.lock:
                await self._executor.run(directory.create, transaction.content())
        except BaseException:
            if not transaction.has_ended:
                self._forget(transaction)
            raise
        self._reaper.notify(transaction.expires)
        return transaction

    def _open_of(self, id_: str) -> OpenTransaction | None:
        return next((each for each in self._open.values() if each.terms.id == id_), None)

    async def _settle(self, transaction: OpenTransaction) -> None:
        """Aborts a transaction, unless it is being committed: then waits for the end of that."""
        while transaction.commit is not None and not transaction.has_ended:
            with suppress(ScanKvError):
                await asyncio.shield(transaction.commit)
            if self._committing.is_decided(transaction.token):
                # It cannot be applied.
                await self.commit(transaction.token, transaction.terms.id, ())
        await self._end(transaction)

    async def stage(
        self,
        place: StagedRequestId,
        table: LiveTable,
        action: str,
        data: bytes,
        *,
        schema_id: int = 0,
        kind: WriteKind,
        column_locks: Sequence[str] = (),
    ) -> int:
        """Checks a write as the table would, and stages it: how many rows or keys it has.

        Args:
            place: Which request of a transaction it is.
            table: The table.
            action: UPSERT or DELETE.
            data: Its rows or keys, an Arrow IPC stream.
            schema_id: The version of the table's schema that the rows were made for. 0: the current one.
            kind: What it does with them.
            column_locks: The ids of the column locks that its writer has.

        Raises:
            TransactionLost, TransactionCommitted: Nothing can be staged any more.
            RequestTooLarge: It is too large, or the transaction would be.
            ScanKvError: What the table refuses.
        """
        transaction = self._staging(place.token)
        definition, indexes = table.definition, tuple(table.state.codec.indexes)
        rows, parts = await self._executor.run(check_of(table, action, data, schema_id, kind))
        with table.writes.locks.admitted(kind.columns or None, column_locks):
            pass
        request = StagedRequest(
            part=place.part,
            table=definition.name,
            incarnation=definition.incarnation,
            action=action,
            rows=rows,
            buckets=dict.fromkeys((part.bucket for part in parts), 1),
            schema_id=schema_id or definition.schema.id,
            indexes=indexes,
            columns=kind.columns,
            overwrite=kind.overwrite,
            merges=any(part.written is not None for part in parts),
            column_locks=tuple(sorted(set(column_locks))),
        )
        await self._append(transaction, place, request, data, table)
        return rows

    async def stage_delete_all(
        self, place: StagedRequestId, table: LiveTable, kind: WriteKind, column_locks: Sequence[str], wait: float
    ) -> int | None:
        """Stages the deletion of all rows that a table has now: how many they are; None while that is under way.

        It goes on when the caller gives up; who calls again waits for it, or is told what came of it.

        Args:
            place: Which request of a transaction it is.
            table: The table.
            kind: What becomes of the rows.
            column_locks: The ids of the column locks that the writer has.
            wait: For how many seconds to wait for its end.

        Raises:
            TransactionLost, TransactionCommitted, RequestTooLarge, ScanKvError: As for `stage`.
        """
        transaction = self._staging(place.token)
        key = (place.part, place.sequence)
        task = transaction.deleting.get(key)
        if task is None:
            work = self._delete_all(transaction, place, table, kind, column_locks)
            task = transaction.deleting[key] = self._to_its_end(work)
            task.add_done_callback(lambda _: transaction.deleting.pop(key))
        await asyncio.wait([task], timeout=wait)
        if not task.done():
            return None
        if task.cancelled():
            raise Unavailable("the server is being stopped")
        error = task.exception()
        if isinstance(error, ScanKvError):
            raise copy(error) from error.__cause__
        return task.result()

    async def _delete_all(
        self,
        transaction: OpenTransaction,
        place: StagedRequestId,
        table: LiveTable,
        kind: WriteKind,
        column_locks: Sequence[str],
    ) -> int:
        def check(more: int) -> None:
            # A commit waits for it, as for all that is being staged.
            if transaction.has_ended:
                raise lost(transaction.token)
            transaction.renew()
            self._check_room(transaction, more)

        async with transaction.lock:
            transaction.check_open()
            part = transaction.part(place.part, place.sequence)
            if part is None:
                path = transaction.parts[place.part].path
                return (await self._executor.run(read_staged_request, path, place.sequence)).rows
            definition, indexes = table.definition, tuple(table.state.codec.indexes)
            with table.writes.locks.admitted(kind.columns or None, column_locks):
                pass
            # Before the rows are looked at: a change behind that is a conflict.
            await self._find_conflicts(transaction, table)
            request = StagedRequest(
                part=place.part,
                table=definition.name,
                incarnation=definition.incarnation,
                action=DELETE,
                rows=0,
                buckets={},
                schema_id=definition.schema.id,
                indexes=indexes,
                columns=kind.columns,
                overwrite=kind.overwrite,
                column_locks=tuple(sorted(set(column_locks))),
            )
            deleting = DeleteAll(table=table, part=part, kind=kind, executor=self._executor, check=check)
            request = await deleting.stage(request)
            check(request.piece_bytes)
            await self._executor.run(part.append, request, b"")
            transaction.parts[place.part] = part
            return request.rows

    async def get_for_update(
        self, place: StagedRequestId, table: LiveTable, keys: bytes
    ) -> tuple[pa.RecordBatch, bytes]:
        """Looks keys up as `TableReads.lookup`, and has the commit depend on them.

        Raises:
            TransactionLost, TransactionCommitted, RequestTooLarge: As for `stage`.
            ScanKvError: As for the lookup.
        """
        transaction = self._staging(place.token)
        _check_has_changes(table)
        rows, found, offsets = await table.reads.lookup(keys, None)
        request = StagedRequest(
            part=place.part,
            table=table.definition.name,
            incarnation=table.definition.incarnation,
            action=READ,
            rows=len(found),
            buckets=offsets,
        )
        await self._append(transaction, place, request, keys, table)
        return rows, found

    async def lookup(self, place: StagedRequestId, table: LiveTable, keys: bytes) -> tuple[pa.RecordBatch, bytes]:
        """Looks keys up as `TableReads.lookup`, as they are once what a part has staged so far is merged in.

        Args:
            place: The part, and how many requests it has staged: those are seen.
            table: The table.
            keys: An Arrow IPC stream.

        Raises:
            TransactionLost, TransactionCommitted: Nothing can be staged any more.
            InvalidRequest: The part has not as many requests; or they cannot be merged.
            ScanKvError: As for the lookup.
        """
        transaction = self._staging(place.token)
        async with transaction.lock:
            transaction.check_open()
            parts = transaction.counted([(place.part, place.sequence)])
            for name, touched in footprints_of(parts).items():
                if name == table.definition.name and touched.incarnation != table.definition.incarnation:
                    raise TableNotFound(f"table {name} was dropped, and made anew, since it was written to", table=name)
            files = [(part.path, part.requests) for part in parts]
            rows, found, _ = await table.reads.lookup(keys, None, partial(with_staged, table, files, self._executor))
        return rows, found

    async def _append(
        self,
        transaction: OpenTransaction,
        place: StagedRequestId,
        request: StagedRequest,
        data: bytes,
        table: LiveTable,
    ) -> None:
        async with transaction.lock:
            transaction.check_open()
            part = transaction.part(place.part, place.sequence)
            if part is None:
                return
            self._check_room(transaction, len(data))
            if request.action != READ:
                await self._find_conflicts(transaction, table)
            await self._executor.run(part.append, request, data)
            transaction.parts[place.part] = part
            if request.action == READ:
                self._hold_log(transaction, table)

    def _check_room(self, transaction: OpenTransaction, more: int) -> None:
        """Raises RequestTooLarge unless so many bytes more may be staged."""
        if transaction.size + more > self._limits.bytes:
            raise RequestTooLarge(
                f"the transaction would stage over {self._limits.bytes:,} bytes: commit it in several, or raise "
                "max_transaction_bytes"
            )

    async def _find_conflicts(self, transaction: OpenTransaction, table: LiveTable) -> None:
        """Notes from where on a change is a conflict, before the first write to a table. Hold the lock."""
        name = table.definition.name
        if transaction.terms.finds_conflicts and name not in transaction.since:
            _check_has_changes(table)
            transaction.since[name] = dict((await table.reads.view_now(None)).log_offsets)
            self._hold_log(transaction, table)
            await self._executor.run(transaction.directory.write_metadata, transaction.content())

    def _hold_log(self, transaction: OpenTransaction, table: LiveTable) -> None:
        """Keeps the changes in which conflicts will be looked for."""
        offsets = transaction.retention_holds.get(table.definition.name, {})
        # One that was made anew may have fewer buckets.
        for live in table.buckets:
            if live.number in offsets and not transaction.has_ended:
                live.retain_log(_owner(transaction), offsets[live.number])

    def retention_holds(self, table: str, bucket: int) -> dict[str, int]:
        """From where on the changelog of a bucket is kept, by owner. May be called in any thread."""
        holds = {_owner(each): each.retention_holds.get(table, {}) for each in list(self._open.values())}
        return {owner: offsets[bucket] for owner, offsets in holds.items() if bucket in offsets}

    def _staging(self, token: str) -> OpenTransaction:
        """An open transaction, from which was heard now."""
        self._check_log()
        transaction = self._open.get(token)
        if transaction is None:
            if self._committed.find(token, "") is not None:
                raise TransactionCommitted("the transaction is committed: begin another one")
            raise lost(token)
        transaction.check_open()
        transaction.renew()
        return transaction

    async def commit(self, token: str, id_: str, sizes: Sequence[tuple[str, int]]) -> CommittedTransaction:
        """Commits a transaction, or gives the answer of its commit; see `CommitCoordinator.commit`.

        Args:
            token: The transaction's token.
            id_: Its id, by which its commit is found when the token is forgotten.
            sizes: The parts that count, and how many requests each has. Empty: all that there are.

        Raises:
            TransactionLost: There is none.
            ScanKvError: As `CommitCoordinator.commit`.
        """
        self._check_log()
        committed = self._committed.find(token, id_)
        if committed is not None:
            return committed
        self._check_not_stuck(token, id_)
        transaction = self._open.get(token)
        if transaction is None:
            raise lost(token)
        if transaction.commit is None:
            transaction.commit = self._to_its_end(self._commit(transaction, list(sizes)))
        try:
            return await asyncio.shield(transaction.commit)
        except ScanKvError as error:
            raise copy(error) from error.__cause__

    async def _commit(self, transaction: OpenTransaction, sizes: Sequence[tuple[str, int]]) -> CommittedTransaction:
        try:
            # What is being staged now is in it.
            async with transaction.lock:
                pass
            committed = await self._committing.commit(transaction, sizes)
        except BaseException:
            if not self._committing.is_decided(transaction.token):
                self._open_again(transaction)
            raise
        self._committed.add(committed)
        self._forget(transaction)
        self._to_its_end(self._conclude(committed))
        return committed

    def _open_again(self, transaction: OpenTransaction) -> None:
        """Lets a transaction be committed again, or aborted, that is not committed though that was tried."""
        transaction.commit = None
        transaction.renew()
        self._reaper.notify(transaction.expires)

    async def _conclude(self, committed: CommittedTransaction) -> None:
        """Has a commit remembered, and nothing of it staged any more."""
        self._committed.add(committed)
        try:
            await self._committing.finish(committed)
        except (ScanKvError, OSError) as error:
            # The next decision, or the next start, finds it applied already.
            _log.error("that the transaction %s is done cannot be noted: %s", committed.token, error)
            return
        if self._decisions.is_rewrite_due:
            self._committed.forget(self._clock.service_micros())
            await self._shorten_log()

    async def _retry(self) -> None:
        """Tries again what could not be done: to apply a transaction, or to note that it is applied."""
        try:
            await asyncio.shield(self._to_its_end(self.retry()))
        except (ScanKvError, OSError) as error:
            _log.warning("noting that transactions are done: %s", error)

    async def retry(self, dropped: str | None = None) -> None:
        """Applies what was committed and could not be applied, as far as that can be done now.

        Args:
            dropped: A table that was dropped, if that is why it is tried.
        """
        if dropped is None and not self._committing.has_more_to_do:
            return
        if self._committing.is_uncertain:
            for token in await self._committing.settle(self._committed):
                if (undecided := self._open.get(token)) is not None:
                    self._open_again(undecided)
        done = await self._committing.retry(dropped)
        if not done:
            await self._committing.tidy_up()
        for committed in done:
            transaction = self._open.get(committed.token)
            if transaction is not None:
                self._forget(transaction)
            await self._conclude(committed)

    async def give_up(self, token: str) -> tuple[CommittedTransaction, list[LostWrites]]:
        """Accepts that a committed transaction is lost where it cannot be applied; see `CommitCoordinator.give_up`.

        Comes to its end, also when its caller gives up.
        """
        self._check_log()
        return await asyncio.shield(self._to_its_end(self._give_up(token)))

    async def _give_up(self, token: str) -> tuple[CommittedTransaction, list[LostWrites]]:
        committed, lost = await self._committing.give_up(token)
        transaction = self._open.get(token)
        if transaction is not None:
            self._forget(transaction)
        await self._conclude(committed)
        # Later ones may have waited for it.
        await self.retry()
        return committed, lost

    @property
    def stuck(self) -> list[tuple[Decision, ScanKvError]]:
        """The transactions that are committed and could not be applied everywhere, and why; the oldest first."""
        return [
            (decision, self._committing.stuck[token])
            for token, decision in self._decisions.unfinished.items()
            if token in self._committing.stuck
        ]

    def _check_log(self) -> None:
        """Raises why no transaction can be used, if it is so."""
        if self._damage is not None:
            raise copy(self._damage)

    def _check_not_stuck(self, token: str, id_: str) -> None:
        """Raises why a transaction is committed, but not yet there for everybody, if it is so."""
        for decision in self._decisions.unfinished.values():
            stuck = self._committing.stuck.get(decision.token)
            if stuck is not None and (decision.token == token or (id_ and decision.id == id_)):
                raise copy(stuck)

    async def abort(self, token: str) -> None:
        """Ends a transaction, if it is there, and removes what it has staged.

        Raises:
            TransactionCommitted: It is committed, or being committed.
        """
        self._check_log()
        transaction = self._open.get(token)
        is_committed = self._committed.find(token, "") is not None or token in self._decisions.unfinished
        if is_committed or (transaction is not None and transaction.commit is not None):
            raise TransactionCommitted("the transaction is committed, or is being committed: it cannot be aborted")
        if transaction is not None:
            await self._end(transaction)

    async def _end(self, transaction: OpenTransaction) -> None:
        """Ends a transaction that is not being committed, if nobody has done so meanwhile."""
        if transaction.has_ended or transaction.commit is not None:
            return
        self._forget(transaction)
        await asyncio.shield(self._to_its_end(self._remove(transaction)))

    async def _remove(self, transaction: OpenTransaction) -> None:
        async with transaction.lock:
            await self._executor.run(transaction.directory.remove)

    def _forget(self, transaction: OpenTransaction) -> None:
        transaction.has_ended = True
        del self._open[transaction.token]
        for name in transaction.retention_holds:
            # One that was dropped has no changes any more.
            with suppress(ScanKvError):
                for live in self._table(name).buckets:
                    live.release_log(_owner(transaction))

    def _is_there(self, name: str, incarnation: str) -> bool:
        try:
            return self._table(name).definition.incarnation == incarnation
        except ScanKvError:
            return False

    def _to_its_end(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Looked at, in case that nobody waits for it any more.
            task.exception()

    def _next_expiry(self) -> float | None:
        return min((each.expires for each in self._open.values() if each.commit is None), default=None)

    async def _expire(self) -> None:
        now = self._clock.monotonic()
        for transaction in [each for each in self._open.values() if each.commit is None and each.expires <= now]:
            _log.info("the transaction %s has expired", transaction.token)
            await self._end(transaction)


def _owner(transaction: OpenTransaction) -> str:
    """As whom a transaction holds changes."""
    return f"transaction {transaction.token}"


def _check_has_changes(table: LiveTable) -> None:
    """Raises InvalidRequest unless it can be told whether keys of a table have changed."""
    if table.definition.options.changelog == "none":
        raise InvalidRequest(
            f"table {table.definition.name} has no changelog, so whether a key has changed cannot be told: create it "
            'with changelog="full" or "upsert"'
        )
