"""Reads one key range of a bucket at one instant, in steps of bounded time, with an end-of-range check.

A fast iterator of rocksdict ends in the same way at the last key, at a damaged block and after too many deleted
entries, so its end proves nothing. Rule: a range has ended only when a checked iterator finds no further entry in it
and reports no error. Its status "too many skipped" means neither an end nor an error: entries after the gap are still
to be read.
"""

from __future__ import annotations

import ctypes
import enum
import time
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from scankv.model.errors import InternalError, ScanKvError
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import MAX_KEY_BYTES
from streaming_server.storage.cursors.gap_grid import GridResolution, next_grid_key, previous_grid_key
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rocksdict import Rdict, RdictIter, ReadOptions

    from streaming_server.storage.rocks.store import RocksStore

T = TypeVar("T")

STEP_SECONDS: Final = 0.004
"""The approximate processor time of one step. Reading the largest chunk takes half of it when no gaps occur."""

FAST_SKIPS: Final = 64
"""The fast iterator ends after this many adjacent deleted entries. It may skip as many before each entry."""
CHECKED_SKIPS: Final = 512
"""The same limit for checked iterators; skipping that many takes about 0.1 ms."""

_LEAST_BLOCK: Final = 256
"""Entries that the fast iterator reads at once. With `FAST_SKIPS` deleted entries before each, that takes 3 ms."""
_MOST_BLOCK: Final = 1024
"""The same limit after a block that took little time. Larger blocks would make a scan only 1 % faster."""

_CHECKED_ENTRIES: Final = 64
_LEAST_BOUND_BYTES: Final = 128
_MOST_BOUND_BYTES: Final = 2 * MAX_KEY_BYTES + 64


@dataclass(frozen=True, slots=True)
class EntryProjection(Generic[T]):
    """Which part of its entries a reader returns: values, or keys and values.

    Attributes:
        fast: The name of the method of a column family that creates the fast iterator. None: the reader has no fast
            iterator. It is a name, because the method itself would keep the bucket open.
        checked: Yields the entry at a checked iterator's position and moves on with the function, while the position is
            valid.
        key_of: Returns the key of a projected entry. May raise DataLoss.
    """

    fast: Literal["values", "items"] | None
    checked: Callable[[RdictIter, Callable[[], None]], Iterator[T]]
    key_of: Callable[[T], bytes]


def values_projection(key_of: Callable[[bytes], bytes]) -> EntryProjection[bytes]:
    """Projects entries to their values, from which `key_of` computes the keys."""

    def checked(iterator: RdictIter, move: Callable[[], None]) -> Iterator[bytes]:
        # Python runs these loops in C, nearly as fast as the fast iterator. `value` is None at an invalid position.
        return map(itemgetter(0), zip(iter(iterator.value, None), iter(move, 0), strict=False))

    return EntryProjection("values", checked, key_of)


def items_projection(*, fast: bool = True) -> EntryProjection[tuple[bytes, bytes]]:
    """Projects entries to keys and values. Pass `fast=False` for `move_to`: a fast iterator cannot change its range."""

    def checked(iterator: RdictIter, move: Callable[[], None]) -> Iterator[tuple[bytes, bytes]]:
        both = zip(iter(iterator.key, None), iter(iterator.value, None), iter(move, 0), strict=False)
        return map(itemgetter(0, 1), both)

    return EntryProjection("items" if fast else None, checked, itemgetter(0))


