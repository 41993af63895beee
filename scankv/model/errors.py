"""Which errors ScanKV raises: one tree for server and client, each class with its wire status and reason.

    ScanKvError
    ├── ServerRefused            the server said no
    │   ├── TableNotFound
    │   ├── TableExists
    │   ├── TableRecreated
    │   ├── InvalidRequest
    │   │   ├── SchemaMismatch
    │   │   ├── InvalidOption
    │   │   ├── InvalidKey
    │   │   └── InvalidResumeToken
    │   ├── UnknownField
    │   ├── RequestTooLarge
    │   ├── ServerBusy
    │   ├── TooManyScans
    │   ├── ScanNotFound
    │   ├── ScanCancelled
    │   ├── SnapshotLost
    │   ├── SnapshotNotTaken
    │   ├── TooManySnapshots
    │   ├── ConsumerNotFound
    │   ├── ConsumerFenced
    │   ├── TooManyConsumers
    │   ├── WriterFenced
    │   ├── WriterExpired
    │   ├── TooManyWriters
    │   ├── WriteConflict
    │   ├── ColumnLocked
    │   ├── LockLost
    │   ├── TooManyLocks
    │   ├── TransactionLost
    │   ├── TransactionConflict
    │   ├── TransactionCommitted
    │   ├── TooManyTransactions
    │   ├── UndoConflict
    │   ├── DiskFull
    │   ├── DataLoss
    │   └── InternalError
    ├── ConnectionFailed         the connection
    │   ├── Unavailable
    │   ├── DeadlineExceeded
    │   ├── ServerDraining
    │   ├── ScanStalled
    │   ├── ScanTooLong
    │   └── ScanInterrupted
    ├── UsageError               you misused us
    └── ProtocolViolation        the protocol was broken

The server raises these classes, its service layer turns one into a gRPC status (`code`) with a typed detail (`reason`,
`details`), and the client turns that back into the same class: `error_for_reason` is the one table for it.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class ScanKvError(Exception):
    """Root of every error that ScanKV raises on purpose.

    Attributes:
        code: Name of the gRPC status that carries this error, as `NOT_FOUND`.
        reason: Machine-readable reason, as `TABLE_NOT_FOUND`. Stable across versions.
        message: What was wrong, where, and what to do.
        details: Where it was: some of `table`, `column`, `row` (0-based index in the data given), `bucket`, `option`,
            `address`. All values are strings.
        retry_after: Seconds after which trying again makes sense, or None.
        resume_token: For an error that ended a scan, what goes on behind the last rows its reader received:
            `scan.resume_from(error.resume_token)`. None when it had received none.
    """

    code: ClassVar[str] = "UNKNOWN"
    reason: ClassVar[str] = "UNKNOWN"

    def __init__(self, message: str, *, retry_after: float | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.resume_token: bytes | None = None
        self.details: dict[str, str] = {name: str(value) for name, value in details.items() if value is not None}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles with all attributes: errors travel between processes in Spark and multiprocessing."""
        return (type(self)._restore, (self.message, self.retry_after, self.details, self.resume_token))

    @classmethod
    def _restore(
        cls, message: str, retry_after: float | None, details: dict[str, str], resume_token: bytes | None
    ) -> ScanKvError:
        error = cls(message, retry_after=retry_after, **details)
        error.resume_token = resume_token
        return error


class ServerRefused(ScanKvError):
    """The server understood the request and said no, or could not do it; sending the same again changes nothing."""


class TableNotFound(ServerRefused):
    """The table does not exist, or was dropped meanwhile."""

    code = "NOT_FOUND"
    reason = "TABLE_NOT_FOUND"


class TableExists(ServerRefused):
    """A table of that name exists already."""

    code = "ALREADY_EXISTS"
    reason = "TABLE_EXISTS"


class TableRecreated(ServerRefused):
    """Log offsets are of a table that was dropped and created again since; nothing was done.

    The offsets name other changes now, or none: whoever kept them has to begin again.
    """

    code = "FAILED_PRECONDITION"
    reason = "TABLE_RECREATED"


class InvalidRequest(ServerRefused):
    """The request does not make sense for this table; nothing was changed."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class SchemaMismatch(InvalidRequest):
    """A column is missing, unknown, of another type, or null where nulls are refused."""

    reason = "SCHEMA_MISMATCH"


class InvalidOption(InvalidRequest):
    """A table option does not exist, or its value is not allowed."""

    reason = "INVALID_OPTION"


class InvalidKey(InvalidRequest):
    """A key is null, too long, or not of the key's type."""

    reason = "INVALID_KEY"


