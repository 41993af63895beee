"""Functions that merge a column of rows with the same key: `aggregates={"delay": agg.sum(), "flights": agg.count()}`.

For tables that merge as they are written, `merge_engine="aggregate"` above all. What is computed of the rows of a table
when it is read is `table.aggregate`, and has nothing to do with it. `ignore_retract=True` leaves the column as it is
where rows are taken back (`table.retract`); without it, functions that cannot take a value back refuse such rows.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Aggregator",
    "avg",
    "bool_and",
    "bool_or",
    "collect",
    "count",
    "first_non_null_value",
    "first_value",
    "hll_sketch",
    "installed",
    "last_non_null_value",
    "last_value",
    "listagg",
    "max",
    "merge_map",
    "min",
    "product",
    "rbm32",
    "rbm64",
    "string_agg",
    "sum",
    "theta_sketch",
    "top_k",
]


@dataclass(frozen=True, slots=True)
class Aggregator:
    """A function with its parameters, made by the functions of this module. Immutable, picklable.

    Attributes:
        function: Its name.
        parameters: Names and values, by name.
    """

    function: str
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_config(cls, value: object) -> Aggregator:
        """Reads a name, or a mapping with `function` and parameters, as configuration has it. Raises ValueError."""
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, dict) or not isinstance(value.get("function"), str):
            raise ValueError('is the name of a function, or has a "function" and its parameters')
        parameters = {
            name: str(each).lower() if isinstance(each, bool) else str(each)
            for name, each in value.items()
            if name != "function"
        }
        return cls(value["function"], tuple(sorted(parameters.items())))

    def __str__(self) -> str:
        name = f"installed({self.function!r}" if "." in self.function else f"{self.function}("
        values = [f"{key}={_shown(value)}" for key, value in self.parameters]
        separator = ", " if values and "." in self.function else ""
        return f"agg.{name}{separator}{', '.join(values)})"


def _shown(value: str) -> str:
    return {"true": "True", "false": "False"}.get(value, repr(value))


def _made(function: str, *, ignore_retract: bool = False, **parameters: str | bool) -> Aggregator:
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in parameters.items()}
    if ignore_retract:
        given["ignore_retract"] = "true"
    # What is not asked for is not said, so that equal aggregates look alike.
    return Aggregator(function, tuple(sorted((name, value) for name, value in given.items() if value != "false")))


def sum(*, ignore_retract: bool = False) -> Aggregator:
    """The sum of the numbers that are not null. An integer or decimal that does not fit its column is refused."""
    return _made("sum", ignore_retract=ignore_retract)


def product(*, ignore_retract: bool = False) -> Aggregator:
    """The product of the numbers that are not null. Decimals are rounded half up to their scale after each factor."""
    return _made("product", ignore_retract=ignore_retract)


def count(*, ignore_retract: bool = False) -> Aggregator:
    """The number of inputs that are not null, for integer columns. Inputs may be of any type."""
    return _made("count", ignore_retract=ignore_retract)


def avg(*, ignore_retract: bool = False) -> Aggregator:
    """The mean of the numbers that are not null. Integer and decimal columns round it half to even.

    Sum and count are kept beside the row, so it is exact however the inputs were spread over writes.
    """
    return _made("avg", ignore_retract=ignore_retract)


def min(*, ignore_retract: bool = False) -> Aggregator:
    """The least value that is not null, for types with an order. NaN is above all other numbers."""
    return _made("min", ignore_retract=ignore_retract)


def max(*, ignore_retract: bool = False) -> Aggregator:
    """The greatest value that is not null, for types with an order. NaN is above all other numbers."""
    return _made("max", ignore_retract=ignore_retract)


def last_value(*, ignore_retract: bool = False) -> Aggregator:
    """The last input, including null."""
    return _made("last_value", ignore_retract=ignore_retract)


def last_non_null_value(*, ignore_retract: bool = False) -> Aggregator:
    """The last input that is not null. The default of columns without a function."""
    return _made("last_non_null_value", ignore_retract=ignore_retract)


def first_value(*, ignore_retract: bool = False) -> Aggregator:
    """The first input, including null."""
    return _made("first_value", ignore_retract=ignore_retract)


def first_non_null_value(*, ignore_retract: bool = False) -> Aggregator:
    """The first input that is not null."""
    return _made("first_non_null_value", ignore_retract=ignore_retract)


def listagg(delimiter: str = ",", *, distinct: bool = False, ignore_retract: bool = False) -> Aggregator:
    """The concatenation of the texts that are not null.

    Args:
        delimiter: What stands between them, 1 to 64 characters.
        distinct: Whether each part between two delimiters is kept once.
        ignore_retract: See the module.
    """
    extra: dict[str, str | bool] = {} if delimiter == "," else {"delimiter": delimiter}
    return _made("listagg", ignore_retract=ignore_retract, distinct=distinct, **extra)


string_agg = listagg
"""Alias of `listagg`."""


def bool_and(*, ignore_retract: bool = False) -> Aggregator:
    """Whether all values that are not null are true."""
    return _made("bool_and", ignore_retract=ignore_retract)


def bool_or(*, ignore_retract: bool = False) -> Aggregator:
    """Whether any value is true."""
    return _made("bool_or", ignore_retract=ignore_retract)


def collect(*, distinct: bool = False, ignore_retract: bool = False) -> Aggregator:
    """The elements of all lists; with `distinct` each once. A retraction removes the first one of each element."""
    return _made("collect", ignore_retract=ignore_retract, distinct=distinct)


def merge_map(*, ignore_retract: bool = False) -> Aggregator:
    """The entries of all maps, the last one of each key. A retraction removes the keys of its map."""
    return _made("merge_map", ignore_retract=ignore_retract)


def rbm32(*, ignore_retract: bool = False) -> Aggregator:
    """The union of roaring bitmaps of 32-bit numbers in their portable serial form. Needs `sketches` at the server."""
    return _made("rbm32", ignore_retract=ignore_retract)


def rbm64(*, ignore_retract: bool = False) -> Aggregator:
    """The union of roaring bitmaps of 64-bit numbers. Needs `sketches` at the server."""
    return _made("rbm64", ignore_retract=ignore_retract)


def hll_sketch(*, ignore_retract: bool = False) -> Aggregator:
    """The union of serialised HLL sketches of Apache DataSketches. Needs `sketches` at the server."""
    return _made("hll_sketch", ignore_retract=ignore_retract)


def theta_sketch(*, ignore_retract: bool = False) -> Aggregator:
    """The union of serialised compact theta sketches of Apache DataSketches. Needs `sketches` at the server."""
    return _made("theta_sketch", ignore_retract=ignore_retract)


def top_k(*, ignore_retract: bool = False) -> Aggregator:
    """The union of serialised frequent-strings sketches of Apache DataSketches. Needs `sketches` at the server."""
    return _made("top_k", ignore_retract=ignore_retract)


def installed(name: str, *, ignore_retract: bool = False, **parameters: str | bool) -> Aggregator:
    """A function of a package that is installed at the server, and that its setting `aggregate_functions` lists.

    Args:
        name: The name of its entry point in the group `scankv.aggregate_functions`, with a dot in it.
        ignore_retract: See the module.
        parameters: What it takes.
    """
    return _made(name, ignore_retract=ignore_retract, **parameters)
