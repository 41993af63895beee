"""Predicates of option `where` as Spark's `filter` has them, so that moving one to the other changes no row.

The server compares floats as IEEE 754 says: no comparison with NaN but `<>` is true. Spark takes NaN for equal to
itself and greater than every number. So comparisons of float columns are written in another way, which says to the
server what the text says to Spark; everything else means the same to both. A comparison with null is unknown to both,
and -0.0 equals 0.0 to both.

Rule: *every predicate that Spark users give as text goes through here*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.expressions.literals import Literal
from scankv.model.expressions.nodes import And, Comparison, FieldPath, Not, Operator, Or, all_of, any_of

if TYPE_CHECKING:
    from aio_client import Predicate, sync


def spark_predicate(table: sync.Table, where: str | None) -> Predicate | None:
    """The predicate that a text is to Spark; None for None.

    Raises:
        SchemaMismatch: It names a column that the table does not have, or compares it with what it cannot be.
        UsageError: It cannot be read.
    """
    read = table.scan(where=where).spec.where
    return None if read is None else to_spark_semantics(read, table.schema)


def to_spark_semantics(predicate: Predicate, schema: pa.Schema) -> Predicate:
    """The predicate that says to the server what this one says to Spark.

    Args:
        predicate: As a text reads, of columns of the schema.
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
            return _with_value(predicate)
        case Comparison(left=left, operator=operator, right=FieldPath() as right) if _is_float(
            left, schema
        ) or _is_float(right, schema):
            return _of_columns(left, operator, right)
        case _:
            return predicate


def _with_value(comparison: Comparison) -> Predicate:
    """A float column compared with a number: NaN, which no text can name, is on the greater side."""
    opposite = {Operator.GREATER: Operator.LESS_EQUAL, Operator.GREATER_EQUAL: Operator.LESS}
    if comparison.operator not in opposite:
        return comparison
    # Not true for NaN, nor unknown, so its opposite is true; for null it stays unknown. The negation of a comparison
    # bounds keys, entries of an index and zones as the comparison does.
    return Not(Comparison(comparison.left, opposite[comparison.operator], comparison.right))


def _of_columns(left: FieldPath, operator: Operator, right: FieldPath) -> Predicate:
    match operator:
        case Operator.EQUAL:
            return any_of([Comparison(left, operator, right), all_of([_is_nan(left), _is_nan(right)])])
        case Operator.NOT_EQUAL:
            return Not(_of_columns(left, Operator.EQUAL, right))
        case Operator.GREATER_EQUAL:
            return any_of([Comparison(left, operator, right), all_of([_is_nan(left), _has_value(right)])])
        case Operator.LESS_EQUAL:
            return _of_columns(right, Operator.GREATER_EQUAL, left)
        case Operator.GREATER:
            return Not(_of_columns(right, Operator.GREATER_EQUAL, left))
        case Operator.LESS:
            return Not(_of_columns(left, Operator.GREATER_EQUAL, right))


def _is_nan(path: FieldPath) -> Predicate:
    """True for NaN, false for numbers, unknown for null."""
    return Comparison(path, Operator.NOT_EQUAL, path)


def _has_value(path: FieldPath) -> Predicate:
    """True for every value, NaN among them, unknown for null."""
    return any_of([Comparison(path, Operator.EQUAL, path), _is_nan(path)])


def _is_float(path: FieldPath, schema: pa.Schema) -> bool:
    type_: pa.DataType = pa.struct(list(schema))
    for name in path.names:
        if not pa.types.is_struct(type_) or (position := type_.get_field_index(name)) < 0:
            return False
        type_ = type_.field(position).type
    return bool(pa.types.is_floating(type_))
