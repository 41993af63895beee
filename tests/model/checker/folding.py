"""What do the functions of aggregate tables make of a value and the next one?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.model.checker.model_rows import order_of

if TYPE_CHECKING:
    from collections.abc import Callable


def _without_nulls(fold: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda before, value: before if value is None else value if before is None else fold(before, value)


def _extreme(best: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def fold(before: Any, value: Any) -> Any:
        values = [each for each in (before, value) if each is not None]
        found = best(values, key=order_of, default=None)
        # It is never -0.0.
        return found + 0.0 if isinstance(found, float) else found

    return fold


FOLDS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": _without_nulls(lambda before, value: before + value),
    "max": _extreme(max),
    "min": _extreme(min),
    "count": lambda before, value: (before or 0) + (value is not None),
    "last_value": lambda _, value: value,
    "last_non_null_value": _without_nulls(lambda _, value: value),
    "first_non_null_value": _without_nulls(lambda before, _: before),
    "listagg": _without_nulls(lambda before, value: f"{before},{value}"),
}
"""What the functions of aggregate tables make of a value and the next one."""
