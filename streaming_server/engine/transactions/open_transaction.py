"""An open transaction: what it has staged, and when it expires."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import InvalidRequest, TableNotFound, TransactionCommitted, TransactionLost
from scankv.model.limits import MAX_LEASE_SECONDS, MAX_WAIT_MILLIS, MIN_LEASE_SECONDS
from scankv.model.names import check_writer_id
from streaming_server.access.owners import owner_check
from streaming_server.engine.snapshots.leases import check_lease_id
from streaming_server.storage.transactions.staging import PartFile, TableFootprint, older_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.transactions.request_staging import StagedRequestId
    from streaming_server.engine.transactions.two_phase import Agreement
    from streaming_server.storage.transactions.decisions import CommittedTransaction
    from streaming_server.storage.transactions.staging import PartSize, StagingDirectory

_log: Final = logging.getLogger(__name__)

MAX_ID: Final = 128
"""The most characters in the id of a transaction or of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """The options with which a transaction begins.

    Attributes:
        id: The id under which its client finds the transaction again after a crash. Empty: the transaction has none.
        attempt: Identifies the call that begins it, so that a repeated call returns the same transaction.
        finds_conflicts: Whether the commit fails if another writer has changed a key that the transaction writes.
        ttl: After how many seconds without a call the transaction expires.
        writer: The id of the writer to whom the changelog attributes its changes. Empty: none.
        lock_wait: How many seconds a call may wait for keys that it locks. None: calls lock nothing.
        job_table: The table of the job that the transaction belongs to, if this worker process owns it. Empty: none.
        job_incarnation: The incarnation of that table.
    """

    id: str
    attempt: str
    finds_conflicts: bool
    ttl: float
    writer: str = ""
    lock_wait: float | None = None
    job_table: str = ""
    job_incarnation: str = ""

    def check(self) -> None:
        """Raises InvalidRequest unless the options are allowed."""
        check_lease_id(self.attempt)
        if self.id:
            check_id("a transaction's id", self.id)
        if self.writer:
            check_writer_id(self.writer)
        if not MIN_LEASE_SECONDS <= self.ttl <= MAX_LEASE_SECONDS:
            raise InvalidRequest(
                f"a transaction's time to live must be between {MIN_LEASE_SECONDS:g} and {MAX_LEASE_SECONDS:g} s, not "
                f"{self.ttl:g} s"
            )
        if self.lock_wait is not None and self.lock_wait > min(self.ttl, MAX_WAIT_MILLIS / 1000):
            raise InvalidRequest(
                f"a transaction may wait for locks for at most {MAX_WAIT_MILLIS / 1000:g} s, and not longer than its "
                f"time to live of {self.ttl:g} s; asked for were {self.lock_wait:g} s"
            )


def check_id(what: str, text: str) -> None:
    """Raises InvalidRequest unless a text may name a transaction, or a part of one or of a bootstrap."""
    if not 1 <= len(text) <= MAX_ID or not text.isprintable():
        raise InvalidRequest(f"{what} must be 1 to {MAX_ID} printable characters, not {text[:MAX_ID]!r}")


