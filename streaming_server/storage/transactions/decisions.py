"""The decisions in the transaction log: which transactions are committed, which are applied, and their answers.

Writing the record of its decision commits a transaction. Then the transaction is applied, and a second record stores
the answer to its commit.

If several worker processes have a share of a transaction, the log of one of them, the coordinator, decides. The others
first store that their share is prepared, so that they can apply it whatever happens, and then the decision.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss
from scankv.model.names import table_of
from scankv.model.tables.schema import incarnation_of
from streaming_server.storage.transactions.transaction_log import TransactionLog, UnreadableLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from streaming_server.clock import ServerClock

_REWRITE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What another worker process has of a transaction that this one has decided. Immutable.

    Attributes:
        worker: The number of the worker.
        rows: The number of rows and keys.
        tables: The incarnations of the tables, by name.
        log_offsets: By table and bucket, the offset after the transaction. None: the worker has not acknowledged the
            decision.
    """

    worker: int
    rows: int
    tables: Mapping[str, str]
    log_offsets: Mapping[str, Mapping[int, int]] | None = None

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Share:
        """Reads what `asdict` returned, from JSON."""
        offsets = stored["log_offsets"]
        return cls(**{**stored, "log_offsets": None if offsets is None else _offsets(offsets)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision that a transaction is committed. Immutable.

    While a share is prepared, it has the decision that its coordinator may take.

    Attributes:
        number: The number of the decision, greater than the numbers of all earlier decisions.
        token: The token of the transaction.
        id: The id of the transaction, empty when it has none.
        micros: When the transaction was decided, in microseconds since 1970 UTC. Only reported; nothing depends on it.
        served_micros: The same instant in service time. How long the transaction is remembered counts from it.
        rows: The number of rows and keys.
        tables: The incarnations of the tables, by name.
        files: The parts in their order: the number of each, and how many of its requests count.
        buckets: The buckets of each table that the transaction writes to, ascending.
        writer: The id of the writer that the changelog names for the changes; empty for none.
        applied: By table and bucket, the offset after the transaction; only buckets that have all of its changes.
        shares: What other worker processes have of the transaction. All other attributes are about this one.
        coordinator: The worker that decides. None: this one.
        attempt: Identifies the attempt to commit in which a share was prepared.
        principal: The principal that the transaction belongs to. Empty: to nobody.
    """

    number: int
    token: str
    id: str
    micros: int
    served_micros: int
    rows: int
    tables: Mapping[str, str]
    files: tuple[tuple[int, int], ...]
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    writer: str = ""
    applied: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    shares: tuple[Share, ...] = ()
    coordinator: int | None = None
    attempt: str = ""
    principal: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the values for `record_of`, without what only transactions of several worker processes have."""
        return _without(asdict(self), {"shares": (), "coordinator": None, "attempt": "", "principal": ""})

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Decision:
        """Reads the result of `to_json`."""
        return cls(
            **{
                **stored,
                "files": tuple((number, requests) for number, requests in stored["files"]),
                "buckets": {table: tuple(buckets) for table, buckets in stored["buckets"].items()},
                "applied": _offsets(stored["applied"]),
                "shares": tuple(map(Share.from_json, stored.get("shares", ()))),
            }
        )

    @property
    def unacknowledged(self) -> tuple[Share, ...]:
        """The shares whose workers have not acknowledged the decision, and may not have it yet."""
        return tuple(each for each in self.shares if each.log_offsets is None)

    def is_pending(self, table: str, incarnation: str, bucket: int) -> bool:
        """Whether a bucket of a table lacks changes of the transaction, as far as the log knows."""
        same = self.tables.get(table) == incarnation
        return same and bucket in self.buckets.get(table, ()) and bucket not in self.applied.get(table, {})

    def to_committed(self, log_offsets: Mapping[str, Mapping[int, int]]) -> CommittedTransaction:
        """Returns the record of the applied transaction, with the answer to its commit.

        Only the coordinator remembers the id, so that no share is remembered by it for longer.

        Args:
            log_offsets: The offsets after the transaction here. Those of other workers are added.
        """
        tables, rows = dict(self.tables), self.rows
        log_offsets = dict(log_offsets)
        for share in self.shares:
            tables |= share.tables
            log_offsets |= share.log_offsets or {}
            rows += share.rows
        return CommittedTransaction(
            number=self.number,
            token=self.token,
            id=self.id if self.coordinator is None else "",
            micros=self.micros,
            served_micros=self.served_micros,
            rows=rows,
            tables=tables,
            log_offsets=log_offsets,
            coordinator=self.coordinator,
            principal=self.principal,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTransaction:
    """A committed and applied transaction, with the answer to its commit. Immutable.

    Attributes:
        number: The number of the decision.
        token: The token of the transaction.
        id: The id of the transaction, empty when it had none.
        micros: When the transaction was decided, in microseconds since 1970 UTC. Only reported; nothing depends on it.
        served_micros: The same instant in service time. How long the transaction is remembered counts from it.
        rows: The number of rows and keys.
        tables: The incarnations of the tables, by name.
        log_offsets: By table and bucket, the offset of the first change after the transaction.
        coordinator: The worker process that knows the complete answer; this one has a share of it. None: this one.
        principal: The principal that the transaction belonged to. Empty: to nobody.
    """

    number: int
    token: str
    id: str
    micros: int
    served_micros: int
    rows: int
    tables: Mapping[str, str]
    log_offsets: Mapping[str, Mapping[int, int]]
    coordinator: int | None = None
    principal: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the values for `record_of`."""
        return _without(asdict(self), {"coordinator": None, "principal": ""})

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> CommittedTransaction:
        """Reads the result of `to_json`."""
        return cls(**{**stored, "log_offsets": _offsets(stored["log_offsets"])})

    @property
    def family(self) -> str:
        """The part of the id that all transactions of a job share: all before the last `:`; empty without one."""
        return self.id.rpartition(":")[0]

    def incarnation_of(self, table: str) -> str:
        """Returns the incarnation of a table that the transaction wrote to; empty if it did not write to the table."""
        found = (incarnation for name, incarnation in self.tables.items() if table_of(name) == table)
        return incarnation_of(next(found, ""))


def record_of(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record of a decision or a commit in the transaction log.

    The principal stands beside the other values: version 0.1.0 ignores it there, and could not read it among them.
    """
    values = dict(values)
    principal = values.pop("principal", "")
    return {kind: values, "principal": principal} if principal else {kind: values}


def values_of(record: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns the values of a record, as given to `record_of`."""
    return {**record[kind], "principal": record.get("principal", "")}


def with_incarnations(committed: Mapping[str, Any], new: Mapping[str, str]) -> dict[str, Any]:
    """Returns the stored form of a commit with new incarnations of its tables, which are given by the earlier ones."""

    def renamed(incarnation: str) -> str:
        of_table = incarnation_of(incarnation)
        return new.get(of_table, of_table) + incarnation.removeprefix(of_table)

    return {**committed, "tables": {name: renamed(each) for name, each in committed["tables"].items()}}


def _offsets(stored: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """Offsets by table and bucket, from JSON."""
    return {table: {int(bucket): at for bucket, at in buckets.items()} for table, buckets in stored.items()}


def _without(stored: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out fields with these values, so that older versions can read all that they could have written."""
    return {name: value for name, value in stored.items() if name not in defaults or value != defaults[name]}


class Decisions:
    """The decisions of a server, in its transaction log.

    Rule: no transaction is decided before the log durably says which earlier decisions were applied, and where. So a
    bucket needs to remember its progress for at most one decision, and may forget it for all others.

    Not thread-safe, except that the event loop may call `record_done`, `record_applied` and `undo` while another method
    runs.

    Attributes:
        epoch: Identifies the log: greater than the epoch of any earlier log in the same data directory.
        unfinished: The decisions that are not applied yet, by token, in their order.
        prepared: By token, what this worker applies if the coordinator decides so.

    Args:
        root: The directory of the transactions of the server, which is created when it is missing.
        clock: The clock of the server.
        log: The transaction log. None: the log in `root`.

    Raises:
        DataLoss: The log is damaged.
        DiskFull, OSError: The log cannot be created.
    """

    def __init__(self, root: Path, clock: ServerClock, log: UnreadableLog | None = None) -> None:
        self._log = TransactionLog(root) if log is None else log
        # Records that must be in the log before the next decision.
        self._unwritten: list[dict[str, Any]] = []
        self._kept_bytes = 0
        self.epoch = 0
        self._next = 0
        self.unfinished: dict[str, Decision] = {}
        self.prepared: dict[str, Decision] = {}
        self._finished: list[CommittedTransaction] = []
        try:
            for record in self._log.records:
                self._read(record)
        except (TypeError, ValueError, LookupError) as error:
            self._log.close()
            raise DataLoss(f"the transaction log in {root} cannot be read: {error!r}") from error
        self._log.records.clear()
        if not self.epoch:
            # An epoch of a writer has 32 bits. Commit time never goes back.
            self.epoch = clock.commit_micros() // 1_000_000

    def _read(self, record: dict[str, Any]) -> None:
        if "log" in record:
            self.epoch, self._next = record["log"]["epoch"], record["log"]["next"]
        elif "decided" in record:
            decision = Decision.from_json(values_of(record, "decided"))
            self.prepared.pop(decision.token, None)
            self.unfinished[decision.token] = decision
            self._next = max(self._next, decision.number + 1)
        elif "prepared" in record:
            decision = Decision.from_json(values_of(record, "prepared"))
            self.prepared[decision.token] = decision
            self._next = max(self._next, decision.number + 1)
        elif "undone" in record:
            self.prepared.pop(record["undone"], None)
        else:
            committed = CommittedTransaction.from_json(values_of(record, "done"))
            self.unfinished.pop(committed.token, None)
            self.prepared.pop(committed.token, None)
            self._finished.append(committed)

    def take_finished(self) -> list[CommittedTransaction]:
        """Returns the transactions that were applied when the log was opened, in order. Later calls return none."""
        done, self._finished = self._finished, []
        return done

    def next_number(self) -> int:
        """Returns the number of the next decision."""
        number, self._next = self._next, self._next + 1
        return number

    @property
    def unwritten(self) -> list[CommittedTransaction]:
        """The applied transactions of which the log does not say so yet."""
        done = [values_of(each, "done") for each in list(self._unwritten) if "done" in each]
        return [CommittedTransaction.from_json(each) for each in done]

    @property
    def is_uncertain(self) -> bool:
        """Whether a sync has failed, so that the outcome of the last `decide` is unknown until `rewrite`."""
        return self._log.is_uncertain

    def pending_before(self, decision: Decision, table: str, bucket: int) -> Decision | None:
        """Returns an older decision that has yet to be applied to a bucket. None: no such decision exists."""
        for each in list(self.unfinished.values()):
            if each.number < decision.number and each.is_pending(table, decision.tables[table], bucket):
                return each
        return None

    def decide(self, decision: Decision) -> None:
        """Commits a transaction: durable when this returns. Blocks.

        Raises:
            DiskFull, OSError, Unavailable: The transaction is not committed; but see `is_uncertain`.
        """
        self._append_first("decided", decision)
        self.prepared.pop(decision.token, None)
        self.unfinished[decision.token] = decision

    def prepare(self, decision: Decision) -> None:
        """Promises to commit a share of a transaction if its coordinator decides so: durable when this returns. Blocks.

        Raises:
            DiskFull, OSError, Unavailable: The share is not prepared; but see `is_uncertain`.
        """
        self._append_first("prepared", decision)
        self.prepared[decision.token] = decision

    def undo(self, token: str) -> None:
        """Forgets a prepared share, because its coordinator does not commit it. A crash may forget that."""
        if self.prepared.pop(token, None) is not None:
            self._unwritten.append({"undone": token})

    def _append_first(self, kind: str, decision: Decision) -> None:
        """Appends a record that must not be lost, after everything that must be in the log before it."""
        if not self._log.size:
            self._log.append({"log": {"epoch": self.epoch, "next": decision.number}}, sync=False)
        self._append_unwritten()
        self._log.append(record_of(kind, decision.to_json()), sync=True)

    def record_done(self, committed: CommittedTransaction) -> None:
        """Records that a transaction was applied. `flush` or the next decision makes the record durable."""
        self._unwritten.append(record_of("done", committed.to_json()))
        self.unfinished.pop(committed.token, None)

    def record_applied(self, decision: Decision) -> None:
        """Records what has all changes of a stuck transaction; becomes durable as by `record_done`.

        Rule: an attempt that has changed nothing adds nothing to the log, since attempts are repeated without end.
        """
        if self.unfinished.get(decision.token) == decision:
            return
        self._unwritten.append(record_of("decided", decision.to_json()))
        self.unfinished[decision.token] = decision

    def end(self, committed: CommittedTransaction) -> None:
        """Ends a stuck transaction without applying it to the buckets that lack it; durable when this returns. Blocks.

        It may be a share in doubt.

        Raises:
            DiskFull, OSError, Unavailable: Nothing was recorded; but see `is_uncertain`.
        """
        self._append_unwritten()
        self._log.append(record_of("done", committed.to_json()), sync=True)
        self.unfinished.pop(committed.token, None)
        self.prepared.pop(committed.token, None)

    def flush(self) -> None:
        """Makes the recorded progress durable. Blocks.

        Raises:
            DiskFull, OSError, Unavailable: The write failed. It is retried before the next decision.
        """
        self._append_unwritten()
        if not self._log.is_synced:
            self._log.sync()

    def _append_unwritten(self) -> None:
        while self._unwritten:
            self._log.append(self._unwritten[0], sync=False)
            del self._unwritten[0]

    @property
    def is_rewrite_due(self) -> bool:
        """Whether the log has grown enough for `rewrite`."""
        return self._log.size > max(_REWRITE_BYTES, 2 * self._kept_bytes)

    def rewrite(self, remembered: Iterable[CommittedTransaction]) -> None:
        """Reduces the log to the unfinished decisions, the prepared shares and these transactions. Blocks.

        If the log was uncertain, the transaction of the last `decide` is certainly not committed afterwards.

        Raises:
            DiskFull, OSError: The log is unchanged.
        """
        head = {"log": {"epoch": self.epoch, "next": self._next}}
        open_ = [record_of("decided", decision.to_json()) for decision in list(self.unfinished.values())]
        open_ += [record_of("prepared", decision.to_json()) for decision in list(self.prepared.values())]
        self._log.rewrite([head, *(record_of("done", each.to_json()) for each in remembered), *open_])
        self._kept_bytes = self._log.size

    def continue_after(self, epoch: int, next_number: int) -> None:
        """Makes this log, before its first decision, the one that follows another log. `rewrite` makes that durable.

        Args:
            epoch: The epoch of the other log.
            next_number: A number greater than the numbers of its decisions.
        """
        self.epoch = max(self.epoch, epoch + 1)
        self._next = max(self._next, next_number)

    def close(self) -> None:
        """Closes the log."""
        self._log.close()
