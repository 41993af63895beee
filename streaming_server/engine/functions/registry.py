"""Finds the function of a column's aggregate by its name: a built-in one, or one of another package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest, did_you_mean
from scankv.model.tables.merge_functions import IGNORE_RETRACT, ColumnAggregate, is_installed
from streaming_server.engine.functions.arithmetic import Product, Sum
from streaming_server.engine.functions.collecting import Collect, ListAgg, MergeMap
from streaming_server.engine.functions.counting import Average, Count
from streaming_server.engine.functions.extremes import Extreme
from streaming_server.engine.functions.installed import InstalledFunction
from streaming_server.engine.functions.picking import First, FirstNotNull, Last
from streaming_server.engine.functions.sketches import SKETCHES, sketch_function

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from streaming_server.engine.functions.function import MergeFunction
    from streaming_server.engine.functions.installed import Installed

_OURS: Final[Mapping[str, Callable[[ColumnAggregate], MergeFunction]]] = {
    "sum": lambda _: Sum(),
    "product": lambda _: Product(),
    "count": lambda _: Count(),
    "avg": lambda _: Average(),
    "min": lambda _: Extreme(greatest=False),
    "max": lambda _: Extreme(greatest=True),
    "bool_and": lambda _: Extreme(greatest=False),
    "bool_or": lambda _: Extreme(greatest=True),
    "last_value": lambda _: Last(skip_nulls=False),
    "last_non_null_value": lambda _: Last(skip_nulls=True),
    "first_value": lambda _: First(),
    "first_non_null_value": lambda _: FirstNotNull(),
    "listagg": lambda each: ListAgg(dict(each.parameters).get("delimiter", ","), distinct=each.flag("distinct")),
    "collect": lambda each: Collect(distinct=each.flag("distinct")),
    "merge_map": lambda _: MergeMap(),
}


def function_of(aggregate: ColumnAggregate, type_: pa.DataType, installed: Installed) -> MergeFunction:
    """Returns the function of a column's aggregate.

    The definition of a built-in aggregate was checked before. Only the server can check one of another package.

    Raises:
        InvalidRequest: This server does not have the function, or the function does not support the column's type or a
            parameter; names the column.
    """
    name, column = aggregate.function, aggregate.column
    if name in SKETCHES:
        return sketch_function(name, column)
    if not is_installed(name):
        return _OURS[name](aggregate)
    if name not in installed:
        raise InvalidRequest(
            f'column "{column}": this server has no aggregator "{name}"{did_you_mean(name, installed)}; its '
            "setting aggregators lists those of installed packages",
            column=column,
        )
    parameters = {key: value for key, value in aggregate.parameters if key != IGNORE_RETRACT}
    try:
        return InstalledFunction(name, installed[name](type_, parameters), type_)
    except Exception as error:  # code of another package may raise anything
        raise InvalidRequest(f'column "{column}": {name} refuses it: {error}', column=column) from error
