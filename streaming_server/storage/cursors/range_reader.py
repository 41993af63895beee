"""Reads one key range of a bucket as of one moment, in steps of bounded time, to an end that is proven.

RocksDB's fast iterators end in the same way at the last key, at a damaged block and after too many deleted entries, so
their end proves nothing. The rule: a range has ended only where a checked iterator has found nothing more in it and
reports no error. "Too many skipped" is neither an end nor an error: what is behind the gap is still to be read.
"""

from __future__ import annotations

import ctypes
import enum
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from scankv.model.errors import InternalError, ScanKvError
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import MAX_KEY_BYTES
from streaming_server.storage.cursors.gap_grid import GridResolution, next_grid_key, previous_grid_key
from streaming_server.storage.rocks.store import scan_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rocksdict import Rdict, RdictIter

    from streaming_server.storage.rocks.store import RocksStore

T = TypeVar("T")

STEP_SECONDS: Final = 0.004
"""Processor time of one step, about: reading entries without gaps takes half of it for the largest chunk."""

FAST_SKIPS: Final = 64
"""Deleted entries in a row at which the fast iterator ends. A block of entries may pass over so many for each."""
CHECKED_SKIPS: Final = 512
"""The same of the checked iterators, some 0.1 ms."""

_LEAST_BLOCK: Final = 256
"""Entries that the fast iterator reads at once; with `FAST_SKIPS` deleted entries before each, that takes 3 ms."""
_MOST_BLOCK: Final = 1024
"""The same where the block before took little time. Larger blocks would make a scan 1 % faster."""

_CHECKED_ENTRIES: Final = 64
_LEAST_BOUND_BYTES: Final = 128
_MOST_BOUND_BYTES: Final = 2 * MAX_KEY_BYTES + 64


@dataclass(frozen=True, slots=True)
class EntryProjection(Generic[T]):
    """What of its entries a reader gives.

    Attributes:
        fast: The method of a column family that makes the fast iterator; None for no such iterator. Not the method
            itself, which would keep the bucket open.
        checked: Gives what a checked iterator stands on, then moves it on with the function, until it is invalid.
        key_of: The key of an entry as it is given. May raise DataLoss.
    """

    fast: Literal["values", "items"] | None
    checked: Callable[[RdictIter, Callable[[], None]], Iterator[T]]
    key_of: Callable[[T], bytes]


def values_projection(key_of: Callable[[bytes], bytes]) -> EntryProjection[bytes]:
    """The values of entries, of which `key_of` tells the keys."""

    def checked(iterator: RdictIter, move: Callable[[], None]) -> Iterator[bytes]:
        # Loops that Python has in C, nearly as fast as the fast iterator: `value` gives None where it is invalid.
        return map(itemgetter(0), zip(iter(iterator.value, None), iter(move, 0), strict=False))

    return EntryProjection("values", checked, key_of)


def items_projection(*, fast: bool = True) -> EntryProjection[tuple[bytes, bytes]]:
    """The keys and values of entries; without the fast iterator, which cannot `move_to` another range."""

    def checked(iterator: RdictIter, move: Callable[[], None]) -> Iterator[tuple[bytes, bytes]]:
        both = zip(iter(iterator.key, None), iter(iterator.value, None), iter(move, 0), strict=False)
        return map(itemgetter(0, 1), both)

    return EntryProjection("items" if fast else None, checked, itemgetter(0))


