"""What stands at some keys, and what is written there: the two sides of a merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from streaming_server.engine.functions.function import Inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from streaming_server.engine.functions.function import Mask, Places
    from streaming_server.storage.rows.row_codec import RowCodec

    Kinds = npt.NDArray[np.uint8]

ADD: Final = np.uint8(0)
"""A row is written."""
RETRACT: Final = np.uint8(1)
"""A row is taken back."""
DELETE: Final = np.uint8(2)
"""A row goes, or columns of it."""


@dataclass(frozen=True, slots=True)
class CurrentRows:
    """The rows at some keys. Immutable.

    Attributes:
        exists: At which keys there is a row.
        columns: By name all columns that are not in the key, and the hidden ones; null where there is no row.
    """

    exists: Mask
    columns: Mapping[str, pa.Array]

    @classmethod
    def of(cls, codec: RowCodec, stored: Sequence[bytes | None]) -> CurrentRows:
        """The rows as they are stored, None where there is none. Raises DataLoss."""
        values = pa.array(stored, pa.binary())
        exists: Mask = values.is_valid().to_numpy(zero_copy_only=False)
        rows = codec.merge_decoder().decode(values.drop_null())
        if not exists.all():
            rows = rows.take(pa.array(np.cumsum(exists) - 1, mask=~exists))
        key = codec.definition.primary_key
        return cls(exists, {name: rows.column(name) for name in rows.schema.names if name not in key})

    def changed(self, columns: Mapping[str, pa.Array], exists: Mask) -> CurrentRows:
        """The same with other values in some columns."""
        return CurrentRows(exists, {**self.columns, **columns})


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The rows that are written to some keys. Immutable.

    Attributes:
        batch: The rows, key by key, and those of one key in the order in which they came.
        starts: For n keys n + 1 places: the rows of key i are from `[i]` up to, but without, `[i + 1]`; maybe none.
        kinds: What each row does; None: all are written.
        columns: The columns that the rows are about, without the key. None: all.
        overwrite: Whether they replace what stands, whatever the table's engine.
    """

    batch: pa.RecordBatch
    starts: Places
    kinds: Kinds | None = None
    columns: tuple[str, ...] | None = None
    overwrite: bool = False

    @property
    def count(self) -> int:
        """How many keys there are."""
        return len(self.starts) - 1

    @property
    def keys(self) -> Places:
        """For each row the number of its key."""
        return np.repeat(np.arange(self.count), np.diff(self.starts))

    @property
    def retracted(self) -> Mask | None:
        """Which rows are taken back; None: none."""
        mask = None if self.kinds is None else self.kinds == RETRACT
        return mask if mask is not None and mask.any() else None

    def targets(self, standing: CurrentRows) -> list[str]:
        """The columns that the rows are about, of those that there are; hidden ones are not among them."""
        names = [name for name in standing.columns if "\0" not in name]
        return names if self.columns is None else [name for name in names if name in self.columns]

    def column(self, name: str, type_: pa.DataType) -> pa.Array:
        """The values of a column; null where it was added to the table after the rows were made."""
        place = self.batch.schema.get_field_index(name)
        return pa.nulls(self.batch.num_rows, type_) if place < 0 else self.batch.column(place)

    def inputs(self, name: str, type_: pa.DataType) -> Inputs:
        """The same for an aggregate function."""
        return Inputs(self.column(name, type_), self.keys, self.count, self.retracted)

    def slice(self, start: int, keys: int) -> WrittenRows:
        """The rows of at most so many keys from `start` on."""
        starts = self.starts[start : start + keys + 1]
        first, behind = int(starts[0]), int(starts[-1])
        kinds = None if self.kinds is None else self.kinds[first:behind]
        batch = self.batch.slice(first, behind - first)
        return WrittenRows(batch, starts - first, kinds, self.columns, self.overwrite)

    def of_keys(self, mask: Mask) -> WrittenRows:
        """The rows of some of the keys."""
        counts = np.diff(self.starts)
        rows = np.repeat(mask, counts)
        kinds = None if self.kinds is None else self.kinds[rows]
        starts = np.concatenate(([0], np.cumsum(counts[mask])))
        return WrittenRows(self.batch.filter(pa.array(rows)), starts, kinds, self.columns, self.overwrite)

    def where(self, mask: Mask) -> WrittenRows:
        """Some of the rows, for the same keys."""
        starts = np.concatenate(([0], np.cumsum(mask)))[self.starts]
        kinds = None if self.kinds is None else self.kinds[mask]
        return WrittenRows(self.batch.filter(pa.array(mask)), starts, kinds, self.columns, self.overwrite)


@dataclass(frozen=True, slots=True)
class Merged:
    """What an engine has made of both.

    Attributes:
        columns: By name the columns that it has set, for all keys.
        wrote: At which keys a row counted: there is a row there now.
    """

    columns: Mapping[str, pa.Array]
    wrote: Mask
