"""Errors as they are read in Spark's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import ScanKvError

if TYPE_CHECKING:
    from types import TracebackType


class short_errors:
    """Raises our errors without the calls that led to them: Spark puts all of those into its message, before ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Not a generator with `contextmanager`, which would be two calls more.
        if isinstance(error, ScanKvError):
            raise error.with_traceback(None) from None
