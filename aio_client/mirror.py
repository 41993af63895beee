"""A copy of a table in memory that follows the table: it reads all rows once, then every change.

    async with mirror(table) as local:
        local.get("ann")                  # as of now, without a call
        await local.wait_for_change()     # returns after the next change
        local.to_arrow()

For dashboards and caches: reads make no call, and rows are read only once. After a restart of the process, a mirror
with the `state()` of an earlier one continues from there, without reading the rows again.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from copy import copy
from dataclasses import dataclass
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from aio_client._input.keys import is_one_key, keys_of
from aio_client._input.other_rows import to_pylist
from scankv.model import lazy_compute as pc
from scankv.model.changes.log_offsets import LogOffsets, check_incarnation
from scankv.model.changes.log_positions import ScanSource, StartFrom
from scankv.model.errors import (
    InvalidKey,
    InvalidResumeToken,
    PositionExpired,
    PositionOutOfRange,
    UnknownField,
    UsageError,
)
from scankv.model.expressions import BoundPredicate, evaluate
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.public_names import set_public_module
from scankv.model.tables.columns import CHANGE_COLUMNS, ColumnDefinition
from scankv.model.tables.expiry import Expiry
from scankv.model.tables.log_tables import require_key
from scankv.model.types.default_values import repeat_default

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from aio_client._client.table import Table
    from aio_client._scan.cleared_range import ClearedRange
    from aio_client._scan.scan import Scan
    from aio_client._scan.stream import ScanStream
    from scankv.model.expressions import Where

__all__ = ["Mirror", "MirrorState", "mirror"]

_SPARE_ROWS: Final = 8192
_COLUMN_ID: Final = b"scankv.column_id"
"""The permanent id of a column, in the metadata of its field."""


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The state of a mirror, from which another one continues. Immutable, picklable.

    Attributes:
        rows: The rows of the mirror. The metadata of each field has the permanent id of its column.
        token: The resume token after which the changes continue.
    """

    rows: pa.Table
    token: bytes


def mirror(
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    state: MirrorState | None = None,
) -> Mirror:
    """Returns a copy of a table, or of a part of it, that follows the table; to be entered with `async with`.

    Args:
        table: The table to copy.
        columns: The columns of the copy; the key columns are always included. Default: all, including columns that are
            added later.
        where: Which rows to copy, as for `Scan.where`. Default: all rows.
        state: The state of an earlier mirror of the same columns and rows. Default: read the rows first.

    Raises:
        UsageError: `where` cannot be parsed.
        SchemaMismatch: `where` is text and does not fit the table.
        NoPrimaryKey: The table has no primary key.
    """
    require_key(table.name, table.primary_key, "a mirror keeps rows by their keys: follow its changes instead")
    chosen = None if columns is None else [*(n for n in table.primary_key if n not in columns), *columns]
    scan = table.scan(chosen, where=where).with_source(ScanSource.LOG).start_from(StartFrom.FULL).with_row_kind()
    # Deleting a row that the copy does not have changes nothing, nor does replacing a row by the same row.
    scan = scan.with_unmatched("delete").with_untracked("rescan")
    if state is not None:
        scan = scan.resume_from(state.token)
    seconds, column = int(table.options.get("ttl_seconds", 0)), table.options.get("ttl_column", "")
    return Mirror(scan, table.primary_key, state, (column, seconds) if seconds and column else None)


