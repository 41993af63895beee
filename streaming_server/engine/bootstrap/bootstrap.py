"""One bootstrap, from its begin to its commit: stages rows, and makes the buckets of the table from them."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from scankv.model.errors import BootstrapDiffers, BootstrapLost, InvalidRequest, ScanKvError, ServerDraining
from scankv.model.limits import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS
from streaming_server.engine.bootstrap.bucket_builds import BucketBuilds
from streaming_server.engine.bucket.request_rows import read_request
from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest, RequestOnDisk, StagedRuns
from streaming_server.storage.bootstrap.taken_in import mark_taken_in
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.tables.catalog import divide

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.activity import Activity
    from streaming_server.clock import ServerClock
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.bootstrap.bootstrap_directory import BootstrapDirectory
    from streaming_server.storage.files.disk_reserve import DiskReserve
    from streaming_server.storage.rocks.store_options import RocksResources

BOOTSTRAP_TTL_SECONDS: Final = 86_400.0
"""For how long a bootstrap is kept without a call, unless its client asks for another time."""

_MOST_OF_A_SOURCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapHost:
    """What a bootstrap needs of its server.

    Attributes:
        executor: Runs blocking work.
        resources: Shared by all buckets of the process.
        clock: The clock of the server.
        reserve: Refuses writes when the disk is nearly full.
        directory: Returns the directory of a bootstrap, by its id.
        has_installed_functions: Whether aggregators of other packages are loaded.
        has_table: Whether a table of a name and an incarnation exists.
        place: Adds a table, whose directory is given, durably. Raises TableExists.
        activity: Counts the rows of each table.
    """

    executor: StorageExecutor
    resources: RocksResources
    clock: ServerClock
    reserve: DiskReserve
    directory: Callable[[str], BootstrapDirectory]
    has_installed_functions: bool
    has_table: Callable[[str, str], bool]
    place: Callable[[TableDefinition, Path], Awaitable[None]]
    activity: Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTerms:
    """What the client asked for.

    Attributes:
        merger: The rules of the table.
        overwrite: Whether the rows are already merged.
        merges_duplicates: Whether rows with the same key are merged. If not, they are an error.
        ttl: For how many seconds the bootstrap is kept without a call.
        source: The source of the rows and its state. Empty: the bootstrap cannot be resumed.
    """

    merger: Merger
    overwrite: bool = False
    merges_duplicates: bool = False
    ttl: float = BOOTSTRAP_TTL_SECONDS
    source: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidRequest if the time to live is out of range, or the source is no name of one."""
        if len(self.source) > _MOST_OF_A_SOURCE or not self.source.isprintable():
            raise InvalidRequest(
                f"the source of a bootstrap must have at most {_MOST_OF_A_SOURCE:,} printable characters, not "
                f"{self.source[:_MOST_OF_A_SOURCE]!r}"
            )
        if not MIN_LEASE_SECONDS <= self.ttl <= MAX_LEASE_SECONDS:
            raise InvalidRequest(
                f"the time to live of a bootstrap must be between {MIN_LEASE_SECONDS:g} and {MAX_LEASE_SECONDS:,.0f} "
                f"seconds (7 days), not {self.ttl:g}"
            )

    @property
    def definition(self) -> TableDefinition:
        """The table."""
        return self.merger.definition

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form."""
        return {
            "definition": self.definition.to_json(),
            "overwrite": self.overwrite,
            "merges_duplicates": self.merges_duplicates,
            "ttl": self.ttl,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], merger: Merger) -> Self:
        """Reads the result of `to_json`, for the rules of its table."""
        return cls(
            merger=merger,
            overwrite=stored["overwrite"],
            merges_duplicates=stored["merges_duplicates"],
            ttl=stored["ttl"],
            source=stored["source"],
        )

    def difference(self, other: BootstrapTerms) -> str | None:
        """Returns what differs in another bootstrap of the table, so that it cannot resume this one. None: nothing.

        The time to live may differ.
        """
        if other.source != self.source:
            return f"reads {other.source}, not {self.source}"
        if (other.overwrite, other.merges_duplicates) != (self.overwrite, self.merges_duplicates):
            return "has another mode, or another treatment of rows with the same key"
        return None if _comparable(other.definition) == _comparable(self.definition) else "has another definition"


class Bootstrap:
    """A table in the making. Bound to the event loop.

    Args:
        terms: What the client asked for.
        host: The server.
        is_new: Whether this process has made its directory.

    Attributes:
        terms: What the client asked for.
        staged_rows: The rows staged so far; once the commit has begun, the rows of the committed parts.
        rows: The rows of the table, once it exists.
        commit: The task of the commit, once it has begun in this process.
        was_made: Whether the table existed already when the process started.
        expires: When it ends without a call, on the monotonic clock.
    """

    def __init__(self, terms: BootstrapTerms, host: BootstrapHost, *, is_new: bool = False) -> None:
        """Opens the directory, which exists. Blocks. Raises DiskFailed, and DataLoss if it is damaged."""
        self.terms = terms
        self.rows = 0
        self.commit: asyncio.Task[None] | None = None
        self.was_made = host.has_table(terms.definition.name, terms.definition.incarnation)
        self.expires = float("inf")
        self._is_placing = self._is_over = self._is_stopping = False
        self._syncing: asyncio.Task[None] | None = None
        self._is_loaded = not is_new
        self._host = host
        self._directory = host.directory(terms.definition.incarnation)
        self._staging = asyncio.Lock()
        if self.was_made:
            self._directory.remove_rows()
        with translate_disk_errors(self._directory.table.parent):
            self._recorded = self._directory.read_commit()
            self._runs = StagedRuns(self._directory.staged, terms.merger.codec.schema)
        self._builds = BucketBuilds(terms, host, self._directory, self._runs)
        self.staged_rows = sum(request.rows for part in self.staged.values() for request in part)

    @classmethod
    def create(cls, terms: BootstrapTerms, host: BootstrapHost) -> Self:
        """Makes the directory of a bootstrap, and opens it. Blocks. Raises DiskFull and DiskFailed."""
        directory = host.directory(terms.definition.incarnation)
        directory.create(terms.to_json() | {"service_micros": host.clock.service_micros()})
        try:
            return cls(terms, host, is_new=True)
        except BaseException:
            directory.remove()
            raise

    @property
    def definition(self) -> TableDefinition:
        """The table."""
        return self.terms.definition

    @property
    def staged(self) -> Mapping[str, Sequence[RequestOnDisk]]:
        """The requests of each part that are staged, in order."""
        return self._runs.requests

    @property
    def merged_rows(self) -> int:
        """How many staged rows are in files."""
        return self._builds.merged_rows

    @property
    def last_service_micros(self) -> int:
        """When a client's call last changed something, in service time. 0: no call has since the begin."""
        times = [requests[-1].service_micros for requests in self.staged.values() if requests]
        return max([*times, 0 if self._recorded is None else int(self._recorded["service_micros"])], default=0)

    @property
    def is_committing(self) -> bool:
        """Whether the commit has begun, so that nothing more can be staged."""
        return self.commit is not None or self._recorded is not None or self.was_made

    @property
    def is_done(self) -> bool:
        """Whether the table exists, or the commit has failed."""
        return self.was_made or (self.commit is not None and self.commit.done())

    async def stage(self, request: BootstrapRequest, data: bytes, digest: bytes = b"") -> int:
        """Stages the rows of a request, and returns their number. Repeating it does no harm.

        The rows then survive a kill of the process. They survive a crash of the machine after the next sync, at the
        latest when the next request is staged.

        Raises:
            BootstrapLost: The bootstrap is being committed, or an earlier request could not be staged, or was lost in a
                crash of the machine.
            ServerDraining: The next process of the server has the bootstrap.
            BootstrapDiffers: A request with this sequence and another digest is staged.
            InvalidRequest: The sequence is not the next one of its part, or the rows are not valid.
            DiskFull, DiskFailed: The rows cannot be written.
        """
        async with self._staging:
            if self.is_committing or self._is_over:
                raise self.refusal()
            staged = self.staged.get(request.part, ())
            if request.sequence > len(staged) and self._is_loaded:
                raise self._request_lost(request.part)
            if request.sequence > len(staged):
                raise InvalidRequest(
                    f"sequence must be {len(staged)}, the next one of its part, not {request.sequence}"
                )
            if request.sequence == len(staged):
                self._host.reserve.check(len(data))
                return await self._append(request, data, digest)
            same = staged[request.sequence]
            if same.digest != digest:
                raise BootstrapDiffers(
                    f'request {request.sequence} of part "{request.part}" of the bootstrap of the table '
                    f"{self.definition.name} is staged with other rows: begin it again from scratch",
                    table=self.definition.name,
                )
            return same.rows

    async def _append(self, request: BootstrapRequest, data: bytes, digest: bytes) -> int:
        """Stages the next request. While it is encoded, the one before is synced."""
        encoded = await self._host.executor.run(self._encode, data)
        await self._join_sync()
        try:
            return await self._host.executor.run(self._write, request, encoded, len(data), digest)
        finally:
            self._syncing = asyncio.create_task(self._host.executor.run(self._sync))
            # The next call reports its failure.
            self._syncing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _join_sync(self) -> None:
        """Returns once the last sync has ended. Raises its error."""
        if self._syncing is not None:
            await asyncio.shield(self._syncing)

    def _encode(self, data: bytes) -> tuple[pa.RecordBatch, pa.BinaryArray, npt.NDArray[np.int32]]:
        encoder = self.terms.merger.codec.keys
        rows = encoder.canonicalize(read_request(data, self.terms.merger.codec.schema))
        return rows, *encoder.encode(rows)

    def _write(
        self,
        request: BootstrapRequest,
        encoded: tuple[pa.RecordBatch, pa.BinaryArray, npt.NDArray[np.int32]],
        size_bytes: int,
        digest: bytes,
    ) -> int:
        """Writes and records a request. Runs in one thread, which continues if the call is cancelled."""
        rows, keys, buckets = encoded
        staged = RequestOnDisk(rows.num_rows, size_bytes, digest, self._host.clock.service_micros())
        with self._over_on_failure():
            self._runs.append(request, rows, keys, buckets, staged)
        self.staged_rows += staged.rows
        self._builds.prepare()
        return staged.rows

    def _sync(self) -> None:
        with self._over_on_failure():
            self._runs.sync()

    @contextmanager
    def _over_on_failure(self) -> Iterator[None]:
        """Ends the bootstrap after a failed write or sync: the file may end with a part of a request."""
        with translate_disk_errors(self._directory.table.parent):
            try:
                yield
            except BaseException:
                self._is_over = True
                raise

    def begin_commit(self, parts: Mapping[str, int]) -> asyncio.Task[None]:
        """Begins to make the table, and returns the task. The next calls return the same.

        Args:
            parts: The number of requests of each part whose rows the table gets, in the order in which rows with the
                same key count. If an earlier process has begun the commit, its parts count instead.

        Raises:
            BootstrapLost: A request could not be staged, as the disk was full, or was lost in a crash of the machine.
            InvalidRequest: A part has another number of requests.
        """
        if self.commit is None:
            if self._is_over:
                raise self.refusal()
            parts = parts if self._recorded is None else self._recorded["parts"]
            for part, count in parts.items():
                if len(self.staged.get(part, ())) < count and self._is_loaded:
                    raise self._request_lost(part)
                if len(self.staged.get(part, ())) != count:
                    raise InvalidRequest(
                        f'part "{part}" has {len(self.staged.get(part, ()))} requests, not {count}: commit once all of '
                        "them are answered"
                    )
            self.commit = asyncio.create_task(self._make(parts))
            # Its client may be gone.
            self.commit.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.commit

    async def _make(self, parts: Mapping[str, int]) -> None:
        try:
            requests = [BootstrapRequest(part, number) for part, count in parts.items() for number in range(count)]
            async with self._staging:
                await self._join_sync()
                self.staged_rows = sum(self.staged[each.part][each.sequence].rows for each in requests)
                micros = await self._host.executor.run(self._seal, parts)
            await self._builds.make(requests, micros)
            await self._host.executor.run(self._settle)
            self._is_placing = True
            await self._host.place(self.definition, self._directory.table)
        except BaseException as error:
            _release_locals(error)
            if not self._is_stopping:
                await asyncio.shield(self.remove())
            raise
        self.rows = self._builds.rows
        self._host.activity.count_written_rows(self.definition.name, self.rows)
        await asyncio.shield(self._host.executor.run(self._remove_rows))

    def _seal(self, parts: Mapping[str, int]) -> int:
        """Makes the runs readable, and records the commit. Returns its commit time."""
        with translate_disk_errors(self._directory.table.parent):
            if self._recorded is None:
                micros, service = self._host.clock.commit_micros(), self._host.clock.service_micros()
                self._recorded = {"parts": dict(parts), "commit_micros": micros, "service_micros": service}
                self._directory.write_commit(self._recorded)
            self._runs.seal()
        return int(self._recorded["commit_micros"])

    def _settle(self) -> None:
        """Makes the directory of the table complete. `Catalog.place` makes the names in it durable."""
        table = self._directory.table
        with translate_disk_errors(table.parent):
            mark_taken_in(table, self._builds.rows)
            divide(table, self.definition)

    def _remove_rows(self) -> None:
        """Removes the staged rows. The rest stays for a client that does not know of the table yet."""
        self._runs.close()
        if self.terms.source:
            self._directory.remove_rows()
        else:
            self._directory.remove()

    def _request_lost(self, part: str) -> BootstrapLost:
        name, number = self.definition.name, len(self.staged.get(part, ()))
        return BootstrapLost(
            f'request {number} of part "{part}" of the bootstrap of the table {name} was lost when the machine of the '
            "server crashed: run the bootstrap again, and it continues",
            table=name,
        )

    def refusal(self) -> ScanKvError:
        """Returns the error for a call that comes when nothing more can be done."""
        if self._is_stopping:
            return ServerDraining("the server is shutting down")
        if self._syncing is not None and self._syncing.done():
            failure = self._syncing.exception()
            if isinstance(failure, ScanKvError):
                return failure
        return bootstrap_lost(self.definition.name)

    async def end(self) -> None:
        """Ends the bootstrap, and removes its files. A table that exists stays."""
        if self.commit is None:
            async with self._staging:
                await self._end_sync()
                await self.remove()
            return
        if not self._is_placing:
            self.commit.cancel()
        await asyncio.wait([self.commit])
        await self.remove()

    async def stop(self) -> None:
        """Ends all work, and leaves the files to the next process."""
        self._is_stopping = True
        if self.commit is not None:
            if not self._is_placing:
                self.commit.cancel()
            await asyncio.wait([self.commit])
        async with self._staging:
            self._is_over = True
            await self._end_sync()
            self._builds.kill_process()
            await self._host.executor.run(self._runs.close)

    async def _end_sync(self) -> None:
        """Returns once the last sync has ended, whatever its outcome."""
        if self._syncing is not None:
            await asyncio.wait([self._syncing])

    async def remove(self) -> None:
        """Removes the files."""
        self._is_over = True
        await self._host.executor.run(self.discard)

    def discard(self) -> None:
        """Removes the files, as `remove` does. Blocks."""
        self._builds.kill_process()
        self._runs.close()
        self._directory.remove()


def _comparable(definition: TableDefinition) -> dict[str, Any]:
    """Returns what two definitions of the same table have in common."""
    return definition.to_json() | {"incarnation": "", "created_millis": 0}


def _release_locals(error: BaseException | None) -> None:
    """Frees what the functions that an error has passed refer to: the bootstrap keeps the error, but not their rows."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def bootstrap_lost(name: str) -> BootstrapLost:
    """Returns the error for a call of a bootstrap that no longer exists."""
    return BootstrapLost(f"the bootstrap of the table {name} is no longer open: begin it again", table=name)
