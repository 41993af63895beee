"""Translates the part of a Polars predicate that the server evaluates exactly as Polars does, including nulls.

Polars serializes an expression as JSON, in a format that may change between versions. Parts that are not recognized are
not pushed down: Polars evaluates them itself.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import UsageError
from scankv.model.expressions import all_of, any_of, col

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from scankv.model.expressions import Column, Predicate

_UNITS: Final = {"Milliseconds": "ms", "Microseconds": "us", "Nanoseconds": "ns"}
# Polars' names of the types whose values and order equal those of Arrow.
_TYPES: Final = {
    "Boolean": pa.bool_(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "String": pa.string(),
    "Date": pa.date32(),
}
# In Polars, NaN is greater than all other floats and equal to itself. In the server, only `!=` is true for NaN.
# So "greater" is written as "not less or equal", which differs only for NaN; null stays unknown.
_COMPARISONS: Final[dict[str, Callable[[Column, pa.Scalar], Predicate]]] = {
    "Eq": lambda column, value: column == value,
    "NotEq": lambda column, value: column != value,
    "Lt": lambda column, value: column < value,
    "LtEq": lambda column, value: column <= value,
    "Gt": lambda column, value: ~(column <= value) if pat.is_floating(value.type) else column > value,
    "GtEq": lambda column, value: ~(column < value) if pat.is_floating(value.type) else column >= value,
}
_FLIPPED: Final = {"Eq": "Eq", "NotEq": "NotEq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_BOUNDS: Final = {
    "Both": ("GtEq", "LtEq"),
    "Left": ("GtEq", "Lt"),
    "Right": ("Gt", "LtEq"),
    "None": ("Gt", "Lt"),
}


class _NotTheSameError(Exception):
    """The server would decide the expression differently, or cannot decide it."""


def translate_predicate(predicate: pl.Expr, schema: pa.Schema) -> Predicate | None:
    """Translates as much of a predicate as possible. The result, or None, is true for at least the same rows.

    Args:
        predicate: A predicate over the columns of the schema, with literals cast to the types that they are compared
            with.
        schema: The schema of the rows.
    """
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # Polars raises an error type of its own for Python functions and other parts without JSON.
        return None
    kept = []
    for conjunct in _conjuncts(tree):
        # UsageError: the predicate is larger than the server allows.
        with suppress(_NotTheSameError, UsageError):
            kept.append(_predicate(conjunct, schema))
    return all_of(kept) if kept else None


def _conjuncts(tree: Any) -> list[Any]:  # noqa: ANN401  # JSON
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            return [*_conjuncts(left), *_conjuncts(right)]
        case _:
            return [tree]


def _predicate(tree: Any, schema: pa.Schema) -> Predicate:  # noqa: ANN401  # JSON
    match tree:
        case {"Column": str(name)} if _type(name, schema) == pa.bool_():
            return col(name) == True  # noqa: E712  # it builds a predicate
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            return all_of([_predicate(left, schema), _predicate(right, schema)])
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            return any_of([_predicate(left, schema), _predicate(right, schema)])
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(operator), "right": literal}}:
            return _comparison(name, operator, literal, schema)
        case {"BinaryExpr": {"left": literal, "op": str(operator), "right": {"Column": str(name)}}}:
            return _comparison(name, _FLIPPED.get(operator, operator), literal, schema)
        case {"Function": {"input": inputs, "function": {"Boolean": function}}}:
            return _boolean(function, inputs, schema)
        case {"Function": {"input": [{"Column": str(name)}, literal], "function": {"StringExpr": function}}}:
            return _text_match(name, function, _value(literal, _type(name, schema)))
    raise _NotTheSameError


def _boolean(function: Any, inputs: list[Any], schema: pa.Schema) -> Predicate:  # noqa: ANN401  # JSON
    match function, inputs:
        case "Not", [operand]:
            return ~_predicate(operand, schema)
        case "IsNull", [{"Column": str(name)}] if not pat.is_nested(_type(name, schema)):
            return col(name).is_null()
        case "IsNotNull", [{"Column": str(name)}] if not pat.is_nested(_type(name, schema)):
            return col(name).is_not_null()
        case {"IsBetween": {"closed": str(closed)}}, [{"Column": str(name)}, low, high] if closed in _BOUNDS:
            above, below = _BOUNDS[closed]
            return all_of([_comparison(name, above, low, schema), _comparison(name, below, high, schema)])
        case {"IsIn": {"nulls_equal": False}}, [{"Column": str(name)}, {"Literal": {"Scalar": {"List": data}}}]:
            return col(name).is_in(_values(data, _type(name, schema)))
    raise _NotTheSameError


def _text_match(name: str, function: Any, text: pa.Scalar) -> Predicate:  # noqa: ANN401  # JSON
    match function:
        # Not "EndsWith", which a server of 0.1.0 refuses.
        case "StartsWith":
            return col(name).starts_with(text.as_py())
        case {"Contains": {"literal": True}}:
            return col(name).contains(text.as_py())
    raise _NotTheSameError


def _comparison(name: str, operator: str, literal: Any, schema: pa.Schema) -> Predicate:  # noqa: ANN401  # JSON
    if operator not in _COMPARISONS:
        raise _NotTheSameError
    return _COMPARISONS[operator](col(name), _value(literal, _type(name, schema)))


def _type(name: str, schema: pa.Schema) -> pa.DataType:
    if name not in schema.names:
        raise _NotTheSameError
    return schema.field(name).type


def _value(literal: Any, type_: pa.DataType) -> pa.Scalar:  # noqa: ANN401  # JSON
    """Returns the value of a literal of exactly this type. Refuses null, and NaN, which JSON does not have."""
    match literal:
        case {"Literal": {"Scalar": {"Datetime": [int(value), str(unit), zone]}}}:
            name = zone.get("inner") if isinstance(zone, dict) else None
            if pat.is_timestamp(type_) and (_UNITS.get(unit), name) == (type_.unit, type_.tz):
                return pa.scalar(value, type_)
        case {"Literal": {"Scalar": dict(scalar)}} if len(scalar) == 1:
            ((kind, value),) = scalar.items()
            if _TYPES.get(kind) == type_ and value is not None:
                return pa.scalar(value, type_)
    raise _NotTheSameError


def _values(data: list[int], type_: pa.DataType) -> pa.Array:
    """Returns the values of a list of exactly this type, without null or NaN, from Polars' Arrow IPC stream."""
    try:
        (values,) = pa.ipc.open_stream(bytes(data)).read_all().columns
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _NotTheSameError from error
    values = values.combine_chunks()
    if pat.is_large_string(values.type) or pat.is_string_view(values.type):
        values = values.cast(pa.string())
    if values.type != type_ or values.null_count or pat.is_floating(type_) or pat.is_nested(type_):
        raise _NotTheSameError
    return values
