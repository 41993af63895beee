"""The rows that a delete by predicate, a truncation or a replacement selects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aio_client._input.key_bounds import range_between
from scankv.model import lazy_compute as pc
from scankv.model.errors import UsageError
from scankv.model.expressions import bind, evaluate
from scankv.model.expressions.wire import to_proto
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from aio_client._table.shape import TableShape
    from aio_client._write.write_requests import WritePieces
    from scankv.model.expressions import Predicate
    from scankv.v1 import transaction_pb2

_ALL_KEYS = KeyRange()


@dataclass(frozen=True, slots=True)
class Selection:
    """Some rows of a table. Immutable.

    Attributes:
        where: Only rows for which this is true. None: all rows.
        keys: Only rows with these encoded keys.
        untracked: Whether their deletion leaves their changes out of the changelog.
        alone: Whether their deletion is the only write of its transaction to the table.
    """

    where: Predicate | None = None
    keys: KeyRange = _ALL_KEYS
    untracked: bool = False
    alone: bool = False

    def put_into(self, request: transaction_pb2.StageDeleteAllRequest) -> None:
        """Adds the selection to a request. Servers of earlier versions take requests that select all rows."""
        if self.where is not None:
            request.where.CopyFrom(to_proto(self.where))
        if self.keys != _ALL_KEYS:
            request.key_range.CopyFrom(scan_pb2.KeyRange(start=self.keys.start, end=self.keys.end))
        request.untracked, request.alone = self.untracked, self.alone

    def check_pieces(self, pieces: WritePieces, shape: TableShape, *, in_memory: bool) -> WritePieces:
        """Returns the pieces of an upsert, each of which is checked to have selected rows only.

        Raises:
            UsageError: A row is not selected. If the pieces are not in memory, they raise it when they are read.
        """
        if self.where is None and self.keys == _ALL_KEYS:
            return pieces
        checked = self._check(pieces.batches, shape)
        return replace(pieces, batches=iter(list(checked)) if in_memory else checked)

    def _check(self, batches: Iterator[pa.RecordBatch], shape: TableShape) -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in batches:
            outside = pc.index(self._select(batch, shape), False).as_py()
            if outside >= 0:
                raise UsageError(
                    f"row {first + outside} of the data is outside of the rows that are replaced: all rows must be "
                    "within `where` and `key_range`; nothing was written"
                )
            first += batch.num_rows
            yield batch

    def _select(self, batch: pa.RecordBatch, shape: TableShape) -> pa.BooleanArray:
        """Returns which rows of a batch with all columns of the table are selected."""
        selected = pc.equal(0, 0) if self.where is None else evaluate(bind(self.where, batch.schema), batch)
        keys = KeyCodec(shape.key_schema.types, shape.key_schema.names).encode(
            [batch.column(name) for name in shape.key_schema.names]
        )
        if self.keys.start is not None:
            selected = pc.and_(selected, pc.greater_equal(keys, self.keys.start))
        if self.keys.end is not None:
            selected = pc.and_(selected, pc.less(keys, self.keys.end))
        return pc.fill_null(selected, False)


def check_selection(keys: object, columns: object) -> None:
    """Raises UsageError if a delete by predicate has other arguments that select what is deleted."""
    if keys is not None:
        raise UsageError("delete takes keys or where, not both", option="where")
    if columns is not None:
        raise UsageError(
            "columns is for a delete by keys: write nulls with upsert(..., columns=...) instead", option="columns"
        )


def range_of_bounds(bounds: tuple[object, object] | None, key_schema: pa.Schema) -> KeyRange:
    """Returns the range of encoded keys from one bound to another, both included. None: all keys.

    Raises:
        UsageError: `bounds` is not a pair, or the first is greater than the second.
        InvalidKey: A value is null, or not of its key column's type.
    """
    if bounds is None:
        return _ALL_KEYS
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise UsageError(
            f"key_range must be a pair of the first and the last key, (start, end), not {bounds!r:.80}",
            option="key_range",
        )
    return range_between(*bounds, "both", key_schema)
