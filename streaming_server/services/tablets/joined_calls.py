"""Which calls about a table with tablets are answered, and how."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import grpc

from scankv.model.errors import InvalidRequest, Unavailable
from scankv.v1 import admin_pb2, scan_pb2, snapshot_pb2, table_pb2
from streaming_server.current_call import CALL_METADATA
from streaming_server.engine.bucket.call_point import is_of_point
from streaming_server.services.errors import map_errors
from streaming_server.services.forwarding import RETRY_SECONDS
from streaming_server.services.tablets.definitions import check, describe
from streaming_server.services.tablets.deletions import stage_delete_all
from streaming_server.services.tablets.drops import naming_drops
from streaming_server.services.tablets.explanations import explain_scan, explain_top_n
from streaming_server.services.tablets.owner_calls import HOLD_SECONDS
from streaming_server.services.tablets.owners import assign
from streaming_server.services.tablets.queries import aggregate, count, top_n
from streaming_server.services.tablets.rows import look_up, open_writer
from streaming_server.services.tablets.scans import scan
from streaming_server.services.tablets.snapshots import list_snapshots, pin, release, renew, split
from streaming_server.services.tablets.tablet_calls import TabletCalls
from streaming_server.services.tablets.transactions import get_for_update, look_up_staged
from streaming_server.services.tablets.undo import undo
from streaming_server.services.tablets.writes import delete, upsert

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from google.protobuf.message import Message

    from scankv.model.errors import ScanKvError
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.unread_answers import UnreadAnswers
    from streaming_server.services.forwarding import Workers
    from streaming_server.services.tablets.tablet_calls import QueryMemory

Context = grpc.aio.ServicerContext

_Answer = TypeVar("_Answer")

Join: TypeAlias = "Callable[[Any, TabletCalls], Awaitable[Message | bytes]]"
"""Answers a request about a table by calls about its tablets. The answer may be serialized already."""

_JOINS: Final[Mapping[str, Join]] = {
    "WriteService/Upsert": upsert,
    "WriteService/Delete": delete,
    "WriteService/OpenWriter": open_writer,
    "WriteService/Undo": undo,
    "LookupService/Lookup": look_up,
    "LookupService/Count": count,
    "TableService/GetTable": describe,
    "LookupService/Aggregate": aggregate,
    "LookupService/TopN": top_n,
    "LookupService/ExplainTopN": explain_top_n,
    "SnapshotService/PinSnapshot": pin,
    "SnapshotService/RenewSnapshot": renew,
    "SnapshotService/ReleaseSnapshot": release,
    "SnapshotService/ListSnapshots": list_snapshots,
    "SnapshotService/SplitSnapshot": split,
    "TransactionService/GetForUpdate": get_for_update,
    "TransactionService/LookupStaged": look_up_staged,
    "TransactionService/StageDeleteAll": stage_delete_all,
    "ScanService/ExplainScan": explain_scan,
    "AdminService/AssignOwner": assign,
}


_REPEATED: Final = frozenset(
    {
        "LookupService/Lookup",
        "LookupService/Count",
        "LookupService/Aggregate",
        "LookupService/TopN",
        "LookupService/ExplainTopN",
        "SnapshotService/PinSnapshot",
        "ScanService/ScanKv",
        "ScanService/ExplainScan",
        "TransactionService/LookupStaged",
    }
)
"""Calls that can begin again after a tablet has refused them, because they have had no effect yet. All others are
refused: those that change something, and those that the client can resume better, such as streams of changes."""

_DECIDING_SECONDS: Final = 8.0
_SHARE_OF_WAIT: Final = 0.75
"""The share of the client's waiting time during which a call may begin again."""
_FIRST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.2

_OF_OWNER: Final = frozenset(
    {
        "TableService/CreateTable",
        "TableService/DropTable",
        "TableService/AlterTable",
        "BootstrapService/BeginBootstrap",
        "BootstrapService/StageRows",
        "BootstrapService/CommitBootstrap",
        "BootstrapService/AbortBootstrap",
        "ConsumerService/ListConsumers",
        "ConsumerService/CommitPosition",
        "ConsumerService/ResetConsumer",
        "ConsumerService/DeleteConsumer",
        "LockService/LockColumns",
        "LockService/ListColumnLocks",
    }
)
"""Calls about the definition, the bootstrap, the consumers and the column locks of a table, which its owner has."""


