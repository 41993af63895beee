"""How stored rows become what a scan returns: which keys are read, which rows are kept, which columns are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from table_model.expressions import bind, evaluate, plan_keys
from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from streaming_server.storage.row_codec import Decoder, RowCodec, RowDecoder
    from table_model.expressions import BoundPredicate, Predicate
    from table_model.key_codec import KeyCodec

_NO_KEYS = KeyRange(b"", b"")


@dataclass(frozen=True, slots=True)
class RowReader:
    """What a scan reads of a table whose rows a codec decodes. Immutable.

    Attributes:
        decoder: Makes the batches to return.
        key_range: The keys that can hold such rows.
        selective: Whether `decoder` leaves rows out.
    """

    decoder: Decoder
    key_range: KeyRange
    selective: bool

    @classmethod
    def of(
        cls,
        codec: RowCodec,
        keys: KeyCodec,
        columns: Sequence[str] | None,
        where: Predicate | None,
        key_range: KeyRange,
    ) -> RowReader:
        """A reader of some columns (None: all) of the rows in a key range for which `where` is true.

        Raises:
            SchemaMismatch: A column does not exist, or a value is not of its column's type.
        """
        decoder = codec.decoder(columns)
        if where is None:
            return cls(decoder, key_range, selective=False)
        bound = bind(where, codec.schema)
        plan = plan_keys(bound, keys)
        residual = plan.residual
        if plan.points is None:
            key_range &= plan.key_range
        elif not plan.points:
            key_range = _NO_KEYS
        else:
            key_range &= KeyRange(plan.points[0], plan.points[-1] + b"\0")
            # Between several points there are other keys: what chose the points chooses among these, too.
            residual = residual if len(plan.points) == 1 else bound
        if residual is None:
            return cls(decoder, key_range, selective=False)
        return cls(_FilteringDecoder(codec, decoder, residual), key_range, selective=True)


class _FilteringDecoder:
    """Decodes what a predicate looks at, then the other columns of the rows that it keeps."""

    def __init__(self, codec: RowCodec, decoder: RowDecoder, predicate: BoundPredicate) -> None:
        self.schema = decoder.schema
        self._decoder = decoder
        self._predicate = predicate
        self._looked_at = codec.decoder(predicate.columns)

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        keep = evaluate(self._predicate, self._looked_at.decode(values))
        return self._decoder.decode(values.filter(keep))
