"""The one name under which users see what they import: `scankv`, whichever package holds the code."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def set_public_module(module: str, namespace: Mapping[str, object], names: Iterable[str]) -> None:
    """Makes public classes and functions say that they come from `module`, in tracebacks, `help()` and pickles.

    Args:
        module: The public module, which must offer every name.
        namespace: Holds the objects by name.
        names: The public names. Values, such as modules and type aliases, stay as they are.
    """
    for name in names:
        member = namespace[name]
        if isinstance(member, type | FunctionType):
            member.__module__ = module
