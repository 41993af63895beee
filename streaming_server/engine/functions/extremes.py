"""`min` and `max`; also `bool_and` and `bool_or`, which are the minimum and maximum of false < true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from streaming_server.arrays.sort_codes import decode_sort_codes, sort_codes
from streaming_server.engine.functions.function import Inputs, not_null_mask, prepend_old

if TYPE_CHECKING:
    from collections.abc import Sequence


class Extreme:
    """The least or greatest input that is not null.

    Attributes:
        greatest: Whether it is the greatest.
    """

    def __init__(self, *, greatest: bool) -> None:
        self.greatest = greatest

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Retractions were refused before, or are ignored."""
        (before,), inputs = old, inputs.additions().not_null()
        type_ = before.type
        if pat.is_string(type_) or pat.is_binary(type_) or pat.is_decimal(type_):
            return [self._by_sorting(before, inputs)]
        return [self._by_numbers(before, inputs)]

    def _by_numbers(self, before: pa.Array, inputs: Inputs) -> pa.Array:
        # Booleans, dates and times are compared as the numbers that store them.
        type_ = before.type
        numbers = _as_numbers(sort_codes(before))
        result, has_any = numbers.fill_null(0).to_numpy(zero_copy_only=False).copy(), not_null_mask(before)
        starts = inputs.first()
        if len(starts):
            best = np.maximum if self.greatest else np.minimum
            found = best.reduceat(_as_numbers(sort_codes(inputs.values)).to_numpy(zero_copy_only=False), starts)
            keys = inputs.keys[starts]
            result[keys] = np.where(has_any[keys], best(result[keys], found), found)
            has_any[keys] = True
        codes = pa.array(result, mask=~has_any)
        return codes.cast(pa.bool_()) if pat.is_boolean(type_) else decode_sort_codes(codes, type_)

    def _by_sorting(self, before: pa.Array, inputs: Inputs) -> pa.Array:
        every = prepend_old(before, inputs).not_null()
        order = pc.sort_indices(
            pa.table({"key": pa.array(every.keys), "value": sort_codes(every.values)}),
            sort_keys=[("key", "ascending"), ("value", "ascending")],
        ).to_numpy()
        places = every.last() if self.greatest else every.first()
        sources = np.full(inputs.count, -1)
        sources[every.keys[places]] = order[places]
        return every.values.take(pa.array(sources, mask=sources < 0))


def _as_numbers(codes: pa.Array) -> pa.Array:
    if pat.is_boolean(codes.type):
        return codes.cast(pa.uint8())
    if pat.is_temporal(codes.type):
        return codes.view(pa.int32() if codes.type.bit_width == 32 else pa.int64())
    return codes