@dataclass(slots=True, eq=False, kw_only=True)
class OpenTransaction:
    """A transaction that is neither committed nor aborted. Bound to the event loop.

    Attributes:
        token: The server's name of the transaction.
        options: The options of the `begin` call.
        directory: The directory of its staged requests.
        clock: The server's clock.
        began_at: When it began, or when the server loaded it after a restart, on the monotonic clock.
        expires: When it is aborted unless a call renews it, on the same clock.
        since: By table and bucket, the offsets after which a change of a key that it writes is a conflict.
        parts: Its staged parts by id, in the order in which they began.
        lock: Held while a request is staged.
        commit: The running commit.
        agreement: How this worker process agrees with others on the running commit. None: it decides alone.
        deleting: The deletions of all rows of a table that are being staged, by table and request.
        attempts: By part and request number, the attempts at which tablets have selected the rows to delete.
        turns: By part, a lock that is held while a request to a table with tablets is staged at its tablets.
        observed: The tables with tablets whose tablets all know from which offset on a change is a conflict.
        has_ended: Whether it was committed or aborted, or has expired.
        is_divided: Whether other worker processes may have requests of its parts.
        principal: The principal that it belongs to. Empty: it has no owner.
    """

    token: str
    options: TransactionOptions
    directory: StagingDirectory
    clock: ServerClock
    began_at: float = field(init=False)
    expires: float = 0.0
    since: dict[str, dict[int, int]] = field(default_factory=dict)
    parts: dict[str, PartFile] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    commit: asyncio.Task[CommittedTransaction] | None = None
    agreement: Agreement | None = None
    deleting: dict[tuple[str, StagedRequestId], asyncio.Task[int]] = field(default_factory=dict)
    attempts: dict[tuple[str, int], str] = field(default_factory=dict)
    turns: dict[str, asyncio.Lock] = field(default_factory=dict)
    observed: set[str] = field(default_factory=set)
    has_ended: bool = False
    is_divided: bool = False
    principal: str = ""

    def __post_init__(self) -> None:
        """Starts the time to live."""
        self.began_at = self.clock.monotonic()
        self.renew()

    @property
    def tables(self) -> frozenset[str]:
        """The tables to which it has staged something here."""
        return frozenset(name for part in self.parts.values() for name in part.tables)

    def check_principal(self) -> None:
        """Raises PermissionDenied if it belongs to another principal, and the caller is no admin of its tables."""
        owner_check(f"the transaction {self.options.id or self.token}", self.tables)(self.principal)

    def check_end(self) -> None:
        """Like `check_principal`, before a commit or an abort.

        With several workers, the one that received the call has checked it with the tables of all of them. This one
        may have none.
        """
        if self.tables or not self.is_divided:
            self.check_principal()

    def renew(self) -> None:
        """Restarts the time to live."""
        self.expires = self.clock.monotonic() + self.options.ttl

    @property
    def remaining(self) -> float:
        """For how many more seconds it lives without a call; negative if it has expired. A commit keeps it alive."""
        return self.options.ttl if self.commit is not None else self.expires - self.clock.monotonic()

    @property
    def size(self) -> int:
        """How many bytes are staged."""
        return sum(part.size + part.piece_bytes for part in self.parts.values())

    def check_open(self) -> None:
        """Raises TransactionLost or TransactionCommitted unless requests can be staged."""
        if self.has_ended:
            raise transaction_lost(self.token)
        if self.commit is not None:
            raise TransactionCommitted("the transaction is being committed: begin another one")

    def part(self, part: str, sequence: int, table: str, fragment: str = "") -> PartFile | None:
        """Returns the part of a request to a table, or None if the request is staged already.

        Raises:
            InvalidRequest: Earlier requests of the part are missing, or the request is earlier than another one of its
                part; or another request has its number. If other workers may have requests of the part, only the
                commit finds out what is missing.
        """
        staged = self.parts.get(part)
        if staged is None:
            check_id("a transaction's part", part)
            number = 1 + max((each.number for each in self.parts.values()), default=-1)
            staged = PartFile(self.directory.part_path(number), part)
        if staged.find(sequence, table, fragment) is not None:
            return None
        if self.is_divided:
            if sequence < (last := max(staged.sequences, default=0)):
                raise InvalidRequest(f"request {sequence} of the part is too late: the server has request {last} of it")
        elif sequence > (there := staged.staged.requests):
            raise InvalidRequest(
                f"request {sequence} of the part is too early: the server has {there} requests of it; send the earlier "
                "ones first"
            )
        return staged

    def select_parts(self, sizes: Sequence[tuple[str, int]], *, is_share: bool = False) -> list[PartFile]:
        """Returns the parts to commit, in the order of `sizes`.

        Args:
            sizes: Their ids, and the number of requests of each. Empty: all parts, in the order in which they began.
            is_share: Whether other workers have the requests that are missing here. The coordinator counts all of them.

        Raises:
            InvalidRequest: A part has another number of requests, or is listed twice.
        """
        if not is_share:
            check_fragments({name: part.staged for name, part in self.parts.items()}, [part for part, _ in sizes])
        if not sizes:
            return list(self.parts.values())
        if len({part for part, _ in sizes}) != len(sizes):
            raise InvalidRequest("a part of the transaction is named twice")
        for part, requests in sizes:
            there = self.parts[part].staged.requests if part in self.parts else 0
            if there > requests or (there < requests and not is_share):
                raise incomplete_part(part, there, requests)
        return [self.parts[part] for part, requests in sizes if requests and part in self.parts]

    @property
    def log_owner(self) -> str:
        """The owner of its retention holds."""
        return f"transaction {self.token}"

    @property
    def retention_holds(self) -> dict[str, dict[int, int]]:
        """The first offset that the commit reads, by table and bucket. Safe in any thread."""
        holds = dict(self.since)
        for part in list(self.parts.values()):
            for name, touched in list(part.tables.items()):
                if touched.read_from:
                    holds[name] = older_offsets(holds.get(name, {}), touched.read_from)
        return holds

    def content(self) -> dict[str, Any]:
        """Returns the metadata that its directory stores."""
        content = {
            "id": self.options.id,
            "attempt": self.options.attempt,
            "finds_conflicts": self.options.finds_conflicts,
            "ttl": self.options.ttl,
            "writer": self.options.writer,
            "since": self.since,
        }
        if self.options.job_table:
            content |= {"job_table": self.options.job_table, "job_incarnation": self.options.job_incarnation}
        if self.principal:
            content["principal"] = self.principal
        # A server that cannot lock keys finds an unknown option, and gives the transaction up.
        return content if self.options.lock_wait is None else content | {"lock_wait": self.options.lock_wait}

    @classmethod
    def load(
        cls, directory: StagingDirectory, clock: ServerClock, *, is_divided: bool = False
    ) -> OpenTransaction | None:
        """Loads the transaction of a directory, and restarts its time to live. Blocks.

        Returns:
            The transaction, or None if it cannot continue: no metadata is left, or its locks were lost.

        Raises:
            DataLoss: The metadata cannot be read.
        """
        content = directory.read_metadata()
        if content is None:
            return None
        parts = {part.part: part for part in directory.load_parts()}
        if content.get("lock_wait") is not None and (parts or not is_divided):
            _log.info("the transaction %s ends, because its locks on keys were lost", directory.path.name)
            return None
        since, principal = content.pop("since"), content.pop("principal", "")
        return cls(
            token=directory.path.name,
            options=TransactionOptions(**content),
            directory=directory,
            clock=clock,
            since={name: {int(bucket): at for bucket, at in offsets.items()} for name, offsets in since.items()},
            parts=parts,
            is_divided=is_divided,
            principal=principal,
        )


