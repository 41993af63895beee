"""Evaluates predicates for the rows of a batch, vectorized with Arrow kernels."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, TypeGuard

import pyarrow as pa

from scankv.model import lazy_compute as pc
from scankv.model.expressions.like_patterns import late_underscores
from scankv.model.expressions.nodes import (
    And,
    Comparison,
    Constant,
    FieldPath,
    IsIn,
    IsNull,
    Match,
    Not,
    Operator,
    Or,
    Predicate,
    TextMatch,
)

if TYPE_CHECKING:
    from scankv.model.expressions.binding import BoundPredicate
    from scankv.model.expressions.literals import Literal

    Fields = dict[FieldPath, pa.Array]

# The names of Arrow's functions.
_COMPARE: Final[dict[Operator, str]] = {
    Operator.EQUAL: "equal",
    Operator.NOT_EQUAL: "not_equal",
    Operator.LESS: "less",
    Operator.LESS_EQUAL: "less_equal",
    Operator.GREATER: "greater",
    Operator.GREATER_EQUAL: "greater_equal",
}
_MATCH: Final[dict[Match, str]] = {
    Match.STARTS_WITH: "starts_with",
    Match.CONTAINS: "match_substring",
    Match.ENDS_WITH: "ends_with",
    Match.LIKE: "match_like",
}

_NANOSECONDS: Final[dict[type[Predicate], int]] = {TextMatch: 60, IsIn: 20}
_PATTERN_NANOSECONDS: Final = 300


def evaluate(bound: BoundPredicate, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Evaluates a predicate for every row of a batch.

    Needs memory of a few bits per row and node, and copies only float16 columns.

    Args:
        bound: A predicate bound to the schema of the batch, or to a schema with more columns.
        batch: n rows with at least `bound.columns`.

    Returns:
        n values; null if the predicate is unknown. `batch.filter` keeps the rows whose value is true.
    """
    paths = {path for node in bound.predicate.walk() for path in node.paths}
    return _evaluate(bound.predicate, {path: _field(path, batch) for path in paths}, batch.num_rows)


def nanoseconds_a_row(bound: BoundPredicate) -> int:
    """Estimates the time of `evaluate` per row, for a thousand rows with short texts. Fewer rows take longer."""
    return sum(
        _PATTERN_NANOSECONDS if _is_pattern(node) else _NANOSECONDS.get(type(node), 5)
        for node in bound.predicate.walk()
    )


def nanoseconds_a_byte(bound: BoundPredicate) -> int:
    """Estimates the additional time of `evaluate` per byte of text. 0: rows with long texts take no longer."""
    return sum(_nanoseconds_a_byte(node.text) for node in bound.predicate.walk() if _is_pattern(node))


def _nanoseconds_a_byte(pattern: Literal) -> int:
    text: str = pattern.scalar.as_py()
    return 4 + 4 * late_underscores(text) + len(text) // 40


def _is_pattern(node: Predicate) -> TypeGuard[TextMatch]:
    return isinstance(node, TextMatch) and node.match is Match.LIKE


def _field(path: FieldPath, batch: pa.RecordBatch) -> pa.Array:
    array = batch.column(path.names[0])
    for name in path.names[1:]:
        names = [field.name for field in array.type.fields]
        array = pc.struct_field(array, [names.index(name)])  # null where the struct is null
    return _comparable(array)


def _comparable(array: pa.Array) -> pa.Array:
    """Returns the array in a type that Arrow can compare: float16 and decimals with a negative scale are converted."""
    type_ = array.type
    if pa.types.is_float16(type_):
        return array.cast(pa.float64())
    if pa.types.is_decimal(type_) and type_.scale < 0:  # in units of that scale
        return array.view(pa.decimal128(type_.precision, 0))
    return array


def _value(literal: Literal) -> pa.Scalar:
    type_ = literal.scalar.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):  # may be long, and an array would be a copy
        return literal.scalar
    return _comparable(literal.as_array())[0]


def _evaluate(predicate: Predicate, fields: Fields, rows: int) -> pa.BooleanArray:
    match predicate:
        case Comparison(left=left, operator=operator, right=right):
            compare = getattr(pc, _COMPARE[operator])
            return compare(fields[left], fields[right] if isinstance(right, FieldPath) else _value(right))
        case IsIn(path=path):
            return _is_in(fields[path], predicate)
        case IsNull(path=path):
            return fields[path].is_null()
        case TextMatch(path=path, match=where, text=text):
            return getattr(pc, _MATCH[where])(fields[path], text.scalar.as_py())
        case And(parts=parts):
            return reduce(pc.and_kleene, (_evaluate(part, fields, rows) for part in parts))
        case Or(parts=parts):
            return reduce(pc.or_kleene, (_evaluate(part, fields, rows) for part in parts))
        case Not(operand=operand):
            return pc.invert(_evaluate(operand, fields, rows))
        case Constant(value=None):
            return pa.nulls(rows, pa.bool_())
        case Constant(value=value):
            return pa.repeat(pa.scalar(value, pa.bool_()), rows)
        case _:
            raise TypeError(f"{type(predicate).__name__} cannot be evaluated")


def _is_in(array: pa.Array, predicate: IsIn) -> pa.BooleanArray:
    values = predicate.values
    candidates = _comparable(values.candidates)
    if candidates.type != array.type:  # values that float32 cannot represent
        array = array.cast(candidates.type)
    found = pc.is_in(array, value_set=candidates)
    if values.has_null:
        return pc.if_else(found, found, pa.scalar(None, pa.bool_()))
    if array.null_count and len(values):
        return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.bool_()))
    return found
