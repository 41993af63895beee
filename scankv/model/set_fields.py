"""The text of dataclasses with many optional fields."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def show_set_fields(value: DataclassInstance) -> str:
    """Returns the text of a dataclass without the fields that have their default."""
    shown = [
        f"{each.name}={found!r}"
        for each in fields(value)
        if each.repr and (found := getattr(value, each.name)) != each.default
    ]
    return f"{type(value).__name__}({', '.join(shown)})"
