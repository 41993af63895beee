"""Bootstraps a table: sends all rows of a source, and has the server make the table from them at one instant."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, cast, get_args

import anyio
import pyarrow as pa

from aio_client._input.data import rows_of
from aio_client._input.digests import digest_of
from aio_client._input.frames import is_frame_of, table_of_polars
from aio_client._input.requests import divide, to_ipc
from aio_client._table.shape import TableShape
from aio_client._transport.lease import ttl_millis
from aio_client._transport.repeatable_calls import call_again
from aio_client._write.write_requests import WritePieces, mode_of
from scankv.model.counts import counted
from scankv.model.errors import (
    BootstrapDiffers,
    BootstrapLost,
    DataLoss,
    DiskFailed,
    DiskFull,
    DuplicateKeys,
    InvalidRequest,
    LakeDamaged,
    RequestTooLarge,
    ScanKvError,
    TableExists,
    UsageError,
)
from scankv.model.types.types import storable_type
from scankv.v1 import bootstrap_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    import polars as pl

    from aio_client._input.data import Data
    from aio_client._transport.transport import Transport
    from aio_client._write.merging import WriteMode
    from scankv.lake.sources.sources import SourceFormat
    from scankv.v1 import table_pb2

Duplicates: TypeAlias = Literal["error", "merge"]

_FINAL_ERRORS: Final = (
    InvalidRequest,
    RequestTooLarge,
    DuplicateKeys,
    TableExists,
    DiskFull,
    DiskFailed,
    DataLoss,
    LakeDamaged,
    UsageError,
)
_WAIT_SECONDS: Final = 2.0
_ABORT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapProgress:
    """How far a bootstrap is.

    Attributes:
        rows: The rows that the server has received.
        bytes: Their bytes in memory.
        total_rows: The rows of the source. None: not known before they are read.
        merged_rows: How many of them are merged into the files of the table.
        rows_in_table: The rows of the table. None: it does not exist yet.
        elapsed: The time since the begin.
        resumed_rows: How many of the rows an interrupted call had sent.
    """

    rows: int = 0
    bytes: int = 0
    total_rows: int | None = None
    merged_rows: int = 0
    rows_in_table: int | None = None
    elapsed: float = 0.0
    resumed_rows: int = 0

    @property
    def fraction(self) -> float | None:
        """The share of the work that is done, from 0 to 1; sending and merging count as half of it each.

        None: the number of rows is not known.
        """
        if self.rows_in_table is not None:
            return 1.0
        if not self.total_rows:
            return None
        return min((self.rows + self.merged_rows) / (2 * self.total_rows), 1.0)

    @property
    def remaining(self) -> float | None:
        """The time that the rest will take if it is as fast as the work so far. None: not known."""
        done = self.fraction
        if done is None or not self.total_rows:
            return None
        in_this_call = done - self.resumed_rows / (2 * self.total_rows)
        return None if in_this_call <= 0 else self.elapsed * (1 - done) / in_this_call


@dataclass(frozen=True, slots=True)
class BootstrapPart:
    """Stages rows as one participant of a bootstrap. Not to be used by two tasks at once.

    Attributes:
        transport: The connection.
        shape: The table, as it will be.
        id: The id of the bootstrap.
        part: The name of the participant, unique among all attempts of all participants.
        staged: Its requests that are staged already.
    """

    transport: Transport
    shape: TableShape
    id: str
    part: str
    staged: Sequence[bootstrap_pb2.BootstrapPartRequest] = ()

    async def stage(self, data: Data, mode: WriteMode) -> AsyncIterator[tuple[int, int]]:
        """Stages rows, except for those that are staged. Yields the rows and bytes of each request that was answered.

        The next request is made while the previous one is sent.

        Raises:
            SchemaMismatch, InvalidKey, RequestTooLarge: The rows do not fit the table.
            BootstrapDiffers: The rows do not begin with those that are staged.
            BootstrapLost: The bootstrap was aborted, or has expired.
        """
        rows = await asyncio.to_thread(rows_of, data)
        pieces = WritePieces.of_rows(self.shape, rows, mode=mode)
        if pieces.kind.changes:
            raise UsageError("the rows of a bootstrap have no _change_type: leave this column out")
        requests = self._requests(pieces)
        following = asyncio.ensure_future(asyncio.to_thread(next, requests, None))
        try:
            while (made := await following) is not None:
                following = asyncio.ensure_future(asyncio.to_thread(next, requests, None))
                request, size = made
                if request is None:
                    continue
                answer = await call_again(self.transport, lambda: self.transport.services.bootstraps.StageRows, request)
                yield answer.rows, size
        finally:
            # The thread continues until it has made its request.
            with anyio.CancelScope(shield=True), suppress(Exception):
                await following

    def _requests(self, pieces: WritePieces) -> Iterator[tuple[bootstrap_pb2.StageRowsRequest | None, int]]:
        """Yields each request with the bytes of its rows in memory. None: it is staged already."""
        count = 0
        for sequence, batch in enumerate(divide(pieces.batches, [each.rows for each in self.staged])):
            count, digest = sequence + 1, digest_of(batch)
            if sequence < len(self.staged):
                if digest != self.staged[sequence].digest:
                    raise self._differs()
                yield None, batch.nbytes
                continue
            request = bootstrap_pb2.StageRowsRequest(
                table=self.shape.name,
                bootstrap_id=self.id,
                part=self.part,
                sequence=sequence,
                rows=to_ipc(batch),
                digest=digest,
            )
            yield request, batch.nbytes
        if count < len(self.staged):
            raise self._differs()

    def _differs(self) -> BootstrapDiffers:
        return BootstrapDiffers(
            f"the source of the interrupted bootstrap of the table {self.shape.name} has changed: it no longer "
            f"begins with what is staged, {counted(sum(each.rows for each in self.staged), 'row')}; begin again from "
            "scratch",
            table=self.shape.name,
        )


@dataclass(frozen=True, slots=True)
class OpenBootstrap:
    """A bootstrap that has begun.

    Attributes:
        transport: The connection.
        shape: The table, as it will be.
        id: The id of the bootstrap.
        staged: The requests of each part that were staged at the begin.
        is_committing: Whether an earlier client has begun the commit, so that nothing more can be staged.
    """

    transport: Transport
    shape: TableShape
    id: str
    staged: Mapping[str, Sequence[bootstrap_pb2.BootstrapPartRequest]]
    is_committing: bool = False

    @classmethod
    async def begin(
        cls,
        transport: Transport,
        definition: table_pb2.CreateTableRequest,
        mode: WriteMode,
        duplicates: Duplicates,
        ttl: float | None = None,
        *,
        source: str = "",
        from_scratch: bool = False,
    ) -> Self:
        """Begins a bootstrap, or resumes the one of the same source. Raises the errors of `Client.bootstrap`."""
        if duplicates not in get_args(Duplicates):
            raise UsageError(f'duplicates must be "error" or "merge", not {duplicates!r}', option="duplicates")
        request = bootstrap_pb2.BeginBootstrapRequest(
            table=definition.name,
            definition=definition,
            mode=mode_of(mode),
            merge_duplicates=duplicates == "merge",
            ttl_millis=0 if ttl is None else ttl_millis(ttl),
            source=source,
            from_scratch=from_scratch,
        )
        # A repeated begin without a named source makes another bootstrap. The first one is left to expire without rows.
        answer = await call_again(transport, lambda: transport.services.bootstraps.BeginBootstrap, request)
        return cls.join(transport, answer.SerializeToString())

    @classmethod
    def join(cls, transport: Transport, ticket: bytes) -> Self:
        """Returns a bootstrap that another client has begun, by its ticket."""
        begun = bootstrap_pb2.BeginBootstrapResponse.FromString(ticket)
        staged = {part.part: part.requests for part in begun.parts}
        return cls(transport, TableShape.of(begun.definition), begun.bootstrap_id, staged, begun.is_committing)

    @property
    def ticket(self) -> bytes:
        """What other clients need to take part."""
        begun = bootstrap_pb2.BeginBootstrapResponse(bootstrap_id=self.id, definition=self.shape.description)
        return begun.SerializeToString()

    def part(self, name: str) -> BootstrapPart:
        """Returns a participant."""
        return BootstrapPart(self.transport, self.shape, self.id, name, self.staged.get(name, ()))

    async def commit(self, parts: dict[str, int]) -> AsyncIterator[bootstrap_pb2.CommitBootstrapResponse]:
        """Makes the table from the rows of some parts, given with their numbers of requests. Yields each answer."""
        request = bootstrap_pb2.CommitBootstrapRequest(
            table=self.shape.name,
            bootstrap_id=self.id,
            parts=[transaction_pb2.TransactionPartSize(part=part, requests=count) for part, count in parts.items()],
            wait_millis=round(1000 * min(_WAIT_SECONDS, self.transport.config.attempt_timeout / 2)),
        )
        is_done = False
        while not is_done:
            answer = await call_again(
                self.transport, lambda: self.transport.services.bootstraps.CommitBootstrap, request
            )
            is_done = answer.done
            yield answer

    async def abort(self) -> None:
        """Ends the bootstrap within a short time. If that fails, it expires."""
        request = bootstrap_pb2.AbortBootstrapRequest(table=self.shape.name, bootstrap_id=self.id)
        with anyio.move_on_after(_ABORT_SECONDS, shield=True), suppress(ScanKvError):
            await self.transport.call(lambda: self.transport.services.bootstraps.AbortBootstrap, request)


def open_source(
    source: Data | str | PathLike[str], source_format: SourceFormat | None, schema: pa.Schema | None
) -> tuple[pa.RecordBatchReader, int | None, str]:
    """Opens the rows of a location, or of data in one of the forms that callers may use. Blocks.

    Args:
        source: The location or the data.
        source_format: The format of the location. None: what it contains.
        schema: The columns of the table. None: those of the source.

    Returns:
        The rows, their number, and the state of the source. The number is None if it is not known, and the state is
        empty if a later call could not recognize the rows.

    Raises:
        UsageError: The source has no known form.
        SchemaMismatch: A column of the data has a type that Arrow does not have, or does not fit the schema.
        LakeUnavailable, LakeDamaged: The location cannot be read.
    """
    if isinstance(source, str | PathLike):
        # On use, as it needs packages of an extra.
        from scankv.lake.sources.sources import open_source as open_location

        opened = open_location(os.fspath(source), source_format, schema)
        return opened.reader, opened.count, opened.state
    if source_format is not None:
        raise UsageError("source_format is for a location: leave it out", option="source_format")
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    elif schema is not None and (is_frame_of("pandas", source) or isinstance(source, list)):
        # Without the schema, pyarrow would guess the types of Python objects.
        columns = pa.schema([field.with_type(storable_type(field.type, field.name)) for field in schema])
        rows = rows_of(source)
        rows.check_names(columns)
        source = pa.Table.from_batches(rows.batches(columns), schema=columns)
    elif is_frame_of("pandas", source):
        source = pa.Table.from_pandas(source, preserve_index=False)
    elif is_frame_of("polars", source):
        source = table_of_polars(cast("pl.DataFrame", source))
    elif isinstance(source, list):
        source = pa.Table.from_pylist(source)
    if isinstance(source, pa.Table):
        return source.to_reader(), source.num_rows, ""
    if not hasattr(source, "__arrow_c_stream__"):
        raise UsageError(
            "source must be a location, a RecordBatchReader, or other rows, as for `upsert`, not "
            f"{type(source).__name__}"
        )
    return pa.RecordBatchReader.from_stream(source), None, ""


def can_resume(error: BaseException) -> bool:
    """Returns whether the same bootstrap can be resumed after an error. If not, its staged rows are removed."""
    return not isinstance(error, _FINAL_ERRORS)


async def bootstrap_table(
    transport: Transport,
    running: dict[str, OpenBootstrap],
    definition: table_pb2.CreateTableRequest,
    rows: pa.RecordBatchReader,
    *,
    total_rows: int | None,
    source: str,
    mode: WriteMode,
    duplicates: Duplicates,
    from_scratch: bool,
    on_progress: Callable[[BootstrapProgress], None] | None,
) -> table_pb2.Table:
    """Bootstraps a table: see `Client.bootstrap`. Returns its description.

    The bootstrap is in `running` as long as it has to be aborted if the client is closed.
    """
    began = time.monotonic()

    def report(after: BootstrapProgress) -> BootstrapProgress:
        after = replace(after, elapsed=time.monotonic() - began)
        if on_progress is not None:
            on_progress(after)
        return after

    begin = partial(OpenBootstrap.begin, transport, definition, mode, duplicates, source=source)
    opened = await begin(from_scratch=from_scratch)
    if not source:
        running[opened.id] = opened
    try:
        part = opened.part("rows")
        requests, resumed = len(part.staged), sum(each.rows for each in part.staged)
        progress = BootstrapProgress(
            rows=resumed, bytes=sum(each.bytes for each in part.staged), total_rows=total_rows, resumed_rows=resumed
        )
        if part.staged:
            progress = report(progress)
        if not opened.is_committing:
            try:
                async for count, size in part.stage(rows, mode):
                    requests += 1
                    progress = report(replace(progress, rows=progress.rows + count, bytes=progress.bytes + size))
            except BootstrapLost:
                # Another client that has resumed the bootstrap may have begun the commit.
                if not source or not await _is_committing(opened.id, begin):
                    raise
        async for answer in opened.commit({part.part: requests} if requests else {}):
            progress = report(_after_commit(progress, answer))
    except BaseException as error:
        if not source or not can_resume(error):
            await opened.abort()
        raise
    finally:
        running.pop(opened.id, None)
    if source:
        # The server forgets the bootstrap, so the same call later finds that the table exists.
        await opened.abort()
    return opened.shape.description


async def _is_committing(id_: str, begin: Callable[[], Awaitable[OpenBootstrap]]) -> bool:
    """Returns whether the commit of a bootstrap has begun. Raises TableExists if another client has finished it."""
    found = await begin()
    return found.id == id_ and found.is_committing


def _after_commit(progress: BootstrapProgress, answer: bootstrap_pb2.CommitBootstrapResponse) -> BootstrapProgress:
    """Returns the progress after an answer. A server that was restarted after the commit knows only the table."""
    rows = progress.rows or answer.staged_rows or answer.rows
    return replace(
        progress,
        rows=rows,
        total_rows=rows,
        merged_rows=rows if answer.done else answer.merged_rows,
        rows_in_table=answer.rows if answer.done else None,
    )