def is_of_owner(name: str, request: Message) -> bool:
    """Whether the owner of a table with tablets answers a call as it does for any other table.

    Streams of changes are among these: the owner reads the changes of all tablets as one source.

    Args:
        name: The method, as `Service/Method`.
        request: The request.
    """
    if isinstance(request, table_pb2.GetTableRequest):
        return not request.statistics
    return name in _OF_OWNER or (isinstance(request, scan_pb2.ScanKvRequest) and request.HasField("log"))


@dataclass(frozen=True, slots=True)
class JoinedCall:
    """Answers a call about a table with tablets by calls about the tablets."""

    workers: Workers
    tables: Tables
    table: LiveTable
    method: str
    request: Message
    memory: QueryMemory

    async def __call__(self, context: Context[Any, Any]) -> bytes:
        async with map_errors(self.request, context):
            join = _JOINS.get(self.method.removeprefix("scankv.v1."))
            if join is None:
                raise self._refusal()
            async with naming_drops(self.tables, self.table.definition):
                answer = await self._decide_until_done(join, context)
        return answer if isinstance(answer, bytes) else answer.SerializeToString()

    async def stream(self, context: Context[Any, Any], unread: UnreadAnswers) -> None:
        async with map_errors(self.request, context), naming_drops(self.tables, self.table.definition):
            if isinstance(self.request, scan_pb2.ScanKvRequest):
                await self._decide_until_done(partial(scan, context=context, unread=unread), context)
            elif isinstance(self.request, admin_pb2.CheckTableRequest):
                calls = self._calls(self.request, context)
                await check(self.request, calls, calls.sender(context, unread))
            else:
                raise self._refusal()

    async def _decide_until_done(
        self, join: Callable[[Any, TabletCalls], Awaitable[_Answer]], context: Context[Any, Any]
    ) -> _Answer:
        """Answers a request. If a tablet has another definition than was decided, begins the complete call again.

        Calls that change something are left to the client, which repeats what it may repeat.
        """
        if self.method.removeprefix("scankv.v1.") not in _REPEATED:
            return await join(self.request, self._calls(self.request, context))
        ends, pause, refusal = 0.0, _FIRST_PAUSE_SECONDS, None
        while True:
            async with AsyncExitStack() as unaltered:
                release = None if refusal is None else await self._begin_again(unaltered, pause, ends, refusal)
                request = type(self.request)()
                request.CopyFrom(self.request)
                calls = self._calls(request, context)
                if release is not None:
                    calls.on_held = release
                try:
                    return await join(request, calls)
                except Unavailable as error:
                    if calls.has_sent or not is_of_point(error):
                        raise
                    refusal, left = error, context.time_remaining()
                    wait = min(_DECIDING_SECONDS, (left or _DECIDING_SECONDS) * _SHARE_OF_WAIT)
                    ends = ends or asyncio.get_running_loop().time() + wait
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _begin_again(
        self, unaltered: AsyncExitStack, pause: float, ends: float, refusal: Unavailable
    ) -> Callable[[], None]:
        """Waits for a change of the table to end, and lets none begin until the call holds its tablets.

        So a call gets its answer however often its table is altered.

        Returns:
            A function to call then.

        Raises:
            Unavailable: The refusal, because that takes too long, or because the table is another one now.
        """
        try:
            async with asyncio.timeout_at(ends):
                await asyncio.sleep(pause)
                # If this process is the one that is behind, its own change ends first.
                table, release = await unaltered.enter_async_context(
                    self.tables.unaltered(self.table.definition.name, HOLD_SECONDS)
                )
        except TimeoutError:
            raise refusal from None
        if table is not self.table:
            raise refusal
        return release

    def _calls(self, asked: Message, context: Context[Any, Any]) -> TabletCalls:
        """Returns an object that asks the tablets. If the call reads a snapshot, each tablet reads its part of it."""
        calls = TabletCalls(self.workers, self.tables, self.table, context, self.memory)
        request = cast("Any", asked)
        if "snapshot" in request.DESCRIPTOR.fields_by_name and request.snapshot.snapshot_id:
            calls.read_snapshot(request.snapshot.snapshot_id)
        return calls

    def _refusal(self) -> ScanKvError:
        name, call = self.table.definition.name, self.method.rpartition("/")[2]
        if isinstance(self.request, snapshot_pb2.UseSnapshotRequest) and self.workers.is_forwarded(CALL_METADATA.get()):
            # A worker has not found the definition, since the table is created again at this moment.
            return Unavailable(f"table {name} is being created: try again", retry_after=RETRY_SECONDS)
        return InvalidRequest(
            f"table {name} has tablets, for which {call} is not available: use a table without tablets", table=name
        )
