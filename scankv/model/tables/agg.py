"""Functions that merge a column of rows with the same key: `aggregators={"delay": agg.sum(), "flights": agg.count()}`.

They apply when rows are written, mostly in tables with `merge_engine="aggregate"`. To aggregate rows when they are
read, use `table.aggregate` instead. With `ignore_retract=True`, retracted rows (`table.retract`) leave the column
unchanged. Without it, a function that does not support retraction refuses such rows.
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
    """A function that merges a column, with its parameters, made by the functions of this module. Immutable, picklable.

    Attributes:
        function: The name of the function.
        parameters: Pairs of a parameter's name and its value, sorted by name.
    """

    function: str
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_config(cls, value: object) -> Aggregator:
        """Reads the form of configuration files: a name, or a mapping with `function` and the parameters.

        Raises:
            ValueError: The value has another form.
        """
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, dict) or not isinstance(value.get("function"), str):
            raise ValueError('must be the name of a function, or a mapping with "function" and its parameters')
        parameters = {
            name: str(each).lower() if isinstance(each, bool) else str(each)
            for name, each in value.items()
            if name != "function"
        }
        return cls(value["function"], tuple(sorted(parameters.items())))

    def __str__(self) -> str:
        name = f"installed({self.function!r}" if "." in self.function else f"{self.function}("
        values = [f"{key}={_format_value(value)}" for key, value in self.parameters]
        separator = ", " if values and "." in self.function else ""
        return f"agg.{name}{separator}{', '.join(values)})"


def _format_value(value: str) -> str:
    return {"true": "True", "false": "False"}.get(value, repr(value))


def _make_aggregator(function: str, *, ignore_retract: bool = False, **parameters: str | bool) -> Aggregator:
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in parameters.items()}
    if ignore_retract:
        given["ignore_retract"] = "true"
    # Parameters that are false are left out, so that equal aggregators compare equal.
    return Aggregator(function, tuple(sorted((name, value) for name, value in given.items() if value != "false")))


def sum(*, ignore_retract: bool = False) -> Aggregator:
    """The sum of the numbers that are not null. A sum that overflows its integer or decimal column is refused."""
    return _make_aggregator("sum", ignore_retract=ignore_retract)


def product(*, ignore_retract: bool = False) -> Aggregator:
    """The product of the numbers that are not null. Decimals are rounded half up to their scale after each factor."""
    return _make_aggregator("product", ignore_retract=ignore_retract)


def count(*, ignore_retract: bool = False) -> Aggregator:
    """The number of inputs that are not null, for integer columns. Inputs may be of any type."""
    return _make_aggregator("count", ignore_retract=ignore_retract)


def avg(*, ignore_retract: bool = False) -> Aggregator:
    """The mean of the numbers that are not null. Integer and decimal columns round it half to even.

    Sum and count are stored with the row, so the mean is exact no matter how the inputs are divided into writes.
    """
    return _make_aggregator("avg", ignore_retract=ignore_retract)


def min(*, ignore_retract: bool = False) -> Aggregator:
    """The least value that is not null, for types with an order. NaN is above all other numbers."""
    return _make_aggregator("min", ignore_retract=ignore_retract)


def max(*, ignore_retract: bool = False) -> Aggregator:
    """The greatest value that is not null, for types with an order. NaN is above all other numbers."""
    return _make_aggregator("max", ignore_retract=ignore_retract)


def last_value(*, ignore_retract: bool = False) -> Aggregator:
    """The last input, including null."""
    return _make_aggregator("last_value", ignore_retract=ignore_retract)


def last_non_null_value(*, ignore_retract: bool = False) -> Aggregator:
    """The last input that is not null. The default of columns without a function."""
    return _make_aggregator("last_non_null_value", ignore_retract=ignore_retract)


def first_value(*, ignore_retract: bool = False) -> Aggregator:
    """The first input, including null."""
    return _make_aggregator("first_value", ignore_retract=ignore_retract)


def first_non_null_value(*, ignore_retract: bool = False) -> Aggregator:
    """The first input that is not null."""
    return _make_aggregator("first_non_null_value", ignore_retract=ignore_retract)


def listagg(delimiter: str = ",", *, distinct: bool = False, ignore_retract: bool = False) -> Aggregator:
    """The concatenation of the texts that are not null.

    Args:
        delimiter: The text between two values, 1 to 64 characters.
        distinct: Whether each part between two delimiters is kept once.
        ignore_retract: See the module.
    """
    extra: dict[str, str | bool] = {} if delimiter == "," else {"delimiter": delimiter}
    return _make_aggregator("listagg", ignore_retract=ignore_retract, distinct=distinct, **extra)


string_agg = listagg
"""Alias of `listagg`."""


def bool_and(*, ignore_retract: bool = False) -> Aggregator:
    """Whether all values that are not null are true."""
    return _make_aggregator("bool_and", ignore_retract=ignore_retract)


def bool_or(*, ignore_retract: bool = False) -> Aggregator:
    """Whether any value is true."""
    return _make_aggregator("bool_or", ignore_retract=ignore_retract)


def collect(*, distinct: bool = False, ignore_retract: bool = False) -> Aggregator:
    """The elements of all lists; with `distinct`, each once. A retraction removes one occurrence of each element."""
    return _make_aggregator("collect", ignore_retract=ignore_retract, distinct=distinct)


def merge_map(*, ignore_retract: bool = False) -> Aggregator:
    """The entries of all maps; for equal keys, the last entry. A retraction removes the keys of its map."""
    return _make_aggregator("merge_map", ignore_retract=ignore_retract)


def rbm32(*, ignore_retract: bool = False) -> Aggregator:
    """The union of roaring bitmaps of 32-bit numbers in the portable format. Needs `sketches` at the server."""
    return _make_aggregator("rbm32", ignore_retract=ignore_retract)


def rbm64(*, ignore_retract: bool = False) -> Aggregator:
    """The union of roaring bitmaps of 64-bit numbers in the portable format. Needs `sketches` at the server."""
    return _make_aggregator("rbm64", ignore_retract=ignore_retract)


def hll_sketch(*, ignore_retract: bool = False) -> Aggregator:
    """The union of serialized HLL sketches of Apache DataSketches. Needs `sketches` at the server."""
    return _make_aggregator("hll_sketch", ignore_retract=ignore_retract)


def theta_sketch(*, ignore_retract: bool = False) -> Aggregator:
    """The union of serialized compact theta sketches of Apache DataSketches. Needs `sketches` at the server."""
    return _make_aggregator("theta_sketch", ignore_retract=ignore_retract)


def top_k(*, ignore_retract: bool = False) -> Aggregator:
    """The union of serialized frequent-strings sketches of Apache DataSketches. Needs `sketches` at the server."""
    return _make_aggregator("top_k", ignore_retract=ignore_retract)


def installed(name: str, *, ignore_retract: bool = False, **parameters: str | bool) -> Aggregator:
    """A function from a package that is installed at the server and listed in its setting `aggregators`.

    Args:
        name: The name of the function's entry point in the group `scankv.aggregators`. It contains a dot.
        ignore_retract: See the module.
        parameters: The parameters of the function.
    """
    return _make_aggregator(name, ignore_retract=ignore_retract, **parameters)
