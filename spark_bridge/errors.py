"""Keeps tracebacks out of the error messages that Spark shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import ScanKvError

if TYPE_CHECKING:
    from types import TracebackType


class short_errors:
    """Re-raises our errors without a traceback: Spark would print the traceback in its message, before our message."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A class, since a `contextmanager` function would add two calls to the traceback.
        if isinstance(error, ScanKvError):
            raise error.with_traceback(None) from None
