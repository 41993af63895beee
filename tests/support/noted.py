"""Notes in errors: where it happened."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Adds a note to every error of the block that says where it happened."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise
