"""Reads what was written since an earlier server built a columnar base, from the changelog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import PositionExpired, PositionOutOfRange
from scankv.model.tables.expiry import WRITE_TIME
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.range_markers import MarkerReached
from streaming_server.storage.changelog.records import RowKind, rows_of

if TYPE_CHECKING:
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.scan.columnar.delta import Delta
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.changelog.records import LogRecord
    from streaming_server.storage.columnar.columnar_base import ColumnarBase

_STEP_CHANGES: Final = 32_768
_STEP_BYTES: Final = 8 << 20
_LAST_CHANGES: Final = 4096
"""The most changes that are read while writers wait."""


class BaseReplay:
    """Makes a base found on disk usable: fills its delta with all writes since the base.

    Args:
        table: The table.
        live: The bucket.
        base: The base.
        delta: The delta to fill.
    """

    def __init__(self, table: TableState, live: LiveBucket, base: ColumnarBase, delta: Delta) -> None:
        self._table = table
        self._live = live
        self._base = base
        self._delta = delta
        self._at = base.info.log_offset
        self._changed_bytes = 0

    async def run(self) -> bool:
        """Reads the changes, and installs the base. Returns False if changes are missing or not tracked, or too many.

        Raises:
            DataLoss: The bucket is damaged.
            ScanKvError: The bucket cannot be opened.
        """
        try:
            return await self._run()
        except MarkerReached:
            return False

    async def _run(self) -> bool:
        while self._delta.nbytes <= self._table.total_delta_bytes:
            async with self._live.mutex:
                bucket = await self._live.open()
                if not self._is_there(bucket):
                    return False
                end = bucket.state.log_offset
                if count_of(end) - count_of(self._at) <= _LAST_CHANGES:
                    await self._live.run(self._read, end)
                    if not self._is_there(bucket):
                        return False
                    slot, info = self._live.columnar, self._base.info
                    slot.record.adopt(info.disk_bytes, info.cut_millis)
                    await self._live.run(slot.install, self._base, self._delta, slot.delta)
                    slot.record.changed_bytes += self._changed_bytes
                    return True
            async with self._live.maintenance:
                if self._live.open_bucket is not bucket:
                    continue  # The bucket was closed in the meantime.
                try:
                    await self._live.run(self._step, end)
                    # Scans read the base at once, so little may be left for them to merge.
                    if self._at == end or 2 * self._delta.unmerged_rows > self._delta.rows:
                        await self._live.run(self._delta.view().merge)
                except PositionExpired:
                    return False
        return False

    def _is_there(self, bucket: Bucket) -> bool:
        definition, info = self._table.definition, self._base.info
        if definition.options.changelog == "input":
            return False  # The rows of the table are merged from the changes, which the replay cannot do.
        if info.cut_millis * 1000 <= definition.expiry_since_micros:
            return False  # Rows may have been removed silently since, because they had expired by an earlier TTL.
        has_times = definition.write_time(definition.schema_at(info.schema_id)) is not None
        if info.time_restarts != (bucket.state.time_restarts if has_times else None):
            return False  # Rows may have been written since for which there is no change.
        try:
            # Offsets have an epoch, because a crash, or a restored copy, may have undone the changes in the base.
            bucket.log.span.resolve(self._at, location=self._live.location)
        except (PositionExpired, PositionOutOfRange):
            return False
        return True

    def _read(self, end: int) -> None:
        while count_of(self._at) < count_of(end):
            self._step(end)

    def _step(self, end: int) -> None:
        definition = self._table.codec.definition
        try:
            records = self._live.read_log(self._at, end, definition, max_changes=_STEP_CHANGES, max_bytes=_STEP_BYTES)
        except MarkerReached as reached:
            marker = reached.record.marker
            if not marker.is_deletion:
                raise
            self._at = reached.record.offset + len(marker)
            self._delta.delete_ranges([marker.keys], self._at)
            return
        for record in records:
            self._add(record)

    def _add(self, record: LogRecord) -> None:
        codec = self._table.codec
        places = np.flatnonzero(record.changes.kinds != RowKind.UPDATE_BEFORE)
        kinds = record.changes.kinds[places]
        changed = rows_of(record, codec.definition, codec.definition.schema.id).take(pa.array(places))
        there = pa.array(kinds != RowKind.DELETE)
        rows = pa.RecordBatch.from_arrays(changed.filter(there).columns, schema=codec.schema)
        hidden = [pa.nulls(len(rows), column.type) for column in codec.rows.hidden]
        if codec.rows.write_time is not None:
            times = record.commit_micros[places]
            hidden.append(pa.array(times, pa.int64()).cast(WRITE_TIME).filter(there))
        values = pc.replace_with_mask(pa.nulls(len(kinds), pa.binary()), there, codec.rows.encode(rows, hidden))
        self._at = record.offset + len(record.changes)
        keys = codec.keys.encode_stored(changed)
        self._changed_bytes += keys.nbytes + values.nbytes
        self._delta.add(keys, values, self._at)