def footprints_of(parts: Iterable[PartFile]) -> dict[str, TableFootprint]:
    """Returns what some parts do to each table, by table name. Raises InvalidRequest for a recreated table."""
    tables: dict[str, TableFootprint] = {}
    for part in parts:
        for name, touched in part.tables.items():
            known = tables.setdefault(name, TableFootprint(touched.incarnation))
            if known.incarnation != touched.incarnation:
                raise InvalidRequest(
                    f"table {name} was dropped and created again since the transaction began: begin another one"
                )
            known.merge(touched)
    return tables


def check_written_to(parts: Iterable[PartFile], table: TableDefinition) -> None:
    """Raises TableNotFound if some parts have written to a table that had the name of this one before."""
    touched = footprints_of(parts).get(table.name)
    if touched is not None and touched.incarnation != table.incarnation:
        raise TableNotFound(
            f"table {table.name} was dropped and created again since the transaction wrote to it: begin another one",
            table=table.name,
        )


def check_fragments(there: Mapping[str, PartSize], parts: Collection[str]) -> None:
    """Raises InvalidRequest if some parts (none: all) have fragments without a summary, or the other way round."""
    for part, size in there.items():
        if size.balance and (not parts or part in parts):
            raise InvalidRequest(
                f"part {part[:MAX_ID]!r} of the transaction has a request that not all tablets of its table have: "
                "nothing was committed; abort the transaction"
            )


def incomplete_part(part: str, there: int, requests: int) -> InvalidRequest:
    """Returns the error for a part of which the server has another number of requests than its client says."""
    taken = "; if all were staged, a power failure took some: abort the transaction and write its rows again"
    return InvalidRequest(
        f"part {part[:MAX_ID]!r} of the transaction has {there} requests, not {requests}: nothing was committed"
        f"{taken if there < requests else ''}"
    )


def transaction_lost(token: str) -> TransactionLost:
    """Returns the error for a token of no open transaction."""
    return TransactionLost(
        f"no open transaction {token[:64]!r} exists: it was aborted, has expired, was begun again elsewhere, or never "
        "existed; it has written nothing: begin another one",
    )