class RangeReader(Generic[T]):
    """The entries of a key range, or of its end first, as of the moment when the reader was made.

    It reads with a fast iterator. From where that has ended, a checked iterator of the same moment goes on: it finds
    the end, or damage, or a gap of deleted entries, across which `_GapProber` finds the way in steps.

    Make it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Args:
        store: Where the bucket lies.
        family: The column family that is read.
        projection: What of the entries is given.
        key_range: What is read; not empty.
        longest: Bytes of the longest row, or deleted key, that there ever was.
        reverse: Whether in descending order.

    Attributes:
        ended: Whether it is proven that there is nothing more in the range.
        beyond: Where it has ended, the key of the next entry outside the range; None where that was not seen.
        exhausted: Whether it is proven that nothing is behind either, up to the end of the range it was made for.
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
        # Where an ascending range ends, unless the iterators end there by themselves.
        self._ceiling: bytes | None = None
        self._last: T | None = None
        self._crossed: bytes | None = None
        self._read = 0
        self._block = _LEAST_BLOCK
        self._stands = self._in_gap = False
        self._fast: Iterator[T] | None = None
        self._checked: RdictIter | None = None
        self._prober: _GapProber | None = None
        # Iterators only borrow their options: these are freed after them, as the last attribute, and never changed.
        self._options = [scan_options(key_range.end, max_skips=skips) for skips in (FAST_SKIPS, CHECKED_SKIPS)]
        try:
            if projection.fast is not None:
                fast: Iterable[Any] = getattr(family, projection.fast)(
                    backwards=reverse, from_key=None if reverse else key_range.start, read_opt=self._options[0]
                )
                self._fast = iter(fast)
            self._checked = family.iter(self._options[1])
            self._prober = _GapProber(family, longest)
            self._range = KeyRange(key_range.start, self._prober.clip(key_range.end))
        except Exception as error:
            raise store.failure(error) from error
        store.readers += 1

    def move_to(self, key_range: KeyRange) -> None:
        """Reads another range from now on, as of the same moment.

        Args:
            key_range: A part of the range that the reader was made for; not empty.
        """
        assert self._projection.fast is None
        assert self._prober is not None
        self._range = KeyRange(key_range.start, self._prober.clip(key_range.end))
        self._floor = self._range.start if self._reverse else None
        self._ceiling = None if self._reverse else self._range.end
        self._last = self._crossed = self.beyond = None
        self._stands = self._in_gap = self.ended = self.exhausted = False

    @property
    def last_key(self) -> bytes | None:
        """The key up to which everything was read, or is proven not to be there; None before the first.

        Raises DataLoss when the last entry is damaged.
        """
        if self._crossed is not None or self._last is None:
            return self._crossed
        return self._projection.key_of(self._last)

    def read(self, count: int) -> list[T]:
        """The next entries, at most so many. Fewer, or none, where that takes long: `ended` tells whether that is all.

        Raises:
            DataLoss: What is there cannot be read.
        """
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
                # Not before it is known how far the range was read, if not to which entry.
                is_begun = self._last is not None or self._crossed is not None
                before, now = now, time.thread_time()
                self._block = _LEAST_BLOCK if now - before > STEP_SECONDS / 4 else min(2 * self._block, _MOST_BLOCK)
                if is_begun and now - began > STEP_SECONDS:
                    break
        except ScanKvError:
            raise
        except Exception as error:
            raise self._store.failure(error) from error
        return found

    def _read_fast(self, found: list[T], count: int) -> None:
        """Adds the next entries to those that were found; fewer than a block where the fast iterator has ended."""
        assert self._fast is not None
        first, step = len(found), min(count, self._block)
        if self._floor is not None:
            # What lies below the range is read for nothing: no more of it than of the range.
            step = min(step, max(self._read, _CHECKED_ENTRIES))
        found.extend(islice(self._fast, step))
        if len(found) < first + step:
            self._fast = None
        self._cut(found, first)

    def _cut(self, found: list[T], first: int) -> None:
        """Drops entries from the `first` on that are outside the range; to have seen one proves the end."""
        key_of = self._projection.key_of
        if len(found) == first or self._floor is self._ceiling is None or self._has(key_of(found[-1])):
            return
        behind = bisect_left(found, True, lo=first, key=lambda entry: not self._has(key_of(entry)))
        # The iterator may have gone on from there, to the end of all.
        self.beyond, self.exhausted = key_of(found[behind]), False
        del found[behind:]
        self._end()

    def _has(self, key: bytes) -> bool:
        """Whether a key that an iterator has come to is within the range still."""
        return (self._floor is None or key >= self._floor) and (self._ceiling is None or key < self._ceiling)

    def _end(self) -> None:
        self.ended = True
        self._fast = None

    def _read_checked(self, found: list[T], count: int) -> None:
        """Adds the next entries to those that were found; none at the end, and none where a gap is crossed."""
        if not self._stands and not self._go_on():
            return
        iterator, first = self._iterator, len(found)
        move = iterator.prev if self._reverse else iterator.next
        found.extend(islice(self._projection.checked(iterator, move), min(count, _CHECKED_ENTRIES)))
        del iterator, move
        self._stands = self._look()
        self._cut(found, first)

    def _go_on(self) -> bool:
        """Puts the checked iterator on the first entry behind what was read: whether it stands there now."""
        if not self._in_gap:
            self._seek(self.last_key)
            self._stands = self._look()
        if self._in_gap:
            self._stands = self._cross()
        return self._stands

    @property
    def _iterator(self) -> RdictIter:
        """The checked iterator. Keep it in no variable: an error's traceback would hold it, and its files."""
        assert self._checked is not None
        return self._checked

    def _look(self) -> bool:
        """Whether the checked iterator stands on an entry of the range; if not, it was the end, or a gap begins."""
        if self._iterator.valid():
            key = self._iterator.key()
            if self._has(key):
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
        """Moves the checked iterator to what is behind a key, or to where the range begins."""
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
                behind = self._range.end if last is None else last
                assert behind is not None
                iterator.seek_for_prev(behind)
                if iterator.valid() and iterator.key() == behind:
                    iterator.prev()
        finally:
            del iterator

    def _cross(self) -> bool:
        """Takes one step across a gap; returns whether the checked iterator now stands on an entry after it.

        A piece of the gap is looked into that is as large as can be looked into at once. Found empty, it is crossed.
        """
        assert self._prober is not None
        last, prober = self.last_key, self._prober
        if last is None and self._reverse and self._range.end is None:
            self._crossed = self._top()
            return False
        piece = self._piece(last, prober.resolution.bits)
        found = None if piece is None else prober.look(*piece)
        if found is _ProbeResult.NOTHING:
            assert piece is not None
            if piece[0] == (self._floor or b"") if self._reverse else piece[1] == self._ceiling:
                self._end()
                return False
            self._crossed = piece[0] if self._reverse else piece[1][:-1]
            prober.resolution.coarsen()
            return False
        if found is not _ProbeResult.TOO_MUCH:
            # There is an entry near, or the range ends soon.
            self._seek(last)
            if self._look() or self.ended:
                return not self.ended
        if not prober.resolution.refine():
            raise _too_alike(self._store)
        return False

    def _piece(self, last: bytes | None, bits: int) -> tuple[bytes, bytes] | None:
        """The part of the gap, next to what was read up to `last`, that ends on a grid, or with the range.

        None: all of the range is, in ascending order, and the iterator itself stops there.
        """
        if self._reverse:
            end = self._range.end if last is None else last
            assert end is not None
            return max(previous_grid_key(end, bits), self._floor or b""), end
        start = (self._range.start or b"") if last is None else last + b"\0"
        behind = next_grid_key(start, bits)
        if behind is None or (self._range.end is not None and behind >= self._range.end):
            return None if self._ceiling is None else (start, self._ceiling)
        return start, behind + b"\0"

    def _top(self) -> bytes:
        """A key that is behind all there are, as is made sure."""
        assert self._prober is not None
        top = self._prober.top
        self._iterator.seek(top)
        if self._iterator.valid() or is_skip_limit_reached(self._iterator):
            raise _too_alike(self._store)
        return top

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        if self._checked is not None:
            self._store.readers -= 1
        self._fast = self._checked = self._prober = None


