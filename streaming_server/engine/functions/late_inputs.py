"""Functions whose result depends on order, applied to late inputs: rows older than those already merged."""

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


def of_older(function: MergeFunction) -> MergeFunction | None:
    """What merges inputs in front of what is known, the one that came last foremost; None: any order is the same."""
    if isinstance(function, Collect | ListAgg | MergeMap):
        return _InFront(function)
    if isinstance(function, Last):
        return FirstNotNull() if function.skip_nulls else _Known()
    if isinstance(function, FirstNotNull):
        return Last(skip_nulls=True)
    if isinstance(function, First):
        return _NewFirst()
    # An installed function gets its inputs in the order of arrival: what it does with them is unknown.
    return function if isinstance(function, InstalledFunction) else None


class _InFront:
    def __init__(self, function: Collect | ListAgg | MergeMap) -> None:
        self._function = function

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        return [self._function.joined(append_old_reversed(old[0], inputs), old[0].type)]


class _Known:
    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        return list(old)


class _NewFirst:
    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        seen = pa.array(inputs.has_any)
        return [replace_with_inputs(old[0], inputs, inputs.last()), pc.if_else(seen, True, old[1])]
