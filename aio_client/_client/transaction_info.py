"""What the server reports about transactions: results of commits, open transactions, and lost writes."""

from __future__ import annotations

from dataclasses import dataclass

from aio_client._input.shown_fields import ShownFields
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.counts import counted
from scankv.v1 import transaction_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult(ShownFields):
    """What a commit has done. All of it is durable and visible to all readers.

    Attributes:
        rows: The number of rows and keys given.
        log_offsets: By table name and bucket, the offset of the first change after the transaction.
    """

    rows: int
    log_offsets: dict[str, LogOffsets]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {counted(self.rows, 'row')} in {counted(len(self.log_offsets), 'table')}>"

    @classmethod
    def of(cls, message: transaction_pb2.CommitTransactionResponse) -> CommitResult:
        """Decodes the result in an answer."""
        offsets = {each.table: LogOffsets.of(each.log_offsets, each.table_incarnation) for each in message.tables}
        return cls(rows=message.rows, log_offsets=offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStep:
    """One transaction of a job that fills a table with one transaction after another. See `Client.transaction`.

    The ids of these transactions are equal up to their last `:`, as in "job-1:7". The server refuses to continue the
    job in a table that lacks rows that the job has committed before.

    Attributes:
        table: The name of the table that the transactions write to. They may write to other tables, too.
        follows: The id of the transaction before this one. Empty: this one is the first.
        accepted_incarnation: The incarnation of the table in which the job continues without the missing rows, from the
            message or the `details` of `TableRecreated`. Empty: none.
    """

    table: str
    follows: str = ""
    accepted_incarnation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    """A transaction that is neither committed nor aborted, or that is committed and could not be applied everywhere.

    Attributes:
        token: Identifies the transaction.
        id: The transaction's id; empty if it has none.
        conflict: "last_wins" or "abort".
        tables: The names of the tables that it has written to so far.
        rows: The number of rows and keys that it has staged.
        bytes: Bytes of these rows and keys on the server's disk.
        age: Seconds since it was begun, or since the server started if that is later.
        ttl: Seconds without a call after which it is aborted.
        remaining: Seconds until it is aborted, unless a call comes.
        committing: Whether it is being committed.
        stuck: Why it is committed and could not be applied everywhere, and what to do; empty otherwise. See
            `Client.give_up_transaction`.
        locked_keys: How many keys it has locked.
        waits_for: The tokens of the transactions for whose locks it waits now.
        principal: The principal that it belongs to. None: it has no owner.
    """

    token: str
    id: str
    conflict: str
    tables: tuple[str, ...]
    rows: int
    bytes: int
    age: float
    ttl: float
    remaining: float
    committing: bool
    stuck: str
    locked_keys: int = 0
    waits_for: tuple[str, ...] = ()
    principal: str | None = None

    @classmethod
    def of(cls, message: transaction_pb2.OpenTransaction) -> TransactionInfo:
        """Decodes a transaction in an answer."""
        aborts = message.conflict_mode == transaction_pb2.CONFLICT_MODE_ABORT
        return cls(
            token=message.token,
            id=message.id,
            conflict="abort" if aborts else "last_wins",
            tables=tuple(message.tables),
            rows=message.rows,
            bytes=message.bytes,
            age=message.age_millis / 1000,
            ttl=message.ttl_millis / 1000,
            remaining=message.remaining_millis / 1000,
            committing=message.committing,
            stuck=message.stuck,
            locked_keys=message.locked_keys,
            waits_for=tuple(message.waits_for),
            principal=message.principal or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWrites:
    """The writes of a transaction that one bucket never gets, because the transaction was given up.

    Attributes:
        table: The bucket's table.
        bucket: The bucket's number.
        rows: How many rows and keys of the transaction belong to the bucket. None if they can no longer be read.
        applied: How many of these keys, each counted once, were applied nevertheless.
        reason: Why the others cannot be applied.
    """

    table: str
    bucket: int
    rows: int | None
    applied: int
    reason: str

    @classmethod
    def of(cls, message: transaction_pb2.LostWrites) -> LostWrites:
        """Decodes the losses of one bucket in an answer."""
        return cls(
            table=message.table,
            bucket=message.bucket,
            rows=message.rows if message.HasField("rows") else None,
            applied=message.applied,
            reason=message.reason,
        )
