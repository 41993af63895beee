"""Arguments of the API, checked before anything is sent.

Rule: an argument of the wrong type is a UsageError that names the argument and the value, never a bare TypeError from
somewhere below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from scankv.model.errors import UsageError
from scankv.model.names import is_column_name


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is text, and such as UTF-8 has, so that it can be sent."""
    return is_column_name(value)


def text_of(value: object, option: str) -> str:
    """The text that an argument is. Raises UsageError for anything else, also for text that UTF-8 does not have."""
    if not is_text(value):
        raise UsageError(f"{option} is text, not {value!r:.80}", option=option)
    return value


def flag_of(value: object, option: str) -> bool:
    """The truth value that an argument is. Raises UsageError for anything else."""
    if not isinstance(value, bool):
        raise UsageError(f"{option} is True or False, not {value!r:.80}", option=option)
    return value


def timeout_of(value: object, option: str = "timeout") -> float:
    """The seconds that an argument is. Raises UsageError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"{option} is a number of seconds, at least 0, not {value!r:.80}", option=option)
    return value


def items_of(values: object, option: str, what: str) -> tuple[Any, ...]:
    """The items of an argument that has several. Raises UsageError for what has none, saying `what` they are."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{option} has {what}, not {values!r:.80}", option=option)
    return tuple(values)


def names_of(names: object, option: str) -> tuple[str, ...]:
    """Column names; a single one may be given as text. Raises UsageError."""
    found = (names,) if isinstance(names, str) else items_of(names, option, "names of columns")
    if not all(map(is_text, found)):
        raise UsageError(f"{option} has names of columns, which are text, not {names!r:.80}", option=option)
    return found
