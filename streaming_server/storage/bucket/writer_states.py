"""The writers of a bucket: which of their requests the bucket has applied, and the answers to them.

The record of a writer is in the column family `meta`. It is put in the same WriteBatch as the rows of a request, so a
request is recorded exactly when it is applied. A request of several WriteBatches records with each of them how many of
its rows are applied.

A writer with an epoch above 0 was opened, in every bucket at once. A writer with epoch 0 is anonymous: its client
has chosen the identity itself.

A writer that was opened belongs to a principal. It has an entry of its own, so that the records stay as earlier
versions read them.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from scankv.model.errors import (
    DataLoss,
    InvalidRequest,
    NewerFormat,
    TooManyWriters,
    WriterExpired,
    WriterFenced,
    error_for_reason,
)
from scankv.model.limits import WRITER_WINDOW
from streaming_server.storage.files.formats import check_format, locate
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rocks.store_batch import StoreBatch

MAX_SEQUENCE: Final = 2**63
"""All sequence numbers are below this."""

ANONYMOUS_TTL_SECONDS: Final = 3600.0
"""A request of an unknown anonymous writer is refused from this age on."""

_FORGOTTEN_AFTER: Final = 1.1
"""An anonymous writer is forgotten after this multiple of its time to live. Rule: a record outlives every request that
would be applied without it, even one that was in transit for a while after its client stated its age."""

TRANSACTIONS: Final = "transactions/"
"""The writer under which transactions are applied to a bucket, each with a sequence number of its own.

