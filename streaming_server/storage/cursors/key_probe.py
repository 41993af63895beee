"""Samples the keys of a bucket, for estimates of their density."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from streaming_server.storage.cursors.range_reader import is_skip_limit_reached
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from rocksdict import RdictIter

    from streaming_server.storage.rocks.store import RocksStore

_MOST_SKIPS: Final = 4096
_TOP: Final = b"\xff" * 16


class KeyProbe:
    """Reads a few keys of one bucket from any key on, at the instant when the probe was created.

    Each call skips a bounded number of deleted keys, so it holds the event loop for at most a millisecond. Among more
    deleted keys, it finds fewer keys than exist: enough for an estimate, but never a proof that no others exist.

    For one thread at a time. It pins files on disk until `close`.
    """

    def __init__(self, store: RocksStore) -> None:
        self._store = store
        # The iterator only borrows its options: never change them, and free them after it.
        self._options = scan_options(max_skips=_MOST_SKIPS)
        try:
            self._iterator: RdictIter | None = store.rows.iter(self._options)
        except Exception as error:
            raise store.failure(error) from error

    def keys_from(self, start: bytes, count: int) -> list[bytes]:
        """Returns the first keys from `start` on, at most `count`; fewer at the end or among deleted keys.

        Raises:
            DataLoss: The keys cannot be read.
        """
        self._open_iterator.seek(start)
        iterator = self._open_iterator
        # Python runs these loops in C.
        pairs = list(islice(zip(iter(iterator.key, None), iter(iterator.next, 0)), count))  # noqa: B905
        del iterator
        if len(pairs) < count:
            self._check()
        return [key for key, _ in pairs]

    def last_below(self, end: bytes | None) -> bytes | None:
        """Returns the last key below `end`, or the last of all if `end` is None. None: no such key exists.

        If the probe stops among deleted keys, the result is an upper bound of that key: `end`, or for None a key above
        all others.

        Raises:
            DataLoss: The keys cannot be read.
        """
        if end is None:
            self._open_iterator.seek_to_last()
        else:
            self._open_iterator.seek_for_prev(end)
            if self._open_iterator.valid() and self._open_iterator.key() == end:
                self._open_iterator.prev()
        if self._open_iterator.valid():
            key: bytes = self._open_iterator.key()
            return key
        return (end or _TOP) if self._check() else None

    def _check(self) -> bool:
        """Returns whether the iterator has stopped among deleted keys. Raises DataLoss."""
        try:
            return is_skip_limit_reached(self._open_iterator)
        except Exception as error:
            raise self._store.failure(error) from error

    @property
    def _open_iterator(self) -> RdictIter:
        """The iterator. Assign it to no variable: the traceback of an error would keep it and its files open."""
        assert self._iterator is not None
        return self._iterator

    def close(self) -> None:
        """Frees the iterator. Closing twice is allowed."""
        self._iterator = None
