"""What do the functions of aggregate tables make of a value and the next one?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


def _without_nulls(fold: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda before, value: before if value is None else value if before is None else fold(before, value)


FOLDS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": _without_nulls(lambda before, value: before + value),
    "max": _without_nulls(max),
    "min": _without_nulls(min),
    "count": lambda before, value: (before or 0) + (value is not None),
    "last_value": lambda _, value: value,
    "last_non_null_value": _without_nulls(lambda _, value: value),
    "first_non_null_value": _without_nulls(lambda before, _: before),
    "listagg": _without_nulls(lambda before, value: f"{before},{value}"),
}
"""What the functions of aggregate tables make of a value and the next one."""
