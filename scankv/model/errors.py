"""The errors of ScanKV: one tree for server and client, in which each class has its wire status and reason.

    ScanKvError
    ├── ServerRefused            the server refused the request, or could not carry it out
    │   ├── Unauthenticated
    │   ├── PermissionDenied
    │   ├── TableNotFound
    │   ├── TableExists
    │   ├── TableRecreated
    │   ├── InvalidRequest
    │   │   ├── SchemaMismatch
    │   │   ├── InvalidOption
    │   │   ├── InvalidKey
    │   │   ├── NoPrimaryKey
    │   │   └── InvalidResumeToken
    │   ├── UnknownField
    │   ├── UpgradeNotConfirmed
    │   ├── RequestTooLarge
    │   ├── ServerBusy
    │   ├── PositionExpired
    │   ├── PositionOutOfRange
    │   ├── RangeNotTracked
    │   ├── TooManyScans
    │   ├── ScanNotFound
    │   ├── ScanCancelled
    │   ├── SnapshotLost
    │   ├── SnapshotExists
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
    │   │   ├── LockTimeout
    │   │   └── DeadlockDetected
    │   ├── TransactionCommitted
    │   ├── TooManyTransactions
    │   ├── UndoConflict
    │   ├── BackupFailed
    │   ├── DiskFull
    │   ├── DiskFailed
    │   ├── DataLoss
    │   │   └── NewerFormat
    │   └── InternalError
    ├── ConnectionFailed         the call did not reach the server, or the connection broke
    │   ├── Unavailable
    │   ├── TlsHandshakeFailed
    │   ├── DeadlineExceeded
    │   ├── ServerDraining
    │   ├── ScanStalled
    │   ├── ScanTooLong
    │   └── ScanInterrupted
    ├── LakeError                a table in an open format could not be read or written
    │   ├── LakeUnavailable
    │   ├── LakeConflict
    │   ├── LakeDamaged
    │   └── LakeVersionNotFound
    ├── UsageError               the caller used the client library wrongly
    └── ProtocolViolation        the other side violated the protocol
        └── UnknownCall

The server raises these classes. Its service layer turns them into gRPC statuses (`code`) with a typed detail (`reason`,
`details`), and the client turns those back into the same classes with `error_for_reason`.
"""

from __future__ import annotations

import difflib
from copy import copy
from typing import TYPE_CHECKING, ClassVar, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


