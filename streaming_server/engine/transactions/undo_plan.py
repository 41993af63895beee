"""Plans what to revert in a range of changes to undo those of one writer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from streaming_server.storage.changelog.records import ChangeOrigin, RowKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streaming_server.storage.changelog.records import LogRecord

    Places = np.ndarray[tuple[int], np.dtype[np.int64]]
    Kinds = np.ndarray[tuple[int], np.dtype[np.uint8]]

_NEVER: Final = -1
_OWN, _UNDONE, _OTHERS = range(3)


def undo_id(writer: str) -> str:
    """Returns the writer id of the undo of a writer. No client can have this id."""
    return f"undo/{writer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """What to revert in one bucket.

    Attributes:
        restore: The earlier rows to write back, in the columns of the table.
        delete: The rows to delete: the writer inserted them, and they still exist.
        columns: The ids of the columns that the writer has written, ascending. Empty: all.
        conflicts: How many keys the undo skips, because other writers have written the same columns since.
    """

    restore: pa.RecordBatch
    delete: pa.RecordBatch
    columns: tuple[int, ...]
    conflicts: int


class UndoChanges:
    """Collects the changes after an offset to plan the undo of one writer.

    Memory: the keys of all added changes, and the rows of the writer's changes.

    Args:
        writer: The writer's id.
        schema: The columns of the planned rows.
        keys_of: Encodes the keys of rows.
        rows_of: Returns the rows of a record with these columns.
        wanted: Returns the mask of the encoded keys to plan for. None: all.
    """

    def __init__(
        self,
        writer: str,
        schema: pa.Schema,
        keys_of: Callable[[pa.RecordBatch], pa.Array],
        rows_of: Callable[[LogRecord], pa.RecordBatch],
        wanted: Callable[[pa.Array], pa.Array] | None = None,
    ) -> None:
        self._own = ChangeOrigin.of(writer, ()).writer
        self._undo = ChangeOrigin.of(undo_id(writer), ()).writer
        self._schema = schema
        self._keys_of = keys_of
        self._rows_of = rows_of
        self._wanted = wanted
        self._records: list[_WrittenKeys] = []

    def add(self, record: LogRecord) -> None:
        """Adds the next record."""
        origin, rows, kinds = record.changes.origin, record.changes.rows, record.changes.kinds
        # The before-image of an update is enough: the row after it is never written back.
        relevant = kinds != RowKind.UPDATE_AFTER
        keys = self._keys_of(rows)
        if self._wanted is not None:
            relevant &= self._wanted(keys).to_numpy(zero_copy_only=False)
        if not relevant.any():
            return
        own = origin.writer == self._own
        who = _OWN if own else _UNDONE if origin.writer == self._undo else _OTHERS
        mask = pa.array(relevant)
        kept = self._rows_of(record).filter(mask) if own else None
        self._records.append(_WrittenKeys(who, origin.columns, keys.filter(mask), kinds[relevant], kept))

    def plan(self) -> UndoPlan:
        """Returns what to revert."""
        own = [record for record in self._records if record.who == _OWN]
        nothing = pa.RecordBatch.from_pylist([], self._schema)
        if not own:
            return UndoPlan(restore=nothing, delete=nothing, columns=(), conflicts=0)
        # A writer may name other columns in each write, so the plan lists every column that the writer has ever named.
        every = any(not record.columns for record in own)
        columns = () if every else tuple(sorted({column for record in own for column in record.columns}))
        codes, places = self._number_keys()
        count = 1 + max(int(part.max()) for part in codes)
        first, last = self._first_and_last(codes, places, count, _OWN)
        _, undone = self._first_and_last(codes, places, count, _UNDONE)
        _, others = self._first_and_last(codes, places, count, _OTHERS, columns)
        mine = (first != _NEVER) & (undone < last)
        conflicts = mine & (others > first)
        rows, kinds, at = self._own_rows(places)
        keys = np.flatnonzero(mine & ~conflicts)
        begin, end = np.searchsorted(at, first[keys]), np.searchsorted(at, last[keys])
        inserted = kinds[begin] == RowKind.INSERT
        there = kinds[end] != RowKind.DELETE
        return UndoPlan(
            restore=rows.take(pa.array(begin[~inserted])),
            delete=rows.take(pa.array(begin[inserted & there])),
            columns=columns,
            conflicts=int(conflicts.sum()),
        )

    def _number_keys(self) -> tuple[list[Places], list[Places]]:
        """Returns for each record the numbers of its keys, and the positions of its changes among all changes."""
        keys = pa.chunked_array([record.keys for record in self._records]).combine_chunks()
        if isinstance(keys, pa.ChunkedArray):
            keys = pa.concat_arrays(keys.chunks)
        codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
        ends = np.cumsum([len(record.keys) for record in self._records])[:-1]
        return np.split(codes, ends), np.split(np.arange(len(codes)), ends)

    def _first_and_last(
        self,
        codes: Sequence[Places],
        places: Sequence[Places],
        count: int,
        who: int,
        columns: tuple[int, ...] = (),
    ) -> tuple[Places, Places]:
        """Returns by key the positions of the first and last change by `who` in some columns (empty: all)."""
        first, last = np.full(count, _NEVER), np.full(count, _NEVER)
        for record, keys, at in zip(self._records, codes, places, strict=True):
            apart = columns and record.columns and set(columns).isdisjoint(record.columns)
            if record.who == who and not apart:
                last[keys] = at
                new, where = np.unique(keys, return_index=True)
                unseen = first[new] == _NEVER
                first[new[unseen]] = at[where[unseen]]
        return first, last

    def _own_rows(self, places: Sequence[Places]) -> tuple[pa.RecordBatch, Kinds, Places]:
        """Returns the writer's rows, the kind of each, and its position among all changes."""
        own = [(record, at) for record, at in zip(self._records, places, strict=True) if record.rows is not None]
        rows = pa.concat_batches([record.rows for record, _ in own])
        return rows, np.concatenate([record.kinds for record, _ in own]), np.concatenate([at for _, at in own])


class ColumnsOfWriter:
    """Collects which columns a writer has written."""

    def __init__(self, writer: str) -> None:
        self._own = ChangeOrigin.of(writer, ()).writer
        self._columns: set[int] = set()
        self._all = False

    def add(self, record: LogRecord) -> None:
        """Adds the next changes."""
        origin = record.changes.origin
        if origin.writer == self._own:
            self._columns.update(origin.columns)
            self._all |= not origin.columns

    def has(self, column: int) -> bool:
        """Returns whether the writer has written the column with this id."""
        return self._all or column in self._columns


class UndoOutcome:
    """Counts what the undo of a writer has changed.

    Attributes:
        deleted: Deleted rows.
        updated: Rows that stay, with other values.
    """

    def __init__(self, writer: str) -> None:
        self._undo = ChangeOrigin.of(undo_id(writer), ()).writer
        self.deleted = 0
        self.updated = 0

    def add(self, record: LogRecord) -> None:
        """Adds the next changes."""
        if record.changes.origin.writer == self._undo:
            self.deleted += int((record.changes.kinds == RowKind.DELETE).sum())
            self.updated += int((record.changes.kinds == RowKind.UPDATE_AFTER).sum())


@dataclass(frozen=True, slots=True)
class _WrittenKeys:
    """The changes of one record: who made them, their columns, keys and kinds, and the rows if the writer made them."""

    who: int
    columns: tuple[int, ...]
    keys: pa.Array
    kinds: Kinds
    rows: pa.RecordBatch | None
