"""Writers and column locks for code that blocks; part of `aio_client.sync`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self, cast

from aio_client._column_locks import lock_ids_of
from aio_client._lease import Keeper
from table_model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from aio_client._column_locks import ColumnLock as AsyncColumnLock
    from aio_client._data import Data
    from aio_client._merging import Names, WriteMode
    from aio_client._runner import Runner
    from aio_client._write_requests import WriteResult
    from aio_client._writer import Writer as AsyncWriter


class Writer:
    """Writes rows of one table in the background, each once; to be entered with `with`. Thread-safe.

    Made by `Table.writer`. See `aio_client.Writer`.
    """

    def __init__(self, runner: Runner, make: Callable[[], AsyncWriter]) -> None:
        """Called by `Table.writer`."""
        self._runner = runner
        self._writer = runner.call(_made, make)

    def __enter__(self) -> Self:
        self._runner.call(self._writer.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A client closed meanwhile has ended the writer; nothing that it says must hide an error of the block.
        with suppress(*(() if kind is None else (UsageError,))):
            self._runner.call(self._writer.__aexit__, kind, error, traceback)

    def __repr__(self) -> str:
        return f"<sync {repr(self._writer)[1:]}"

    @property
    def id(self) -> str:
        """The id that it was given, or a random one."""
        return self._writer.id

    @property
    def epoch(self) -> int:
        """How many writers of this id have been entered. See `aio_client.Writer.epoch`."""
        return self._writer.epoch

    @property
    def locks(self) -> tuple[str, ...]:
        """The ids of the column locks that it has. See `aio_client.Writer.locks`."""
        return self._writer.locks

    @property
    def next_sequence(self) -> int:
        """The number that its next request gets. See `aio_client.Writer.next_sequence`."""
        return self._writer.next_sequence

    @property
    def buffered_bytes(self) -> int:
        """Bytes of Arrow data that wait or are under way."""
        return self._writer.buffered_bytes

    def upsert(self, data: Data, columns: Names | None = None, *, mode: WriteMode = "merge") -> None:
        """Has rows written; returns as soon as there is room for them. See `aio_client.Writer.upsert`."""
        self._runner.call(partial(self._writer.upsert, data, columns, mode=mode))

    def retract(self, data: Data, columns: Names | None = None) -> None:
        """Has rows taken back that were written before. See `aio_client.Writer.retract`."""
        self._runner.call(self._writer.retract, data, columns)

    def delete(self, keys: object, columns: Names | None = None, *, mode: WriteMode = "merge") -> None:
        """Has rows, or columns of them, deleted. See `aio_client.Writer.delete`."""
        self._runner.call(partial(self._writer.delete, keys, columns, mode=mode))

    def flush(self) -> WriteResult:
        """Returns when all that was taken before is written. See `aio_client.Writer.flush`."""
        return self._runner.call(self._writer.flush)


class ColumnLock:
    """A lock on columns of a table, taken already. Thread-safe. In `with` it is renewed, and released at the end.

    Made by `Table.lock_columns` and `Client.column_locks`. See `aio_client.ColumnLock`.
    """

    def __init__(self, runner: Runner, lock: AsyncColumnLock) -> None:
        """Called by the methods of `Table` and `Client`."""
        self._runner = runner
        self._lock = lock
        self._keeper: Keeper | None = None

    def __enter__(self) -> Self:
        self._keeper = self._runner.call(_keep, self._lock)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        # A client closed meanwhile has ended the renewals; the lock expires by itself.
        with suppress(UsageError):
            self._runner.call(self._keeper.aclose)

    def __repr__(self) -> str:
        return f"<sync {repr(self._lock)[1:]}"

    @property
    def id(self) -> str:
        """What writes, renewals and the release name."""
        return self._lock.id

    @property
    def table(self) -> str:
        """The table, as `database.table`."""
        return self._lock.table

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._lock.columns

    @property
    def owner(self) -> str:
        """Who has it, as others are told."""
        return self._lock.owner

    @property
    def ttl(self) -> float:
        """Seconds that the lock lives without being renewed."""
        return self._lock.ttl

    @property
    def remaining(self) -> float:
        """Seconds that the lock has left, reckoned from the server's last answer to this object; 0 when it is over."""
        return self._lock.remaining

    def renew(self, ttl: float | None = None) -> None:
        """Begins the lock's time to live anew. See `aio_client.ColumnLock.renew`."""
        self._runner.call(self._lock.renew, ttl)

    def release(self) -> None:
        """Gives the lock back. Idempotent."""
        self._runner.call(self._lock.release)


def ids_of(locks: Sequence[ColumnLock | str]) -> list[str]:
    """The ids of some locks."""
    # Locks of the blocking client have an id, too.
    return lock_ids_of(cast("Sequence[AsyncColumnLock | str]", locks))


async def _made(make: Callable[[], AsyncWriter]) -> AsyncWriter:
    return make()


async def _keep(lock: AsyncColumnLock) -> Keeper:
    return Keeper(lock)
