"""Which calls of clients count as writes and as reads of a table, and how do they end?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from scankv.model.names import table_of
from scankv.v1 import lookup_pb2, write_pb2
from streaming_server.current_call import CURRENT_CALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streaming_server.activity import Activity


def _written(answer: write_pb2.WriteResponse) -> int:
    return answer.rows


def _undone(answer: write_pb2.UndoResponse) -> int:
    return answer.restored + answer.deleted


_WRITES: Final[Mapping[str, tuple[Any, Callable[[Any], int]]]] = {
    "WriteService/Upsert": (write_pb2.WriteResponse, _written),
    "WriteService/Delete": (write_pb2.WriteResponse, _written),
    "WriteService/Undo": (write_pb2.UndoResponse, _undone),
}
"""The methods that write: the type of their answers, and the rows that an answer says are written."""

_STAGED: Final = (write_pb2.UpsertRequest, write_pb2.DeleteRequest)
"""The requests that may be parts of a transaction."""

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
        self._activity = activity
        self._writes = _WRITES.get(method)
        self.is_counted = method in _WRITES or method in _READS

    def begin(self, request: Any) -> Callable[[Any], None]:  # noqa: ANN401  # a message
        """Begins to count a call. The returned function is to be called with its answer, serialized or not."""
        began, table, call = time.perf_counter(), table_of(request.table), CURRENT_CALL.get()
        waited_before = 0.0 if call is None else call.waited_seconds
        # Handlers remove the wait from the request. A worker does not know how long another one has waited.
        has_latency = not (isinstance(request, lookup_pb2.TopNRequest) and request.wait_millis)
        stages = isinstance(request, _STAGED) and request.HasField("transaction")

        def end(answer: Any) -> None:  # noqa: ANN401  # a message or bytes
            waited = 0.0 if call is None else call.waited_seconds - waited_before
            seconds = max(0.0, time.perf_counter() - began - waited) if has_latency else None
            if self._writes is None:
                self._activity.count_read(table, seconds)
                return
            kind, rows_of = self._writes
            message = kind.FromString(answer) if isinstance(answer, bytes) else answer
            # The rows of a transaction count once it commits.
            self._activity.count_write(table, 0 if stages else rows_of(message), seconds)

        return end
