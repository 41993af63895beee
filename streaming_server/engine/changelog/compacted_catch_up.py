"""Net changes of a live table's changelogs, for streams that are far behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from scankv.model.tables.merge_spec import NO_MERGING
from streaming_server.scan.changes.net_changes import STEP_BYTES, STEP_CHANGES, NetChanges
from streaming_server.storage.changelog.records import rows_of
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.scan.changes.log_token import NetPosition
    from streaming_server.storage.changelog.records import LogRecord


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpLimits:
    """When and how streams catch up with net changes.

    Attributes:
        changes: A stream catches up with a bucket if it has more unread changes of the bucket than this.
        memory_bytes: The most bytes of changes of one range that are kept in memory. Processing takes up to twice as
            much in addition.
    """

    changes: int = 100_000
    memory_bytes: int = 32 << 20


DEFAULT_CATCH_UP: Final = CatchUpLimits()


class CompactedCatchUp:
    """Computes the net changes of ranges of some buckets' changelogs. See `NetChangesFactory`.

    Args:
        buckets: The buckets that are read, by number.
        latest: Returns the table's current definition.
        keys_of: Encodes the primary keys of rows.
        limits: When and how streams catch up.
        directory: The directory for changes that do not fit into memory.
    """

    def __init__(
        self,
        buckets: Mapping[int, LiveBucket],
        latest: Callable[[], TableDefinition],
        keys_of: Callable[[pa.RecordBatch], pa.Array],
        limits: CatchUpLimits,
        directory: Path,
    ) -> None:
        self.lag_threshold = limits.changes
        self._buckets = buckets
        self._latest = latest
        self._keys_of = keys_of
        self._memory_bytes = limits.memory_bytes
        self._directory = directory

    def net_changes(self, bucket: int, start: int, position: NetPosition) -> NetChanges:
        """Returns the net changes of one bucket from an offset on."""
        definition = self._latest()
        schema = definition.schema_at(position.schema_id) if position.schema_id else definition.schema
        # As if the table had always had these columns: only whether encoded rows are equal matters.
        of_schema = replace(definition, schemas=(schema,), indexes=(), merging=NO_MERGING)
        return NetChanges(
            _LiveBacklogReader(self._buckets[bucket], definition),
            start,
            replace(position, schema_id=schema.id),
            keys_of=self._keys_of,
            rows_of=lambda record: rows_of(record, definition, schema.id),
            encode=RowCodec(of_schema).encode,
            directory=self._directory,
            memory_bytes=self._memory_bytes,
            # No change of the option lies within a backlog, but one may have come after it.
            before_images=self._buckets[bucket].changelog_at(start, definition.changelogs) == "full",
        )


class _LiveBacklogReader:
    def __init__(self, live: LiveBucket, definition: TableDefinition) -> None:
        self._live = live
        self._definition = definition

    async def read(self, start: int, end: int) -> Sequence[LogRecord]:
        """See `BacklogReader`."""
        async with self._live.maintenance:
            return await self._live.run(self._read, start, end)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """See `BacklogReader`."""
        return await self._live.run(function, *args)

    def _read(self, start: int, end: int) -> Sequence[LogRecord]:
        return self._live.read_log(start, end, self._definition, max_changes=STEP_CHANGES, max_bytes=STEP_BYTES)
