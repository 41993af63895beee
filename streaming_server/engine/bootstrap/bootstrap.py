"""One bootstrap, from its begin to its commit: stages rows, and makes the buckets of the table from them."""

from __future__ import annotations

import asyncio
import shutil
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import BootstrapLost, InvalidRequest
from scankv.model.limits import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS
from streaming_server.engine.bootstrap.bucket_build import RANGE_BYTES, BucketBuild, BuildRules
from streaming_server.engine.bucket.request_rows import read_request
from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest, StagedRuns
from streaming_server.storage.bootstrap.taken_in import mark_taken_in
from streaming_server.storage.files.checked_json import sync_directory
from streaming_server.storage.files.disk_space import translate_disk_errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.files.disk_reserve import DiskReserve
    from streaming_server.storage.rocks.store import RocksResources

BOOTSTRAP_TTL_SECONDS: Final = 3600.0
"""For how long a bootstrap is kept without a call, unless its client asks for another time."""

_AT_ONCE: Final = 2
"""How many buckets are made at once. While one sorts or compresses, which releases the interpreter lock, another one
encodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapHost:
    """What a bootstrap needs of its server.

    Attributes:
        executor: Runs blocking work.
        resources: Shared by all buckets of the process.
        clock: The clock of the server.
        reserve: Refuses writes when the disk is nearly full.
        draft: Returns where the directory of a table is made.
        place: Adds the table of a draft, durably. Raises TableExists.
    """

    executor: StorageExecutor
    resources: RocksResources
    clock: ServerClock
    reserve: DiskReserve
    draft: Callable[[TableDefinition], Path]
    place: Callable[[TableDefinition], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTerms:
    """What the client asked for.

    Attributes:
        merger: The rules of the table.
        overwrite: Whether the rows are already merged.
        merges_duplicates: Whether rows with the same key are merged. If not, they are an error.
        ttl: For how many seconds the bootstrap is kept without a call.
    """

    merger: Merger
    overwrite: bool = False
    merges_duplicates: bool = False
    ttl: float = BOOTSTRAP_TTL_SECONDS

    def __post_init__(self) -> None:
        """Raises InvalidRequest if the time to live is out of range."""
        if not MIN_LEASE_SECONDS <= self.ttl <= MAX_LEASE_SECONDS:
            raise InvalidRequest(
                f"the time to live of a bootstrap must be between {MIN_LEASE_SECONDS:g} and {MAX_LEASE_SECONDS:,.0f} "
                f"seconds (7 days), not {self.ttl:g}"
            )


class Bootstrap:
    """A table in the making. Bound to the event loop.

    Args:
        terms: What the client asked for.
        host: The server.

    Attributes:
        staged_rows: The rows staged so far; after the begin of the commit, those of the committed parts.
        rows: The rows of the table, once it exists.
        commit: The task of the commit, once it has begun.
        expires: When it ends without a call, on the monotonic clock.
    """

    def __init__(self, terms: BootstrapTerms, host: BootstrapHost) -> None:
        self.terms = terms
        self.staged_rows = self.rows = 0
        self.commit: asyncio.Task[None] | None = None
        self.expires = float("inf")
        self._is_placing = self._is_over = False
        self._host = host
        self._path = host.draft(terms.merger.definition)
        self._staging = asyncio.Lock()
        self._sizes: dict[str, list[int]] = {}
        self._builds: list[BucketBuild] = []
        with translate_disk_errors(self._path.parent):
            try:
                (self._path / "buckets").mkdir(parents=True)
                self._runs = StagedRuns(self._path / "staged", terms.merger.codec.schema)
            except BaseException:
                shutil.rmtree(self._path, ignore_errors=True)
                raise

    @property
    def definition(self) -> TableDefinition:
        """The table."""
        return self.terms.merger.definition

    @property
    def merged_rows(self) -> int:
        """How many staged rows are in files."""
        return sum(build.merged_rows for build in self._builds)

    @property
    def is_done(self) -> bool:
        """Whether the table exists."""
        return self.commit is not None and self.commit.done()

    async def stage(self, request: BootstrapRequest, data: bytes) -> int:
        """Stages the rows of a request, and returns their number. Repeating it does no harm.

        Raises:
            BootstrapLost: The bootstrap is being committed, or an earlier request could not be staged.
            InvalidRequest: The sequence is not the next one of its part, or the rows are not valid.
            DiskFull, DiskFailed: The rows cannot be written.
        """
        async with self._staging:
            if self.commit is not None or self._is_over:
                raise bootstrap_lost(self.definition.name)
            there = len(self._sizes.get(request.part, ()))
            if request.sequence > there:
                raise InvalidRequest(f"sequence must be {there}, the next one of its part, not {request.sequence}")
            if request.sequence == there:
                self._host.reserve.check(len(data))
                await self._host.executor.run(self._stage, request, data)
            return self._sizes[request.part][request.sequence]

    def _stage(self, request: BootstrapRequest, data: bytes) -> None:
        """Stages a request, and records that. All of it in the thread, which continues if the call is cancelled."""
        encoder = self.terms.merger.codec.keys
        rows = encoder.canonicalize(read_request(data, self.terms.merger.codec.schema))
        keys, buckets = encoder.encode(rows)
        with translate_disk_errors(self._path.parent):
            try:
                self._runs.append(request, rows, keys, buckets)
            except BaseException:
                # The file ends with a part of a run.
                self._is_over = True
                raise
        self._sizes.setdefault(request.part, []).append(rows.num_rows)
        self.staged_rows += rows.num_rows

    def begin_commit(self, parts: Mapping[str, int]) -> asyncio.Task[None]:
        """Begins to make the table, and returns the task. The next calls return the same.

        Args:
            parts: The number of requests of each part whose rows the table gets, in the order in which rows with the
                same key count.

        Raises:
            BootstrapLost: A request could not be staged, as the disk was full.
            InvalidRequest: A part has another number of requests.
        """
        if self.commit is None:
            if self._is_over:
                raise bootstrap_lost(self.definition.name)
            for part, count in parts.items():
                if len(self._sizes.get(part, ())) != count:
                    raise InvalidRequest(
                        f'part "{part}" has {len(self._sizes.get(part, ()))} requests, not {count}: commit once all of '
                        "them are answered"
                    )
            requests = [BootstrapRequest(part, number) for part, count in parts.items() for number in range(count)]
            self.commit = asyncio.create_task(self._make(requests))
            # Its client may be gone.
            self.commit.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.commit

    async def _make(self, requests: list[BootstrapRequest]) -> None:
        try:
            async with self._staging:
                self.staged_rows = sum(self._sizes[request.part][request.sequence] for request in requests)
                await self._host.executor.run(self._seal)
            await self._build(requests)
            await self._host.executor.run(self._settle)
            self._is_placing = True
            await self._host.place(self.definition)
        except BaseException as error:
            _release_locals(error)
            await asyncio.shield(self.remove())
            raise
        finally:
            self._sizes.clear()
        self.rows = sum(build.rows for build in self._builds)

    def _seal(self) -> None:
        with translate_disk_errors(self._path.parent):
            self._runs.seal()

    async def _build(self, requests: list[BootstrapRequest]) -> None:
        terms, host = self.terms, self._host
        rules = BuildRules(
            merger=terms.merger,
            overwrite=terms.overwrite,
            merges_duplicates=terms.merges_duplicates,
            micros=host.clock.commit_micros(),
        )
        buckets = self._path / "buckets"
        self._builds = [
            BucketBuild(number, buckets / f"{number:04}", rules, host.resources, host.clock)
            for number in self._runs.buckets()
        ]
        waiting = list(reversed(self._builds))

        async def build_next() -> None:
            while waiting:
                build = waiting.pop()
                # One file at a time, so that other work need not wait for a complete bucket.
                steps, has_more = build.merge(self._runs, requests), True
                while has_more:
                    host.reserve.check(RANGE_BYTES)
                    has_more = await host.executor.run(_step, steps, self._path)
                await host.executor.run(build.finish)

        tasks = [asyncio.create_task(build_next()) for _ in range(_AT_ONCE)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    def _settle(self) -> None:
        """Removes what was staged, and makes the names of the files of the table durable."""
        self._runs.close()
        with translate_disk_errors(self._path.parent):
            (self._path / "staged").unlink()
            mark_taken_in(self._path)
            for path in (*(self._path / "buckets").iterdir(), self._path / "buckets", self._path):
                if path.is_dir():
                    sync_directory(path)

    async def end(self) -> None:
        """Ends the bootstrap, unless its table exists, and removes its files."""
        if self.commit is None:
            async with self._staging:
                await self.remove()
            return
        if not self._is_placing:
            self.commit.cancel()
        await asyncio.wait([self.commit])

    async def remove(self) -> None:
        """Removes the files."""
        self._is_over = True
        await self._host.executor.run(self._remove)

    def _remove(self) -> None:
        self._runs.close()
        shutil.rmtree(self._path, ignore_errors=True)


def _step(steps: Iterator[int], path: Path) -> bool:
    """Merges rows into one more file. Returns whether there was one to be made. Blocks."""
    with translate_disk_errors(path.parent):
        return next(steps, None) is not None


def _release_locals(error: BaseException | None) -> None:
    """Frees what the functions that an error has passed refer to: the bootstrap keeps the error, but not their rows."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def bootstrap_lost(name: str) -> BootstrapLost:
    """Returns the error for a call of a bootstrap that no longer exists."""
    return BootstrapLost(f"the bootstrap of the table {name} is no longer open: begin it again", table=name)
