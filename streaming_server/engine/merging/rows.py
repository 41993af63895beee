"""The two sides of a merge: the stored rows of some keys, and the rows written to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from streaming_server.engine.functions.function import Inputs
from streaming_server.storage.rows.conversion import convert_columns, convert_written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from scankv.model.tables.columns import Schema
    from streaming_server.engine.functions.function import Mask, Places
    from streaming_server.storage.rows.row_codec import RowCodec

    Kinds = npt.NDArray[np.uint8]

ADD: Final = np.uint8(0)
"""A row is written."""
RETRACT: Final = np.uint8(1)
"""A row is retracted."""
DELETE: Final = np.uint8(2)
"""A row, or some of its columns, is deleted."""


@dataclass(frozen=True, slots=True)
class CurrentRows:
    """The current rows of some keys. Immutable.

    Attributes:
        exists: Which keys have a row.
        columns: All non-key columns by name, hidden ones included; null where no row exists.
    """

    exists: Mask
    columns: Mapping[str, pa.Array]

    @classmethod
    def of(cls, codec: RowCodec, stored: Sequence[bytes | None]) -> CurrentRows:
        """Decodes stored rows, None where no row exists. Raises DataLoss."""
        values = pa.array(stored, pa.binary())
        exists: Mask = values.is_valid().to_numpy(zero_copy_only=False)
        rows = codec.merge_decoder().decode(values.drop_null())
        if not exists.all():
            rows = rows.take(pa.array(np.cumsum(exists) - 1, mask=~exists))
        key = codec.definition.primary_key
        return cls(exists, {name: rows.column(name) for name in rows.schema.names if name not in key})

    def with_columns(self, columns: Mapping[str, pa.Array], exists: Mask) -> CurrentRows:
        """Returns the same rows with other values in some columns."""
        return CurrentRows(exists, {**self.columns, **columns})


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The rows that are written to some keys. Immutable.

    Attributes:
        batch: The rows, grouped by key, and in the order of arrival within a key.
        starts: n + 1 positions for n keys: key i has the rows from `[i]` to `[i + 1]`, exclusive; possibly no row.
        kinds: What each row does: `ADD`, `RETRACT` or `DELETE`. None: `ADD` for all.
        columns: The written columns, without the key. None: all.
        overwrite: Whether the rows replace the current ones, whatever the table's engine.
    """

    batch: pa.RecordBatch
    starts: Places
    kinds: Kinds | None = None
    columns: tuple[str, ...] | None = None
    overwrite: bool = False

    @property
    def count(self) -> int:
        """The number of keys."""
        return len(self.starts) - 1

    @property
    def keys(self) -> Places:
        """The number of the key of each row."""
        return np.repeat(np.arange(self.count), np.diff(self.starts))

    @property
    def retracted(self) -> Mask | None:
        """Which rows are retracted. None: no row is."""
        mask = None if self.kinds is None else self.kinds == RETRACT
        return mask if mask is not None and mask.any() else None

    def targets(self, standing: CurrentRows) -> list[str]:
        """Returns the written columns that exist, without hidden ones."""
        names = [name for name in standing.columns if "\0" not in name]
        if self.columns is None:
            return names
        written = set(self.columns)
        return [name for name in names if name in written]

    def column(self, name: str, type_: pa.DataType) -> pa.Array:
        """Returns the values of a column; nulls if it was added to the table after the client encoded the rows."""
        place = self.batch.schema.get_field_index(name)
        return pa.nulls(self.batch.num_rows, type_) if place < 0 else self.batch.column(place)

    def converted(self, old: Schema, new: Schema) -> WrittenRows:
        """Returns the same rows of a schema version as rows of the current version."""
        if self.columns is None and len(self.batch.schema) == len(old.columns):
            return replace(self, batch=convert_written(self.batch, old, new))
        columns = self.columns
        if columns is not None:
            ids = {old.column(name).id for name in columns}
            columns = tuple(column.name for column in new.columns if column.id in ids)
        return replace(self, batch=convert_columns(self.batch, old, new), columns=columns)

    def inputs(self, name: str, type_: pa.DataType) -> Inputs:
        """Returns the values of a column as inputs of an aggregator."""
        return Inputs(self.column(name, type_), self.keys, self.count, self.retracted)

    def slice(self, start: int, keys: int) -> WrittenRows:
        """Returns the rows of at most `keys` keys from key `start` on."""
        starts = self.starts[start : start + keys + 1]
        first, end = int(starts[0]), int(starts[-1])
        kinds = None if self.kinds is None else self.kinds[first:end]
        batch = self.batch.slice(first, end - first)
        return WrittenRows(batch, starts - first, kinds, self.columns, self.overwrite)

    def of_keys(self, mask: Mask) -> WrittenRows:
        """Returns the rows of some of the keys."""
        counts = np.diff(self.starts)
        rows = np.repeat(mask, counts)
        kinds = None if self.kinds is None else self.kinds[rows]
        starts = np.concatenate(([0], np.cumsum(counts[mask])))
        return WrittenRows(self.batch.filter(pa.array(rows)), starts, kinds, self.columns, self.overwrite)

    def where(self, mask: Mask) -> WrittenRows:
        """Returns some of the rows, for the same keys."""
        starts = np.concatenate(([0], np.cumsum(mask)))[self.starts]
        kinds = None if self.kinds is None else self.kinds[mask]
        return WrittenRows(self.batch.filter(pa.array(mask)), starts, kinds, self.columns, self.overwrite)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of an engine.

    Attributes:
        columns: The columns that it has set, by name, for all keys.
        wrote: Which keys had an effective write, and so have a row now.
    """

    columns: Mapping[str, pa.Array]
    wrote: Mask
