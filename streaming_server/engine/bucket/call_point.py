"""The point of a call: what was decided where it began, for all processes that carry it out.

For a call about a table with tablets, the owner of the table decides once: on the incarnation of the table, on the
version of its definition, and on the time as of which rows have expired. Each request to a tablet carries this point,
and the process of the tablet decides nothing again. It answers for exactly this point, or with an error, upon which the
complete call begins again. See `docs/internals/tablets.md`.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest, Unavailable
from scankv.v1 import worker_pb2

if TYPE_CHECKING:
    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock

POINT_SECONDS: Final = 5.0
"""The longest time from the point of a call until all of its views are open. Expired rows are removed no earlier than
that after they have expired, so that no view of the call lacks rows that another view still has."""

PASSED_ON: Final = worker_pb2.CallPoint(is_passed_on=True).SerializeToString()
"""What a request carries that a client has sent to the tablet itself, and that a worker passes on."""

_RETRY_SECONDS: Final = 0.05
_POINT: Final = "point"


@dataclass(frozen=True, slots=True)
class CallPoint:
    """What was decided where a call began. Immutable.

    Attributes:
        incarnation: The incarnation of the table.
        version: The version of the definition of the table. None: the call reads a snapshot, whose pin has decided the
            version.
        now_micros: The commit time as of which rows have expired, in microseconds since 1970 UTC.
        is_alone: Whether the call reads only the tablet that gets the request. That tablet then takes the time of its
            view instead, which is not earlier.
    """

    incarnation: str
    version: int | None
    now_micros: int
    is_alone: bool = False

    @classmethod
    def of(cls, definition: TableDefinition, clock: ServerClock) -> CallPoint:
        """Decides on the current definition of a table, or of one of its tablets, and on the current time."""
        return cls(definition.table_incarnation, definition.version, clock.commit_micros())

    def to_bytes(self) -> bytes:
        """Returns what a request carries."""
        message = worker_pb2.CallPoint(
            table_incarnation=self.incarnation, now_micros=self.now_micros, is_alone=self.is_alone
        )
        if self.version is not None:
            message.definition_version = self.version
        return message.SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes) -> CallPoint | None:
        """Reads the result of `to_bytes`. None: it is `PASSED_ON`. Raises InvalidRequest if nothing was decided."""
        if data == PASSED_ON:
            return None
        message = worker_pb2.CallPoint.FromString(data)
        if not message.table_incarnation or not message.now_micros:
            raise InvalidRequest("a request of a worker about a tablet must say what its call has decided")
        version = message.definition_version if message.HasField("definition_version") else None
        return cls(message.table_incarnation, version, message.now_micros, message.is_alone)

    def check(self, definition: TableDefinition, *, at_least: bool = False) -> None:
        """Checks that a process has the definition that was decided.

        Args:
            definition: The definition of the tablet or of the table that the process has.
            at_least: Whether a later version will do, because the request says which version its rows have.

        Raises:
            Unavailable: The process has another definition. The error says which.
        """
        if definition.table_incarnation == self.incarnation:
            decided = self.version
            if decided is None or decided == definition.version or (at_least and decided < definition.version):
                return
        table = definition.table_name
        raise Unavailable(
            f"table {table} is being altered, or dropped and created again: try again",
            retry_after=_RETRY_SECONDS,
            table=table,
            point=f"{definition.table_incarnation} {definition.version}",
        )

    def is_ahead_of(self, definition: TableDefinition) -> bool:
        """Whether a process has an earlier definition than the one that was decided, or one of another incarnation."""
        is_same = definition.table_incarnation == self.incarnation
        return not is_same or (self.version is not None and self.version > definition.version)


def is_of_point(error: ScanKvError) -> bool:
    """Whether an error says that a process does not answer for a point, so that the call needs another one."""
    return isinstance(error, Unavailable) and _POINT in error.details


CURRENT_POINT: Final[ContextVar[CallPoint | None]] = ContextVar("scankv_current_point", default=None)
"""What was decided for the call that the current task serves. None: this process decides."""


def check_is_recent(clock: ServerClock) -> None:
    """Raises Unavailable if the current call has taken too long to open its views."""
    point = CURRENT_POINT.get()
    if point is None or point.is_alone:
        return
    if clock.commit_micros() - point.now_micros > POINT_SECONDS * 1_000_000:
        raise Unavailable(
            "the views of all tablets could not be opened in time: try again", retry_after=_RETRY_SECONDS, point="old"
        )


def removable_at(micros: int) -> int:
    """Returns the time as of which expired rows may be removed at some commit time, both in microseconds."""
    return micros - int(POINT_SECONDS * 1_000_000)


def check_point(definition: TableDefinition) -> None:
    """Checks that a process still has the definition that was decided for the current call, as `CallPoint.check`."""
    if (point := CURRENT_POINT.get()) is not None:
        point.check(definition)


def now_of(clock: ServerClock) -> int:
    """Returns the time as of which rows have expired for the current call, in microseconds since 1970 UTC."""
    point = CURRENT_POINT.get()
    return clock.commit_micros() if point is None or point.is_alone else point.now_micros
