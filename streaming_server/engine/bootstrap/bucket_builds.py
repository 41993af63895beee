"""Makes the buckets of a bootstrapped table from its staged rows: here, and in a process beside the server."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from streaming_server.engine.bootstrap.bucket_build import BucketBuild
from streaming_server.engine.bootstrap.bucket_merge import RANGE_BYTES, BucketMerge, MergeRules
from streaming_server.engine.bootstrap.merge_process import MergeJob, MergeProcess, MergeProcessEndedError
from streaming_server.storage.files.disk_space import translate_disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.engine.bootstrap.bootstrap import BootstrapHost, BootstrapTerms
    from streaming_server.storage.bootstrap.bootstrap_directory import BootstrapDirectory
    from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest, StagedRuns

_LARGE_BYTES: Final = 8 << 20
"""From so many bytes of staged rows on, a process of its own merges them, too. Its start takes half a second."""

_END: Final = object()

_log: Final = logging.getLogger(__name__)


class BucketBuilds:
    """Makes the buckets of one bootstrap, two at a time. Bound to the event loop.

    Of many rows, one bucket is made here, and one by a process, which holds no interpreter lock of the server. Of few
    rows, both are made here: while one sorts or compresses, which releases the lock, the other one encodes.

    Args:
        terms: What the client asked for.
        host: The server.
        directory: The directory of the bootstrap.
        runs: The staged rows.
    """

    def __init__(
        self, terms: BootstrapTerms, host: BootstrapHost, directory: BootstrapDirectory, runs: StagedRuns
    ) -> None:
        self._terms = terms
        self._host = host
        self._directory = directory
        self._runs = runs
        self._builds: list[BucketBuild] = []
        self._process: MergeProcess | None = None
        self._may_start = not host.has_installed_functions

    @property
    def merged_rows(self) -> int:
        """How many staged rows are in files."""
        return sum(build.files.merged_rows for build in self._builds)

    @property
    def rows(self) -> int:
        """How many rows the buckets have that are made."""
        return sum(build.files.rows for build in self._builds)

    def prepare(self) -> None:
        """Starts the process once enough rows are staged, so that it is ready when they are merged. Blocks."""
        size = sum(request.size_bytes for part in self._runs.requests.values() for request in part)
        if not self._may_start or size < _LARGE_BYTES:
            return
        self._may_start = False
        try:
            self._process = MergeProcess()
        except OSError as error:
            _log.warning("no process can be started to merge rows, so the server merges all of them: %s", error)

    async def make(self, requests: list[BootstrapRequest], micros: int) -> None:
        """Makes all buckets.

        Args:
            requests: The requests whose rows count, in their order.
            micros: The commit time of all rows, in microseconds since 1970 UTC.

        Raises:
            ScanKvError: As `BucketMerge.merge`.
        """
        host, terms = self._host, self._terms
        rules = MergeRules(
            merger=terms.merger,
            overwrite=terms.overwrite,
            merges_duplicates=terms.merges_duplicates,
            micros=micros,
        )
        self._builds = [
            BucketBuild(number, terms.definition, self._directory, host.resources, host.clock)
            for number in self._runs.buckets()
        ]
        await host.executor.run(self._begin_process, requests, micros)
        waiting = list(reversed(self._builds))
        tasks = [
            asyncio.create_task(self._make_next(waiting, process, rules, requests)) for process in (None, self._process)
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            self.kill_process()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    def _begin_process(self, requests: list[BootstrapRequest], micros: int) -> None:
        self.prepare()
        if self._process is None:
            return
        job = MergeJob(
            definition=self._terms.definition,
            overwrite=self._terms.overwrite,
            merges_duplicates=self._terms.merges_duplicates,
            micros=micros,
            requests=requests,
            staged=self._directory.staged,
            buckets=self._directory.table / "buckets",
            reserve_bytes=self._host.reserve.bytes,
        )
        try:
            self._process.begin(job)
        except MergeProcessEndedError:
            self._forget_process()

    async def _make_next(
        self,
        waiting: list[BucketBuild],
        process: MergeProcess | None,
        rules: MergeRules,
        requests: list[BootstrapRequest],
    ) -> None:
        """Makes one bucket after another, until none is waiting."""
        run = self._host.executor.run

        def merge_here() -> Iterator[None]:
            merge = BucketMerge(build.number, build.path, rules, self._host.resources)
            build.files = merge.files
            return merge.merge(self._runs, requests)

        while waiting:
            build = waiting.pop()
            if await run(build.restore):
                continue
            try:
                await self._merge(merge_here() if process is None else process.merge(build))
            except MergeProcessEndedError:
                process = None
                self._forget_process()
                await run(build.restore)
                await self._merge(merge_here())
            await run(build.finish, rules.micros)

    async def _merge(self, steps: Iterator[None]) -> None:
        """Merges a bucket, one file at a time, so that other work need not wait for a complete bucket."""
        has_more = True
        while has_more:
            self._host.reserve.check_file(RANGE_BYTES)
            has_more = await self._host.executor.run(_step, steps, self._directory.table)

    def _forget_process(self) -> None:
        name = self._terms.definition.name
        _log.warning("the process that merges rows of %s has ended, so the server merges all of them", name)
        self.kill_process()

    def kill_process(self) -> None:
        """Ends the process, if it runs. Takes milliseconds."""
        self._may_start = False
        process, self._process = self._process, None
        if process is not None:
            process.kill()


def _step(steps: Iterator[None], path: Path) -> bool:
    """Merges rows into one more file. Returns whether there was one to be made. Blocks."""
    with translate_disk_errors(path.parent):
        return next(steps, _END) is not _END
