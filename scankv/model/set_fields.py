"""The text of dataclasses with many optional fields."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance


def show_set_fields(value: DataclassInstance, **show: Callable[[Any], object]) -> str:
    """Returns the text of a dataclass without the fields that have their default.

    Args:
        value: The dataclass.
        show: For fields that may contain secrets, what to show of their values.
    """
    shown = [f"{name}={found!r}" for name, found in set_fields(value, **show).items()]
    return f"{type(value).__name__}({', '.join(shown)})"


def set_fields(value: DataclassInstance, **show: Callable[[Any], object]) -> dict[str, object]:
    """Returns the fields of a dataclass that do not have their default, as `show_set_fields` shows them."""
    return {
        each.name: show.get(each.name, _all)(found)
        for each in fields(value)
        if each.repr and (found := getattr(value, each.name)) != each.default
    }


def _all(value: object) -> object:
    return value
