"""What the transaction log says: which transactions were decided, which of these are done, and what they answered.

A transaction is committed by the record that decides it. Then it is applied; the record that it is done has the answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss
from streaming_server.storage.transactions.transaction_log import TransactionLog, UnreadableLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from streaming_server.clock import ServerClock

_REWRITE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A transaction that is committed. Immutable.

    Attributes:
        number: Greater than those of all before.
        token: The transaction's token.
        id: Its id, empty when it has none.
        micros: When it was decided, in microseconds since 1970: data.
        served_micros: The same in service time: from then on it is remembered.
        rows: How many rows and keys are in it.
        tables: The incarnations of its tables, by name.
        files: Its parts, in their order: the number of each, and how many of its requests count.
        buckets: The buckets of each table that it writes to, ascending.
        writer: The id of the writer whose changes those of it are; empty when nobody's.
        applied: By table and bucket, where all of it is applied: the offset behind it.
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

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Decision:
        """What `to_json` gave."""
        return cls(
            **{
                **stored,
                "files": tuple((number, requests) for number, requests in stored["files"]),
                "buckets": {table: tuple(buckets) for table, buckets in stored["buckets"].items()},
                "applied": _offsets(stored["applied"]),
            }
        )

    def is_pending(self, table: str, incarnation: str, bucket: int) -> bool:
        """Whether a bucket of a table lacks it, or a part of it, as far as the log knows."""
        same = self.tables.get(table) == incarnation
        return same and bucket in self.buckets.get(table, ()) and bucket not in self.applied.get(table, {})

    def to_committed(self, log_offsets: Mapping[str, Mapping[int, int]]) -> CommittedTransaction:
        """Its end."""
        return CommittedTransaction(
            number=self.number,
            token=self.token,
            id=self.id,
            micros=self.micros,
            served_micros=self.served_micros,
            rows=self.rows,
            tables=self.tables,
            log_offsets=log_offsets,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTransaction:
    """One commit, and what it answered. Immutable.

    Attributes:
        number: That of its decision.
        token: The transaction's token.
        id: Its id, empty when it had none.
        micros: When it was decided, in microseconds since 1970: data.
        served_micros: The same in service time: from then on it is remembered.
        rows: How many rows and keys were in it.
        tables: The incarnations of its tables, by name.
        log_offsets: By table and bucket, the offset of the first change behind it.
    """

    number: int
    token: str
    id: str
    micros: int
    served_micros: int
    rows: int
    tables: Mapping[str, str]
    log_offsets: Mapping[str, Mapping[int, int]]

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> CommittedTransaction:
        """What `to_json` gave."""
        return cls(**{**stored, "log_offsets": _offsets(stored["log_offsets"])})

    @property
    def family(self) -> str:
        """What its id has in common with those of the same job: all before the last `:`. Empty when it is of none."""
        return self.id.rpartition(":")[0]


def _offsets(stored: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """Offsets by table and bucket, back from JSON."""
    return {table: {int(bucket): at for bucket, at in buckets.items()} for table, buckets in stored.items()}


class Decisions:
    """The decisions of a server, in its transaction log.

    Rule: nothing is decided before the log says, durably, which earlier decisions were carried out, and where. So there
    is one decision at most of which a bucket alone knows how far it is applied, and the bucket may forget the others.

    Not thread-safe, but for `record_done` and `record_applied`, which the event loop may call beside the other methods.

    Attributes:
        epoch: Names the log: greater than that of any log that there was before in its place.
        unfinished: The decisions that are not carried out, by token, in their order.

    Args:
        root: Where the transactions of the server lie; made when it is not there.
        clock: The server's.
        log: Their log. None: that in `root`.

    Raises:
        DataLoss: The log is damaged.
        DiskFull, OSError: It cannot be made.
    """

    def __init__(self, root: Path, clock: ServerClock, log: UnreadableLog | None = None) -> None:
        self._log = TransactionLog(root) if log is None else log
        # Records that are to be in the log before another decision is.
        self._unwritten: list[dict[str, Any]] = []
        self._kept_bytes = 0
        self.epoch = 0
        self._next = 0
        self.unfinished: dict[str, Decision] = {}
        self._finished: list[CommittedTransaction] = []
        try:
            for record in self._log.records:
                self._read(record)
        except (TypeError, ValueError, LookupError) as error:
            self._log.close()
            raise DataLoss(f"the transaction log in {root} cannot be read: {error!r}") from error
        self._log.records.clear()
        if not self.epoch:
            # Of 32 bits, as epochs of writers are. Commit time does not go back.
            self.epoch = clock.commit_micros() // 1_000_000

    def _read(self, record: dict[str, Any]) -> None:
        if "log" in record:
            self.epoch, self._next = record["log"]["epoch"], record["log"]["next"]
        elif "decided" in record:
            decision = Decision.from_json(record["decided"])
            self.unfinished[decision.token] = decision
            self._next = max(self._next, decision.number + 1)
        else:
            committed = CommittedTransaction.from_json(record["done"])
            self.unfinished.pop(committed.token, None)
            self._finished.append(committed)

    def take_finished(self) -> list[CommittedTransaction]:
        """The commits that were done when the log was opened, in their order; once."""
        done, self._finished = self._finished, []
        return done

    def next_number(self) -> int:
        """The number of the next decision."""
        number, self._next = self._next, self._next + 1
        return number

    @property
    def is_uncertain(self) -> bool:
        """Whether a sync has failed, so that it cannot be told whether the last `decide` has decided: see `rewrite`."""
        return self._log.is_uncertain

    def pending_before(self, decision: Decision, table: str, bucket: int) -> Decision | None:
        """A decision, older than this one, that a bucket lacks; None where it lacks none."""
        for each in list(self.unfinished.values()):
            if each.number < decision.number and each.is_pending(table, decision.tables[table], bucket):
                return each
        return None

    def decide(self, decision: Decision) -> None:
        """Commits a transaction: durable when this returns. Blocks.

        Raises:
            DiskFull, OSError, Unavailable: It is not committed; but see `is_uncertain`.
        """
        if not self._log.size:
            self._log.append({"log": {"epoch": self.epoch, "next": decision.number}}, sync=False)
        self._append_unwritten()
        self._log.append({"decided": decision.to_json()}, sync=True)
        self.unfinished[decision.token] = decision

    def record_done(self, committed: CommittedTransaction) -> None:
        """Takes notice that a decision was carried out; `flush`, or the next decision, makes that durable."""
        self._unwritten.append({"done": committed.to_json()})
        self.unfinished.pop(committed.token, None)

    def record_applied(self, decision: Decision) -> None:
        """Takes notice of where a decision was applied, which cannot be carried out; durable as `record_done`."""
        self._unwritten.append({"decided": decision.to_json()})
        self.unfinished[decision.token] = decision

    def end(self, committed: CommittedTransaction) -> None:
        """Ends a decision that will not be carried out where it is not: durable when this returns. Blocks.

        Raises:
            DiskFull, OSError, Unavailable: It has not ended; but see `is_uncertain`.
        """
        self._append_unwritten()
        self._log.append({"done": committed.to_json()}, sync=True)
        self.unfinished.pop(committed.token, None)

    def flush(self) -> None:
        """Makes durable what was noted. Blocks.

        Raises:
            DiskFull, OSError, Unavailable: It is tried again before the next decision.
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
        """Whether it is time for `rewrite`."""
        return self._log.size > max(_REWRITE_BYTES, 2 * self._kept_bytes)

    def rewrite(self, remembered: Iterable[CommittedTransaction]) -> None:
        """Keeps only what is unfinished, and these commits. Blocks.

        Where it was uncertain, it is certain then that what the last `decide` was to decide is not decided.

        Raises:
            DiskFull, OSError: The log is as before.
        """
        head = {"log": {"epoch": self.epoch, "next": self._next}}
        decided = [{"decided": decision.to_json()} for decision in self.unfinished.values()]
        self._log.rewrite([head, *({"done": each.to_json()} for each in remembered), *decided])
        self._kept_bytes = self._log.size

    def close(self) -> None:
        """Closes the log."""
        self._log.close()
