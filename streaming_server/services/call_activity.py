"""Which calls of clients count as writes and as reads of a table, and how do they end?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from scankv.model.names import table_of
from scankv.v1 import lookup_pb2
from streaming_server.current_call import CURRENT_CALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.activity import Activity


_WRITES: Final = frozenset({"WriteService/Upsert", "WriteService/Delete", "WriteService/Undo"})

_READS: Final = frozenset(
    {
        "LookupService/Lookup",
        "LookupService/Count",
        "LookupService/Aggregate",
        "LookupService/TopN",
        "TransactionService/GetForUpdate",
        "TransactionService/LookupStaged",
    }
)


class CallActivity:
    """Counts the answered calls of one method, each when its answer is there. Bound to the event loop.

    Args:
        method: The method, as `SERVICE/METHOD`.
        activity: The counters.
    """

    def __init__(self, method: str, activity: Activity) -> None:
        self._count = activity.count_write if method in _WRITES else activity.count_read
        self.is_counted = method in _WRITES or method in _READS

    def begin(self, request: Any) -> Callable[[], None]:  # noqa: ANN401  # a message
        """Begins to count a call. The returned function is to be called once its answer is there."""
        began, table, call = time.perf_counter(), table_of(request.table), CURRENT_CALL.get()
        waited_before = 0.0 if call is None else call.waited_seconds
        # Handlers remove the wait from the request. A worker does not know how long another one has waited.
        has_latency = not (isinstance(request, lookup_pb2.TopNRequest) and request.wait_millis)

        def end() -> None:
            waited = 0.0 if call is None else call.waited_seconds - waited_before
            self._count(table, max(0.0, time.perf_counter() - began - waited) if has_latency else None)

        return end
