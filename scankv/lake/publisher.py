"""Publishes a table: a pass reads what has changed since the last version, writes it, and commits the next one."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeVar

from aio_client import PositionExpired, PositionOutOfRange, RangeNotTracked, TableRecreated
from scankv.lake.data_files import read_columns
from scankv.lake.formats import check_unused
from scankv.lake.lake_table import LakeChange, LakeState
from scankv.lake.masking import FileMasker
from scankv.lake.plan import BucketPlan, find_obstacle, find_obstacle_by_id, schemas_in_use, small_appended_files
from scankv.lake.table_view import pin_view, view_changes
from scankv.lake.writer import FILE_ROWS, LakeWriter
from scankv.model.errors import InvalidRequest, LakeConflict, LakeDamaged, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from aio_client import Client, LogOffsets
    from scankv.lake.lake_table import Content, DataFile, LakeTable, LakeVersion, MaskedFile
    from scankv.lake.masking import ChangedRows
    from scankv.lake.plan import Replacement
    from scankv.lake.table_view import TableView

_UNKNOWN_CHANGES: Final = (InvalidRequest, PositionExpired, PositionOutOfRange, RangeNotTracked, TableRecreated)
"""Why changes cannot be read. `InvalidRequest`: the table lost its changelog after the pass began."""

P = ParamSpec("P")
R = TypeVar("R")

_MOST_MASKED_BYTES: Final = 256 << 20
"""How many bytes of changed rows are collected in memory, to be masked. With more, files are replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """What a pass has done.

    Attributes:
        table: The table.
        version: The version that shows the table now.
        mode: `full`: all rows were written. `changes`: files with changed rows. `unchanged`: nothing was committed.
        reason: Why all rows were written. None: they were not.
        rows: How many rows were written.
        files_added: How many files were written.
        files_removed: How many files they replace.
        files_kept: How many files stayed as they were.
        bytes: The size of the written files.
        elapsed: How long the pass took.
        taken_at: The instant of the version, in UTC, as ISO 8601.
        log_offsets: The log offsets of the version.
    """

    table: str
    version: int
    mode: Literal["full", "changes", "unchanged"]
    reason: str | None = None
    rows: int = 0
    files_added: int = 0
    files_removed: int = 0
    files_kept: int = 0
    bytes: int = 0
    elapsed: float
    taken_at: str
    log_offsets: LogOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """How a table is published.

    Attributes:
        is_full: Whether to write all rows, whatever has changed.
        partitioned: Whether the published table has the partitions of the table.
        content: What is published: the rows of the table, or its changes, to which each pass adds.
        masks: Whether changed rows are masked where they are, if the format can do that, and written to new files.
            Otherwise files with changed rows are replaced.
        file_rows: How many rows a complete data file has.
    """

    is_full: bool = False
    partitioned: bool = True
    content: Content = "rows"
    masks: bool = False
    file_rows: int = FILE_ROWS


async def publish(client: Client, table: str, lake: LakeTable, options: PublishOptions | None = None) -> PublishReport:
    """Makes a published table show a table as of now: all buckets at one instant. Commits at most one version.

    What was published last is read from the published table, and the commit succeeds only if no other commit came in
    between. So a publisher may be killed at any moment, and several of them cannot commit the same changes.

    Args:
        client: A client of the server.
        table: The table, as `database.table`.
        lake: The published table.
        options: How to publish. Default: `PublishOptions()`.

    Raises:
        UsageError: The format cannot hold a column or a value. Nothing was committed.
        LakeDamaged: The location has another table. Nothing was committed.
        LakeConflict: Another publisher has committed in the meantime. Nothing was committed.
        LakeUnavailable: The location does not answer, or is full. If it failed during the commit, the next pass finds
            out whether the commit has succeeded.
        ScanKvError: As for snapshots, scans and streams of changes.
    """
    # One thread, so that whatever was started has ended before what it wrote is deleted.
    with ThreadPoolExecutor(1, "publish") as thread:
        return await _Pass(client, table, lake, options or PublishOptions(), thread).run()


