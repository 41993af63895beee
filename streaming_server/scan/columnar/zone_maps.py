"""Whether any row of a batch can be one that a predicate keeps, by what the values of its columns lie between."""

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
"""What is true of a number exactly where a comparison is not."""


def may_match(predicate: Predicate, zone_of: Callable[[str], Zone | None]) -> bool:
    """Whether a bound predicate may be true of a row. False is a proof that it is true of none.

    Looks at `=`, `<`, `<=`, `>`, `>=` with a value and their negations, lists, `is_null` and `is_not_null`, of whole
    columns, joined by AND and OR. Anything else may be true. A comparison is never true of a null or NaN, so zones
    leave these out; its negation is true of NaN, which is why the Spark bridge sends it.

    Args:
        predicate: The predicate, bound to the table's schema.
        zone_of: The zone of a column, None where it is not known.
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
    except pa.ArrowException:  # a type that Arrow does not compare, such as float16
        return True
    return bool(pc.any(pc.and_(above, below), min_count=0).as_py())


def _plain(scalar: pa.Scalar) -> Any:  # noqa: ANN401  # whatever the column's type is in Python
    """A value that Python compares as Arrow does: text by code points is text by bytes."""
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()
