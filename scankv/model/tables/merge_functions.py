"""The aggregators: their types, their parameters, and whether they support retraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import InvalidRequest, SchemaMismatch, did_you_mean
from scankv.model.types.types import format_type, is_key_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scankv.model.tables.columns import ColumnDefinition

MAX_DELIMITER: Final = 64
"""The most characters of a delimiter."""

IGNORE_RETRACT: Final = "ignore_retract"
"""The parameter that every function has: retracted rows leave the column unchanged."""

_BOOLEANS: Final = ("true", "false")


@dataclass(frozen=True, slots=True)
class ColumnAggregate:
    """How the values of one column are merged.

    Attributes:
        column: The column that contains the result.
        function: The name of a function of this module, or of a function installed at the server, which contains a dot.
        parameters: Pairs of a parameter's name and its value, sorted by name.
    """

    column: str
    function: str
    parameters: tuple[tuple[str, str], ...] = ()

    def flag(self, name: str) -> bool:
        """Returns the value of a boolean parameter."""
        return dict(self.parameters).get(name) == "true"


@dataclass(frozen=True, slots=True)
class FunctionRules:
    """The rules of one function.

    Attributes:
        takes: Returns whether a column of a type can have the function.
        types: These types in words.
        parameters: The names of its parameters except `ignore_retract`.
        retracts: Whether the function supports retraction.
        hidden: Returns the names and types of the state that is stored with a column of a type.
    """

    takes: Callable[[pa.DataType], bool]
    types: str
    parameters: tuple[str, ...] = ()
    retracts: bool = False
    hidden: Callable[[pa.DataType], tuple[tuple[str, pa.DataType], ...]] = lambda _: ()


def _is_number(type_: pa.DataType) -> bool:
    return bool(pat.is_integer(type_) or pat.is_floating(type_) or pat.is_decimal(type_))


def _average_state(type_: pa.DataType) -> tuple[tuple[str, pa.DataType], ...]:
    """Returns sum and count. The sum is exact, except for floats."""
    scale = type_.scale if pat.is_decimal(type_) else 0
    total = pa.float64() if pat.is_floating(type_) else pa.decimal128(38, scale)
    return ("sum", total), ("count", pa.int64())


def _rules(takes: Callable[[pa.DataType], bool], types: str, *parameters: str, retracts: bool = False) -> FunctionRules:
    return FunctionRules(takes, types, parameters, retracts)


_NUMBERS = "integers, floats and decimals"
_ORDERED = "numbers, bool, string, binary, dates and times"
_ANY = "every type"

FUNCTIONS: Final[Mapping[str, FunctionRules]] = {
    "sum": _rules(_is_number, _NUMBERS, retracts=True),
    "product": _rules(_is_number, _NUMBERS, retracts=True),
    "count": _rules(pat.is_integer, "integers", retracts=True),
    "avg": FunctionRules(_is_number, _NUMBERS, retracts=True, hidden=_average_state),
    "min": _rules(is_key_type, _ORDERED),
    "max": _rules(is_key_type, _ORDERED),
    "last_value": _rules(lambda _: True, _ANY, retracts=True),
    "last_non_null_value": _rules(lambda _: True, _ANY, retracts=True),
    "first_value": FunctionRules(lambda _: True, _ANY, hidden=lambda _: (("seen", pa.bool_()),)),
    "first_non_null_value": _rules(lambda _: True, _ANY),
    "listagg": _rules(pat.is_string, "string", "delimiter", "distinct"),
    "bool_and": _rules(pat.is_boolean, "bool"),
    "bool_or": _rules(pat.is_boolean, "bool"),
    "collect": _rules(pat.is_list, "lists", "distinct", retracts=True),
    "merge_map": _rules(pat.is_map, "maps", retracts=True),
    "rbm32": _rules(pat.is_binary, "binary"),
    "rbm64": _rules(pat.is_binary, "binary"),
    "hll_sketch": _rules(pat.is_binary, "binary"),
    "theta_sketch": _rules(pat.is_binary, "binary"),
    "top_k": _rules(pat.is_binary, "binary"),
}
"""The functions that every server has. The last five need the extra `sketches` at the server."""

DEFAULT_FUNCTION: Final = "last_non_null_value"
"""The function of a column without a function in a table with `merge_engine="aggregate"`."""

_ALIASES: Final = {"string_agg": "listagg"}


def aggregate_of(column: str, function: str, parameters: Mapping[str, str] | None = None) -> ColumnAggregate:
    """Returns an aggregate in its normal form, unchecked."""
    return ColumnAggregate(column, _ALIASES.get(function, function), tuple(sorted((parameters or {}).items())))


def is_installed(function: str) -> bool:
    """Returns whether this is the name of a function installed at the server rather than a built-in one."""
    return "." in function


def retracts(aggregate: ColumnAggregate) -> bool:
    """Returns whether rows with a value in the column can be retracted. True if installed: only the server knows."""
    if aggregate.flag(IGNORE_RETRACT) or is_installed(aggregate.function):
        return True
    return FUNCTIONS[aggregate.function].retracts


def hidden_fields(aggregate: ColumnAggregate, type_: pa.DataType) -> tuple[tuple[str, pa.DataType], ...]:
    """Returns the hidden state of a column: names and types, in order. The format of stored rows depends on it."""
    return () if is_installed(aggregate.function) else FUNCTIONS[aggregate.function].hidden(type_)


def check_aggregate(aggregate: ColumnAggregate, column: ColumnDefinition) -> None:
    """Checks an aggregate against its column.

    Raises:
        InvalidRequest: The function or a parameter does not exist, or the value of a parameter is not allowed.
        SchemaMismatch: The function does not support the type of the column.
    """
    where, name = f'column "{column.name}"', aggregate.function
    if is_installed(name):
        return
    rules = FUNCTIONS.get(name)
    if rules is None:
        raise InvalidRequest(
            f'{where}: there is no aggregator "{name}"{did_you_mean(name, FUNCTIONS)}; the name of a function '
            "installed at the server has a dot",
            column=column.name,
        )
    if not rules.takes(column.type):
        raise SchemaMismatch(
            f"{where} is {format_type(column.type)}, which {name} does not take: it takes {rules.types}",
            column=column.name,
        )
    known = (*rules.parameters, IGNORE_RETRACT)
    for parameter, value in aggregate.parameters:
        if parameter not in known:
            raise InvalidRequest(
                f'{where}: {name} has no parameter "{parameter}"{did_you_mean(parameter, known)}', column=column.name
            )
        if parameter == "delimiter":
            if not 1 <= len(value) <= MAX_DELIMITER:
                raise InvalidRequest(
                    f"{where}: the delimiter of {name} must have between 1 and {MAX_DELIMITER} characters, not "
                    f"{len(value):,}",
                    column=column.name,
                )
        elif value not in _BOOLEANS:
            raise InvalidRequest(
                f'{where}: the parameter {parameter} of {name} must be "true" or "false", not "{value[:40]}"',
                column=column.name,
            )
