"""Masks changed rows in their data files, and finds the rows that they have now: for formats with deletion vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.lake.data_files import read_columns
from scankv.lake.lake_table import DataFile, MaskedFile
from scankv.lake.plan import MOST_SMALL_FILES, SMALL_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyroaring import BitMap

    from scankv.lake.lake_table import LakeTable

_MOST_MASKED_SHARE: Final = 0.25
"""The largest share of the rows of a file that are masked. With more, the file is written again without them."""
_MOST_JOINED_ROWS: Final = 1 << 20
"""The most rows that are sorted in memory to write files again."""


@dataclass(frozen=True, slots=True)
class NetRows:
    """The net changes of a bucket. Immutable.

    Attributes:
        keys: The encoded keys that have changed, in ascending order.
        rows: The rows that they have now, in the order of their keys. Deleted keys have none.
    """

    keys: pa.BinaryArray
    rows: pa.Table


class ChangedRows:
    """Collects the changes of a bucket, of which the last one of each key counts.

    Args:
        schema: The columns of the table.
        encode: Encodes the keys of rows.

    Attributes:
        bytes: How much memory the rows take.
    """

    def __init__(self, schema: pa.Schema, encode: Callable[[pa.RecordBatch], pa.BinaryArray]) -> None:
        self.bytes: int = 0
        self._schema = schema
        self._encode = encode
        self._keys: list[bytes] = []
        self._gone: list[bool] = []
        self._rows: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds changes of the bucket with their row kinds, in order."""
        rows = rows.filter(pc.not_equal(rows.column("_change_type"), "-U"))
        kept = rows.select(self._schema.names)
        self._keys += self._encode(kept).to_pylist()
        self._gone += pc.equal(rows.column("_change_type"), "-D").to_pylist()
        self._rows.append(kept)
        self.bytes += kept.nbytes

    def compact(self) -> None:
        """Drops all changes but the last one of each key."""
        if not self._rows:
            return
        last = dict(zip(self._keys, range(len(self._keys)), strict=True))
        places = list(last.values())
        rows = self._joined().take(pa.array(places, pa.int64())).combine_chunks()
        self._keys = list(last)
        self._gone = [self._gone[place] for place in places]
        self._rows = rows.to_batches()
        self.bytes = rows.nbytes

    def finish(self) -> NetRows:
        """Returns the net changes."""
        last = dict(zip(self._keys, range(len(self._keys)), strict=True))
        keys = sorted(last)
        places = [place for key in keys if not self._gone[place := last[key]]]
        return NetRows(pa.array(keys, pa.binary()), self._joined().take(pa.array(places, pa.int64())))

    def _joined(self) -> pa.Table:
        # The rows of a change may be nullable where those of the table are not.
        schema = pa.schema([field.with_nullable(True) for field in self._schema])
        return pa.Table.from_batches([each.cast(schema) for each in self._rows], schema)


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """What a commit does to the files of a bucket. Immutable.

    Attributes:
        masked: Files that remain with masked rows.
        removed: Files that go, because none of their rows remain, or their remaining rows are in `rows`.
        rows: The rows to write, in the order of their keys.
    """

    masked: tuple[MaskedFile, ...]
    removed: tuple[DataFile, ...]
    rows: pa.Table


class FileMasker:
    """Masks changed rows in the data files of a bucket. Reads the files, so its methods block.

    Args:
        lake: The published table.
        schema: The columns of the table.
        primary_key: The key columns.
        encode: Encodes the keys of rows.
        file_rows: How many rows a complete file has.
    """

    def __init__(
        self,
        lake: LakeTable,
        schema: pa.Schema,
        primary_key: Sequence[str],
        encode: Callable[[pa.RecordBatch], pa.BinaryArray],
        file_rows: int,
    ) -> None:
        self._lake = lake
        self._schema = pa.schema([field.with_nullable(True) for field in schema])
        self._primary_key = list(primary_key)
        self._encode = encode
        self._file_rows = file_rows

    def plan(self, files: Sequence[DataFile], changes: NetRows) -> MaskPlan:
        """Returns what to do with the files of the bucket, given all of them.

        Files of which many rows are masked are written again, and so are small files if there are many.

        Raises:
            LakeDamaged: A file cannot be read.
            LakeUnavailable: The location does not answer.
        """
        positions = {file.path: self._positions(file, changes.keys) for file in files}
        left = {file.path: file.rows - len(positions[file.path]) for file in files}
        removed = [file for file in files if not left[file.path]]
        joined = self._to_join([file for file in files if left[file.path]], left)
        rows = changes.rows
        if joined:
            rows = self._sorted([rows, *(self._read(file, positions[file.path]) for file in joined)])
        gone = {file.path for file in (*removed, *joined)}
        masked = [
            MaskedFile(file, positions[file.path])
            for file in files
            if file.path not in gone and len(positions[file.path]) > file.masked_rows
        ]
        return MaskPlan(tuple(masked), (*removed, *joined), rows)

    def _to_join(self, files: Sequence[DataFile], left: dict[str, int]) -> list[DataFile]:
        """Returns the files to write again: those with many masked rows, and small ones if there are many."""
        worn = [file for file in files if left[file.path] < file.rows * (1 - _MOST_MASKED_SHARE)]
        small = [file for file in files if file not in worn and left[file.path] * SMALL_SHARE < self._file_rows]
        chosen = [*worn, *(small if len(small) >= MOST_SMALL_FILES else ())]
        joined: list[DataFile] = []
        budget = max(_MOST_JOINED_ROWS, self._file_rows)
        for file in chosen:
            budget -= left[file.path]
            if budget < 0:
                break
            joined.append(file)
        return joined

    def _positions(self, file: DataFile, keys: pa.BinaryArray) -> BitMap:
        """Returns the positions of the rows of a file that are masked, or have one of some keys."""
        from pyroaring import BitMap

        before = self._lake.masked_positions(file) if file.masked_rows else BitMap()
        within = pc.and_(pc.greater_equal(keys, file.first_key), pc.less_equal(keys, file.last_key))
        inside = keys.filter(within)
        if not len(inside):
            return before
        rows = self._read_columns(file, self._primary_key)
        found = []
        start = 0
        for batch in rows.to_batches():
            places = np.flatnonzero(pc.is_in(self._encode(batch), inside).to_numpy(zero_copy_only=False))
            found.append(places + start)
            start += batch.num_rows
        return before | BitMap(np.concatenate(found).astype(np.uint32)) if found else before

    def _read(self, file: DataFile, masked: BitMap) -> pa.Table:
        """Returns the rows of a file that remain, with the columns of the table."""
        kept = np.ones(file.rows, np.bool_)
        kept[masked.to_array()] = False
        return self._read_columns(file, self._schema.names).filter(pa.array(kept))

    def _read_columns(self, file: DataFile, names: Sequence[str]) -> pa.Table:
        return read_columns(self._lake.location, file, pa.schema([self._schema.field(name) for name in names]))

    def _sorted(self, tables: Sequence[pa.Table]) -> pa.Table:
        table = pa.concat_tables(tables).combine_chunks()
        keys = pa.chunked_array([self._encode(batch) for batch in table.to_batches()], pa.binary())
        return table.take(pc.array_sort_indices(keys.combine_chunks()))
