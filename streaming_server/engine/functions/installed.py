"""Aggregators of other packages. The server loads those that its settings list when it starts.

A package names a class in the entry point group `scankv.aggregators`, by an entry point with a dot in its name.
The server creates one instance for each column that has the function, with the column's Arrow type and its parameters,
a dict of strings. The class raises ValueError for a type or parameter that it does not support.

`merge(old, inputs)` gets the Python value of the column, None if it has none, and a list of inputs in the order of
arrival, nulls as None. It returns the new value. `retract(old, inputs)` is optional; it retracts inputs and returns the
new value. Each call is for one key. Both methods must be pure.
"""

from __future__ import annotations

from decimal import Decimal
from importlib.metadata import entry_points
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import UsageError, did_you_mean
from scankv.model.rows.decimal_arrays import decimal_array
from streaming_server.engine.functions.function import Inputs, RefusedValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Installed = Mapping[str, Callable[[pa.DataType, dict[str, str]], Any]]

GROUP: Final = "scankv.aggregators"
"""The group of entry points that is searched."""

_EARLIER_GROUP: Final = "scankv.aggregate_functions"


def load_installed(names: Sequence[str]) -> Installed:
    """Loads the functions of these names. Raises UsageError, naming the setting, for one that cannot be loaded."""
    if not names:
        # Finding entry points reads the metadata of every installed package, which would double the time of a start.
        return {}
    found = {each.name: each for each in entry_points(group=GROUP)}
    functions = {}
    for name in names:
        if name not in found and entry_points(group=_EARLIER_GROUP, name=name):
            raise UsageError(
                f'aggregators = "{name}": its package has this entry point in the group "{_EARLIER_GROUP}", which is '
                f'now "{GROUP}": rename the group in the package, and install it again',
                option="aggregators",
            )
        if "." not in name or name not in found:
            raise UsageError(
                f'aggregators = "{name}": no installed package has an entry point of this name, with a dot in '
                f"it, in the group {GROUP}{did_you_mean(name, found)}",
                option="aggregators",
            )
        try:
            functions[name] = found[name].load()
        except Exception as error:  # code of another package may raise anything
            raise UsageError(
                f'aggregators = "{name}" cannot be loaded: {type(error).__name__}: {error}',
                option="aggregators",
            ) from error
    return functions


class InstalledFunction:
    """An aggregator of another package, for one column.

    Args:
        name: Its name, for errors.
        function: The instance of the package's class.
        type_: The column's type.
    """

    def __init__(self, name: str, function: Any, type_: pa.DataType) -> None:  # noqa: ANN401  # anything of this shape
        self._name = name
        self._function = function
        self._type = type_
        self.retracts = hasattr(function, "retract")

    def merge(self, old: Sequence[pa.Array], inputs: Inputs) -> list[pa.Array]:
        """See `MergeFunction.merge`. Refuses an error of the function, and a result of another type than the column."""
        results: list[Any] = old[0].to_pylist()
        retracted = [False] * len(inputs.keys) if inputs.retracted is None else inputs.retracted.tolist()
        rows = zip(inputs.keys.tolist(), retracted, inputs.values.to_pylist(), strict=True)
        for (key, retract), group in groupby(rows, key=lambda row: row[:2]):
            values = [value for _, _, value in group]
            call = self._function.retract if retract else self._function.merge
            try:
                results[key] = self._to_array([call(results[key], values)])[0].as_py()
            except Exception as error:  # code of another package may raise anything
                raise RefusedValueError(key, f"{self._name} failed with {type(error).__name__}") from error
        return [self._to_array(results)]

    def _to_array(self, values: Sequence[Any]) -> pa.Array:
        if not pat.is_decimal(self._type):
            return pa.array(values, self._type)
        return decimal_array([None if value is None else Decimal(value) for value in values], self._type)
