"""Checks of arguments, before anything is sent.

An argument of the wrong type is a UsageError that names the argument and the value, never a bare TypeError from deep
inside the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from scankv.model.errors import UsageError
from scankv.model.names import is_column_name


def is_text(value: object) -> TypeGuard[str]:
    """Returns whether the value is text that UTF-8 can encode, so that it can be sent."""
    return is_column_name(value)


def text_of(value: object, option: str) -> str:
    """Returns the argument as text. Raises UsageError for other values, and for text that UTF-8 cannot encode."""
    if not is_text(value):
        raise UsageError(f"{option} must be text, not {value!r:.80}", option=option)
    return value


def principal_of(value: object) -> str:
    """Returns a principal as a request names it. None: as empty text, for the caller's own. Raises UsageError."""
    if value == "":
        raise UsageError("principal must not be empty: leave it out for the principal of the token", option="principal")
    return "" if value is None else text_of(value, "principal")


def flag_of(value: object, option: str) -> bool:
    """Returns the argument as a bool. Raises UsageError for other values."""
    if not isinstance(value, bool):
        raise UsageError(f"{option} must be True or False, not {value!r:.80}", option=option)
    return value


def timeout_of(value: object, option: str = "timeout") -> float:
    """Returns the argument as seconds. Raises UsageError for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"{option} must be a number of seconds of at least 0, not {value!r:.80}", option=option)
    return value


def items_of(values: object, option: str, what: str) -> tuple[Any, ...]:
    """Returns the items of an argument. Raises UsageError, which names `what` is expected, if it is no collection."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{option} must be {what}, not {values!r:.80}", option=option)
    return tuple(values)


def names_of(names: object, option: str) -> tuple[str, ...]:
    """Returns the argument as column names; text is one name. Raises UsageError for other values."""
    items = (names,) if isinstance(names, str) else items_of(names, option, "names of columns")
    if not all(map(is_text, items)):
        raise UsageError(f"{option} must be names of columns as valid text, not {names!r:.80}", option=option)
    return items