class ScanKvError(Exception):
    """Base class of the errors of ScanKV.

    Attributes:
        code: Name of the gRPC status that carries this error, such as `NOT_FOUND`.
        reason: Machine-readable reason, such as `TABLE_NOT_FOUND`. Stable across versions.
        message: What is wrong, where, and what to do.
        details: Where the error is: some of `table`, `column`, `row` (0-based index in the data given), `bucket`,
            `option`, `address`. All values are strings.
        retry_after: Seconds after which a retry makes sense, or None.
        resume_token: For an error that ended a scan, the token to continue after the last rows its reader received:
            `scan.resume_from(error.resume_token)`. None if the reader had received no rows.
    """

    code: ClassVar[str] = "UNKNOWN"
    reason: ClassVar[str] = "UNKNOWN"

    def __init__(self, message: str, *, retry_after: float | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.resume_token: bytes | None = None
        self.details: dict[str, str] = {name: str(value) for name, value in details.items() if value is not None}

    def with_advice(self, advice: str) -> Self:
        """Returns a copy of the error, whose message also says what else the caller can do."""
        error = copy(self)
        error.message = f"{self.message}; {advice}"
        error.args = (error.message,)
        return error

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
    """The server understood the request and refused it, or could not carry it out. A plain retry does not help."""


class Unauthenticated(ServerRefused):
    """The call has no valid token. Nothing was done.

    The server gives no hint whether the token is missing, malformed, unknown, expired or revoked; its log has the
    cause for an operator. A stream that is open when its token expires or is revoked ends with this error.

    What to do:
        Connect with a valid token: `connect(url, token=...)`, `SCANKV_TOKEN_FILE`, or option `token_file` of Spark.
        `scankv tokens list` on the machine of the server shows which of its own tokens are valid, and `scankv tokens
        create` makes one. A server may accept JSON web tokens of an identity provider, too; the message says so. If a
        function that was given as token failed, its exception is the cause of the error.
    """

    code = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class PermissionDenied(ServerRefused):
    """The token of the call does not grant what the call needs, or something that it names has another owner.

    Nothing was done. `details` has the missing `role` (`read`, `write` or `admin`), and `table` if the client named the
    table itself. Whether the table exists makes no difference. If the call names a snapshot, consumer, writer,
    transaction or column lock of another principal, `details` has the `principal`.

    What to do:
        Ask the operator of the server for a token with the role that the message names. Programs that take over from
        each other need tokens of one principal.
    """

    code = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class TableNotFound(ServerRefused):
    """The table does not exist, or was dropped in the meantime.

    What to do:
        Check the name and the server: `scankv tables` lists the tables. Create the table if it should exist.
    """

    code = "NOT_FOUND"
    reason = "TABLE_NOT_FOUND"


class TableExists(ServerRefused):
    """A table with this name already exists.

    What to do:
        Use the existing table, drop it first, or choose another name.
    """

    code = "ALREADY_EXISTS"
    reason = "TABLE_EXISTS"


class TableRecreated(ServerRefused):
    """The request was made for another incarnation of the table. Nothing of the request was done.

    A table gets a new incarnation when it is dropped and created again, when it is restored from a backup, and when a
    recovery cannot tell where the table's history ends. The request has log offsets, encoded rows, or encoded keys of
    another incarnation, or it opens a consumer whose position belongs to another incarnation. In the current
    incarnation, the same offsets name other changes or no changes, and the same bytes may be other rows. A `Table`
    encodes its rows again and repeats the write by itself. A table whose name has had several incarnations also refuses
    offsets that name no incarnation.

    A write of several requests, or of a `Writer` between two flushes, raises this error if its first rows went to an
    earlier incarnation.

    The begin of a job's transaction (`JobStep`) raises this error if the table lacks rows that the job has committed
    before. Then `details` has the `table` and its `incarnation`. If the table is known to have a transaction of the
    job, `last` is the id of the last one.

    What to do:
        For log offsets: discard the stored offsets and start from the full table. For a consumer: reset it, or accept
        its restored position with `Table.accept_consumer`. For a job: write the missing rows again, or accept the
        incarnation, so that the job continues without these rows. For a write: write all rows again. For encoded rows
        and keys, in a client of another kind: read the table's schema and incarnation again, and encode the rows and
        keys again.
    """

    code = "FAILED_PRECONDITION"
    reason = "TABLE_RECREATED"


class NotOwner(ServerRefused):
    """The call is about a bucket that the called tablet or worker process does not have. Nothing was done.

    What to do:
        Make the call about the table instead of the tablet: any worker process answers it.
    """

    code = "FAILED_PRECONDITION"
    reason = "NOT_OWNER"


class InvalidRequest(ServerRefused):
    """The request is not valid for this table. Nothing was changed.

    What to do:
        Correct the request as the message says.
    """

    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class SchemaMismatch(InvalidRequest):
    """A column is missing, unknown, of another type, or null although it is NOT NULL.

    What to do:
        Correct the data: the message names the column and the row. `scankv describe` shows the table's columns.
    """

    reason = "SCHEMA_MISMATCH"


class InvalidOption(InvalidRequest):
    """A table option does not exist, or does not allow the value.

    What to do:
        Correct the option that the message names.
    """

    reason = "INVALID_OPTION"


class InvalidKey(InvalidRequest):
    """A key is null, too long, or not of the type of the key.

    What to do:
        Correct the key: the message names the row and the limit.
    """

    reason = "INVALID_KEY"


class DuplicateKeys(InvalidRequest):
    """Several rows of a bootstrap have the same key. No table was added.

    `details` has `table` and `key`.

    What to do:
        Correct the source, or ask for the rows of a key to be merged by the table's merge engine.
    """

    reason = "DUPLICATE_KEYS"


class NoPrimaryKey(InvalidRequest):
    """The table has no primary key, and what was asked for needs one. Nothing was changed.

    What to do:
        Append rows to the table, and read them with scans or as changes; or create a table with a primary key.
    """

    reason = "NO_PRIMARY_KEY"


class InvalidResumeToken(InvalidRequest):
    """A resume token is damaged, or comes from another query, table, schema or snapshot.

    What to do:
        Resume with the same query that produced the token, or start the scan again.
    """

    reason = "INVALID_RESUME_TOKEN"


class UnknownField(ServerRefused):
    """The request has a field that this server does not know. Ignoring it could change what the request means.

    What to do:
        Upgrade the server, or leave out the option that only the newer client knows.
    """

    code = "UNIMPLEMENTED"
    reason = "UNKNOWN_FIELD"


class UpgradeNotConfirmed(ServerRefused):
    """The request needs a newer format of the data directory, and the upgrade to that format is not confirmed.

    `details` has `format`, the number of the format that the directory has. Nothing was changed. Writes with
    `track_changes=False` raise this error. Other writes do not: the client repeats them in a form that every format can
    store.

    What to do:
        Stop the server, and confirm the upgrade with `scankv upgrade DIR --confirm`. Servers of earlier versions can no
        longer open the directory afterwards.
    """

    code = "FAILED_PRECONDITION"
    reason = "UPGRADE_NOT_CONFIRMED"


class RequestTooLarge(ServerRefused):
    """A request, a row or a result exceeds its limit.

    What to do:
        Send less at once, or ask for less: split the request, add a limit, or scan instead of looking up.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "REQUEST_TOO_LARGE"


class ServerBusy(ServerRefused):
    """The server has reached its limit of request bytes in memory or of open files, or the caller a limit of its own.

    `retry_after` says when to try again. A client retries by itself until its operation timeout.

    What to do:
        Retry after `retry_after` seconds, with fewer calls at once. If it persists, raise
        `max_request_bytes_in_flight`, the limit of open files, or the limit of the caller that the message names.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "SERVER_BUSY"


class PositionExpired(ServerRefused):
    """The changelog no longer reaches back to a position: retention has removed the changes there.

    `details` has `wanted`, `earliest` and `latest`, which are offsets of the bucket in `bucket`. For a start at a time,
    it lacks `wanted`.

    What to do:
        Read the full table again (`StartFrom.FULL`). To prevent it, use a consumer or raise the table's log
        retention.
    """

    code = "OUT_OF_RANGE"
    reason = "POSITION_EXPIRED"


class PositionOutOfRange(ServerRefused):
    """A position is not in the changelog: it is beyond the end, or belongs to changes that a crash has lost.

    `details` as for `PositionExpired`.

    What to do:
        Check that the offsets belong to this table and bucket. After a crash of the server, start from the
        offsets that a scan reports.
    """

    code = "OUT_OF_RANGE"
    reason = "POSITION_OUT_OF_RANGE"


class RangeNotTracked(ServerRefused):
    """Rows were written with `track_changes=False`, so the changelog has the range of their keys, but no changes.

    Or the table's option `changelog` was changed to "upsert", so later changes lack the rows before them.

    Whatever needs every change fails at this place in the changelog, rather than miss some. `details` has `bucket` and
    `offset`, the log offset of the write or of the change of the option; the next changes follow at `offset + 1`.

    What to do:
        Read the rows of the table again, for example with `StartFrom.FULL`. An undo cannot go back beyond this place.
    """

    code = "FAILED_PRECONDITION"
    reason = "RANGE_NOT_TRACKED"


class TooManyScans(ServerRefused):
    """The server has reached its limit of live scans, or the caller its own. `retry_after` says when to try again.

    What to do:
        Retry after `retry_after` seconds, or read fewer scans at once. `scankv ps` lists the live ones. The
        limits are `max_live_scans`, `max_live_scans_per_bucket` and `max_caller_scans`.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_SCANS"


class ScanNotFound(ServerRefused):
    """No live scan has this id: it has ended, or never existed.

    What to do:
        Nothing: the scan is over. `scankv ps` lists the live scans.
    """

    code = "NOT_FOUND"
    reason = "SCAN_NOT_FOUND"


class ScanCancelled(ServerRefused):
    """An operator ended the scan. The rows received are incomplete.

    What to do:
        Ask the operator who ended it. The scan can be resumed with `resume_token`.
    """

    code = "ABORTED"
    reason = "SCAN_CANCELLED"


class SnapshotLost(ServerRefused):
    """No snapshot has this id: its lease was released or has expired, its table was dropped, or it never existed.

    What to do:
        Take a new snapshot. Renew leases, or ask for a longer `ttl`, if it expired.
    """

    code = "FAILED_PRECONDITION"
    reason = "SNAPSHOT_LOST"


class SnapshotExists(ServerRefused):
    """The table already has a snapshot with this name. No snapshot was taken.

    `details` has the id of the existing one in `snapshot`.

    What to do:
        Continue with the existing snapshot: `table.adopt_snapshot(name)`. Or release it first, or choose another name.
    """

    code = "ALREADY_EXISTS"
    reason = "SNAPSHOT_EXISTS"


class SnapshotNotTaken(ServerRefused):
    """Taking the snapshot would have paused the writers of the table too long. `retry_after` says when to try again.

    What to do:
        Retry after `retry_after` seconds. Tables with many buckets take longer to pin.
    """

    code = "ABORTED"
    reason = "SNAPSHOT_NOT_TAKEN"


class TooManySnapshots(ServerRefused):
    """The server has reached its limit of leases on snapshots, or of disk space that snapshots keep.

    What to do:
        Release snapshots that are no longer needed: `scankv snapshots list` shows them. The limits are
        `max_snapshot_leases`, `max_snapshot_bytes` and, for each principal, `max_caller_share`.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_SNAPSHOTS"


class ConsumerNotFound(ServerRefused):
    """The table has no consumer with this id: it was deleted, has expired, or never existed.

    What to do:
        Check the id: `scankv consumers list` shows all. An expired consumer has to start again.
    """

    code = "NOT_FOUND"
    reason = "CONSUMER_NOT_FOUND"


class ConsumerFenced(ServerRefused):
    """This stream no longer owns the consumer: another stream took it over, or it was reset, deleted, or has expired.

    The next stream of the consumer reads again what this one has not committed.

    What to do:
        Stop this reader: another reader has replaced it. If no other should run, look for a second instance with
        the same consumer id.
    """

    code = "FAILED_PRECONDITION"
    reason = "CONSUMER_FENCED"


class TooManyConsumers(ServerRefused):
    """The server has reached its limit of consumers.

    What to do:
        Delete consumers that are no longer needed: `scankv consumers list` shows them. The limit is
        `max_consumers` and, for each principal, `max_caller_share`.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_CONSUMERS"


class WriterFenced(ServerRefused):
    """This instance may no longer write: another instance has opened the writer, or the table was restored.

    Nothing of the request was written. A table that was restored, recovered with losses, or created again may lack rows
    that were acknowledged to the writer.

    What to do:
        Stop this instance: a newer one writes under its id. If no other should run, look for a second instance. After a
        restore, read from the table which rows it has, then open the writer again.
    """

    code = "FAILED_PRECONDITION"
    reason = "WRITER_FENCED"


class WriterExpired(ServerRefused):
    """The server no longer knows whether it has applied a request before, so it has not applied it now.

    The writer was idle for too long, or the request arrived after too many later requests of its writer.

    What to do:
        Find out whether the write was applied by reading its rows, then write again. Open the writer again if
        it had an id.
    """

    code = "FAILED_PRECONDITION"
    reason = "WRITER_EXPIRED"


class TooManyWriters(ServerRefused):
    """A bucket, or the principal in it, has reached its limit of writers. It forgets idle writers after some time.

    What to do:
        Reuse clients and writers instead of creating one for each write, or raise the limit. The limits are
        `max_writers_per_bucket` and, for each principal, `max_caller_share`.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_WRITERS"


class WriteConflict(ServerRefused):
    """A row of a conditional write has changed since the version in its precondition. Nothing was written.

    `details` has `bucket`, and in `keys` the number of changed keys in it.

    What to do:
        Read the rows again, decide again, and repeat the write with the new versions.
    """

    code = "ABORTED"
    reason = "WRITE_CONFLICT"


class ColumnLocked(ServerRefused):
    """Another writer has locked a column that the write would change. Nothing was written.

    `details` has `owner`, `columns`, and `remaining`, the seconds until the lock expires unless it is renewed.

    What to do:
        Wait until the lock ends, or ask its owner to release it: `scankv locks` lists the locks.
    """

    code = "FAILED_PRECONDITION"
    reason = "COLUMN_LOCKED"


class LockLost(ServerRefused):
    """No column lock has this id: it was released, has expired, its table was dropped, or it never existed.

    What to do:
        Check the rows written since the lock was lost, then acquire the lock again.
    """

    code = "FAILED_PRECONDITION"
    reason = "LOCK_LOST"


class TooManyLocks(ServerRefused):
    """A table has reached its limit of column locks, or the server that of keys locked by transactions.

    What to do:
        Release column locks that are no longer needed: `scankv locks` lists them. Commit or abort transactions that
        have locked many keys: `scankv transactions` lists them. Their limit is `max_locked_keys`.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_LOCKS"


class TransactionLost(ServerRefused):
    """No such transaction is open: it was aborted, has expired, was begun again elsewhere, or never existed.

    What to do:
        Begin the transaction again and repeat its writes. Ask for a longer `ttl` if it expired.
    """

    code = "NOT_FOUND"
    reason = "TRANSACTION_LOST"


class TransactionConflict(ServerRefused):
    """A key that the transaction depends on has changed since the transaction read it. Nothing was written.

    `details` has `table`, `bucket`, and in `keys` the number of changed keys in it.

    What to do:
        Begin again: read the rows again and repeat the writes in a new transaction.
    """

    code = "ABORTED"
    reason = "TRANSACTION_CONFLICT"


class LockTimeout(TransactionConflict):
    """Other transactions have held locks on keys that the transaction needs. The request was not staged.

    What to do:
        Abort the transaction and begin it again, or give it a longer `lock_timeout`. `scankv transactions` shows which
        transactions hold locks, and which wait for them.
    """

    code = "ABORTED"
    reason = "LOCK_TIMEOUT"


class DeadlockDetected(TransactionConflict):
    """A transaction that has locked a key which this one needs waits for this one itself. The request was not staged.

    What to do:
        Abort the transaction and begin it again: the other one then continues. Deadlocks do not occur if all
        transactions lock their keys in the same order.
    """

    code = "ABORTED"
    reason = "DEADLOCK_DETECTED"


class TransactionCommitted(ServerRefused):
    """The transaction is committed or is being committed. It can no longer be aborted or written to.

    What to do:
        Nothing: its writes are applied or being applied. Use a new id for other writes.
    """

    code = "FAILED_PRECONDITION"
    reason = "TRANSACTION_COMMITTED"


class TooManyTransactions(ServerRefused):
    """The server has reached its limit of open transactions.

    What to do:
        Commit or abort open transactions: `scankv transactions` lists them. The limits are
        `max_transactions` and, for each principal, `max_caller_share`.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_TRANSACTIONS"


class BootstrapDiffers(ServerRefused):
    """An interrupted bootstrap of the table cannot be resumed, because its source or its definition has changed.

    The staged rows are kept. No table was added.

    What to do:
        Begin the bootstrap again with `from_scratch=True`, or `--from-scratch` on the command line. To resume it
        instead, give the same definition and the source as it was.
    """

    code = "FAILED_PRECONDITION"
    reason = "BOOTSTRAP_DIFFERS"


class BootstrapLost(ServerRefused):
    """No such bootstrap is open: it was aborted or has expired, or a crash of the machine has lost rows of it.

    No table was added.

    What to do:
        Begin the bootstrap again. A bootstrap of a location continues where it stopped, if the server still has it.
    """

    code = "NOT_FOUND"
    reason = "BOOTSTRAP_LOST"


class TooManyBootstraps(ServerRefused):
    """The server has reached its limit of open bootstraps, which is 100.

    What to do:
        Wait for the others to end. Those whose clients are gone expire after their time to live.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_BOOTSTRAPS"


class UndoConflict(ServerRefused):
    """Other writers wrote keys of an undo while it ran, at each of its attempts. Repeat the undo.

    Rows that were reverted so far stay reverted.

    What to do:
        Repeat the undo. A column lock keeps others out while it runs.
    """

    code = "ABORTED"
    reason = "UNDO_CONFLICT"


class BackupFailed(ServerRefused):
    """A backup could not be created, read or restored: its location fails, or something else uses it.

    No backup was created or changed. What was stored until then is removed by `scankv backups prune`, or used by the
    next backup.

    What to do:
        See to the location as the message says, and repeat the command.
    """

    code = "FAILED_PRECONDITION"
    reason = "BACKUP_FAILED"


class DiskFull(ServerRefused):
    """The disk of the data directory has no space for a write. Reads continue to work, and tables can be dropped.

    `details` has `directory`, where the server could not write. A request that writes to several buckets, or in several
    steps, may have been written in part.

    What to do:
        Free space on the disk of the data directory: drop tables, release snapshots, shorten log retention. The
        server continues by itself; then retry.
    """

    code = "RESOURCE_EXHAUSTED"
    reason = "DISK_FULL"


class DiskFailed(ServerRefused):
    """The disk of the data directory reports errors or is read-only. Reads of rows that the disk returns still work.

    `details` has `directory`, where the server could not read or write. A request that writes to several buckets, or in
    several steps, may have been written in part.

    What to do:
        Read the kernel's messages about the disk (`dmesg`), and repair, remount or replace it. The server tries again
        every few seconds and continues by itself; then retry.
    """

    code = "FAILED_PRECONDITION"
    reason = "DISK_FAILED"


class DataLoss(ServerRefused):
    """Stored data is damaged. Rows that were read before the error are incomplete.

    What to do:
        Restore the table from an export or load it again. `scankv tables` and `scankv check` show what is
        damaged; the rest is served.
    """

    code = "DATA_LOSS"
    reason = "DATA_LOSS"


class NewerFormat(DataLoss):
    """A file or a record has a format that this server does not know, because a newer ScanKV has written it.

    Nothing is damaged, and nothing was changed. The message names the file or the bucket, and the format.

    What to do:
        Upgrade the server to the version that wrote the data.
    """

    code = "FAILED_PRECONDITION"
    reason = "NEWER_FORMAT"


class InternalError(ServerRefused):
    """The server failed unexpectedly. Its log has the cause, under the id in `details["incident"]`.

    What to do:
        Look for the incident in the server's log and report it. Retrying may work.
    """

    code = "INTERNAL"
    reason = "INTERNAL"


class ConnectionFailed(ScanKvError):
    """The call did not reach the server, or broke off. The server may have carried it out."""


class Unavailable(ConnectionFailed):
    """No server answers at the address, or the connection broke.

    What to do:
        Check that the server runs and that the address is right (`scankv wait`). Retrying is safe for reads and
        for writes with an identity.

    Attributes:
        shed: Whether gRPC or a proxy dropped only this call, while the server was reachable.
    """

    shed: bool = False

    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"


class TlsHandshakeFailed(ConnectionFailed):
    """Client and server cannot agree on an encrypted connection: the client does not trust the server's certificate.

    Or the server does not use TLS. The client does not retry, because the next attempt would fail in the same way.

    What to do:
        Check that the server uses TLS, that `ca` has the authority that issued its certificate, and that the
        certificate is for the host of the url, or for `server_name`, and has not expired.
    """

    code = "UNAVAILABLE"
    reason = "TLS_HANDSHAKE_FAILED"


class DeadlineExceeded(ConnectionFailed):
    """The operation did not finish, or the stream made no progress, within its timeout.

    What to do:
        Check the load of the server, or raise `operation_timeout` or `attempt_timeout` of `connect`.
    """

    code = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class ServerDraining(ConnectionFailed):
    """The server is shutting down and takes no new work.

    What to do:
        Retry when the server has been started again.
    """

    code = "UNAVAILABLE"
    reason = "SERVER_DRAINING"


class ScanStalled(ConnectionFailed):
    """The reader took nothing for the server's stall timeout, so the server ended the scan.

    Or it took longer than a second for a message, its principal has more than its share of the live scans, and others
    wait.

    What to do:
        Read faster, or move slow work out of the loop. Resume with `resume_token`, or raise
        `stall_timeout_seconds` or `max_caller_share`.
    """

    code = "DEADLINE_EXCEEDED"
    reason = "SCAN_STALLED"


class ScanTooLong(ConnectionFailed):
    """The scan took longer than the server's longest scan, so the server ended it.

    What to do:
        Resume with `resume_token`, read less, or raise `max_scan_seconds`.
    """

    code = "DEADLINE_EXCEEDED"
    reason = "SCAN_TOO_LONG"


class ScanInterrupted(ConnectionFailed):
    """A scan broke off before its end. The rows received are incomplete.

    What to do:
        Resume with `scan.resume_from(error.resume_token)`, or scan a pinned snapshot, which resumes by itself.
    """

    code = "ABORTED"
    reason = "SCAN_INTERRUPTED"


RESUME_HINT: Final = "continue after them with scan.resume_from(error.resume_token), or "
"""The part of the message of `ScanInterrupted` that is of use in a program only."""
START_AGAIN: Final = "start the scan again"
"""The end of this message."""


class LakeError(ScanKvError):
    """A table in an open format, which `scankv publish` keeps, could not be read or written.

    The published table is as it was, or has the complete next version. The server is not affected.

    What to do:
        As the message says.
    """

    code = "FAILED_PRECONDITION"
    reason = "LAKE_FAILED"


class LakeUnavailable(LakeError):
    """The location of a published table does not answer, refuses access, or has no space.

    What to do:
        See to the location as the message says, and repeat the command: it continues with the last complete version.
    """

    code = "UNAVAILABLE"
    reason = "LAKE_UNAVAILABLE"


class LakeConflict(LakeError):
    """Another program has committed to the published table since its last version was read. Nothing was committed.

    What to do:
        Let one program publish each table. Repeat the command to continue with the new version.
    """

    code = "ABORTED"
    reason = "LAKE_CONFLICT"


class LakeDamaged(LakeError):
    """The location has a table that cannot be read, or that was not published from this table.

    What to do:
        Choose another location, or remove the table there and publish again.
    """

    code = "DATA_LOSS"
    reason = "LAKE_DAMAGED"


class LakeVersionNotFound(LakeError):
    """A published table has no such version: it is older than the first one, was never published, or has expired.

    `details` has the instants of the versions that can be read as `oldest` and `newest`, in UTC, as ISO 8601. They are
    missing if no version can be read.

    What to do:
        Choose a version or an instant that the message names. `scankv publish --keep-for` says for how long versions
        can be read.
    """

    code = "NOT_FOUND"
    reason = "LAKE_VERSION_NOT_FOUND"


class UsageError(ScanKvError):
    """The client library was used wrongly. No request was sent.

    What to do:
        Correct the call as the message says.
    """

    code = "FAILED_PRECONDITION"
    reason = "USAGE"


class ProtocolViolation(ScanKvError):
    """The other side violated the protocol, as with a missing trailer, wrong totals or a wrong checksum.

    What to do:
        Do not use the rows received. Check that client and server have matching versions and that no proxy
        changes the stream, then report it.
    """

    code = "INTERNAL"
    reason = "PROTOCOL_VIOLATION"


class UnknownCall(ProtocolViolation):
    """The server does not know the call, because it is older than the client, or is no ScanKV server.

    What to do:
        Upgrade the server, or check the address.
    """

    code = "UNIMPLEMENTED"
    reason = "UNKNOWN_CALL"


def _subclasses(cls: type[ScanKvError]) -> Iterable[type[ScanKvError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def error_for_reason(reason: str) -> type[ScanKvError] | None:
    """Returns the class with this `reason`, or None for a reason of a newer version."""
    return {cls.reason: cls for cls in _subclasses(ScanKvError) if "reason" in vars(cls)}.get(reason)


# A longer name is not a misspelling, and comparing it with all names would take seconds.
_LONGEST_MISSPELLING = 200


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint for an unknown name, to be appended to a message.

    The hint is `; did you mean "score"?` with the most similar known names. Without similar names, it lists the known
    names if they are few, and is empty otherwise.
    """
    if len(name) > _LONGEST_MISSPELLING:
        return ""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(f'"{n}"' for n in near) + "?"
    if 0 < len(names) <= 12:
        return "; there is " + ", ".join(f'"{n}"' for n in names)
    return ""
