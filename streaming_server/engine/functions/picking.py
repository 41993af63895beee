"""Functions that keep one of their inputs: the first or the last, with or without nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.engine.functions.function import Inputs, not_null_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.engine.functions.function import Mask, Places


class Last:
    """The last input; null if it is retracted.

    Attributes:
        skip_nulls: Whether nulls are skipped.
    """

    def __init__(self, *, skip_nulls: bool) -> None:
        self.skip_nulls = skip_nulls

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`."""
        if self.skip_nulls:
            inputs = inputs.not_null()
        places = inputs.last()
        gone = None if inputs.retracted is None else inputs.retracted[places]
        return [replace_with_inputs(old[0], inputs, places, gone)]


class FirstNotNull:
    """The first input that is not null."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Retractions were refused before, or are ignored."""
        inputs = inputs.additions().not_null()
        places = inputs.first()
        return [replace_with_inputs(old[0], inputs, places[~not_null_mask(old[0])[inputs.keys[places]]])]


class First:
    """The first input, even null. Hidden: whether an input has come, because a null value cannot show that."""

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Retractions were refused before, or are ignored."""
        before, seen = old
        inputs = inputs.additions()
        was_seen = seen.fill_null(False).to_numpy(zero_copy_only=False)
        places = inputs.first()
        result = replace_with_inputs(before, inputs, places[~was_seen[inputs.keys[places]]])
        return [result, pc.if_else(pa.array(inputs.has_any), True, seen)]


def replace_with_inputs(old: pa.Array, inputs: Inputs, places: Places, gone: Mask | None = None) -> pa.Array:
    """Returns the old values, replaced by the inputs at `places`, or by null where `gone`."""
    if not len(places):
        return old
    sources = np.arange(inputs.count)
    sources[inputs.keys[places]] = places + inputs.count
    mask = None
    if gone is not None and gone.any():
        mask = np.zeros(inputs.count, np.bool_)
        mask[inputs.keys[places]] = gone
    return pa.concat_arrays([old, inputs.values]).take(pa.array(sources, mask=mask))