class Mirror:
    """A copy of a table that follows the table while it is entered. Belongs to the event loop that it is entered in.

    A read sees one moment: changes are applied between two turns of the event loop, one chunk of one bucket at a time.
    The rows of different buckets are not as of one instant. `wait_for` waits until the copy has a given write.

    If the connection breaks or the server restarts, the mirror reconnects, and keeps its rows in the meantime. After an
    error that ends the stream for good, every later read raises the error.

    If the rows of the table expire by a column that the copy has, reads leave out expired rows, by the clock of this
    machine and the TTL that the table had when the mirror was made. `wait_for_change` does not wait for rows to expire.
    The changelog does not have the time of every write, so rows that expire by their last write stay in the copy until
    the server has removed them; with `ttl_changes="none"`, until they are written or deleted again.

    Memory: the Arrow data of the rows, up to twice that between two compactions, and about 150 bytes per row.
    """

    def __init__(
        self,
        scan: Scan,
        primary_key: Sequence[str],
        state: MirrorState | None,
        expires_by: tuple[str, int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Called by `mirror`."""
        self._expires_by = expires_by
        self._expiry_id: int | str | None = None
        self._clock = clock
        assert scan.key_schema is not None
        self._key_schema = scan.key_schema
        self._codec = KeyCodec(self._key_schema.types, self._key_schema.names)
        self._primary_key = list(primary_key)
        self._scan = scan
        self._state = state
        self._stream: ScanStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._columns: _ColumnsById | None = None
        self._batches: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._stored = 0
        self._positions: dict[bytes, int] = {}
        self._progress = asyncio.Event()
        self._seen = 0
        self._applied = 0

    async def __aenter__(self) -> Self:
        """Reads all rows, and returns when the copy has them. With a `state`, copies the rows of the state instead.

        Raises:
            SchemaMismatch, TableNotFound: As when a scan starts.
            InvalidResumeToken: The state is of another table, or of other columns or rows, or from before the table was
                restored. Create the mirror again without the state.
            PositionExpired, PositionOutOfRange: The changes since the state are no longer kept, or were lost. Create
                the mirror again without the state.
        """
        try:
            await self._open()
            assert self._stream is not None
            if self._state is not None:
                before, columns = _ColumnsById.of_rows(self._state.rows), self._current_columns()
                for batch in self._state.rows.combine_chunks().to_batches():
                    rows = columns.convert(batch, before, self._stream.initial_defaults)
                    self._apply(rows, np.zeros(rows.num_rows, np.bool_))
            self._stream.on_heartbeat(self._progress.set)
            self._task = asyncio.create_task(self._follow())
            while self._stream.phase == "rows" and not self._task.done():
                await self._wait_for_progress()
            self._raise_failure()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _open(self) -> None:
        self._stream = self._scan.stream()
        self._stream.on_cleared(self._clear)
        try:
            await self._stream.__aenter__()
        except (InvalidResumeToken, PositionExpired, PositionOutOfRange) as error:
            if self._state is None:
                raise
            raise error.with_advice("create the mirror again, without `state`") from error
        except UnknownField:
            # A server of an earlier version has no rows whose changes were not tracked.
            await self._stream.aclose()
            self._stream = self._scan.with_untracked("fail").stream()
            await self._stream.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stops following the table. What was read stays readable."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._stream is not None:
            await self._stream.aclose()

    def __len__(self) -> int:
        self._raise_failure()
        return len(self._positions) if self._expires_by is None else self.to_arrow().num_rows

    def __contains__(self, key: object) -> bool:
        self._raise_failure()
        return self._find(key) is not None

    def get(self, key: object) -> dict[str, Any] | None:
        """Returns the row with this key as a dictionary, or None if the copy has no such row.

        Args:
            key: A scalar if the key has one column, else a tuple in key order or a dictionary of all key columns.

        Raises:
            InvalidKey: The key is incomplete, null, or not of its columns' types.
        """
        self._raise_failure()
        row = self._find(key)
        if row is None:
            return None
        values: dict[str, Any] = to_pylist(pa.Table.from_batches([row]))[0]
        return values

    def _find(self, key: object) -> pa.RecordBatch | None:
        """Returns the row with a key as a batch, unless it has expired."""
        place = self._positions.get(self._encode(key))
        if place is None:
            return None
        self._current_columns()
        batch = bisect_right(self._starts, place) - 1
        row = self._unexpired(self._batches[batch].slice(place - self._starts[batch], 1))
        return row if row.num_rows else None

    def to_arrow(self) -> pa.Table:
        """Returns all rows as one table, in no particular order."""
        self._raise_failure()
        return pa.Table.from_batches(map(self._unexpired, self._rows().to_batches()), self._current_columns().schema)

    def _rows(self) -> pa.Table:
        """Returns all rows, expired or not."""
        self._compact()
        columns = self._current_columns()  # before the batches, which it converts
        return pa.Table.from_batches(self._batches, columns.schema)

    def _unexpired(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows that have not expired."""
        columns = self._columns
        if self._expires_by is None or columns is None or self._expiry_id not in columns.ids:
            return rows
        field = columns.schema.field(columns.ids.index(self._expiry_id))
        column = ColumnDefinition(0, field.name, field.type, nullable=True)
        expiry = Expiry(column, self._expires_by[1], is_silent=False, by_write=False)
        unexpired = BoundPredicate(expiry.unexpired(int(self._clock() * 1e6)), (field.name,))
        return rows.filter(evaluate(unexpired, rows))

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket, the offset of the first change that the copy does not have."""
        return self._require_stream("log_offsets").next_offsets

    def state(self) -> MirrorState:
        """Returns the state, from which a mirror in another process can continue.

        Raises:
            UsageError: Nothing was read yet.
        """
        token = self._require_stream("state").resume_token
        if token is None:
            raise UsageError("the mirror has read nothing yet: enter it first")
        return MirrorState(self._current_columns().mark(self._rows()), token)

    async def wait_for_change(self) -> None:
        """Waits until the copy has changed since the last call. Returns at once if it has changed already."""
        while self._applied == self._seen:
            self._raise_failure()
            await self._wait_for_progress()
        self._raise_failure()
        self._seen = self._applied

    async def wait_for(self, log_offsets: Mapping[int, int]) -> None:
        """Waits until the copy has every change before some log offsets.

        Args:
            log_offsets: By bucket, as in the `log_offsets` of a write's result.

        Raises:
            TableRecreated: The offsets belong to another incarnation of the table.
        """
        of_offsets = LogOffsets.incarnation_of(log_offsets)
        check_incarnation(of_offsets, self._scan.spec.table, self.log_offsets.table_incarnation)
        while any(self.log_offsets.get(bucket, offset) < offset for bucket, offset in log_offsets.items()):
            self._raise_failure()
            await self._wait_for_progress()
        self._raise_failure()

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    async def _follow(self) -> None:
        assert self._stream is not None
        try:
            async for rows in self._stream:
                gone = pc.equal(rows.column("_change_type"), "-D").to_numpy(zero_copy_only=False)
                self._apply(rows.select(range(len(CHANGE_COLUMNS), rows.num_columns)), gone)
                self._applied += 1
                self._progress.set()
            self._failure = UsageError("the stream of changes has ended")
        except Exception as error:
            # Unexpected errors too: every read raises them, so that the copy does not silently stop following.
            self._failure = error
        finally:
            self._progress.set()

    def _apply(self, rows: pa.RecordBatch, gone: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Applies changes, of which the last one of each key counts. The rows of those that are `gone` are deleted."""
        self._current_columns()
        keys = self._codec.encode([rows.column(name) for name in self._primary_key]).to_pylist()
        last = dict(zip(keys, range(len(keys)), strict=True))
        places = np.fromiter(last.values(), np.int64, len(last))
        is_gone = gone[places]
        deque(map(self._positions.pop, compress(last, is_gone), repeat(None)), maxlen=0)
        self._positions.update(zip(compress(last, ~is_gone), (places[~is_gone] + self._stored).tolist(), strict=True))
        self._batches.append(rows)
        self._starts.append(self._stored)
        self._stored += rows.num_rows
        if self._stored > 2 * len(self._positions) + _SPARE_ROWS:
            self._compact()

    def _clear(self, cleared: ClearedRange) -> None:
        """Drops the rows of a range of keys."""
        keys = [*self._positions]
        deque(map(self._positions.pop, map(keys.__getitem__, cleared.indices_of(keys))), maxlen=0)
        self._applied += 1
        self._progress.set()

    def _compact(self) -> None:
        """Drops replaced and deleted rows, and joins the others to one batch."""
        if len(self._batches) < 2 and self._stored == len(self._positions):
            return
        places = np.fromiter(self._positions.values(), np.int64, len(self._positions))
        columns = self._current_columns()  # before the batches, which it converts
        kept = pa.Table.from_batches(self._batches, columns.schema)
        kept = kept.take(pa.array(places)).combine_chunks()
        self._batches = kept.to_batches() or []
        self._positions = dict(zip(self._positions, range(len(places)), strict=True))
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)]).tolist()[:-1]
        self._stored = len(places)

    def _current_columns(self) -> _ColumnsById:
        """Returns the columns of the stream. Converts the rows of the copy if they have changed."""
        stream = self._require_stream("the copy")
        known = self._columns
        columns = _ColumnsById.of_stream(stream)
        if known is None and self._expires_by is not None and self._expires_by[0] in columns.schema.names:
            self._expiry_id = columns.ids[columns.schema.names.index(self._expires_by[0])]
        if known is not None and known != columns:
            defaults = stream.initial_defaults
            self._batches = [columns.convert(batch, known, defaults) for batch in self._batches]
        self._columns = columns
        return columns

    def _encode(self, key: object) -> bytes:
        if not is_one_key(key):
            raise InvalidKey(f"key must be a single key, not a {type(key).__name__}")
        encoded: bytes = self._codec.encode(keys_of(key, self._key_schema).columns)[0].as_py()
        return encoded

    def _require_stream(self, what: str) -> ScanStream:
        if self._stream is None:
            raise UsageError(f"{what} is known once the mirror is entered: `async with mirror(table) as local`")
        return self._stream

    def _raise_failure(self) -> None:
        self._require_stream("the copy")
        if self._failure is not None:
            raise copy(self._failure) from self._failure


