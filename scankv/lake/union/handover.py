"""`HandoverStream`: the rows of a published version as changes, then the changes since, without gap or duplicate."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from aio_client import StartFrom
from aio_client._client.table import open_table
from aio_client._scan.stream import ScanStats, ScanStream
from aio_client._transport.continued_step import ContinuedStep
from aio_client._transport.repeatable_calls import commit_position
from scankv.lake.union.changes_plan import plan_changes
from scankv.lake.union.file_token import FileToken, query_of
from scankv.model.errors import LakeVersionNotFound, ScanKvError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    import pyarrow as pa

    from aio_client import Consumer, LogOffsets
    from aio_client._scan.resume import Resumption
    from aio_client._scan.shards import ScannedTable
    from aio_client._transport.transport import Transport
    from scankv.lake.union.changes_plan import ChangesPlan
    from scankv.model.scans.scan_spec import ScanSpec


def open_changes(transport: Transport, spec: ScanSpec, table: ScannedTable | None) -> ScanStream:
    """Returns the stream of changes of a scan with `StartFrom.lake`."""
    if spec.resume_token is not None and not FileToken.is_one(spec.resume_token):
        return ScanStream(transport, _of_log(spec, spec.resume_token), table)
    return HandoverStream(transport, spec, table)


def _of_log(spec: ScanSpec, token: bytes | None = None) -> ScanSpec:
    """Returns the scan that the server is asked for, which never starts: it continues from a token or a consumer."""
    assert spec.log is not None
    return replace(spec, log=replace(spec.log, start=StartFrom.FULL, clamp=False), resume_token=token)


class HandoverStream(ScanStream):
    """The changes of a scan with `StartFrom.lake`. See `ScanStream`.

    In phase "rows", the client reads files, and the server is not asked for anything. The first change of the changelog
    is the first one that the version does not show.

    The position of a consumer within the files is its resume token. Its first commit after the last row makes it a
    consumer of changes.
    """

    _most_files: int | None = None

    def __init__(self, transport: Transport, spec: ScanSpec, table: ScannedTable | None = None) -> None:
        """Called by `Scan.stream`; starts nothing."""
        super().__init__(transport, _of_log(spec), table)
        self._lake_spec = spec
        self._is_planned = False
        self._planning: ContinuedStep[_StartInFiles | None] = ContinuedStep()
        self._rows: Iterator[tuple[pa.RecordBatch, bytes]] | None = None
        self._next: ContinuedStep[tuple[pa.RecordBatch, bytes] | None] = ContinuedStep()
        self._file_token = spec.resume_token
        self._is_in_files = True
        self._is_from_lake = False
        self._committed: tuple[int, int] | None = None
        self._read = _ReadFromFiles()

    async def __aenter__(self) -> Self:
        """Plans the stream, so that `schema` and `log_offsets` are known. Raises as for reading."""
        try:
            with self._sole_reader():
                await self._plan()
        except BaseException:
            await self.aclose()
            raise
        return self if self._is_in_files else await super().__aenter__()

    async def commit(self, token: bytes | None = None) -> LogOffsets:
        """Commits the position of the stream's consumer, as `ScanStream.commit`."""
        spec, position = self._lake_spec, self.resume_token if token is None else token
        consumer_id = None if spec.log is None else spec.log.consumer_id
        if consumer_id is not None and position is None and self._is_in_files:
            return self.log_offsets  # nothing was returned yet
        if consumer_id is None or position is None or not FileToken.is_one(position):
            return await super().commit(token)
        offsets, reached = self.log_offsets, FileToken.of_bytes(position, spec)
        if self._committed is not None and (reached.file, reached.row) <= self._committed:
            return offsets
        await commit_position(self._transport, spec.table, consumer_id, self._progress.fence, rows_position=position)
        self._committed = (reached.file, reached.row)
        return offsets

    @property
    def resume_token(self) -> bytes | None:
        """The token that continues after the last batch that was returned."""
        return self._file_token if self._is_in_files else super().resume_token

    @property
    def resumptions(self) -> tuple[Resumption, ...]:
        """Where the stream resumed, after interruptions. The changes after the files are no resumption."""
        return super().resumptions[1 if self._is_from_lake else 0 :]

    @property
    def phase(self) -> Literal["rows", "changes"]:
        """The phase: "rows" while the stream still returns rows of files, then "changes"."""
        self._header("phase")
        return "rows" if self._is_in_files else super().phase

    @property
    def bucket(self) -> int | None:
        """The bucket of the rows that were returned last."""
        return self._read.bucket if self._is_in_files else super().bucket

    def stats(self) -> ScanStats:
        """Returns the statistics of the stream so far, with the rows and bytes of files."""
        found, read = super().stats(), self._read
        return replace(
            found,
            rows_returned=found.rows_returned + read.rows,
            bytes_returned=found.bytes_returned + read.bytes,
            chunks=found.chunks + read.batches,
        )

    async def _next_rows(self) -> pa.RecordBatch | None:
        await self._plan()
        rows_of_files = self._rows
        if rows_of_files is not None and self._is_in_files and self._ended is None:
            found = await self._next.wait(lambda: asyncio.to_thread(next, rows_of_files, None))
            if found is not None:
                rows, self._file_token = found
                self._read.add(rows)
                return rows
            self._is_in_files = False
            return await self._next_after_files()
        return await super()._next_rows()

    async def _next_after_files(self) -> pa.RecordBatch | None:
        """Reads the first rows after the rows of the files. Returns None if no such rows exist."""
        return await super()._next_rows()

    def _end(self, failure: BaseException | None) -> None:
        token = self.resume_token
        super()._end(failure)
        if isinstance(failure, ScanKvError):
            failure.resume_token = token
        self._planning.cancel()
        self._next.cancel()

    async def _plan(self) -> None:
        if self._is_planned:
            return
        start = await self._planning.wait(lambda: _plan_start(self._transport, self._lake_spec))
        self._is_planned = True
        if start is None:
            self._is_in_files = False
            return
        self._file_token = start.token
        self._committed = start.committed
        self._progress = start.plan.after.followed_later(start.plan.spec, start.fence)
        self._is_from_lake = True
        self._rows = _rows_of(start.plan, start.at, self._most_files)


