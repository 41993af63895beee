"""Short tracebacks: an error shows where the caller's program was, and not the way of the call through this package."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ProtocolViolation, ScanKvError

if TYPE_CHECKING:
    from types import TracebackType

VARIABLE: Final = "SCANKV_TRACEBACKS"
_NOT_OF_CALLERS: Final = sys.stdlib_module_names | {
    *("aio_client", "scankv", "spark_bridge", "pyspark_scankv", "streaming_server", "http_gateway"),
    *("anyio", "grpc", "pyarrow"),
}


class _ShortTraceback:
    """A context manager that removes the frames below its own from the traceback of a ScanKvError.

    Frames of the caller among them, such as those of a generator with rows to write, are kept, with the way to them.

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
            _last_to_show(traceback).tb_next = None


def _last_to_show(traceback: TracebackType) -> TracebackType:
    """Returns the last frame of a caller below the first frame, or else the first frame."""
    last, each = traceback, traceback.tb_next
    while each is not None:
        module = str(each.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _NOT_OF_CALLERS:
            last = each
        each = each.tb_next
    return last


SHORT_TRACEBACK: Final = _ShortTraceback()
"""Use it as `with SHORT_TRACEBACK:`. Has no state, so any number of threads and tasks may use it at once.

With `SCANKV_TRACEBACKS=full` in the environment, tracebacks keep all frames.
"""
