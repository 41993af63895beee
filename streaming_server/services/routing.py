"""Which worker process of a server answers a call: the routing table.

A client may make any call to any worker. A call that names a table is answered by the worker that owns the table, but
any worker answers scans of pinned snapshots. Calls that list something are made to all workers, and their answers are
merged. A call that names something by an id alone is made to all workers, of which at most one knows the id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest
from scankv.model.names import TableName, tablet_number
from scankv.v1 import lookup_pb2, scan_pb2, snapshot_pb2, write_pb2
from streaming_server.engine.snapshots.leases import lost_error
from streaming_server.engine.snapshots.part_ids import PartId
from streaming_server.services.permissions import NamedTable, permission_of
from streaming_server.services.routes import (
    ACTIVITY,
    MERGED,
    SERVICE,
    ActivityCall,
    CallById,
    Forward,
    MergedCall,
    Route,
)
from streaming_server.services.tablets.decided_calls import PointCheck
from streaming_server.services.tablets.joined_calls import JoinedCall, is_of_owner
from streaming_server.services.transaction_routes import transaction_route

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from streaming_server.current_call import Metadata
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers
    from streaming_server.services.tablets.tablet_calls import QueryMemory

_BY_ID: Final = frozenset(
    {
        "LockService/RenewColumnLock",
        "LockService/ReleaseColumnLock",
        "SnapshotService/RenewSnapshot",
        "SnapshotService/ReleaseSnapshot",
        "SnapshotService/SplitSnapshot",
        "AdminService/CancelScan",
    }
)
"""Calls that name something by an id alone. A worker that does not know the id returns an error."""

_OF_SNAPSHOT: Final = (
    snapshot_pb2.RenewSnapshotRequest,
    snapshot_pb2.ReleaseSnapshotRequest,
    snapshot_pb2.SplitSnapshotRequest,
)
"""The requests that name a snapshot by its id alone."""

_OF_FIRST: Final = frozenset({"BackupService/CreateBackup", "BackupService/GetBackupStatus"})
"""Calls that the first worker answers, which creates the backups."""


@dataclass(frozen=True, slots=True)
class Router:
    """Routes the calls of one worker. Bound to the event loop.

    Args:
        workers: The workers of the server.
        tables: The tables and tablets of this one.
        memory: What this one remembers of queries.
    """

    workers: Workers
    tables: Tables
    memory: QueryMemory

    @property
    def point_check(self) -> PointCheck:
        """The check of requests to the tablets of this worker."""
        return PointCheck(self.workers, self.tables)

    def hold_of(self, metadata: Metadata) -> str:
        """Returns the id of the hold under which a call of a worker opens its view. Empty: none."""
        return self.workers.hold_of(metadata)

    def route(self, method: str, request: Message, data: bytes, metadata: Metadata) -> Route | None:
        """Returns how other workers take part in a call. None: this worker answers it alone.

        Args:
            method: The method, as `package.Service/Method`.
            request: The request.
            data: The serialized request.
            metadata: The metadata of the call.
        """
        is_simple = self.workers.placement.is_alone and not self.tables.has_tablets
        if is_simple or not method.startswith(SERVICE):
            return None
        name = method.removeprefix(SERVICE)
        table = _table_in(method, request)
        divided = self.tables.divided(table) if table else None
        if divided is not None and not is_of_owner(name, request):
            return JoinedCall(self.workers, self.tables, self.tables.table(table), method, request, self.memory)
        if isinstance(request, _OF_SNAPSHOT):
            pinned = self._table_with_tablets_of(request.snapshot_id)
            if pinned is not None:
                return JoinedCall(self.workers, self.tables, pinned, method, request, self.memory)
        if self.workers.is_forwarded(metadata):
            return None
        if isinstance(request, _OF_SNAPSHOT) and PartId.parse(request.snapshot_id) is not None:
            raise lost_error(request.snapshot_id)
        if tablet_number(table) is not None:
            _check_sent_to_tablet(request)
        if self.workers.placement.is_alone:
            return None
        if table:
            if _is_answered_anywhere(request) and not self.tables.is_divided(table):
                return None
            owner = self.workers.placement.owner_of(table)
            return (
                None
                if owner == self.workers.placement.number
                else Forward(self.workers, owner, method, data, f'the table "{table}"')
            )
        if name in _OF_FIRST:
            alone = self.workers.placement.number == 0
            return None if alone else Forward(self.workers, 0, method, data, "the backups")
        if name in MERGED:
            return MergedCall(self.workers, method, data)
        if name == ACTIVITY:
            return ActivityCall(self.workers, method, data)
        if name in _BY_ID:
            return CallById(self.workers, method, data)
        return transaction_route(self.workers, method, request)

    def _table_with_tablets_of(self, snapshot_id: str) -> LiveTable | None:
        """Returns the table with tablets that a snapshot is of. None: it is of another one, or not known here."""
        table = self.tables.snapshots.divided_table_of(snapshot_id)
        return None if self.tables.divided(table) is None else self.tables.table(table)


def _check_sent_to_tablet(request: Message) -> None:
    """Raises InvalidRequest unless a client may send a request to a tablet: a part of a scan, a get, or a plain write.

    A get is a lookup of encoded keys.
    """
    if isinstance(request, scan_pb2.ScanKvRequest) and request.HasField("claim"):
        return
    if isinstance(request, lookup_pb2.LookupRequest) and request.encoded_keys:
        return
    if not isinstance(request, write_pb2.UpsertRequest | write_pb2.DeleteRequest):
        name: str = getattr(request, "table", "") or getattr(request, "name", "")
        TableName.parse(name)  # Raises, because no table has such a name.
        return
    of_workers = request.admitted or request.only_checks
    if of_workers or request.HasField("transaction") or request.HasField("unchanged_since"):
        raise InvalidRequest(
            "only writes without transaction, unchanged_since, admitted and only_checks can be sent to a tablet: send "
            "it to the table"
        )


def _table_in(method: str, request: Message) -> str:
    for requirement in permission_of(method).requirements:
        if isinstance(requirement.scope, NamedTable):
            name: str = getattr(request, requirement.scope.field)
            return name
    return ""


def _is_answered_anywhere(request: Message) -> bool:
    """Whether any worker answers a request about a table by itself.

    That is a scan of a pinned snapshot, whose view a worker borrows from the owner, unless the table has tablets. Loans
    themselves are only for workers, which call the owner: if one were passed on for a client, it would look like that
    of a worker.
    """
    is_scan = isinstance(request, scan_pb2.ScanKvRequest) and request.HasField("snapshot")
    return is_scan or isinstance(request, snapshot_pb2.UseSnapshotRequest)