class FilesStream(HandoverStream):
    """The rows of some files of a version as changes, without the changes since. See `ScanStream`."""

    def __init__(self, transport: Transport, spec: ScanSpec, most_files: int) -> None:
        """Starts nothing.

        Args:
            transport: The connection.
            spec: A scan with `StartFrom.lake` that continues from the token of the first of the files.
            most_files: How many files to read.
        """
        super().__init__(transport, spec)
        self._most_files = most_files

    async def _next_after_files(self) -> None:
        self._end(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartInFiles:
    """Where a stream begins within the files of a version. Immutable.

    Attributes:
        plan: The plan of the stream.
        token: The token that continues there. None: the stream begins with the first row.
        at: The position of the token.
        committed: The file and the row up to which its consumer has committed. None: nothing.
        fence: The fence of its consumer. 0: it has none.
    """

    plan: ChangesPlan
    token: bytes | None
    at: FileToken | None
    committed: tuple[int, int] | None = None
    fence: int = 0


async def _plan_start(transport: Transport, spec: ScanSpec) -> _StartInFiles | None:
    """Plans a stream. None: its consumer has read the files. Raises the errors of `plan_changes`."""
    consumer_id = None if spec.log is None else spec.log.consumer_id
    if consumer_id is not None:
        return await _plan_consumer(transport, spec, consumer_id)
    at = _position_of(spec.resume_token, spec)
    return _StartInFiles(plan=await plan_changes(transport, spec, at), token=spec.resume_token, at=at)


async def _plan_consumer(transport: Transport, spec: ScanSpec, consumer_id: str) -> _StartInFiles | None:
    """Takes over the consumer, and continues at the position that it has then."""
    known = await _find_consumer(transport, spec, consumer_id)
    while known is None or known.phase == "rows":
        token = None if known is None else known.rows_position
        at = _position_of(token, spec)
        plan = await _plan_for_consumer(transport, spec, consumer_id, at)
        fence = await _take_over(transport, plan)
        # Until it was taken over, the reader before could commit more.
        known = await _find_consumer(transport, spec, consumer_id)
        if known is None or (known.phase, known.rows_position) == ("rows", token):
            committed = None if at is None else (at.file, at.row)
            return _StartInFiles(plan=plan, token=token, at=at, committed=committed, fence=fence)
    return None


async def _plan_for_consumer(
    transport: Transport, spec: ScanSpec, consumer_id: str, at: FileToken | None
) -> ChangesPlan:
    try:
        return await plan_changes(transport, spec, at)
    except LakeVersionNotFound as error:
        if at is None:
            raise
        raise LakeVersionNotFound(
            f"the consumer {consumer_id} was interrupted within the files of a version that it cannot continue with: "
            f"delete it, so that it begins again ({error.message})",
            table=spec.table,
        ) from error


async def _find_consumer(transport: Transport, spec: ScanSpec, consumer_id: str) -> Consumer | None:
    """Returns what the server knows of a consumer."""
    table = await open_table(transport, spec.table)
    return next(iter(await table.consumers(consumer_id)), None)


async def _take_over(transport: Transport, plan: ChangesPlan) -> int:
    """Takes over the consumer, or creates it, and returns its fence. It then holds the later changes."""
    assert plan.spec.log is not None
    log = replace(plan.spec.log, start=StartFrom.offsets(plan.version.state.log_offsets), rows_elsewhere=True)
    async with ScanStream(transport, replace(plan.spec, log=log)) as stream:
        return stream._progress.fence


def _position_of(token: bytes | None, spec: ScanSpec) -> FileToken | None:
    return None if token is None else FileToken.of_bytes(token, spec)


class _ReadFromFiles:
    """What a stream has returned of files."""

    def __init__(self) -> None:
        self.bucket: int | None = None
        self.rows = self.bytes = self.batches = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Counts a batch."""
        self.bucket = rows.column("_bucket")[0].as_py()
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        self.batches += 1


def _rows_of(plan: ChangesPlan, at: FileToken | None, most: int | None) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Yields the rows of up to `most` files as changes, each batch with the token that continues after it. Blocks.

    That of the last batch continues with the changes. So one batch more than was returned is in memory.
    """
    first_file, first_row = (0, 0) if at is None else (at.file, at.row)
    state, query = plan.version.state, query_of(plan.spec)
    before: tuple[pa.RecordBatch, bytes] | None = None
    for number, file in enumerate(plan.files[first_file:][:most], first_file):
        for row, batch in plan.read(file, first_row if number == first_file else 0):
            if before is not None:
                yield before
            token = FileToken(plan.version.version, state.commit_id, query, number, row)
            before = batch, token.to_bytes()
    if before is not None:
        assert plan.after.token is not None
        yield before[0], plan.after.token
