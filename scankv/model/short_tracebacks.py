"""Short tracebacks: an error shows where the caller's program was, and not the way of the call through this package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ProtocolViolation, ScanKvError

if TYPE_CHECKING:
    from types import TracebackType

VARIABLE: Final = "SCANKV_TRACEBACKS"


class _ShortTraceback:
    """A context manager that removes the frames below its own from the traceback of a ScanKvError.

    Such an error describes what the caller did and what to do. The frames of a retry loop in an event loop in a thread
    only hide the line of the caller. Other exceptions, and violations of the protocol, are bugs and keep all frames.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_short = isinstance(error, ScanKvError) and not isinstance(error, ProtocolViolation)
        if traceback is not None and is_short and os.environ.get(VARIABLE) != "full":
            traceback.tb_next = None


SHORT_TRACEBACK: Final = _ShortTraceback()
"""Use it as `with SHORT_TRACEBACK:`. Has no state, so any number of threads and tasks may use it at once.

With `SCANKV_TRACEBACKS=full` in the environment, tracebacks keep all frames.
"""
