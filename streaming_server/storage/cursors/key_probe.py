"""Single looks at the keys of a bucket: a few from any place on, for estimates of how many there are where."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from streaming_server.storage.cursors.range_reader import is_skip_limit_reached
from streaming_server.storage.rocks.store import scan_options

if TYPE_CHECKING:
    from rocksdict import RdictIter

    from streaming_server.storage.rocks.store import RocksStore

_MOST_SKIPS: Final = 4096
_TOP: Final = b"\xff" * 16


class KeyProbe:
    """Reads some keys of one bucket from wherever it is asked to, as of the moment it was made.

    A look passes over a bounded number of deleted keys, so that it holds the event loop for a millisecond at most.
    Where there are more, it sees fewer keys than there are: enough for an estimate, and never to be taken for all.

    Use it from one thread at a time. It pins files on disk until `close`.
    """

    def __init__(self, store: RocksStore) -> None:
        self._store = store
        # As in `BucketCursor`: freed after the iterator, never changed.
        self._options = scan_options(max_skips=_MOST_SKIPS)
        try:
            self._iterator: RdictIter | None = store.rows.iter(self._options)
        except Exception as error:
            raise store.failure(error) from error

    def keys_from(self, start: bytes, count: int) -> list[bytes]:
        """The first keys from a place on, at most so many; fewer at the end, or among deleted ones. Raises DataLoss."""
        self._standing.seek(start)
        iterator = self._standing
        # Loops that Python has in C, as in `RangesCursor`.
        pairs = list(islice(zip(iter(iterator.key, None), iter(iterator.next, 0)), count))  # noqa: B905
        del iterator
        if len(pairs) < count:
            self._check()
        return [key for key, _ in pairs]

    def last_below(self, end: bytes | None) -> bytes | None:
        """The last key below a place, or of all for None; None where there is none. Raises DataLoss.

        Among deleted keys it may be one that is above the last, and not there.
        """
        if end is None:
            self._standing.seek_to_last()
        else:
            self._standing.seek_for_prev(end)
            if self._standing.valid() and self._standing.key() == end:
                self._standing.prev()
        if self._standing.valid():
            key: bytes = self._standing.key()
            return key
        return (end or _TOP) if self._check() else None

    def _check(self) -> bool:
        """Whether it has stopped among deleted keys. Raises DataLoss."""
        try:
            return is_skip_limit_reached(self._standing)
        except Exception as error:
            raise self._store.failure(error) from error

    @property
    def _standing(self) -> RdictIter:
        """The iterator. Keep it in no variable: an error's traceback would hold it, and its files, after `close`."""
        assert self._iterator is not None
        return self._iterator

    def close(self) -> None:
        """Frees the iterator. Closing twice is allowed."""
        self._iterator = None