class InvalidResumeToken(InvalidRequest):
    """A resume token is damaged, or comes from another query, table, schema or snapshot."""

    reason = "INVALID_RESUME_TOKEN"


class UnknownField(ServerRefused):
    """The request carries a field that this server does not know; it must not guess without it."""

    code = "UNIMPLEMENTED"
    reason = "UNKNOWN_FIELD"


class RequestTooLarge(ServerRefused):
    """A request, a row or an answer is over its limit."""

    code = "RESOURCE_EXHAUSTED"
    reason = "REQUEST_TOO_LARGE"


class ServerBusy(ServerRefused):
    """The server has as much of other requests in memory, or as many files open, as it allows.

    `retry_after` says when to try again; a client does so by itself, for its operation timeout.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "SERVER_BUSY"


class PositionExpired(ServerRefused):
    """The changelog no longer reaches back to a position: what was there is gone by retention.

    `details` has `wanted`, `earliest` and `latest`, the offsets of the bucket named with them.
    """

    code = "OUT_OF_RANGE"
    reason = "POSITION_EXPIRED"


class PositionOutOfRange(ServerRefused):
    """A position that the changelog does not have: beyond its end, or of changes that a crash undid.

    `details` as for `PositionExpired`.
    """

    code = "OUT_OF_RANGE"
    reason = "POSITION_OUT_OF_RANGE"


class TooManyScans(ServerRefused):
    """The server has as many live scans as it allows; `retry_after` says when to try again."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_SCANS"


class ScanNotFound(ServerRefused):
    """No live scan has that id: it ended, or never was."""

    code = "NOT_FOUND"
    reason = "SCAN_NOT_FOUND"


class ScanCancelled(ServerRefused):
    """An operator ended the scan: the rows received are not the whole."""

    code = "ABORTED"
    reason = "SCAN_CANCELLED"


class SnapshotLost(ServerRefused):
    """No lease has that id: it was released, has expired, went with its table, or never was."""

    code = "FAILED_PRECONDITION"
    reason = "SNAPSHOT_LOST"


class SnapshotNotTaken(ServerRefused):
    """Taking the snapshot would have held the table's writers for too long; `retry_after` says when to try again."""

    code = "ABORTED"
    reason = "SNAPSHOT_NOT_TAKEN"


class TooManySnapshots(ServerRefused):
    """The server keeps as many leases, or as much disk for them, as it allows."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_SNAPSHOTS"


class ConsumerNotFound(ServerRefused):
    """The table has no consumer of that id: it was deleted, has expired, or never was."""

    code = "NOT_FOUND"
    reason = "CONSUMER_NOT_FOUND"


class ConsumerFenced(ServerRefused):
    """The consumer is no longer this stream's: another one took it over, or it was reset, deleted, or has expired.

    What the stream has not committed is read again by whoever has the consumer now.
    """

    code = "FAILED_PRECONDITION"
    reason = "CONSUMER_FENCED"


class TooManyConsumers(ServerRefused):
    """The server keeps as many consumers as it allows."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_CONSUMERS"


class WriterFenced(ServerRefused):
    """The writer was opened again, by another instance of the same id: this one may not write any more.

    Nothing of the request was written.
    """

    code = "FAILED_PRECONDITION"
    reason = "WRITER_FENCED"


class WriterExpired(ServerRefused):
    """The server cannot tell any more whether a request was applied earlier, so it has not applied it now.

    Its writer was not heard of for too long, or the request comes after too many later ones of its writer.
    """

    code = "FAILED_PRECONDITION"
    reason = "WRITER_EXPIRED"


class TooManyWriters(ServerRefused):
    """A bucket knows as many writers as it may; they are forgotten some time after their last request."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_WRITERS"


class WriteConflict(ServerRefused):
    """A row that a conditional write is about has changed since the version that it was to be of; nothing was written.

    `details` has `bucket`, and `keys`, which says how many of the bucket's keys that is true of.
    """

    code = "ABORTED"
    reason = "WRITE_CONFLICT"


class ColumnLocked(ServerRefused):
    """Another writer has locked a column that the write would change; nothing was written.

    `details` has `owner`, `columns` and `seconds`, which are left of the lock unless it is renewed.
    """

    code = "FAILED_PRECONDITION"
    reason = "COLUMN_LOCKED"


class LockLost(ServerRefused):
    """There is no column lock of that id: it was released, has expired, went with its table, or never was."""

    code = "FAILED_PRECONDITION"
    reason = "LOCK_LOST"


class TooManyLocks(ServerRefused):
    """A table has as many column locks as it may."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_LOCKS"


