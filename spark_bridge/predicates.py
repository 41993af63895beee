"""Gives predicates of option `where` the meaning that they have in Spark's `filter`.

The server compares floats by IEEE 754: with NaN, only `<>` is true. In Spark, NaN equals itself and is greater than
every number. So comparisons of float columns are rewritten such that the server selects the rows that Spark would
select. All other predicates mean the same to both: a comparison with null is unknown, and -0.0 equals 0.0.

Rule: *every predicate that Spark users give as text goes through this module*. Otherwise moving a predicate from
`filter` to option `where` could change the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.expressions.literals import Literal
from scankv.model.expressions.nodes import And, Comparison, FieldPath, Not, Operator, Or, all_of, any_of

if TYPE_CHECKING:
    from aio_client import Predicate, sync


def spark_predicate(table: sync.Table, where: str | None) -> Predicate | None:
    """Parses a predicate and gives it Spark's meaning. Returns None for None.

    Raises:
        SchemaMismatch: The predicate names a column that does not exist, or compares it with a value of another type.
        UsageError: The text is not a valid predicate.
    """
    read = table.scan(where=where).spec.where
    return None if read is None else to_spark_semantics(read, table.schema)


def to_spark_semantics(predicate: Predicate, schema: pa.Schema) -> Predicate:
    """Returns a predicate for which the server selects the rows that Spark selects for `predicate`.

    Args:
        predicate: A parsed predicate on columns of the schema.
        schema: The table's columns.
    """
    match predicate:
        case And(parts=parts):
            return all_of([to_spark_semantics(part, schema) for part in parts])
        case Or(parts=parts):
            return any_of([to_spark_semantics(part, schema) for part in parts])
        case Not(operand=operand):
            return Not(to_spark_semantics(operand, schema))
        case Comparison(left=left, right=Literal()) if _is_float(left, schema):
            return _compare_with_value(predicate)
        case Comparison(left=left, operator=operator, right=FieldPath() as right) if _is_float(
            left, schema
        ) or _is_float(right, schema):
            return _compare_columns(left, operator, right)
        case _:
            return predicate


def _compare_with_value(comparison: Comparison) -> Predicate:
    """Rewrites the comparison of a float column with a number. The number is not NaN, which no text can express."""
    opposite = {Operator.GREATER: Operator.LESS_EQUAL, Operator.GREATER_EQUAL: Operator.LESS}
    if comparison.operator not in opposite:
        return comparison
    # `x > 1` becomes `NOT x <= 1`: for NaN the server evaluates `x <= 1` to false, so the negation is true. For null,
    # both are unknown. The negation bounds keys, index entries and zone maps as well as the comparison does.
    return Not(Comparison(comparison.left, opposite[comparison.operator], comparison.right))


def _compare_columns(left: FieldPath, operator: Operator, right: FieldPath) -> Predicate:
    match operator:
        case Operator.EQUAL:
            return any_of([Comparison(left, operator, right), all_of([_is_nan(left), _is_nan(right)])])
        case Operator.NOT_EQUAL:
            return Not(_compare_columns(left, Operator.EQUAL, right))
        case Operator.GREATER_EQUAL:
            return any_of([Comparison(left, operator, right), all_of([_is_nan(left), _has_value(right)])])
        case Operator.LESS_EQUAL:
            return _compare_columns(right, Operator.GREATER_EQUAL, left)
        case Operator.GREATER:
            return Not(_compare_columns(right, Operator.GREATER_EQUAL, left))
        case Operator.LESS:
            return Not(_compare_columns(left, Operator.GREATER_EQUAL, right))


def _is_nan(path: FieldPath) -> Predicate:
    """Returns a predicate that is true for NaN, false for numbers, and unknown for null."""
    return Comparison(path, Operator.NOT_EQUAL, path)


def _has_value(path: FieldPath) -> Predicate:
    """Returns a predicate that is true for every value including NaN, and unknown for null."""
    return any_of([Comparison(path, Operator.EQUAL, path), _is_nan(path)])


def _is_float(path: FieldPath, schema: pa.Schema) -> bool:
    type_: pa.DataType = pa.struct(list(schema))
    for name in path.names:
        if not pa.types.is_struct(type_) or (position := type_.get_field_index(name)) < 0:
            return False
        type_ = type_.field(position).type
    return bool(pa.types.is_floating(type_))
