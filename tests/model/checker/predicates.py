"""How are predicates drawn, sent and evaluated? A predicate is JSON: alternatives, each a list of comparisons."""

from __future__ import annotations

import math
import operator
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aio_client import col
from tests.model.checker.drawing import KEYS, KINDS, value_of
from tests.model.checker.model import KEY, CheckerColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from aio_client import Predicate
    from tests.model.checker.model import Shown

Where: TypeAlias = dict[str, Any]
"""`any`: the alternatives, each a list of `[operator, column, value]`. `not`: whether it is negated."""

_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def draw_where(columns: Iterable[CheckerColumn], random: Random) -> Where | None:
    """Returns a predicate, or none."""
    if random.random() < 0.25:
        return None
    usable = list(columns)
    sizes = [random.choice([1, 1, 2]) for _ in range(random.choice([1, 2]))]
    alternatives = [[_draw_comparison(usable, random) for _ in range(size)] for size in sizes]
    return {"any": alternatives, "not": random.random() < 0.15}


def _draw_comparison(columns: list[CheckerColumn], random: Random) -> list[Any]:
    if not columns or random.random() < 0.2:
        return [random.choice(sorted(_COMPARISONS)), KEY, random.randrange(KEYS)]
    column = random.choice(columns)
    values = [value for value in (value_of(column.kind, random) for _ in range(4)) if value is not None]
    kind = random.choice([*_COMPARISONS, "in", "is null"])
    if kind == "is null" or not values:
        return ["is null", column.name, None]
    return [kind, column.name, values if kind == "in" else values[0]]


def fits_columns(where: Where | None, columns: Iterable[CheckerColumn]) -> bool:
    """Returns whether the columns of a predicate exist, and can have its values."""
    types = {KEY: int, **{column.name: KINDS[column.kind] for column in columns}}
    comparisons = [] if where is None else [each for all_ in where["any"] for each in all_]
    return all(
        name in types and {type(each) for each in _values_of(value)} <= {types[name]} for _, name, value in comparisons
    )


def names_of(where: Where | None) -> list[str]:
    """Returns the columns of a predicate."""
    return [] if where is None else [name for comparisons in where["any"] for _, name, _ in comparisons]


def has_columns(columns: Iterable[CheckerColumn], names: list[str] | None) -> bool:
    """Returns whether names, with that of the key, are those of columns. None: all are."""
    return names is None or {KEY} <= {*names} <= {KEY, *(column.name for column in columns)}


def _values_of(value: Any) -> list[Any]:  # of a comparison
    return value if isinstance(value, list) else [] if value is None else [value]


def matches(where: Where | None, row: Shown) -> bool:
    """Returns whether a predicate is true of a row. In SQL, a comparison with null is unknown."""
    if where is None:
        return True
    found = _any(_all(_compare(row, *each) for each in comparisons) for comparisons in where["any"])
    return found is (not where["not"])


def _compare(row: Shown, kind: str, name: str, value: Any) -> bool | None:  # a value of the column
    found = row[name]
    if kind == "is null":
        return found is None
    if found is None:
        return None
    # Unlike `in`, NaN is not among values with NaN.
    return any(found == each for each in value) if kind == "in" else bool(_COMPARISONS[kind](found, value))


def _all(truths: Iterable[bool | None]) -> bool | None:
    seen = set(truths)
    return False if False in seen else None if None in seen else True


def _any(truths: Iterable[bool | None]) -> bool | None:
    seen = set(truths)
    return True if True in seen else None if None in seen else False


def to_sql(where: Where | None) -> str | None:
    """Returns a predicate as text. None: it has a value that is not written as in Python."""
    comparisons = [] if where is None else [each for all_ in where["any"] for each in all_]
    if where is None or not all(_has_text(each) for *_, value in comparisons for each in _values_of(value)):
        return None
    text = " or ".join(f"({' and '.join(_sql_of(*each) for each in comparisons)})" for comparisons in where["any"])
    return f"not ({text})" if where["not"] else text


def _has_text(value: Any) -> bool:  # of any column
    return not isinstance(value, datetime) and (not isinstance(value, float) or math.isfinite(value))


def _sql_of(kind: str, name: str, value: Any) -> str:  # a value of the column
    if kind == "is null":
        return f"{name} is null"
    return f"{name} in ({', '.join(map(repr, value))})" if kind == "in" else f"{name} {kind} {value!r}"


def to_expression(where: Where | None) -> Predicate | None:
    """Returns a predicate as an expression, which names columns that only a snapshot may have."""
    if where is None:
        return None
    alternatives = [reduce(operator.and_, [_expression_of(*each) for each in all_]) for all_ in where["any"]]
    found = reduce(operator.or_, alternatives)
    return ~found if where["not"] else found


def _expression_of(kind: str, name: str, value: Any) -> Predicate:  # a value of the column
    if kind == "is null":
        return col(name).is_null()
    found: Predicate = col(name).is_in(value) if kind == "in" else _COMPARISONS[kind](col(name), value)
    return found