class TransactionLost(ServerRefused):
    """There is no such open transaction: it was aborted, has expired, was begun again elsewhere, or never was."""

    code = "NOT_FOUND"
    reason = "TRANSACTION_LOST"


class TransactionConflict(ServerRefused):
    """A key that the transaction depends on has changed since it looked; nothing was written.

    `details` has `table`, `bucket`, and `keys`, which says how many of the bucket's keys that is true of.
    """

    code = "ABORTED"
    reason = "TRANSACTION_CONFLICT"


class TransactionCommitted(ServerRefused):
    """The transaction is committed, or is being committed: it cannot be aborted, nor written to."""

    code = "FAILED_PRECONDITION"
    reason = "TRANSACTION_COMMITTED"


class TooManyTransactions(ServerRefused):
    """The server has as many open transactions as it allows."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_TRANSACTIONS"


class UndoConflict(ServerRefused):
    """Others have written keys of an undo while it ran, each time that it was tried; repeat it.

    Rows that were reverted so far stay reverted.
    """

    code = "ABORTED"
    reason = "UNDO_CONFLICT"


class DiskFull(ServerRefused):
    """The disk of the server's data directory has no space left for a write. Reads go on, and tables can be dropped.

    `details` has `directory`, where the server could not write. Of a request that writes to several buckets, or in
    several steps, a part may have been written.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "DISK_FULL"


class DataLoss(ServerRefused):
    """Stored data is damaged. What was read so far must not be taken for the whole."""

    code = "DATA_LOSS"
    reason = "DATA_LOSS"


class InternalError(ServerRefused):
    """The server failed in a way it did not expect; its log has the cause under the id in `details["incident"]`."""

    code = "INTERNAL"
    reason = "INTERNAL"


class ConnectionFailed(ScanKvError):
    """The call did not get through, or broke off; whether it was carried out is not known."""


class Unavailable(ConnectionFailed):
    """No server answers at the address, or the connection broke.

    Attributes:
        shed: Whether the call alone was dropped, by gRPC or a proxy, while there was a server to connect to.
    """

    shed: bool = False

    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"


class DeadlineExceeded(ConnectionFailed):
    """The operation did not finish, or the stream made no progress, within its timeout."""

    code = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class ServerDraining(ConnectionFailed):
    """The server is shutting down and takes no new work."""

    code = "UNAVAILABLE"
    reason = "SERVER_DRAINING"


class ScanStalled(ConnectionFailed):
    """The reader took nothing for the server's stall timeout, so the server ended the scan."""

    code = "DEADLINE_EXCEEDED"
    reason = "SCAN_STALLED"


class ScanTooLong(ConnectionFailed):
    """The scan took longer than the server's longest scan, so the server ended it."""

    code = "DEADLINE_EXCEEDED"
    reason = "SCAN_TOO_LONG"


class ScanInterrupted(ConnectionFailed):
    """A scan broke off before its end: the rows received are not the whole table."""

    code = "ABORTED"
    reason = "SCAN_INTERRUPTED"


class UsageError(ScanKvError):
    """The client library was used wrongly; no request was sent."""

    code = "FAILED_PRECONDITION"
    reason = "USAGE"


class ProtocolViolation(ScanKvError):
    """The other side sent what the contract forbids: a missing trailer, wrong totals, a checksum that differs."""

    code = "INTERNAL"
    reason = "PROTOCOL_VIOLATION"


def _subclasses(cls: type[ScanKvError]) -> Iterable[type[ScanKvError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def error_for_reason(reason: str) -> type[ScanKvError] | None:
    """The class whose `reason` is the given one, or None for a reason of a newer version."""
    return {cls.reason: cls for cls in _subclasses(ScanKvError) if "reason" in vars(cls)}.get(reason)


# What is longer is no misspelling, and comparing it with all names would take seconds.
_LONGEST_MISSPELLING = 200


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean "score"?` for the nearest of the known names, or all of them when few, or nothing."""
    if len(name) > _LONGEST_MISSPELLING:
        return ""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(f'"{n}"' for n in near) + "?"
    if 0 < len(names) <= 12:
        return "; there is " + ", ".join(f'"{n}"' for n in names)
    return ""