class RangeReader(Generic[T]):
    """Reads the entries of a key range, as of the instant when the reader was created.

    The reader starts with a fast iterator. Where that ends, a checked iterator of the same instant continues. It finds
    the end, or damage, or a gap of deleted entries, which `_GapProber` crosses in steps.

    Create it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Args:
        store: The store of the bucket.
        family: The column family to read.
        projection: Which part of the entries to return.
        key_range: The range to read; not empty.
        longest: Bytes of the longest row ever written, or of the longest key ever deleted.
        reverse: Whether to read the entries in descending order.

    Attributes:
        ended: Whether all entries of the range were read, and the end-of-range check has passed.
        beyond: After the end, the key of the next entry outside the range. None: the reader has not seen one.
        exhausted: Whether it is proven that no further entry exists up to the end of the range given at creation.
    """

    def __init__(
        self,
        store: RocksStore,
        family: Rdict,
        projection: EntryProjection[T],
        key_range: KeyRange,
        *,
        longest: int,
        reverse: bool,
    ) -> None:
        self.ended = False
        self.beyond: bytes | None = None
        self.exhausted = False
        self._store = store
        self._projection = projection
        self._range = key_range
        self._reverse = reverse
        self._floor = key_range.start if reverse else None
        # The end of an ascending range, unless it is the upper bound of the iterators.
        self._ceiling: bytes | None = None
        self._last: T | None = None
        self._crossed: bytes | None = None
        self._read = 0
        self._block = _LEAST_BLOCK
        self._is_positioned = self._in_gap = False
        self._fast: Iterator[T] | None = None
        self._checked: RdictIter | None = None
        self._prober: _GapProber | None = None
        # Iterators only borrow their options: never change them, and free them after the iterators, as last attribute.
        self._options: list[ReadOptions] = []
        self._use = store.readers.add(partial(self._create_iterators, family, longest))

    def _create_iterators(self, family: Rdict, longest: int) -> None:
        start, end = self._range.start, self._range.end
        self._options = [scan_options(end, max_skips=skips) for skips in (FAST_SKIPS, CHECKED_SKIPS)]
        if self._projection.fast is not None:
            fast: Iterable[Any] = getattr(family, self._projection.fast)(
                backwards=self._reverse, from_key=None if self._reverse else start, read_opt=self._options[0]
            )
            self._fast = iter(fast)
        self._checked = family.iter(self._options[1])
        self._prober = _GapProber(family, longest)
        self._range = KeyRange(start, self._prober.clip(end))

    def move_to(self, key_range: KeyRange) -> None:
        """Continues with another range, at the same instant.

        Args:
            key_range: A part of the range given at creation; not empty.
        """
        assert self._projection.fast is None
        self._use.begin()
        assert self._prober is not None
        self._range = KeyRange(key_range.start, self._prober.clip(key_range.end))
        self._floor = self._range.start if self._reverse else None
        self._ceiling = None if self._reverse else self._range.end
        self._last = self._crossed = self.beyond = None
        self._is_positioned = self._in_gap = self.ended = self.exhausted = False

    @property
    def last_key(self) -> bytes | None:
        """The key up to which every entry was read or is proven not to exist. None: before the first entry.

        Raises DataLoss when the last entry is damaged.
        """
        if self._crossed is not None or self._last is None:
            return self._crossed
        return self._projection.key_of(self._last)

    def read(self, count: int, seconds: float = STEP_SECONDS) -> list[T]:
        """Returns the next entries, at most `count`; fewer or none if reading takes long. `ended` proves the end.

        Args:
            count: The most entries to read.
            seconds: The approximate processor time after which to return.

        Raises:
            DataLoss: Entries cannot be read.
        """
        self._use.begin()
        found: list[T] = []
        began = now = time.thread_time()
        try:
            while not self.ended and (left := count - len(found)) > 0:
                first = len(found)
                if self._fast is not None:
                    self._read_fast(found, left)
                else:
                    self._read_checked(found, left)
                if len(found) > first:
                    self._last, self._crossed = found[-1], None
                    self._read += len(found) - first
                # A step may not end before `last_key` has a value.
                is_begun = self._last is not None or self._crossed is not None
                before, now = now, time.thread_time()
                self._block = _LEAST_BLOCK if now - before > STEP_SECONDS / 4 else min(2 * self._block, _MOST_BLOCK)
                # Another block would take about as long as this one.
                if is_begun and 2 * now - before - began > seconds:
                    break
        except ScanKvError:
            raise
        except Exception as error:
            raise self._store.failure(error) from error
        return found

    def _read_fast(self, found: list[T], count: int) -> None:
        """Adds the next entries to `found`; fewer than a block when the fast iterator has ended."""
        assert self._fast is not None
        first, step = len(found), min(count, self._block)
        if self._floor is not None:
            # Entries below the range are wasted, so read at most as many as the range has had so far.
            step = min(step, max(self._read, _CHECKED_ENTRIES))
        found.extend(islice(self._fast, step))
        if len(found) < first + step:
            self._fast = None
        self._cut(found, first)

    def _cut(self, found: list[T], first: int) -> None:
        """Drops entries, from number `first` on, that are outside the range. Such an entry proves the end."""
        key_of = self._projection.key_of
        if len(found) == first or self._floor is self._ceiling is None or self._is_in_range(key_of(found[-1])):
            return
        outside = bisect_left(found, True, lo=first, key=lambda entry: not self._is_in_range(key_of(entry)))
        # The iterator may have continued from there to the last entry of all.
        self.beyond, self.exhausted = key_of(found[outside]), False
        del found[outside:]
        self._end()

    def _is_in_range(self, key: bytes) -> bool:
        """Whether a key at which an iterator has arrived is still in the range."""
        return (self._floor is None or key >= self._floor) and (self._ceiling is None or key < self._ceiling)

    def _end(self) -> None:
        self.ended = True
        self._fast = None

    def _read_checked(self, found: list[T], count: int) -> None:
        """Adds the next entries to `found`. Adds nothing at the end or while it crosses a gap."""
        if not self._is_positioned and not self._advance():
            return
        iterator, first = self._iterator, len(found)
        move = iterator.prev if self._reverse else iterator.next
        found.extend(islice(self._projection.checked(iterator, move), min(count, _CHECKED_ENTRIES)))
        del iterator, move
        self._is_positioned = self._check_position()
        self._cut(found, first)

    def _advance(self) -> bool:
        """Moves the checked iterator to the first unread entry; returns whether it is there now."""
        if not self._in_gap:
            self._seek(self.last_key)
            self._is_positioned = self._check_position()
        if self._in_gap:
            self._is_positioned = self._cross_gap()
        return self._is_positioned

    @property
    def _iterator(self) -> RdictIter:
        """The checked iterator. Assign it to no variable: the traceback of an error would keep its files open."""
        assert self._checked is not None
        return self._checked

    def _check_position(self) -> bool:
        """Returns whether the checked iterator is at an entry of the range. If not, the range ended or a gap begins."""
        if self._iterator.valid():
            key = self._iterator.key()
            if self._is_in_range(key):
                self._in_gap = False
                return True
            self.beyond = key
            self._end()
        elif is_skip_limit_reached(self._iterator):
            self._in_gap = True
        else:
            self.exhausted = True
            self._end()
        return False

    def _seek(self, last: bytes | None) -> None:
        """Moves the checked iterator to the first entry after a key, or to the beginning of the range."""
        iterator = self._iterator
        try:
            if not self._reverse:
                start = self._range.start if last is None else last + b"\0"
                if start is None:
                    iterator.seek_to_first()
                else:
                    iterator.seek(start)
            elif last is None and self._range.end is None:
                iterator.seek_to_last()
            else:
                end = self._range.end if last is None else last
                assert end is not None
                iterator.seek_for_prev(end)
                if iterator.valid() and iterator.key() == end:
                    iterator.prev()
        finally:
            del iterator

    def _cross_gap(self) -> bool:
        """Takes one step across a gap; returns whether the checked iterator is now at an entry after it.

        The step probes a piece of the gap as large as one probe can cover. An empty piece has been crossed.
        """
        assert self._prober is not None
        last, prober = self.last_key, self._prober
        if last is None and self._reverse and self._range.end is None:
            self._crossed = self._key_above_all()
            return False
        piece = self._piece(last, prober.resolution.bits)
        found = None if piece is None else prober.probe(*piece)
        if found is _ProbeResult.NOTHING:
            assert piece is not None
            if piece[0] == (self._floor or b"") if self._reverse else piece[1] == self._ceiling:
                self._end()
                return False
            self._crossed = piece[0] if self._reverse else piece[1][:-1]
            prober.resolution.coarsen()
            return False
        if found is not _ProbeResult.TOO_MUCH:
            # An entry is near, or the range ends soon.
            self._seek(last)
            if self._check_position() or self.ended:
                return not self.ended
        if not prober.resolution.refine():
            raise _skip_limit_error(self._store)
        return False

    def _piece(self, last: bytes | None, bits: int) -> tuple[bytes, bytes] | None:
        """Returns the next piece of the gap after `last`: up to the next grid key, or to the end of the range.

        None: the piece is the rest of an ascending range, where the checked iterator stops by itself.
        """
        if self._reverse:
            end = self._range.end if last is None else last
            assert end is not None
            return max(previous_grid_key(end, bits), self._floor or b""), end
        start = (self._range.start or b"") if last is None else last + b"\0"
        end = next_grid_key(start, bits)
        if end is None or (self._range.end is not None and end >= self._range.end):
            return None if self._ceiling is None else (start, self._ceiling)
        return start, end + b"\0"

    def _key_above_all(self) -> bytes:
        """Returns a key after all existing ones, which is verified."""
        assert self._prober is not None
        top = self._prober.top
        self._iterator.seek(top)
        if self._iterator.valid() or is_skip_limit_reached(self._iterator):
            raise _skip_limit_error(self._store)
        return top

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        self._use.close()
        self._fast = self._checked = self._prober = None