class _Pass:
    """One pass of a publisher."""

    def __init__(
        self, client: Client, name: str, lake: LakeTable, options: PublishOptions, thread: ThreadPoolExecutor
    ) -> None:
        self._client = client
        self._name = name
        self._lake = lake
        self._options = options
        self._thread = thread

    async def run(self) -> PublishReport:
        started = time.monotonic()
        if self._lake.has_field_ids and self._options.content == "changes":
            raise UsageError("changes are published as Delta tables or Parquet files: choose one of these formats")
        base = await self._in_thread(self._lake.load)
        if base is None:
            await self._in_thread(check_unused, self._lake)
        else:
            self._check_is_same(base.state)
        changes = await view_changes(self._client, self._name, self._options.content)
        report = None if changes is None else await self._publish(base, changes, started)
        if report is None:
            async with pin_view(self._client, self._name, self._options.content) as view:
                report = await self._publish(base, view, started)
        assert report is not None
        return report

    async def _publish(self, base: LakeVersion | None, view: TableView, started: float) -> PublishReport | None:
        """Publishes a view. Returns None if that needs its rows, and they are not pinned."""
        schema = self._lake.file_schema(view.row_schema, view.primary_key, self._partition_by(view))
        reason = self._why_full(base, view, schema)
        if reason is not None and base is not None and view.content == "changes" and not self._options.is_full:
            raise UsageError(
                f"the changes of table {self._name} cannot be added to those that were published, because "
                f"{reason}: choose another location, or give --full, which drops published changes that the table "
                "has not kept"
            )
        if base is not None and reason is None and _is_unchanged(base, view):
            return self._report(base.version, base.state, started, mode="unchanged", files_kept=len(base.files))
        work = await self._plan(base if reason is None else None, view, reason)
        return None if work is None else await self._write_and_commit(base, view, schema, work, started)

    async def _plan(self, base: LakeVersion | None, view: TableView, reason: str | None) -> _PassPlan | None:
        """Returns what to write. `base` is the version whose files stay. None: that needs rows that are not pinned."""
        if view.appends:
            return _PassPlan(reason=reason) if base is None else self._plan_joins(base, view)
        if view.snapshot is None:
            return None if base is None else await self._plan_masks(base, view)
        return _PassPlan(reason=reason) if base is None else await self._plan_files(base, view)

    def _check_is_same(self, state: LakeState) -> None:
        """Raises LakeDamaged if something else was published before."""
        if (state.table, state.content) != (self._name, self._options.content):
            raise LakeDamaged(
                f"{self._lake.location} was published from the {state.content} of table {state.table}, not from the "
                f"{self._options.content} of {self._name}: choose another location"
            )

    def _partition_by(self, view: TableView) -> list[str]:
        return view.table.partition_by if self._options.partitioned and view.content == "rows" else []

    def _why_full(self, base: LakeVersion | None, view: TableView, schema: pa.Schema) -> str | None:
        """Returns why all rows are to be written. None: what has changed may be enough."""
        if base is None:
            return "the table was not published before"
        if self._options.is_full:
            return "it was asked for"
        if base.state.log_offsets.table_incarnation != view.instant.log_offsets.table_incarnation:
            return "the table was restored, or dropped and created again"
        if view.changelog == "none":
            return 'the table has no changelog (changelog="none")'
        if view.expires_silently and not view.appends:
            return 'rows expire without a change (ttl_changes="none")'
        if view.expiry != base.state.expiry and not view.appends:
            return "the options by which rows expire were changed"
        if base.foreign:
            return "another program has changed the files of the published table"
        if base.misread is not None:
            return base.misread
        if base.state.partition_by != tuple(self._partition_by(view)):
            return "the partition columns are others"
        columns = view.columns(schema)
        # A change that was recorded before a column was added has no value there.
        nulls = view.null_columns if view.content == "rows" else {column.id for column in columns}
        find = find_obstacle_by_id if self._lake.has_field_ids else find_obstacle
        obstacles = (find(each, columns, nulls) for each in base.state.schemas.values())
        return next((obstacle for obstacle in obstacles if obstacle is not None), None)

    def _plan_joins(self, base: LakeVersion, view: TableView) -> _PassPlan:
        """Returns the files of a table without a key that are joined."""
        files: dict[int, list[DataFile]] = {bucket: [] for bucket in range(view.table.buckets)}
        for file in base.files:
            # Files are read by the names of their columns.
            if not self._lake.has_field_ids or file.schema_id == view.instant.schema_id:
                files[file.bucket].append(file)
        return _PassPlan(
            joined=[run for each in files.values() for run in small_appended_files(each, self._options.file_rows)]
        )

    async def _plan_masks(self, base: LakeVersion, view: TableView) -> _PassPlan | None:
        """Returns the changed rows to mask. None: they cannot be masked, or their changes are not known."""
        can_mask = self._options.masks and self._lake.can_mask and base.state.schema_id == view.instant.schema_id
        if not can_mask or view.changelog == "input":  # which does not have the rows as they are after the changes
            return None
        try:
            changes = await view.collect_changes(base.state.log_offsets, _MOST_MASKED_BYTES)
        except _UNKNOWN_CHANGES:
            return None
        return None if changes is None else _PassPlan(changes=changes)

    async def _plan_files(self, base: LakeVersion, view: TableView) -> _PassPlan:
        """Returns the files to replace, or why all rows are to be written."""
        files = {bucket: [f for f in base.files if f.bucket == bucket] for bucket in range(view.table.buckets)}
        plans = {bucket: BucketPlan(bucket, files[bucket]) for bucket in files}
        try:
            await view.add_changes(plans, base.state.log_offsets)
        except _UNKNOWN_CHANGES as error:
            return _PassPlan(reason=f"the changes since the last version are not known: {error.message}")
        file_rows = self._options.file_rows
        return _PassPlan(replacements=[each for plan in plans.values() for each in plan.replacements(file_rows)])

    async def _write_and_commit(
        self,
        base: LakeVersion | None,
        view: TableView,
        schema: pa.Schema,
        work: _PassPlan,
        started: float,
    ) -> PublishReport:
        """Writes what a pass has planned, and commits it. Deletes what it wrote if it certainly did not commit."""
        reason = work.reason
        writer = LakeWriter(
            self._lake.location,
            schema,
            schema_id=view.instant.schema_id,
            partition_by=self._partition_by(view),
            primary_key=view.primary_key,
            key_at=view.key_at,
            file_rows=self._options.file_rows,
        )
        try:
            await self._write(writer, base, view, work)
        except BaseException:
            self._thread.submit(writer.abandon)
            raise
        removed = () if base is None else base.files if reason else work.removed
        kept = [] if base is None else _without(base.files, removed)
        state = self._state(view, schema, base, kept)
        change = LakeChange(
            state=state,
            schema=schema,
            primary_key=view.primary_key,
            removed=removed,
            added=writer.files,
            is_full=reason is not None,
            masked=work.masked,
        )
        try:
            version = await self._in_thread(self._lake.commit, base, change)
        except (LakeConflict, UsageError):
            # After any other error the commit may have succeeded.
            self._thread.submit(writer.abandon)
            raise
        return self._report(
            version,
            state,
            started,
            mode="changes" if reason is None else "full",
            reason=reason,
            rows=writer.rows,
            files_added=len(writer.files),
            files_removed=len(removed),
            files_kept=len(kept),
            bytes_=sum(file.size_bytes for file in writer.files),
        )

    async def _write(self, writer: LakeWriter, base: LakeVersion | None, view: TableView, work: _PassPlan) -> None:
        if view.appends:
            since = None if base is None or work.reason is not None else base.state.log_offsets
            await self._in_thread(self._join, writer, view, work.joined)
            await self._write_appended(writer, view, since)
        elif work.reason is not None:
            await self._write_all(writer, view)
        elif work.changes is not None:
            assert base is not None
            await self._in_thread(self._mask, writer, base, view, work)
        else:
            await self._write_ranges(writer, view, work.replacements)

    async def _write_all(self, writer: LakeWriter, view: TableView) -> None:
        async with view.scan().stream() as stream:
            async for rows in stream:
                bucket = stream.bucket
                assert bucket is not None
                await self._in_thread(writer.write, bucket, rows)
        await self._in_thread(writer.end_range)

    async def _write_ranges(self, writer: LakeWriter, view: TableView, plan: Sequence[Replacement]) -> None:
        for each in plan:
            async with view.scan(each.bucket, each.keys).stream() as stream:
                async for rows in stream:
                    await self._in_thread(writer.write, each.bucket, rows)
            await self._in_thread(writer.end_range)

    def _mask(self, writer: LakeWriter, base: LakeVersion, view: TableView, work: _PassPlan) -> None:
        """Masks changed rows and writes those that they have become, one bucket after the other, to save memory."""
        changes = work.changes or {}
        schema, key, file_rows = view.instant.schema, view.primary_key, self._options.file_rows
        masker = FileMasker(self._lake, schema, key, view.encode, file_rows)
        for bucket in sorted(changes):
            plan = masker.plan([file for file in base.files if file.bucket == bucket], changes.pop(bucket).finish())
            for rows in plan.rows.to_batches():
                writer.write(bucket, rows)
            writer.end_range()
            work.removed += plan.removed
            work.masked += plan.masked

    def _join(self, writer: LakeWriter, view: TableView, joined: Sequence[Sequence[DataFile]]) -> None:
        for run in joined:
            for file in run:
                for rows in read_columns(self._lake.location, file, view.row_schema).to_batches():
                    writer.write(file.bucket, rows, (run[0].first_key, run[-1].last_key))
            writer.end_range()

    async def _write_appended(self, writer: LakeWriter, view: TableView, since: LogOffsets | None) -> None:
        for bucket in range(view.table.buckets):
            try:
                async with view.appended(bucket, since).stream() as stream:
                    async for rows in stream:
                        await self._in_thread(writer.write, bucket, view.conform(rows, stream))
            except PositionExpired as error:
                raise PositionExpired(
                    f"retention has removed {view.content} of table {self._name} that were not published: with --full, "
                    f"the published table gets the {view.content} that the table still has, and no others",
                    table=self._name,
                    bucket=bucket,
                ) from error
            await self._in_thread(writer.end_range)

    def _state(
        self, view: TableView, schema: pa.Schema, base: LakeVersion | None, kept: Sequence[DataFile]
    ) -> LakeState:
        instant = view.instant
        schemas = {} if base is None else schemas_in_use(base.state.schemas, kept)
        return LakeState(
            table=self._name,
            content=view.content,
            log_offsets=instant.log_offsets,
            view_time=instant.taken_at.isoformat(),
            schema_id=instant.schema_id,
            expiry=view.expiry,
            partition_by=tuple(self._partition_by(view)),
            schemas={**schemas, instant.schema_id: view.columns(schema)},
            commit_id=str(uuid.uuid4()),
        )

    def _report(
        self,
        version: int,
        state: LakeState,
        started: float,
        *,
        mode: Literal["full", "changes", "unchanged"],
        reason: str | None = None,
        rows: int = 0,
        files_added: int = 0,
        files_removed: int = 0,
        files_kept: int = 0,
        bytes_: int = 0,
    ) -> PublishReport:
        return PublishReport(
            table=self._name,
            version=version,
            mode=mode,
            reason=reason,
            rows=rows,
            files_added=files_added,
            files_removed=files_removed,
            files_kept=files_kept,
            bytes=bytes_,
            elapsed=time.monotonic() - started,
            taken_at=state.view_time,
            log_offsets=state.log_offsets,
        )

    async def _in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*args, **kwargs))


@dataclass(slots=True, kw_only=True)
class _PassPlan:
    """What a pass is to write, and what becomes of the files of the version before.

    Attributes:
        reason: Why all rows are to be written. None: the other attributes say what.
        replacements: Ranges of keys to read from the table, and the files that they replace.
        joined: Files of a table without a key, each list of which becomes one file.
        changes: The changed rows of each bucket, which are masked in their files. None: files are replaced.
        removed: The files that go.
        masked: The files that remain with masked rows.
    """

    reason: str | None = None
    replacements: Sequence[Replacement] = ()
    joined: Sequence[Sequence[DataFile]] = ()
    changes: dict[int, ChangedRows] | None = None
    removed: list[DataFile] = field(default_factory=list)
    masked: list[MaskedFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.removed += [file for each in self.replacements for file in each.files]
        self.removed += [file for run in self.joined for file in run]


def _is_unchanged(base: LakeVersion, view: TableView) -> bool:
    instant = view.instant
    return dict(base.state.log_offsets) == dict(instant.log_offsets) and base.state.schema_id == instant.schema_id


def _without(files: Sequence[DataFile], removed: Sequence[DataFile]) -> list[DataFile]:
    paths = {file.path for file in removed}
    return [file for file in files if file.path not in paths]
