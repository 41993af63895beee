"""Imports optional packages on use, with an error that says what to install."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType


def import_optional(package: str) -> ModuleType:
    """Imports a package.

    Raises:
        UsageError: The package is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(f"this needs {package}, which is not installed: pip install {package}") from error