class _ProbeResult(enum.Enum):
    """What a look into a piece of a gap has found."""

    NOTHING = enum.auto()
    ENTRY = enum.auto()
    TOO_MUCH = enum.auto()


class _GapProber:
    """A checked iterator whose upper bound moves, to look into one piece of a range after another.

    RocksDB borrows the bytes of a bound from whoever asks for the iterator, and reads them anew with every seek; it
    expects that they may change. rocksdict gives it those of the Python object. So they are written in place: nobody
    else has this object. If a bound did not move, a look would see more than its piece: it would then find too much, or
    an entry that the caller looks at again, but never nothing where there is something.

    Attributes:
        top: The greatest bound.
        resolution: How large pieces to look into.
    """

    def __init__(self, family: Rdict, longest: int) -> None:
        """Makes the iterator.

        Args:
            family: The column family that is read.
            longest: Bytes of the longest row, or deleted key, that there ever was. Keys have at most twice as many.
        """
        self._size = min(max(2 * longest + 64, _LEAST_BOUND_BYTES), _MOST_BOUND_BYTES)
        self.top = b"\xff" * self._size
        self._bound = bytes(bytearray(self.top))
        self._address = ctypes.cast(ctypes.c_char_p(self._bound), ctypes.c_void_p)
        self.resolution = GridResolution(8 * (self._size - 1))
        self._iterator: RdictIter | None = None
        # As in `RangeReader`: freed after the iterator.
        self._options = scan_options(self._bound, max_skips=CHECKED_SKIPS)
        self._iterator = family.iter(self._options)

    def clip(self, end: bytes | None) -> bytes | None:
        """The end of a range, no longer than any bound; no key that there is lies between the two."""
        return end if end is None else end[: self._size - 1]

    def look(self, start: bytes, end: bytes) -> _ProbeResult:
        """What there is from `start` up to, but without, `end`."""
        assert self._iterator is not None
        if len(end) > self._size:
            return _ProbeResult.TOO_MUCH
        # Zero bytes behind `end` let in keys that only they tell from it.
        ctypes.memmove(self._address, end.ljust(self._size, b"\0"), self._size)
        self._iterator.seek(start)
        if self._iterator.valid():
            return _ProbeResult.ENTRY if self._iterator.key() < end else _ProbeResult.NOTHING
        return _ProbeResult.TOO_MUCH if is_skip_limit_reached(self._iterator) else _ProbeResult.NOTHING


def is_skip_limit_reached(iterator: RdictIter) -> bool:
    """Whether an iterator that is invalid has skipped more than it may; raises what else is wrong with it."""
    try:
        iterator.status()
    except Exception as error:
        if "Too many internal keys skipped" in str(error):
            return True
        raise
    finally:
        # An error's traceback would hold the iterator.
        del iterator
    return False


def _too_alike(store: RocksStore) -> InternalError:
    return InternalError(
        f"{store.location}: too many adjacent deleted keys begin with the same bytes, so they cannot be skipped: read "
        "again after background compaction has removed them"
    )
