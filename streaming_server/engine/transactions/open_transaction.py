"""One transaction that is neither committed nor aborted: what it has staged, and how long it is kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import InvalidRequest, TransactionCommitted, TransactionLost
from scankv.model.limits import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS
from scankv.model.names import check_writer_id
from streaming_server.engine.snapshots.leases import check_lease_id
from streaming_server.storage.transactions.staging import PartFile, TableFootprint, older_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streaming_server.clock import ServerClock
    from streaming_server.storage.transactions.decisions import CommittedTransaction
    from streaming_server.storage.transactions.staging import StagingDirectory

MAX_ID: Final = 128
"""Characters of the id of a transaction, or of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """How a transaction is begun.

    Attributes:
        id: What it is, over crashes of whoever writes it. Empty: nothing.
        attempt: Names the call that begins it.
        finds_conflicts: Whether its commit fails when a key that it writes was changed meanwhile.
        ttl: For how many seconds it is kept when nothing is heard of it.
        writer: The id of the writer whose changes those of it are. Empty: nobody's.
    """

    id: str
    attempt: str
    finds_conflicts: bool
    ttl: float
    writer: str = ""

    def check(self) -> None:
        """Raises InvalidRequest unless a transaction may be begun so."""
        check_lease_id(self.attempt)
        if self.id:
            check_id("id", self.id)
        if self.writer:
            check_writer_id(self.writer)
        if not MIN_LEASE_SECONDS <= self.ttl <= MAX_LEASE_SECONDS:
            raise InvalidRequest(
                f"a transaction's time to live is {self.ttl:g} s: it must be from {MIN_LEASE_SECONDS:g} to "
                f"{MAX_LEASE_SECONDS:g}"
            )


def check_id(what: str, text: str) -> None:
    """Raises InvalidRequest unless a text may name a transaction, or a part of one."""
    if not 1 <= len(text) <= MAX_ID or not text.isprintable():
        raise InvalidRequest(f"a transaction's {what} has 1 to {MAX_ID} printable characters, not {text[:MAX_ID]!r}")


@dataclass(slots=True, eq=False, kw_only=True)
class OpenTransaction:
    """One of them. Bound to the event loop.

    Attributes:
        token: Names it.
        terms: How it was begun.
        directory: Where it is staged.
        clock: The server's.
        begun: When it was begun, or the server was started, on the monotonic clock.
        expires: When it is aborted if nothing is heard of it, on the same clock.
        since: By table and bucket, the offsets behind which a change of a key that it writes is a conflict.
        parts: What is staged, by the ids of the parts, in the order in which they were begun.
        lock: Held while something is staged.
        commit: The commit that is under way.
        deleting: By part and number of their request, the deletions of whole tables that are being staged.
        has_ended: Whether it is over.
    """

    token: str
    terms: TransactionOptions
    directory: StagingDirectory
    clock: ServerClock
    begun: float = field(init=False)
    expires: float = 0.0
    since: dict[str, dict[int, int]] = field(default_factory=dict)
    parts: dict[str, PartFile] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    commit: asyncio.Task[CommittedTransaction] | None = None
    deleting: dict[tuple[str, int], asyncio.Task[int]] = field(default_factory=dict)
    has_ended: bool = False

    def __post_init__(self) -> None:
        """Begins its time to live."""
        self.begun = self.clock.monotonic()
        self.renew()

    def renew(self) -> None:
        """Begins its time to live anew."""
        self.expires = self.clock.monotonic() + self.terms.ttl

    @property
    def size(self) -> int:
        """Bytes that are staged."""
        return sum(part.size + part.piece_bytes for part in self.parts.values())

    def check_open(self) -> None:
        """Raises TransactionLost or TransactionCommitted unless something may be staged."""
        if self.has_ended:
            raise lost(self.token)
        if self.commit is not None:
            raise TransactionCommitted("the transaction is being committed: begin another one")

    def part(self, part: str, sequence: int) -> PartFile | None:
        """The part that a request belongs to; None when that was staged already.

        Raises:
            InvalidRequest: Requests of the part are missing before it.
        """
        staged = self.parts.get(part)
        if staged is None:
            check_id("part", part)
            number = 1 + max((each.number for each in self.parts.values()), default=-1)
            staged = PartFile(self.directory.part_path(number), part)
        if sequence > staged.requests:
            raise InvalidRequest(
                f"the request is number {sequence} of its part, of which the server has {staged.requests}: those "
                "before it come first"
            )
        return None if sequence < staged.requests else staged

    def counted(self, sizes: Sequence[tuple[str, int]]) -> list[PartFile]:
        """The parts that count, in their order.

        Args:
            sizes: Their ids, and how many requests each has. Empty: all that there are.

        Raises:
            InvalidRequest: One has another number of requests, or comes twice.
        """
        if not sizes:
            return list(self.parts.values())
        if len({part for part, _ in sizes}) != len(sizes):
            raise InvalidRequest("a part of the transaction is named twice")
        for part, requests in sizes:
            there = self.parts[part].requests if part in self.parts else 0
            if there != requests:
                raise InvalidRequest(
                    f"part {part[:MAX_ID]!r} of the transaction has {there} requests, not {requests}: nothing was "
                    "committed"
                )
        return [self.parts[part] for part, requests in sizes if requests]

    @property
    def retention_holds(self) -> dict[str, dict[int, int]]:
        """By table and bucket, from where on changes are looked at when it is committed. In any thread."""
        holds = dict(self.since)
        for part in list(self.parts.values()):
            for name, touched in list(part.tables.items()):
                if touched.read_from:
                    holds[name] = older_offsets(holds.get(name, {}), touched.read_from)
        return holds

    def content(self) -> dict[str, Any]:
        """What its directory says of it."""
        return {
            "id": self.terms.id,
            "attempt": self.terms.attempt,
            "finds_conflicts": self.terms.finds_conflicts,
            "ttl": self.terms.ttl,
            "writer": self.terms.writer,
            "since": self.since,
        }

    @classmethod
    def load(cls, directory: StagingDirectory, clock: ServerClock) -> OpenTransaction | None:
        """The transaction in a directory, its time to live begun anew; None where nothing is left of one. Blocks.

        Raises:
            DataLoss: What it is cannot be read.
        """
        content = directory.read_metadata()
        if content is None:
            return None
        since = content.pop("since")
        return cls(
            token=directory.path.name,
            terms=TransactionOptions(**content),
            directory=directory,
            clock=clock,
            since={name: {int(bucket): at for bucket, at in offsets.items()} for name, offsets in since.items()},
            parts={part.part: part for part in directory.load_parts()},
        )


def footprints_of(parts: Iterable[PartFile]) -> dict[str, TableFootprint]:
    """What parts do to each table, by name."""
    tables: dict[str, TableFootprint] = {}
    for part in parts:
        for name, touched in part.tables.items():
            known = tables.setdefault(name, TableFootprint(touched.incarnation))
            if known.incarnation != touched.incarnation:
                raise InvalidRequest(f"table {name} was dropped, and made anew, since the transaction was begun")
            known.merge(touched)
    return tables


def lost(token: str) -> TransactionLost:
    """The error for a token that names no open transaction."""
    return TransactionLost(
        f"there is no open transaction {token[:64]!r}: it was aborted, has expired, was begun again elsewhere, or "
        "never was; nothing of it was written: begin another one",
    )
