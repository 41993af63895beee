"""The common part of all calls about a table with tablets: asks the tablets, of a snapshot or as of now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scankv.model.errors import InvalidRequest
from scankv.model.keys.buckets import tablet_of
from scankv.v1 import worker_pb2
from streaming_server.services.tablets.owner_calls import OwnerCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    import grpc
    import numpy as np
    import numpy.typing as npt

    from streaming_server.engine.snapshots.part_ids import PartId
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.unread_answers import UnreadAnswers
    from streaming_server.scan.admission.waiting_calls import WaitingCalls
    from streaming_server.scan.queries.result_cache import ResultCache
    from streaming_server.services.forwarding import Workers


@dataclass(frozen=True, slots=True)
class QueryMemory:
    """What this process remembers of queries. Immutable, but its attributes are not.

    Attributes:
        results: The results of earlier queries.
        waiting: The calls that wait for a change of a result.
    """

    results: ResultCache
    waiting: WaitingCalls


class TabletCalls(OwnerCalls):
    """Asks the tablets of one table, in the name of the current call. Bound to the event loop.

    Args:
        workers: The workers of the server.
        tables: The tables and tablets of this worker.
        table: The table, which has no buckets by itself.
        context: The call.
        memory: The results of earlier queries. None: the call is no query.

    Attributes:
        tables: The tables and tablets of this worker.
        table: The table.
        definition: The definition of the table when the call began; for a call about a snapshot, at its pin.
        has_sent: Whether a message of the call was sent to the client.
    """

    def __init__(
        self,
        workers: Workers,
        tables: Tables,
        table: LiveTable,
        context: grpc.aio.ServicerContext[Any, Any],
        memory: QueryMemory | None = None,
    ) -> None:
        super().__init__(workers, tables.clock, table.definition.all_tablets, context)
        self.tables = tables
        self.table = table
        self.definition = table.definition
        self._memory = memory
        # The parts of the snapshot that the call reads, by tablet. Empty: it reads the table as of now.
        self._parts: dict[int, PartId] = {}
        self.has_sent = False

    @property
    def memory(self) -> QueryMemory:
        """What the process remembers of queries. Only for queries."""
        assert self._memory is not None
        return self._memory

    def read_snapshot(self, snapshot_id: str) -> None:
        """Has the calls read a snapshot of the table: each tablet reads its part, and nothing is held.

        Raises:
            SnapshotLost: No such snapshot exists.
            InvalidRequest: The snapshot is of another table.
            DataLoss: The description of its view is damaged.
        """
        part, pinned = self.tables.snapshots.first_part(snapshot_id, self.tablets[0].name)
        self._parts, self._is_pinned = part.all_parts, True
        self.definition = replace(
            pinned, name=self.definition.name, incarnation=self.definition.incarnation, tablet=None
        )
        self.decide()

    def _serialize(self, tablet: int, request: Any) -> bytes:  # noqa: ANN401  # a message, whose type has a snapshot
        """Returns a request for a tablet as bytes. If the call reads a snapshot, the request names its part."""
        is_query = isinstance(request, worker_pb2.QueryTabletRequest)
        asked = getattr(request, request.WhichOneof("query")) if is_query else request
        if self._parts and "snapshot" in asked.DESCRIPTOR.fields_by_name and asked.HasField("snapshot"):
            asked.snapshot.snapshot_id = str(self._parts[tablet])
        data: bytes = request.SerializeToString()
        return data

    def tablets_of_buckets(self, buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the tablet of each of some buckets."""
        return tablet_of(buckets, self.definition.buckets, len(self.tablets))

    def check_buckets(self, buckets: Sequence[int] | None) -> None:
        """Raises InvalidRequest if one of some buckets (None: all) does not exist, or is named twice."""
        if buckets is None:
            return
        if len(set(buckets)) != len(buckets):
            raise InvalidRequest("a bucket is named twice: name each once")
        for number in sorted(buckets):
            if not 0 <= number < self.definition.buckets:
                raise InvalidRequest(
                    f"table {self.definition.name} has no bucket {number}: it has 0 to {self.definition.buckets - 1}",
                    bucket=number,
                )

    def buckets_by_tablet(self, buckets: Iterable[int]) -> dict[int, list[int]]:
        """Returns which of some buckets (none: all) each tablet has; leaves out tablets that have none of them.

        Unknown buckets go to the first tablet, which refuses them.

        Raises:
            InvalidRequest: A bucket is named twice.
        """
        named = list(buckets)
        chosen = set(named) or set(range(self.definition.buckets))
        if named and len(named) != len(chosen):
            raise InvalidRequest("a bucket is named twice: name each once")
        found = {
            number: [each for each in tablet.own_buckets if each in chosen]
            for number, tablet in enumerate(self.tablets)
        }
        unknown = sorted(chosen - set(range(self.definition.buckets)))
        if unknown:
            found[0] += unknown
        return {number: each for number, each in found.items() if each}

    def sender(
        self, context: grpc.aio.ServicerContext[Any, Any], unread: UnreadAnswers
    ) -> Callable[[bytes], Awaitable[None]]:
        """Returns a function that sends a message to the client, which may take nothing for the stall timeout."""

        def cancel() -> None:
            for stream in self._streams:
                stream.cancel()

        async def send(message: bytes) -> None:
            self.has_sent = True
            with self.workers.patient(cancel, unread.answer(context.peer()), len(message)):
                await context.write(message)

        return send
