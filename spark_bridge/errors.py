"""Errors as they are read in Spark's messages."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING

from table_model.errors import ScanKvError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def short_errors() -> Iterator[None]:
    """Raises our errors without the calls that led to them: Spark puts all of those into its message, before ours."""
    try:
        yield
    except ScanKvError as error:
        # A copy: the context manager would put the traceback back on the error itself.
        raise copy(error) from None
