"""Reads the rows of a published data file as the rows of the table: its columns, its types, without masked rows."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.lake.data_files import damaged_error, open_data_file
from scankv.lake.union.fresh_rows import encode_keys
from scankv.model.counts import counted
from scankv.model.errors import LakeUnavailable
from scankv.model.types.default_values import repeat_default

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt
    from pyarrow import parquet

    from scankv.lake.lake_table import DataFile, LakeState, LakeTable
    from scankv.lake.union.fresh_rows import ChangedKeys
    from scankv.model.errors import LakeDamaged
    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.keys.key_range import KeyRange


@dataclass(frozen=True, slots=True)
class UnionColumn:
    """A column of the table, as a union read needs it. Immutable.

    Attributes:
        id: Its permanent id, by which published files are read: they may have it under another name and type.
        field: Its name, type and nullability in the table.
        default: What rows have that were written before the column was added. None: null.
    """

    id: int
    field: pa.Field
    default: pa.Scalar | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRows:
    """The rows of a published version. Its methods block, and threads may call them concurrently.

    Attributes:
        lake: The published table.
        state: What the version says about itself.
        codec: Encodes the keys of rows. None: the table has no primary key.
    """

    lake: LakeTable
    state: LakeState
    codec: KeyCodec | None

    def read(
        self,
        file: DataFile,
        columns: Mapping[str, UnionColumn],
        needed: Collection[str],
        *,
        changed: ChangedKeys | None,
        key_range: KeyRange | None,
    ) -> pa.RecordBatch:
        """Returns the rows of a file that still count.

        Args:
            file: The file.
            columns: The columns that the read knows, by name: also those of the key.
            needed: The columns to return. Others may be returned, too.
            changed: The keys of its bucket whose published rows do not count.
            key_range: The keys to return. None: all.

        Raises:
            LakeDamaged: The file has not the rows that the version says, or the latest version has the file, too, and
                it does not exist.
            LakeUnavailable: The location does not answer, or the version has expired and the file is gone.
        """
        gone = [] if changed is None else changed.within(file.first_key, file.last_key)
        if not len(gone) and key_range is None:
            # One column is enough to know how many rows there are.
            columns = {name: columns[name] for name in needed} or dict([next(iter(columns.items()))])
        rows = self._read_columns(file, columns)
        kept = np.ones(file.rows, np.bool_)
        if file.masked_rows:
            kept[self.masked_positions(file)] = False
        rows = rows if kept.all() else rows.filter(pa.array(kept))
        if len(gone):
            rows = rows.filter(pc.invert(pc.is_in(self._keys_of(rows), gone)))
        return self.within(rows, key_range)

    def masked_positions(self, file: DataFile) -> npt.NDArray[np.uint32]:
        """Returns the positions of rows of a file that do not belong to the version. Raises the errors of `read`."""
        positions = np.array(self.lake.masked_positions(file) if file.masked_rows else (), np.uint32)
        if len(positions) != file.masked_rows:
            raise self._damaged(file, f"it has {counted(len(positions), 'masked row')} instead of {file.masked_rows:,}")
        if len(positions) and positions.max() >= file.rows:
            raise self._damaged(file, f"row {positions.max():,} of {file.rows:,} is masked")
        return positions

    def file_schema(self, file: DataFile) -> pa.Schema:
        """Returns the columns that a file has. Raises the errors of `read`."""
        with self._open(file) as opened:
            return opened.schema_arrow

    def within(self, rows: pa.RecordBatch, key_range: KeyRange | None) -> pa.RecordBatch:
        """Returns the rows of a range of keys. None: all of them."""
        if key_range is None:
            return rows
        keys = self._keys_of(rows)
        kept = pa.repeat(True, rows.num_rows)
        if key_range.start is not None:
            kept = pc.and_(kept, pc.greater_equal(keys, key_range.start))
        if key_range.end is not None:
            kept = pc.and_(kept, pc.less(keys, key_range.end))
        return rows.filter(kept)

    def sources(self, file: DataFile, columns: Mapping[str, UnionColumn]) -> dict[str, str | None]:
        """Returns under which name a file has each column. None: it was written before the column was added."""
        names = {column.id: column.name for column in self.state.schemas[file.schema_id]}
        return {name: names.get(column.id) for name, column in columns.items()}

    def _keys_of(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        assert self.codec is not None, "only scans of tables with a key ask for keys"
        return encode_keys(self.codec, rows)

    def _read_columns(self, file: DataFile, columns: Mapping[str, UnionColumn]) -> pa.RecordBatch:
        sources = self.sources(file, columns)
        wanted = [name for name in sources.values() if name is not None]
        with self._open(file) as opened:
            found = opened.read(wanted)
        if found.num_rows != file.rows or set(wanted) - set(found.column_names):
            raise self._damaged(file, f"it has {counted(found.num_rows, 'row')} of {file.rows:,}, or lacks columns")
        found = found.combine_chunks()
        arrays = []
        for name, column in columns.items():
            source, type_ = sources[name], column.field.type
            if source is None:
                value = pa.scalar(None, type_) if column.default is None else column.default.cast(type_)
                arrays.append(repeat_default(value, file.rows))
            else:
                arrays.append(_only_chunk(found[source].cast(type_)))
        fields = [column.field.with_nullable(True) for column in columns.values()]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    @contextmanager
    def _open(self, file: DataFile) -> Iterator[parquet.ParquetFile]:
        try:
            with open_data_file(self.lake.location, file) as opened:
                yield opened
        except FileNotFoundError as error:
            raise self._missing(file) from error

    def _missing(self, file: DataFile) -> LakeDamaged | LakeUnavailable:
        latest = self.lake.load()
        if latest is not None and any(each.path == file.path for each in latest.files):
            return self._damaged(file, "it does not exist")
        return LakeUnavailable(
            f"{file.path} of the table in {self.lake.location} is gone, because the version that has it has expired: "
            "read again, which takes the latest version"
        )

    def _damaged(self, file: DataFile, what: str) -> LakeDamaged:
        return damaged_error(self.lake.location, file, what)


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.array([], column.type)])