class _ProbeResult(enum.Enum):
    """What a probe of a piece of a gap has found."""

    NOTHING = enum.auto()
    ENTRY = enum.auto()
    TOO_MUCH = enum.auto()


class _GapProber:
    """A checked iterator whose upper bound moves, to probe one piece of a range after another.

    RocksDB borrows the bytes of the bound from the creator of the iterator, reads them again with every seek, and
    allows them to change. rocksdict passes the bytes of the Python object. So the prober overwrites them in place; no
    other code has this object. If a bound did not move, a probe would see more than its piece. Then it would report
    too much, or an entry that the caller verifies, but never miss an entry.

    Attributes:
        top: The greatest bound.
        resolution: The size of the pieces to probe.
    """

    def __init__(self, family: Rdict, longest: int) -> None:
        """Creates the iterator.

        Args:
            family: The column family to read.
            longest: Bytes of the longest row ever written, or of the longest key ever deleted. Encoded keys have at
                most twice as many.
        """
        self._size = min(max(2 * longest + 64, _LEAST_BOUND_BYTES), _MOST_BOUND_BYTES)
        self.top = b"\xff" * self._size
        self._bound = bytes(bytearray(self.top))
        self._address = ctypes.cast(ctypes.c_char_p(self._bound), ctypes.c_void_p)
        self.resolution = GridResolution(8 * (self._size - 1))
        self._iterator: RdictIter | None = None
        # As in `RangeReader`, the options are freed after the iterator.
        self._options = scan_options(self._bound, max_skips=CHECKED_SKIPS)
        self._iterator = family.iter(self._options)

    def clip(self, end: bytes | None) -> bytes | None:
        """Returns the end of a range, shortened to the length of a bound. No existing key lies between the two."""
        return end if end is None else end[: self._size - 1]

    def probe(self, start: bytes, end: bytes) -> _ProbeResult:
        """Probes the keys from `start` up to, but without, `end`."""
        assert self._iterator is not None
        if len(end) > self._size:
            return _ProbeResult.TOO_MUCH
        # The zero bytes after `end` admit `end`, and keys that continue it with zero bytes: they are compared below.
        ctypes.memmove(self._address, end.ljust(self._size, b"\0"), self._size)
        self._iterator.seek(start)
        if self._iterator.valid():
            return _ProbeResult.ENTRY if self._iterator.key() < end else _ProbeResult.NOTHING
        return _ProbeResult.TOO_MUCH if is_skip_limit_reached(self._iterator) else _ProbeResult.NOTHING


def is_skip_limit_reached(iterator: RdictIter) -> bool:
    """Whether an invalid iterator has reached its limit of skipped entries; raises any other error it has."""
    try:
        iterator.status()
    except Exception as error:
        if "Too many internal keys skipped" in str(error):
            return True
        raise
    finally:
        # The traceback of an error would keep the iterator.
        del iterator
    return False


def _skip_limit_error(store: RocksStore) -> InternalError:
    return InternalError(
        f"{store.location}: too many adjacent deleted keys begin with the same bytes, so they cannot be skipped: read "
        "again after background compaction has removed them"
    )
