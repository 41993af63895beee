"""The initial rows of a streaming query with `start=lake`: the files of a published version, in parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aio_client import StartFrom, StopAt
from scankv.lake.union.changes_plan import files_in_order
from scankv.lake.union.file_token import FileToken, query_of
from scankv.lake.versions import open_version
from scankv.model.changes.log_positions import PositionKind
from scankv.model.errors import LakeVersionNotFound, PositionExpired, PositionOutOfRange
from spark_bridge.stream_offset import FileProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client import LogOffsets, ScanSpec, sync
    from scankv.lake.lake_table import DataFile, LakeVersion
    from spark_bridge.followed_log import FollowedLog
    from spark_bridge.stream_options import StreamOptions


@dataclass(frozen=True, slots=True)
class FilesTask:
    """What one task reads. Immutable.

    Attributes:
        spec: A scan that continues from the first of the files.
        files: How many files the task reads.
    """

    spec: ScanSpec
    files: int


class LakeRows:
    """The files of a version, in the order in which a query reads them. Not thread-safe. Blocks.

    A query reads the version that its first micro-batch has chosen, whatever is published later.
    """

    def __init__(self, table: sync.Table, log: FollowedLog, options: StreamOptions, columns: Sequence[str]) -> None:
        """Reads nothing.

        Args:
            table: The table.
            log: Its changes.
            options: The options of the streaming read.
            columns: The columns of the table that the query reads.
        """
        self._table = table
        self._log = log
        self._options = options
        self._columns = columns
        self._version: LakeVersion | None = None
        self._files: Sequence[DataFile] = ()

    @property
    def is_start(self) -> bool:
        """Whether a query without a checkpoint begins with the files."""
        return self._options.start.kind is PositionKind.LAKE

    def begin(self) -> tuple[FileProgress, LogOffsets]:
        """Chooses the latest version, and returns the beginning of its files and of the changes since.

        Raises:
            LakeError: The version cannot be read.
        """
        version = self._open(None)
        progress = FileProgress(
            version=version.version, commit_id=version.state.commit_id, files=len(self._files), next=0
        )
        return progress, version.state.log_offsets

    def expired_error(self, error: PositionExpired | PositionOutOfRange) -> PositionExpired:
        """Returns the error for a version whose later changes are not kept any more."""
        return PositionExpired(
            f"the server does not have the changes of table {self._table.name} since the version in "
            f"{self._options.start.uri}: publish the table again, or set option start to full ({error.message})",
            table=self._table.name,
        )

    def end_after(self, progress: FileProgress, most_rows: int, most_bytes: int | None) -> FileProgress:
        """Returns where a micro-batch ends: after at least one file, and not after more rows or bytes than given."""
        files = self._of(progress)
        end, rows, size = progress.next, 0, 0
        while end < len(files):
            rows, size = rows + files[end].rows, size + files[end].size_bytes
            if end > progress.next and (rows > most_rows or (most_bytes is not None and size > most_bytes)):
                break
            end += 1
        return replace(progress, next=end)

    def plan_tasks(self, first: int, progress: FileProgress) -> list[FilesTask]:
        """Returns what the tasks of a micro-batch read, from a file on. Equal arguments give equal tasks."""
        files = self._of(progress)
        starts: list[int] = []
        rows = 0
        for number in range(first, progress.next):
            rows += files[number].rows
            if not starts or rows > self._options.read.rows_per_split:
                starts.append(number)
                rows = files[number].rows
        ends = [*starts[1:], progress.next]
        return [self._task(progress, start, end) for start, end in zip(starts, ends, strict=True)]

    def _task(self, progress: FileProgress, start: int, end: int) -> FilesTask:
        place = StartFrom.lake(self._options.start.uri)
        spec = self._log.change_scan(place, StopAt.LATEST, self._columns).spec
        token = FileToken(progress.version, progress.commit_id, query_of(spec), start, 0)
        return FilesTask(replace(spec, resume_token=token.to_bytes()), end - start)

    def _of(self, progress: FileProgress) -> Sequence[DataFile]:
        """Returns the files of a version. Raises LakeVersionNotFound if they are gone."""
        try:
            version = self._open(progress.version) if self._version is None else self._version
        except LakeVersionNotFound as error:
            raise self._gone_error(error.message) from error
        if version.state.commit_id != progress.commit_id:
            raise self._gone_error("another version has its number")
        return self._files

    def _open(self, number: int | None) -> LakeVersion:
        _, version = open_version(self._options.start.uri, self._table.name, number)
        self._version, self._files = version, files_in_order(version.files)
        return version

    def _gone_error(self, why: str) -> LakeVersionNotFound:
        return LakeVersionNotFound(
            f"the published version with the initial rows of table {self._table.name} cannot be read any more ({why}): "
            "remove what the query has written, and start it with a new checkpoint"
        )