@dataclass(frozen=True, slots=True)
class _ColumnsById:
    """The columns of a copy. Immutable.

    Attributes:
        schema: Their names and types.
        ids: Their permanent ids. If the server is of an earlier version, which does not tell them: their names.
    """

    schema: pa.Schema
    ids: tuple[int | str, ...]

    @classmethod
    def of_stream(cls, stream: ScanStream) -> _ColumnsById:
        """Returns the columns of the rows of a stream of changes as of now."""
        schema = pa.schema(list(stream.schema)[len(CHANGE_COLUMNS) :])
        return cls(schema, stream.column_ids or tuple(schema.names))

    @classmethod
    def of_rows(cls, rows: pa.Table) -> _ColumnsById:
        """Returns the columns of rows from `mark`."""
        ids = tuple(
            int(field.metadata[_COLUMN_ID]) if field.metadata and _COLUMN_ID in field.metadata else field.name
            for field in rows.schema
        )
        return cls(rows.schema, ids)

    def mark(self, rows: pa.Table) -> pa.Table:
        """Returns rows with the ids of their columns in the schema."""
        fields = [
            field if isinstance(id_, str) else field.with_metadata({_COLUMN_ID: str(id_)})
            for field, id_ in zip(self.schema, self.ids, strict=True)
        ]
        return rows.cast(pa.schema(fields))

    def convert(self, rows: pa.RecordBatch, before: _ColumnsById, defaults: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
        """Returns rows that have earlier columns with these. Columns that were added since have their `defaults`."""
        # Without ids on one side, columns are found by name.
        by_id = all(isinstance(id_, int) for id_ in (*self.ids, *before.ids))
        known = list(before.ids if by_id else before.schema.names)
        arrays = []
        for field, id_ in zip(self.schema, self.ids if by_id else self.schema.names, strict=True):
            if id_ in known:
                arrays.append(rows.column(known.index(id_)).cast(field.type))
            elif field.name in defaults:
                arrays.append(repeat_default(defaults[field.name], rows.num_rows))
            else:
                arrays.append(pa.nulls(rows.num_rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


set_public_module("scankv.mirror", globals(), __all__)
