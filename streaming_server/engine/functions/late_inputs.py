"""Merges late inputs: values of rows that are older than rows already merged, for functions that depend on order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.engine.functions.collecting import Collect, ListAgg, MergeMap
from streaming_server.engine.functions.function import append_old_reversed
from streaming_server.engine.functions.installed import InstalledFunction
from streaming_server.engine.functions.picking import First, FirstNotNull, Last, replace_with_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.engine.functions.function import Inputs, MergeFunction


def function_for_late_inputs(function: MergeFunction) -> MergeFunction | None:
    """Returns the function that merges inputs as older than the current value, the last to arrive as the oldest.

    None: the function's result does not depend on order.
    """
    if isinstance(function, Collect | ListAgg | MergeMap):
        return _Prepend(function)
    if isinstance(function, Last):
        return FirstNotNull() if function.skip_nulls else _KeepOld()
    if isinstance(function, FirstNotNull):
        return Last(skip_nulls=True)
    if isinstance(function, First):
        return _ReplaceFirst()
    # How an installed function depends on order is unknown. It gets its late inputs in the order of arrival.
    return function if isinstance(function, InstalledFunction) else None


class _Prepend:
    def __init__(self, function: Collect | ListAgg | MergeMap) -> None:
        self._function = function

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        return [self._function.concatenate(append_old_reversed(old[0], inputs), old[0].type)]


class _KeepOld:
    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        return list(old)


class _ReplaceFirst:
    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        seen = pa.array(inputs.has_any)
        return [replace_with_inputs(old[0], inputs, inputs.last()), pc.if_else(seen, True, old[1])]
