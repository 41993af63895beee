"""Which requests from process to process carry the point of their call, and the one check of it.

Rule: every request about a tablet carries the `CallPoint` of its call, and so does one about a table without tablets
that is read as of one instant with others. It is checked here before the method runs, for all methods in the same way.
Methods that open a view without a hold check it once more when the view is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest
from scankv.model.names import table_of, tablet_number
from scankv.v1 import scan_pb2, worker_pb2, write_pb2
from streaming_server.engine.bucket.call_point import CURRENT_POINT, PASSED_ON, CallPoint, check_is_recent, check_point

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from streaming_server.current_call import Metadata
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers


_NAMES: Final = ("table", "tablet", "table_name", "name")
"""The fields of requests that may have the name of a tablet."""


class Needs(Enum):
    """Which version of the definition a method needs at the tablet."""

    SAME = "the version that was decided, from its beginning to its end"
    OPENS = "the version that was decided, at its beginning; its view is opened under a hold, or checked"
    KNOWN = "that version or a later one: the request names the version of its rows, or has no columns"


DECIDED: Final[Mapping[str, Needs]] = {
    "AdminService/AssignOwner": Needs.KNOWN,
    "AdminService/CheckTable": Needs.KNOWN,
    "LookupService/ExplainTopN": Needs.SAME,
    "LookupService/Lookup": Needs.SAME,
    "ScanService/ExplainScan": Needs.SAME,
    "ScanService/ScanKv": Needs.OPENS,
    "SnapshotService/ListSnapshots": Needs.KNOWN,
    "SnapshotService/PinSnapshot": Needs.OPENS,
    "TableService/GetTable": Needs.KNOWN,
    "TabletService/AdmitWrite": Needs.KNOWN,
    "TabletService/FindOffsets": Needs.KNOWN,
    "TabletService/HoldTablet": Needs.OPENS,
    "TabletService/KeepChanges": Needs.KNOWN,
    "TabletService/QueryTablet": Needs.OPENS,
    "TabletService/WatchTablet": Needs.SAME,
    "TransactionService/GetForUpdate": Needs.SAME,
    "TransactionService/LookupStaged": Needs.SAME,
    "TransactionService/StageDeleteAll": Needs.OPENS,
    "WriteService/Delete": Needs.KNOWN,
    "WriteService/OpenWriter": Needs.KNOWN,
    "WriteService/Undo": Needs.KNOWN,
    "WriteService/Upsert": Needs.KNOWN,
}
"""The methods whose requests may be about a tablet, without their package. A request of another method is refused."""

UNDECIDED: Final[Mapping[str, str]] = {
    "SnapshotService/ReleaseSnapshot": "names a part of a snapshot, for which its pin has decided everything",
    "SnapshotService/RenewSnapshot": "names a part of a snapshot, for which its pin has decided everything",
    "SnapshotService/SplitSnapshot": "names a part of a snapshot, for which its pin has decided everything",
    "SnapshotService/UseSnapshot": "names a snapshot of a table without tablets",
    "TabletService/DiscardFragments": "names a request of a transaction, which has decided everything",
    "TabletService/FollowTable": "announces another definition",
}
"""Further methods between processes that are about tables, and why their requests carry no point."""


@dataclass(frozen=True, slots=True)
class PointCheck:
    """Checks the requests to the tablets of this process. Bound to the event loop.

    Args:
        workers: The workers of the server.
        tables: The tables and tablets of this worker.
    """

    workers: Workers
    tables: Tables

    def begin(self, method: str, request: Message, metadata: Metadata) -> bool:
        """Checks a request before its method runs. Only for requests of workers.

        Args:
            method: The method, without its package.
            request: The request.
            metadata: Its metadata.

        Returns:
            Whether to call `end` before the method answers.

        Raises:
            InvalidRequest: It is about a tablet and does not say what was decided, or its method is not for tablets.
            TableNotFound: This process does not know the tablet.
            Unavailable: This process has another definition.
        """
        data, name = self.workers.point_of(metadata), tablet_in(request)
        if not name and data not in (b"", PASSED_ON):
            # A table without tablets that a call reads as of one instant with others.
            name = _table_in(request)
        if not name or method in UNDECIDED:
            return False
        needs = Needs.SAME if _only_checks(request) else DECIDED.get(method)
        if needs is None:
            raise InvalidRequest(f"{method} is not for tablets: call it for the table {table_of(name)}")
        point = CallPoint.from_bytes(data)
        if point is None:
            return False
        definition = self.tables.table(name).definition
        if point.is_ahead_of(definition):
            self.tables.tablets.catch_up(table_of(name))
        # Each message of a stream of changes says which columns it has.
        is_log = isinstance(request, scan_pb2.ScanKvRequest) and request.HasField("log")
        point.check(definition, at_least=needs is Needs.KNOWN or is_log)
        CURRENT_POINT.set(point)
        return needs is Needs.SAME

    def end(self, request: Message) -> None:
        """Raises Unavailable if the definition has changed since `begin`, or the call began too long ago."""
        check_point(self.tables.table(tablet_in(request)).definition)
        check_is_recent(self.tables.clock)


def tablet_in(request: Message) -> str:
    """Returns the tablet that a request of a worker is about; for the admission of a write to a tablet, the table.

    Empty: it is about neither.
    """
    if isinstance(request, worker_pb2.AdmitWriteRequest):
        return request.table_name
    if isinstance(request, worker_pb2.QueryTabletRequest) and (kind := request.WhichOneof("query")):
        request = getattr(request, kind)
    for field in _name_fields(request.DESCRIPTOR):
        if tablet_number(name := getattr(request, field)) is not None:
            return str(name)
    return ""


def _table_in(request: Message) -> str:
    """Returns the table that a request names. Empty: none."""
    return next((str(getattr(request, field)) for field in _name_fields(request.DESCRIPTOR)), "")


def _only_checks(request: Message) -> bool:
    """Whether a request only finds out which columns an undo would change."""
    return isinstance(request, write_pb2.UndoRequest) and request.only_checks


@cache
def _name_fields(message: Descriptor) -> list[str]:
    """Returns the fields of a message that may have the name of a tablet."""
    return [field.name for field in message.fields if field.name in _NAMES]