No client can have this id. The writer is never forgotten and does not count against the limit of writers."""

_PREFIX: Final = b"writer/"
_END_OF_PREFIX: Final = b"writer0"
_OWNER_PREFIX: Final = b"writer-owner/"
_END_OF_OWNER_PREFIX: Final = b"writer-owner0"
_CACHED: Final = 256
_SWEEP_SECONDS: Final = 600.0
_SWEEP_SECONDS_WHEN_FULL: Final = 60.0
"""The least time between two searches for expired writers, in general and while new ones are refused."""

_FORMAT: Final = 1
_FORMAT_WITH_REFUSALS: Final = 2
"""JSON follows the answers: by sequence number, the refused rows, each with its place, reason, message and details."""
# format, number of answers, epoch, next sequence, acked below, last use in microseconds of service time
_HEADER: Final = struct.Struct("<BBIQQq")
# sequence, rows applied, offset after these rows, whether the request is complete
_ANSWER: Final = struct.Struct("<QIqB")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteIdentity:
    """Identifies the request of a writer. A repeated request has the same `writer`, `epoch` and `sequence`.

    Attributes:
        writer: The id of the writer.
        epoch: 0 for an anonymous writer; otherwise the epoch that opening the writer returned. Each opening fences the
            epochs before it.
        sequence: The sequence number of the request. The numbers of one writer ascend; they may have gaps.
        acked_below: Every request with a lower number was answered or given up, so a late one is refused.
        age_seconds: How long ago the request was sent for the first time.
        history: The history of the table in which the writer was opened. Empty: unknown.
        principal: Who becomes the owner if nobody owns the writer. Empty: nobody.
        check_owner: Raises PermissionDenied unless the sender may write for the writer of a principal. None: it may.
    """

    writer: str
    epoch: int
    sequence: int
    acked_below: int = 0
    age_seconds: float = 0.0
    history: str = ""
    principal: str = ""
    check_owner: Callable[[str], None] | None = field(default=None, compare=False)

    @property
    def principal_of_writer(self) -> str | None:
        """Who owns a writer without owner that sends the request. None: nobody, as the request has no principal."""
        return self.principal if self.principal and self.epoch else None

    def check_history(self, definition: TableDefinition) -> None:
        """Checks that an opened writer was opened in the current history of its table.

        Otherwise what the buckets know of the writer says nothing about its requests: a later writer may have the same
        epoch, and its answers are not those of this one.

        Raises:
            WriterFenced: It was opened in another history, or may have been.
        """
        if not self.epoch:
            return
        is_known = self.history == definition.history if self.history else not definition.has_other_histories
        if not is_known and not self.history:
            raise WriterFenced(
                f'the request of the writer "{self.writer}" does not name the history of table {definition.name} in '
                "which the writer was opened, and the table was restored, recovered or created again; nothing was "
                "written: update the client, which is older than the server",
                writer=self.writer,
                epoch=self.epoch,
            )
        if not is_known:
            raise WriterFenced(
                f'the writer "{self.writer}" was opened before table {definition.name} was restored, recovered or '
                "created again, so rows that were acknowledged to it may be gone; nothing more of this request was "
                "written: read what the table has, and open the writer again",
                writer=self.writer,
                epoch=self.epoch,
            )


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that was refused, although other rows of its request were written.

    Attributes:
        row: The place of the row among those of the request for the bucket.
        error: Why it was refused.
    """

    row: int
    error: ScanKvError


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStep:
    """The progress of a request that one WriteBatch makes.

    Attributes:
        identity: The request.
        rows: How many of the request's rows for this bucket are applied after the batch, from the first one on.
        complete: Whether all of these rows are applied then.
        refusals: Which of the rows were refused instead.
    """

    identity: WriteIdentity
    rows: int
    complete: bool
    refusals: tuple[RefusedRow, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """How far a request has been applied in a bucket.

    Attributes:
        sequence: The sequence number of the request.
        rows: How many of the request's rows for this bucket are applied.
        offset: The offset of the bucket after these rows.
        complete: Whether all rows are applied.
        refusals: Which of the rows were refused instead.
    """

    sequence: int
    rows: int
    offset: int
    complete: bool
    refusals: tuple[RefusedRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterState:
    """One writer, as a bucket knows it. Immutable.

    Attributes:
        epoch: The newest epoch.
        next_sequence: One more than the greatest sequence number ever applied, in any epoch.
        acked_below: Requests of this epoch with a lower sequence number are no longer applied.
        used_micros: The time of its last request, in microseconds of service time.
        answers: The answers to the requests of this epoch with the greatest sequence numbers, ascending.
        principal: The principal that it belongs to. Empty: to nobody, and it stays so. None: to nobody, until the
            holder of this epoch writes. Stored apart.
    """

    epoch: int = 0
    next_sequence: int = 0
    acked_below: int = 0
    used_micros: int = 0
    answers: tuple[WriteAnswer, ...] = ()
    principal: str | None = None

    def find_answer(self, identity: WriteIdentity, location: str) -> WriteAnswer | None:
        """Returns how far a request has been applied. None: not at all.

        Raises:
            PermissionDenied: The writer belongs to another principal.
            WriterFenced: The epoch of the request has ended.
            WriterExpired: The request is so old that its answer is forgotten, or the bucket does not know its epoch.
        """
        if self.principal and identity.check_owner is not None:
            identity.check_owner(self.principal)
        if identity.epoch < self.epoch:
            raise WriterFenced(
                f'the writer "{identity.writer}" was opened again elsewhere: its epoch {identity.epoch} has ended, and '
                f"epoch {self.epoch} writes now; nothing more of this request was written",
                writer=identity.writer,
                epoch=self.epoch,
            )
        if identity.epoch > self.epoch:
            # Transactions have the epoch of their log.
            if identity.writer == TRANSACTIONS:
                return None
            raise WriterExpired(
                f'{location} does not know epoch {identity.epoch} of the writer "{identity.writer}"; nothing was '
                "written: open the writer again",
                writer=identity.writer,
                sequence=identity.sequence,
            )
        for answer in self.answers:
            if answer.sequence == identity.sequence:
                return answer
        full = len(self.answers) == WRITER_WINDOW and identity.sequence < self.answers[0].sequence
        if full or identity.sequence < self.acked_below:
            raise WriterExpired(
                f'{location}: request {identity.sequence} of the writer "{identity.writer}" is too late, so whether it '
                "was applied before is unknown; nothing was written now: read the rows before you write them again",
                writer=identity.writer,
                sequence=identity.sequence,
            )
        return None

    def after(self, step: WriteStep, offset: int, now_micros: int) -> WriterState:
        """Returns the state after a step that `find_answer` has not refused; `offset` is the bucket's next offset."""
        identity = step.identity
        same = identity.epoch == self.epoch
        acked = max(identity.acked_below, self.acked_below if same else 0)
        others = [answer for answer in self.answers if same and answer.sequence != identity.sequence]
        answer = WriteAnswer(identity.sequence, step.rows, offset, step.complete, step.refusals)
        kept = sorted((a for a in [*others, answer] if a.sequence >= acked), key=lambda a: a.sequence)
        return WriterState(
            epoch=identity.epoch,
            next_sequence=max(self.next_sequence, identity.sequence + 1),
            acked_below=acked,
            used_micros=now_micros,
            answers=tuple(kept[-WRITER_WINDOW:]),
            principal=self.principal if self.principal is not None or not same else identity.principal_of_writer,
        )

    def to_bytes(self) -> bytes:
        """Returns the stored form."""
        refused = {a.sequence: [_to_json(each) for each in a.refusals] for a in self.answers if a.refusals}
        head = _HEADER.pack(
            _FORMAT_WITH_REFUSALS if refused else _FORMAT,
            len(self.answers),
            self.epoch,
            self.next_sequence,
            self.acked_below,
            self.used_micros,
        )
        answers = b"".join(_ANSWER.pack(a.sequence, a.rows, a.offset, a.complete) for a in self.answers)
        return head + answers + (json.dumps(refused).encode() if refused else b"")

    @classmethod
    def from_bytes(cls, data: bytes) -> WriterState:
        """Reads the result of `to_bytes`. Raises NewerFormat, or DataLoss for anything else."""
        try:
            format_, count, epoch, next_sequence, acked, used = _HEADER.unpack_from(data)
            check_format("the record of a writer", format_, _FORMAT_WITH_REFUSALS)
            end = _HEADER.size + count * _ANSWER.size
            if format_ not in (_FORMAT, _FORMAT_WITH_REFUSALS) or (format_ == _FORMAT and len(data) != end):
                raise DataLoss("the record of a writer cannot be read")
            answers = [_ANSWER.unpack_from(data, _HEADER.size + n * _ANSWER.size) for n in range(count)]
            refused = json.loads(data[end:]) if format_ == _FORMAT_WITH_REFUSALS else {}
            refusals = {int(sequence): tuple(map(_from_json, each)) for sequence, each in refused.items()}
        except (struct.error, ValueError, TypeError, AttributeError) as error:
            raise DataLoss("the record of a writer cannot be read") from error
        return cls(
            epoch=epoch,
            next_sequence=next_sequence,
            acked_below=acked,
            used_micros=used,
            answers=tuple(
                WriteAnswer(sequence, rows, offset, bool(complete), refusals.get(sequence, ()))
                for sequence, rows, offset, complete in answers
            ),
        )


def forget_transactions(store: RocksStore) -> None:
    """Removes the record of applied transactions, durably, from a bucket that comes from another data directory.

    The transaction log of this directory has numbers of its own.
    """
    batch = store.batch()
    batch.delete_meta(_key(TRANSACTIONS))
    store.write(batch)
    store.sync()


def _to_json(refusal: RefusedRow) -> list[Any]:
    error = refusal.error
    return [refusal.row, error.reason, error.message, error.details]


def _from_json(stored: list[Any]) -> RefusedRow:
    row, reason, message, details = stored
    error = (error_for_reason(reason) or InvalidRequest)(message)
    error.details.update(details)
    return RefusedRow(row, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """The limits on the writers of one bucket.

    Attributes:
        ttl_seconds: How long after its last request an opened writer is remembered.
        max_writers: The most writers that a bucket knows at once.
        share: The share of them that one principal may have opened.
    """

    ttl_seconds: float = 7 * 86_400.0
    max_writers: int = 100_000
    share: float = 1.0

    @property
    def anonymous_ttl_seconds(self) -> float:
        """Requests of unknown anonymous writers are refused from this age on."""
        return min(self.ttl_seconds, ANONYMOUS_TTL_SECONDS)

    def seconds_kept(self, epoch: int) -> float:
        """Returns for how many seconds after its last request a writer is remembered."""
        return self.ttl_seconds if epoch else self.anonymous_ttl_seconds * _FORGOTTEN_AFTER


DEFAULT_WRITER_LIMITS: Final = WriterLimits()
"""The limits of a server that configures none."""


class WriterStates:
    """The writers of one bucket. They are loaded on demand; the 256 most recently used stay in memory.

    Writers expire by service time. Rule: neither a restart nor a clock that is set makes a writer expire early, because
    a repeated request of a forgotten writer would be applied a second time.

    Not thread-safe: hold the bucket's mutex.
    """

    def __init__(self, store: RocksStore, limits: WriterLimits, clock: ServerClock) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._cache: OrderedDict[str, WriterState | None] = OrderedDict()
        self._count: int | None = None
        self._opened_by: Counter[str] = Counter()
        self._swept = -math.inf

    def is_cached(self, writer: str) -> bool:
        """Whether the writer is known and in memory, so that `find_answer` does not block."""
        return self._cache.get(writer) is not None

    def get(self, writer: str) -> WriterState | None:
        """Returns the state of a writer. None: the bucket does not know it. Raises DataLoss."""
        if writer not in self._cache:
            try:
                stored = cast("bytes | None", self._store.meta.get(_key(writer)))
                owner = None if stored is None else cast("bytes | None", self._store.meta.get(_owner_key(writer)))
            except Exception as error:
                raise self._store.failure(error) from error
            state = None if stored is None else self._read(stored)
            if state is not None and owner is not None:
                state = replace(state, principal=owner.decode())
            self._remember(writer, state)
        self._cache.move_to_end(writer)
        return self._cache[writer]

    def find_answer(self, identity: WriteIdentity) -> WriteAnswer | None:
        """Returns how far a request has been applied. None: not at all, and it may be applied now.

        Raises:
            PermissionDenied: The writer belongs to another principal.
            WriterFenced: The writer has been opened again since.
            WriterExpired: Whether it was applied is unknown: it is too old, or its writer was idle for too long.
            TooManyWriters: The writer is new, and the bucket already knows as many writers as it may.
        """
        state = self.get(identity.writer)
        if state is not None:
            return state.find_answer(identity, self._store.location)
        if identity.writer == TRANSACTIONS:
            return None
        if identity.epoch > 0 or identity.age_seconds >= self._limits.anonymous_ttl_seconds:
            raise WriterExpired(
                f'{self._store.location} no longer knows the writer "{identity.writer}", so whether request '
                f"{identity.sequence} was applied before is unknown; nothing was written now: read the rows before you "
                "write them again, and open the writer again",
                writer=identity.writer,
                sequence=identity.sequence,
            )
        self.ensure_capacity(identity.writer)
        return None

    def record(self, batch: StoreBatch, step: WriteStep, offset: int) -> WriterState:
        """Records a step in a batch of writes. When the batch has been applied, pass the result to `cache`."""
        before = self.get(step.identity.writer) or WriterState()
        state = before.after(step, offset, self._clock.service_micros())
        batch.put_meta(_key(step.identity.writer), state.to_bytes())
        if state.principal is not None and state.principal != before.principal:
            batch.put_meta(_owner_key(step.identity.writer), state.principal.encode())
        return state

    def open(
        self, batch: StoreBatch, writer: str, epoch: int, next_sequence: int, principal: str | None
    ) -> WriterState:
        """Records a new epoch of a writer in a batch of writes, like `record`."""
        now = self._clock.service_micros()
        state = WriterState(epoch=epoch, next_sequence=next_sequence, used_micros=now, principal=principal)
        batch.put_meta(_key(writer), state.to_bytes())
        if principal is not None:
            batch.put_meta(_owner_key(writer), principal.encode())
        else:
            # A version that knew no owners may have forgotten an earlier writer of this id, and left its entry.
            batch.delete_meta(_owner_key(writer))
        return state

    def cache(self, writer: str, state: WriterState) -> None:
        """Keeps in memory what `record` or `open` returned, once its batch has been applied."""
        if self._count is not None:
            before = self.get(writer)
            self._count += before is None
            if before is not None and before.principal:
                self._opened_by[before.principal] -= 1
            if state.principal:
                self._opened_by[state.principal] += 1
        self._remember(writer, state)

    def is_sweep_due(self, *, refuses: bool = False) -> bool:
        """Whether it is time to look for expired writers.

        Args:
            refuses: Whether a new writer would be refused although the bucket is not full.
        """
        full = self._count is not None and self._count >= self._limits.max_writers
        pause = _SWEEP_SECONDS_WHEN_FULL if full or refuses else _SWEEP_SECONDS
        return self._count != 0 and self._clock.monotonic() >= self._swept + min(pause, self._limits.ttl_seconds / 4)

    def sweep(self) -> int:
        """Forgets the writers that have been idle for too long; returns how many."""
        now = self._clock.service_micros()
        batch, expired, there, changed = self._store.batch(), 0, 0, False
        owners, opened_by = dict(self._stored(_OWNER_PREFIX, _END_OF_OWNER_PREFIX)), Counter[str]()
        for key, value in self._stored_records():
            owner = owners.get(_OWNER_PREFIX + key[len(_PREFIX) :], b"").decode()
            format_, count, epoch, next_sequence, acked, used_micros = self._head(value)
            expires = used_micros + self._limits.seconds_kept(epoch) * 1_000_000
            if used_micros <= now and (key == _key(TRANSACTIONS) or expires > now):
                there += 1
                opened_by[owner] += 1
                continue
            changed = True
            self._cache.pop(key[len(_PREFIX) :].decode(), None)
            if used_micros > now:
                # Service time was lost: the writer's time to live begins again.
                head = _HEADER.pack(format_, count, epoch, next_sequence, acked, now)
                batch.put_meta(key, head + value[_HEADER.size :])
                there += 1
                opened_by[owner] += 1
            else:
                batch.delete_meta(key)
                batch.delete_meta(_owner_key(key[len(_PREFIX) :].decode()))
                expired += 1
        if changed:
            self._store.write(batch)
        self._count, self._opened_by, self._swept = there, opened_by, self._clock.monotonic()
        return expired

    def assign(self, before: str, principal: str) -> list[str]:
        """Gives the writers that belong to a principal (empty: to nobody) to another one, and returns their ids."""
        batch, given = self._store.batch(), list[str]()
        for key, value in self._stored_records():
            writer = key[len(_PREFIX) :].decode()
            _, _, epoch, *_ = self._head(value)
            owner = cast("bytes | None", self._store.meta.get(_owner_key(writer)))
            if epoch and writer != TRANSACTIONS and (owner or b"").decode() == before:
                batch.put_meta(_owner_key(writer), principal.encode())
                given.append(writer)
        if given:
            self._store.write(batch)
            self._opened_by[before] -= len(given)
            self._opened_by[principal] += len(given)
            for writer in given:
                self._cache.pop(writer, None)
        return given

    def ensure_capacity(self, writer: str) -> None:
        """Makes sure that the bucket may know another writer. Raises TooManyWriters."""
        full = self._count is None or self._count >= self._limits.max_writers
        if full and self.is_sweep_due():
            self.sweep()
        if self._count is not None and self._count >= self._limits.max_writers:
            raise TooManyWriters(
                f"{self._store.location} knows {self._count:,} writers, which is the limit, so it accepts no new one "
                f'("{writer}"): write with fewer clients, or raise max_writers_per_bucket',
                writer=writer,
            )

    @property
    def limits(self) -> WriterLimits:
        """The limits on the writers of the bucket."""
        return self._limits

    @property
    def known(self) -> int:
        """How many writers the bucket knows, once `ensure_capacity` has counted them."""
        return self._count or 0

    def opened_by(self, principal: str) -> int:
        """Returns how many writers belong to a principal, once `ensure_capacity` has counted them."""
        return self._opened_by[principal]

    def _stored_records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the key and value of the record of each writer."""
        return self._stored(_PREFIX, _END_OF_PREFIX)

    def _stored(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the keys from one on and before another one, with their values."""
        options = scan_options(end)
        iterator = None
        try:
            iterator = self._store.meta.iter(options)
            iterator.seek(first)
            while iterator.valid():
                yield cast("bytes", iterator.key()), cast("bytes", iterator.value())
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._store.failure(error) from error
        finally:
            del iterator  # before its options, which it only borrows

    def _head(self, stored: bytes) -> tuple[int, int, int, int, int, int]:
        try:
            head = cast("tuple[int, int, int, int, int, int]", _HEADER.unpack_from(stored))
            # Rule: a record of an unknown format is neither changed nor forgotten.
            check_format(f"{self._store.location}: the record of a writer", head[0], _FORMAT_WITH_REFUSALS)
            return head
        except struct.error as error:
            raise DataLoss(f"{self._store.location} is damaged: the record of a writer cannot be read") from error

    def _read(self, stored: bytes) -> WriterState:
        try:
            return WriterState.from_bytes(stored)
        except NewerFormat as error:
            raise locate(error, self._store.location) from error
        except DataLoss as error:
            raise DataLoss(f"{self._store.location} is damaged: {error.message}") from error

    def _remember(self, writer: str, state: WriterState | None) -> None:
        self._cache[writer] = state
        self._cache.move_to_end(writer)
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)


def _key(writer: str) -> bytes:
    return _PREFIX + writer.encode()


def _owner_key(writer: str) -> bytes:
    return _OWNER_PREFIX + writer.encode()
