"""What a bucket knows of its writers: which requests of each it has applied, and what it answered.

A record lies in the column family `meta` and is put in the WriteBatch of the rows that a request writes, so a request
is noted exactly where it was applied. A request of several WriteBatches notes with each how many of its rows are in.

A writer with an epoch above 0 was opened, in every bucket at once; one with epoch 0 is a client that asked nobody.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from scankv.model.errors import DataLoss, TooManyWriters, WriterExpired, WriterFenced
from scankv.model.limits import WRITER_WINDOW
from streaming_server.storage.rocks.store import scan_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.clock import ServerClock
    from streaming_server.storage.rocks.store import RocksStore, StoreBatch

MAX_SEQUENCE: Final = 2**63
"""Sequences are below it."""

ANONYMOUS_TTL_SECONDS: Final = 3600.0
"""A request of a writer that was never opened is refused when it is that old and its writer is not known."""

_FORGOTTEN_AFTER: Final = 1.1
"""Such a writer is forgotten after so many times that. Rule: a record outlives every request that would be applied
without it, also one that was on its way for a while after its client said how old it was."""

TRANSACTIONS: Final = "transactions/"
"""The writer as which transactions are written to a bucket, each with a sequence of its own.

No client can have this id. It is never forgotten, and always has a place."""

_PREFIX: Final = b"writer/"
_BEHIND_PREFIX: Final = b"writer0"
_CACHED: Final = 256
_SWEEP_SECONDS: Final = 600.0
_SWEEP_SECONDS_WHEN_FULL: Final = 60.0
"""A bucket looks for expired writers that often at most, also while it refuses new ones."""

_FORMAT: Final = 1
# format, number of answers, epoch, next sequence, settled below, last use in microseconds of service time
_HEADER: Final = struct.Struct("<BBIQQq")
# sequence, rows applied, offset behind them, whether they are all
_ANSWER: Final = struct.Struct("<QIqB")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteIdentity:
    """Which request of which writer a write is. A repeated request has the same `writer`, `epoch` and `sequence`.

    Attributes:
        writer: The writer's id.
        epoch: 0, or what opening the writer gave. Each opening fences the epochs before it.
        sequence: The request's number. Numbers of one writer ascend, from any number on and with gaps.
        acked_below: Every request of a lower number was answered or given up: one that comes late is refused.
        age_seconds: How long ago the request was sent for the first time.
    """

    writer: str
    epoch: int
    sequence: int
    acked_below: int = 0
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStep:
    """What one WriteBatch does of a request: with it, the first `rows` of the request's rows in the bucket are in.

    Attributes:
        identity: The request.
        rows: How many rows of its part of the bucket are applied then.
        whole: Whether that is all of them.
    """

    identity: WriteIdentity
    rows: int
    whole: bool


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """How far a request has been applied in a bucket: see `WriteStep`, and the bucket's offset behind it."""

    sequence: int
    rows: int
    offset: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterState:
    """One writer, as a bucket knows it. Immutable.

    Attributes:
        epoch: The newest epoch there was.
        next_sequence: Behind the greatest sequence that was applied, in any epoch.
        acked_below: Lower ones of this epoch are not applied any more.
        used_micros: When it was heard of last, in microseconds of service time.
        answers: Those of this epoch's greatest sequences, ascending.
    """

    epoch: int = 0
    next_sequence: int = 0
    acked_below: int = 0
    used_micros: int = 0
    answers: tuple[WriteAnswer, ...] = ()

    def find_answer(self, identity: WriteIdentity, location: str) -> WriteAnswer | None:
        """How far a request has been applied; None when not at all.

        Raises:
            WriterFenced: Its epoch is over.
            WriterExpired: It is too old to tell; or its epoch is none that the bucket was told of.
        """
        if identity.epoch < self.epoch:
            raise WriterFenced(
                f'the writer "{identity.writer}" was opened anew, elsewhere: its epoch {identity.epoch} is over, and '
                f"{self.epoch} writes now; of this request, nothing more was written",
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
                f'{location}: request {identity.sequence} of the writer "{identity.writer}" comes too late to tell '
                "whether it was applied; nothing was written: read what is there before you write it again",
                writer=identity.writer,
                sequence=identity.sequence,
            )
        return None

    def after(self, step: WriteStep, offset: int, now_micros: int) -> WriterState:
        """The state with a step that `find_answer` has not refused. `offset` is the bucket's next one behind it."""
        identity = step.identity
        same = identity.epoch == self.epoch
        settled = max(identity.acked_below, self.acked_below if same else 0)
        others = [answer for answer in self.answers if same and answer.sequence != identity.sequence]
        answer = WriteAnswer(identity.sequence, step.rows, offset, step.whole)
        kept = sorted((a for a in [*others, answer] if a.sequence >= settled), key=lambda a: a.sequence)
        return WriterState(
            epoch=identity.epoch,
            next_sequence=max(self.next_sequence, identity.sequence + 1),
            acked_below=settled,
            used_micros=now_micros,
            answers=tuple(kept[-WRITER_WINDOW:]),
        )

    def to_bytes(self) -> bytes:
        """The stored form."""
        head = _HEADER.pack(
            _FORMAT, len(self.answers), self.epoch, self.next_sequence, self.acked_below, self.used_micros
        )
        return head + b"".join(_ANSWER.pack(a.sequence, a.rows, a.offset, a.whole) for a in self.answers)

    @classmethod
    def from_bytes(cls, data: bytes) -> WriterState:
        """What `to_bytes` gave. Raises DataLoss when it is something else."""
        try:
            format_, count, epoch, next_sequence, settled, used = _HEADER.unpack_from(data)
            if format_ != _FORMAT or len(data) != _HEADER.size + count * _ANSWER.size:
                raise DataLoss("what is noted of a writer cannot be read")
            answers = (_ANSWER.unpack_from(data, _HEADER.size + n * _ANSWER.size) for n in range(count))
        except struct.error as error:
            raise DataLoss("what is noted of a writer cannot be read") from error
        return cls(
            epoch=epoch,
            next_sequence=next_sequence,
            acked_below=settled,
            used_micros=used,
            answers=tuple(
                WriteAnswer(sequence, rows, offset, bool(whole)) for sequence, rows, offset, whole in answers
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """What bounds the writers of one bucket.

    Attributes:
        ttl_seconds: An opened writer is forgotten so long after its last request.
        max_writers: Writers that a bucket knows at once.
    """

    ttl_seconds: float = 7 * 86_400.0
    max_writers: int = 100_000

    @property
    def anonymous_ttl_seconds(self) -> float:
        """The age from which on a request of an unknown writer that was never opened is refused."""
        return min(self.ttl_seconds, ANONYMOUS_TTL_SECONDS)

    def seconds_kept(self, epoch: int) -> float:
        """Seconds for which a writer is known after its last request."""
        return self.ttl_seconds if epoch else self.anonymous_ttl_seconds * _FORGOTTEN_AFTER


DEFAULT_WRITER_LIMITS: Final = WriterLimits()
"""Those of a server that sets no others."""


class WriterStates:
    """The writers of one bucket. Loaded when they are asked for; the 256 used last stay in memory.

    Writers expire by service time. Rule: a restart, or a clock that is set, makes no writer expire early, since a
    repeated request of a forgotten writer is applied a second time.

    Not thread-safe: hold the bucket's mutex.
    """

    def __init__(self, store: RocksStore, limits: WriterLimits, clock: ServerClock) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._cache: OrderedDict[str, WriterState | None] = OrderedDict()
        self._count: int | None = None
        self._swept = -math.inf

    def is_cached(self, writer: str) -> bool:
        """Whether `find_answer` takes no time, because the writer is known and in memory."""
        return self._cache.get(writer) is not None

    def get(self, writer: str) -> WriterState | None:
        """What is known of a writer. Raises DataLoss."""
        if writer not in self._cache:
            try:
                stored = cast("bytes | None", self._store.meta.get(_key(writer)))
            except Exception as error:
                raise self._store.failure(error) from error
            self._remember(writer, None if stored is None else self._read(stored))
        self._cache.move_to_end(writer)
        return self._cache[writer]

    def find_answer(self, identity: WriteIdentity) -> WriteAnswer | None:
        """How far a request has been applied; None when not at all, and it may be applied now.

        Raises:
            WriterFenced: The writer was opened anew since.
            WriterExpired: It is too old, or its writer has not been heard of for too long, to tell.
            TooManyWriters: The writer is new, and there are as many as there may be.
        """
        state = self.get(identity.writer)
        if state is not None:
            return state.find_answer(identity, self._store.location)
        if identity.writer == TRANSACTIONS:
            return None
        if identity.epoch > 0 or identity.age_seconds >= self._limits.anonymous_ttl_seconds:
            raise WriterExpired(
                f'{self._store.location} does not know the writer "{identity.writer}" any more: whether request '
                f"{identity.sequence} was applied earlier cannot be told, and it was not applied now; read what is "
                "there before you write it again, and open the writer anew",
                writer=identity.writer,
                sequence=identity.sequence,
            )
        self.ensure_capacity(identity.writer)
        return None

    def record(self, batch: StoreBatch, step: WriteStep, offset: int) -> WriterState:
        """Has a step noted as part of a batch of writes; `cache` what this gives when the batch is applied."""
        before = self.get(step.identity.writer) or WriterState()
        state = before.after(step, offset, self._clock.service_micros())
        batch.put_meta(_key(step.identity.writer), state.to_bytes())
        return state

    def open(self, batch: StoreBatch, writer: str, epoch: int, next_sequence: int) -> WriterState:
        """Has a new epoch of a writer noted as part of a batch of writes, as `record`."""
        state = WriterState(epoch=epoch, next_sequence=next_sequence, used_micros=self._clock.service_micros())
        batch.put_meta(_key(writer), state.to_bytes())
        return state

    def cache(self, writer: str, state: WriterState) -> None:
        """Takes over what `record` or `open` gave, once its batch was applied."""
        if self._count is not None and self.get(writer) is None:
            self._count += 1
        self._remember(writer, state)

    def is_sweep_due(self) -> bool:
        """Whether it is time to look for expired writers: now and then, as far as there is one that may be."""
        full = self._count is not None and self._count >= self._limits.max_writers
        pause = _SWEEP_SECONDS_WHEN_FULL if full else _SWEEP_SECONDS
        return self._count != 0 and self._clock.monotonic() >= self._swept + min(pause, self._limits.ttl_seconds / 4)

    def sweep(self) -> int:
        """Forgets the writers that have not been heard of for too long; how many those were."""
        now = self._clock.service_micros()
        batch, expired, there, changed = self._store.batch(), 0, 0, False
        for key, value in self._stored():
            format_, count, epoch, next_sequence, settled, used_micros = self._head(value)
            expires = used_micros + self._limits.seconds_kept(epoch) * 1_000_000
            if used_micros <= now and (key == _key(TRANSACTIONS) or expires > now):
                there += 1
                continue
            changed = True
            self._cache.pop(key[len(_PREFIX) :].decode(), None)
            if used_micros > now:
                # Service time was lost: its time to live begins again.
                head = _HEADER.pack(format_, count, epoch, next_sequence, settled, now)
                batch.put_meta(key, head + value[_HEADER.size :])
                there += 1
            else:
                batch.delete_meta(key)
                expired += 1
        if changed:
            self._store.write(batch)
        self._count, self._swept = there, self._clock.monotonic()
        return expired

    def ensure_capacity(self, writer: str) -> None:
        """Sees to it that there may be another writer. Raises TooManyWriters."""
        full = self._count is None or self._count >= self._limits.max_writers
        if full and self.is_sweep_due():
            self.sweep()
        if self._count is not None and self._count >= self._limits.max_writers:
            raise TooManyWriters(
                f"{self._store.location} knows {self._count} writers, which is the limit, so there is no room for "
                f'"{writer}": write with fewer clients, or raise max_writers_per_bucket',
                writer=writer,
            )

    def _stored(self) -> Iterator[tuple[bytes, bytes]]:
        """The key and value of each record."""
        options = scan_options(_BEHIND_PREFIX)
        iterator = None
        try:
            iterator = self._store.meta.iter(options)
            iterator.seek(_PREFIX)
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
            return cast("tuple[int, int, int, int, int, int]", _HEADER.unpack_from(stored))
        except struct.error as error:
            raise DataLoss(f"{self._store.location} is damaged: what is noted of a writer cannot be read") from error

    def _read(self, stored: bytes) -> WriterState:
        try:
            return WriterState.from_bytes(stored)
        except DataLoss as error:
            raise DataLoss(f"{self._store.location} is damaged: {error.message}") from error

    def _remember(self, writer: str, state: WriterState | None) -> None:
        self._cache[writer] = state
        self._cache.move_to_end(writer)
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)


def _key(writer: str) -> bytes:
    return _PREFIX + writer.encode()
