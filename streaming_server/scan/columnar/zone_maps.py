"""Zone maps: whether a batch can contain a row that a predicate is true of, given the bounds of its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.expressions.literals import Literal
from scankv.model.expressions.nodes import (
    And,
    Comparison,
    Constant,
    FieldPath,
    IsIn,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.storage.columnar.columnar_base import Zone


_OPPOSITE: Final = {
    Operator.EQUAL: Operator.NOT_EQUAL,
    Operator.NOT_EQUAL: Operator.EQUAL,
    Operator.LESS: Operator.GREATER_EQUAL,
    Operator.LESS_EQUAL: Operator.GREATER,
    Operator.GREATER: Operator.LESS_EQUAL,
    Operator.GREATER_EQUAL: Operator.LESS,
}
"""For numbers, each comparison and its negation."""


def may_match(predicate: Predicate, zone_of: Callable[[str], Zone | None]) -> bool:
    """Whether a bound predicate may be true of a row. False proves that it is true of no row.

    Evaluates `=`, `<`, `<=`, `>`, `>=` with a literal and their negations, lists, `is_null` and `is_not_null`, of
    top-level columns, combined by AND and OR. Assumes that any other predicate may be true. A comparison is never true
    of a null or NaN, so the bounds of a zone exclude these. Its negation is true of NaN; the Spark bridge sends
    negations for this reason.

    Args:
        predicate: The predicate, bound to the table's schema.
        zone_of: Returns the zone of a column, None if it is unknown.
    """
    match predicate:
        case And(parts=parts):
            return all(may_match(part, zone_of) for part in parts)
        case Or(parts=parts):
            return any(may_match(part, zone_of) for part in parts)
        case Constant(value=value):
            return value is True
        case Comparison(left=FieldPath(names=(name,)), operator=operator, right=Literal() as right):
            zone = zone_of(name)
            return zone is None or _compares(zone, operator, right.scalar)
        case Not(operand=Comparison(left=FieldPath(names=(name,)), operator=operator, right=Literal() as right)):
            zone = zone_of(name)
            return zone is None or zone.has_nan or right.is_nan or _compares(zone, _OPPOSITE[operator], right.scalar)
        case IsIn(path=FieldPath(names=(name,)), values=values):
            zone = zone_of(name)
            return zone is None or _has_one(zone, values.candidates)
        case IsNull(path=FieldPath(names=(name,))):
            zone = zone_of(name)
            return zone is None or zone.nulls > 0
        case Not(operand=IsNull(path=FieldPath(names=(name,)))):
            zone = zone_of(name)
            return zone is None or zone.least is not None or zone.has_nan
        case _:
            return True


def _compares(zone: Zone, operator: Operator, scalar: pa.Scalar) -> bool:
    if operator is Operator.NOT_EQUAL:
        return True
    if zone.least is None or not scalar.is_valid:
        return False
    least, greatest, value = _plain(zone.least), _plain(zone.greatest), _plain(scalar)
    match operator:
        case Operator.LESS:
            return bool(least < value)
        case Operator.LESS_EQUAL:
            return bool(least <= value)
        case Operator.GREATER:
            return bool(greatest > value)
        case Operator.GREATER_EQUAL:
            return bool(greatest >= value)
        case _:
            return bool(least <= value <= greatest)


def _has_one(zone: Zone, candidates: pa.Array) -> bool:
    if zone.least is None or not len(candidates):
        return False
    try:
        above = pc.greater_equal(candidates, zone.least)
        below = pc.less_equal(candidates, zone.greatest)
    except pa.ArrowException:  # Arrow cannot compare some types, such as float16
        return True
    return bool(pc.any(pc.and_(above, below), min_count=0).as_py())


def _plain(scalar: pa.Scalar) -> Any:  # noqa: ANN401  # whatever the column's type is in Python
    """Returns a value that Python compares in Arrow's order. Python orders text by code points, as Arrow by bytes."""
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()
