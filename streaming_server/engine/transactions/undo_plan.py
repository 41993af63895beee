"""What to put back of a stretch of changes to undo those of one writer. Pure."""

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
    """As whom the undo of a writer writes. No client can have this id."""
    return f"undo/{writer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """What to put back in one bucket.

    Attributes:
        restore: The rows that there were before, in the columns of the table.
        delete: The rows that there were not, and are: those that the writer has made first.
        columns: The ids of the columns that the writer has written, ascending; empty: all.
        conflicts: How many keys are left as they are, because others have written the same columns since.
    """

    restore: pa.RecordBatch
    delete: pa.RecordBatch
    columns: tuple[int, ...]
    conflicts: int


class UndoChanges:
    """The changes behind an offset, as they matter to the undo of one writer.

    Memory: the keys of all changes that are added, and the rows of the writer's that may be the first of their key.

    Args:
        writer: The writer's id.
        schema: The columns of the rows to return.
        keys_of: The encoded keys of rows.
        widened: Rows of any version of the schema in these columns.
        wanted: Which of some encoded keys are asked about, as a mask. None: all.
    """

    def __init__(
        self,
        writer: str,
        schema: pa.Schema,
        keys_of: Callable[[pa.RecordBatch], pa.Array],
        widened: Callable[[pa.RecordBatch], pa.RecordBatch],
        wanted: Callable[[pa.Array], pa.Array] | None = None,
    ) -> None:
        self._own = ChangeOrigin.of(writer, ()).writer
        self._undo = ChangeOrigin.of(undo_id(writer), ()).writer
        self._schema = schema
        self._keys_of = keys_of
        self._widened = widened
        self._wanted = wanted
        self._records: list[_Noted] = []

    def add(self, record: LogRecord) -> None:
        """Adds the next changes."""
        origin, rows, kinds = record.changes.origin, record.changes.rows, record.changes.kinds
        # What was after an update says nothing that the row before does not.
        told = kinds != RowKind.UPDATE_AFTER
        keys = self._keys_of(rows)
        if self._wanted is not None:
            told &= self._wanted(keys).to_numpy(zero_copy_only=False)
        if not told.any():
            return
        own = origin.writer == self._own
        who = _OWN if own else _UNDONE if origin.writer == self._undo else _OTHERS
        mask = pa.array(told)
        kept = self._widened(rows.filter(mask)) if own else None
        self._records.append(_Noted(who, origin.columns, keys.filter(mask), kinds[told], kept))

    def plan(self) -> UndoPlan:
        """What to put back."""
        own = [noted for noted in self._records if noted.who == _OWN]
        nothing = pa.RecordBatch.from_pylist([], self._schema)
        if not own:
            return UndoPlan(restore=nothing, delete=nothing, columns=(), conflicts=0)
        # A writer that names other columns each time: all that it has ever named.
        every = any(not noted.columns for noted in own)
        columns = () if every else tuple(sorted({column for noted in own for column in noted.columns}))
        codes, places = self._coded()
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

    def _coded(self) -> tuple[list[Places], list[Places]]:
        """For each record the numbers of its keys, and the places of its changes among all."""
        keys = pa.chunked_array([noted.keys for noted in self._records]).combine_chunks()
        if isinstance(keys, pa.ChunkedArray):
            keys = pa.concat_arrays(keys.chunks)
        codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
        ends = np.cumsum([len(noted.keys) for noted in self._records])[:-1]
        return np.split(codes, ends), np.split(np.arange(len(codes)), ends)

    def _first_and_last(
        self,
        codes: Sequence[Places],
        places: Sequence[Places],
        count: int,
        who: int,
        columns: tuple[int, ...] = (),
    ) -> tuple[Places, Places]:
        """By key, the places of somebody's first and last change, of those that are in some columns (none: all)."""
        first, last = np.full(count, _NEVER), np.full(count, _NEVER)
        for noted, keys, at in zip(self._records, codes, places, strict=True):
            apart = columns and noted.columns and set(columns).isdisjoint(noted.columns)
            if noted.who == who and not apart:
                last[keys] = at
                new, where = np.unique(keys, return_index=True)
                unseen = first[new] == _NEVER
                first[new[unseen]] = at[where[unseen]]
        return first, last

    def _own_rows(self, places: Sequence[Places]) -> tuple[pa.RecordBatch, Kinds, Places]:
        """The writer's rows, the kind of each, and its place among all changes."""
        own = [(noted, at) for noted, at in zip(self._records, places, strict=True) if noted.rows is not None]
        rows = pa.concat_batches([noted.rows for noted, _ in own])
        return rows, np.concatenate([noted.kinds for noted, _ in own]), np.concatenate([at for _, at in own])


class ColumnsOfWriter:
    """Which columns a writer has written, by the changes that are added."""

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
        """Whether it has written the column with this id."""
        return self._all or column in self._columns


class UndoOutcome:
    """What the undo of a writer has done, by the changes that are added.

    Attributes:
        deleted: Rows that are gone.
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
class _Noted:
    """Changes of one record: whose, in which columns, their keys and kinds; of the writer's the rows."""

    who: int
    columns: tuple[int, ...]
    keys: pa.Array
    kinds: Kinds
    rows: pa.RecordBatch | None
