"""`UnionStream`: a running scan that reads published files, and from the server only what has changed since."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from aio_client._scan.progress import ScanProgress
from aio_client._scan.stream import ScanStats, ScanStream
from aio_client._transport.continued_step import ContinuedStep
from scankv.lake.union.plan import ServerAloneError, plan_union
from scankv.model.expressions.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from aio_client._scan.explanation import ScanExplanation
    from aio_client._scan.shards import ScannedTable
    from aio_client._transport.transport import Transport
    from scankv.lake.union.plan import UnionPlan
    from scankv.model.scans.scan_spec import ScanSpec

_BatchOfBucket: TypeAlias = tuple[int, pa.RecordBatch]
_CHUNK_ROWS: Final = 65_536


class UnionStream(ScanStream):
    """The rows of a scan with `read_path("lake", ...)`. See `ScanStream`.

    Once the first rows have arrived, the server is not asked any more: what has changed since the table was published
    is in memory, at most 256 MiB. A published file that cannot be read then raises a `LakeError`. Such a stream has no
    resume token.
    """

    def __init__(self, transport: Transport, spec: ScanSpec, table: ScannedTable | None = None) -> None:
        """Called by `Scan.stream`; starts nothing."""
        self._alone = replace(spec, read_path="auto", lake=None)
        super().__init__(transport, self._alone, table)
        self._lake_spec = spec
        self._is_planned = False
        self._fallback: str | None = None
        self._planning: ContinuedStep[UnionPlan] = ContinuedStep()
        self._batches: Iterator[_BatchOfBucket] | None = None
        self._next: ContinuedStep[_BatchOfBucket | None] = ContinuedStep()
        self._emitted = _Emitted()

    async def __aenter__(self) -> Self:
        """Plans the read, so that `schema` and `log_offsets` are known. Raises as for reading."""
        try:
            with self._sole_reader():
                await self._plan()
        except BaseException:
            await self.aclose()
            raise
        return self if self._batches is not None else await super().__aenter__()

    @property
    def lake_fallback(self) -> str | None:
        """Why the server is read alone. None: the published table is read."""
        self._header("lake_fallback")
        return self._fallback

    @property
    def bucket(self) -> int | None:
        """The bucket of the rows that were returned last."""
        return super().bucket if self._batches is None else self._emitted.bucket

    @property
    def resume_token(self) -> bytes | None:
        """The token that continues the scan. None: the published table is read."""
        return super().resume_token if self._batches is None else None

    def stats(self) -> ScanStats:
        """Returns the statistics of the scan so far, with the rows and bytes of published files."""
        found = super().stats()
        if self._batches is None:
            return found
        emitted = self._emitted
        return replace(found, rows_returned=emitted.rows, bytes_returned=emitted.bytes, chunks=emitted.batches)

    async def _next_rows(self) -> pa.RecordBatch | None:
        await self._plan()
        batches = self._batches
        if batches is None:
            return await super()._next_rows()
        if self._ended is not None:
            return None
        found = await self._next.wait(lambda: asyncio.to_thread(next, batches, None))
        if found is None:
            self._end(None)
            return None
        self._emitted.add(*found)
        return found[1]

    def _end(self, failure: BaseException | None) -> None:
        super()._end(failure)
        self._planning.cancel()
        self._next.cancel()

    async def _plan(self) -> None:
        if self._is_planned:
            return
        if self._started is None:
            self._started = time.monotonic()
        try:
            plan = await self._planning.wait(lambda: plan_union(self._transport, self._lake_spec))
        except ServerAloneError as error:
            self._is_planned = True
            self._fallback = str(error)
            self._progress = ScanProgress(self._alone)
            return
        self._is_planned = True
        self._progress = plan.progress
        self._batches = _rows_of(plan)


class _Emitted:
    """What a stream has returned so far."""

    def __init__(self) -> None:
        self.bucket: int | None = None
        self.rows = self.bytes = self.batches = 0

    def add(self, bucket: int, rows: pa.RecordBatch) -> None:
        """Counts a batch."""
        self.bucket = bucket
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        self.batches += 1


def _rows_of(plan: UnionPlan) -> Iterator[_BatchOfBucket]:
    """Yields the batches of a union read. Blocks."""
    left = plan.spec.limit
    for bucket, rows in _all_rows(plan):
        size = plan.spec.chunk_rows or _CHUNK_ROWS
        for start in range(0, rows.num_rows, size):
            batch = rows.slice(start, min(size, rows.num_rows - start))
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if not batch.num_rows:
                return
            yield bucket, batch


def _all_rows(plan: UnionPlan) -> Iterator[_BatchOfBucket]:
    """Yields the bucket and the rows of each file, and after the files of a bucket its fresh rows."""
    needed = [*plan.schema.names, *(() if plan.where is None else plan.where.columns)]
    keys = plan.spec.key_range
    for bucket in plan.buckets:
        for file in plan.files(bucket):
            rows = plan.published.read(file, plan.columns, needed, changed=plan.fresh.keys.get(bucket), key_range=keys)
            yield bucket, _answer(plan, rows)
        for rows in plan.fresh.of_bucket(bucket).to_batches():
            yield bucket, _answer(plan, plan.published.within(rows, keys))


def _answer(plan: UnionPlan, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows that match the predicate, with the columns of the answer."""
    if plan.where is not None:
        rows = rows.filter(evaluate(plan.where, rows))
    if not len(plan.schema):
        return rows.select([])
    return pa.RecordBatch.from_arrays([rows.column(name) for name in plan.schema.names], schema=plan.schema)


async def explain_union(transport: Transport, spec: ScanSpec, explanation: ScanExplanation) -> ScanExplanation:
    """Returns the explanation of a scan with `read_path("lake", ...)`, given that of the server alone."""
    try:
        plan = await plan_union(transport, spec)
    except ServerAloneError as error:
        return replace(
            explanation, read_path_reason=f"{explanation.read_path_reason}; the lake is not used, because {error}"
        )
    source = explanation.source if spec.as_of is None else "lake"
    return replace(explanation, source=source, read_path="lake", read_path_reason=plan.describe())
