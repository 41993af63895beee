"""Imports optional packages on use, with an error that says what to install."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa


def import_optional(package: str) -> ModuleType:
    """Imports a package.

    Raises:
        UsageError: The package is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(f"this needs {package}, which is not installed: pip install {package}") from error


def to_pylist(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the rows as dictionaries of Python values.

    Raises:
        UsageError: A time has nanoseconds, which no Python type holds, and pandas is not installed.
    """
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except ValueError as error:
        raise UsageError(
            f"a value has no Python type of its own: {error} (pip install pandas); or read the rows as Arrow"
        ) from error
    return rows
