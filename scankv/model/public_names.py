"""Makes public names appear under the single module name `scankv`, whichever package contains their code."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def set_public_module(module: str, namespace: Mapping[str, object], names: Iterable[str]) -> None:
    """Sets `__module__` of public classes and functions, which tracebacks, `help()` and pickles use.

    Args:
        module: The public module, from which every name can be imported.
        namespace: The objects by name.
        names: The public names. Names of other objects, such as modules and type aliases, are ignored.
    """
    for name in names:
        member = namespace[name]
        if isinstance(member, type | FunctionType):
            member.__module__ = module
