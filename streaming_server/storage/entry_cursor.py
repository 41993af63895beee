"""One reading of the entries of an index in one bucket, in their order or against it, as of one moment."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from streaming_server.storage.cursor import BucketCursor
from streaming_server.storage.rocks import scan_options
from streaming_server.storage.sentinel import Sentinel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.storage.rocks import RocksStore
    from table_model.key_range import KeyRange

_FIRST_STEP_ENTRIES: Final = 64


class EntryCursor:
    """The entries of one bucket in a key range, as of the moment the cursor was made.

    Like a `BucketCursor` it cannot end short unnoticed, sees to the lower end of its range itself when it reads in
    reverse, is made under the bucket's mutex, used from one thread at a time, and pins files on disk until `close`.

    Attributes:
        entries_scanned: Entries of the range read so far.
    """

    def __init__(self, store: RocksStore, key_range: KeyRange, *, reverse: bool = False) -> None:
        """Begins before the first entry.

        Args:
            store: Where the bucket lies.
            key_range: The keys of entries, as `IndexCodec.within` gives them.
            reverse: Whether the last entry is read first.
        """
        self.entries_scanned = 0
        self._floor = key_range.start if reverse else None
        self._last: bytes | None = None
        self._proven = key_range.is_empty
        self._open = False
        self._items: Iterator[tuple[bytes, bytes]] = iter(())
        self._sentinel: Sentinel | None = None
        # As in `BucketCursor`: freed after the iterators, never changed.
        self._options = scan_options(key_range.end)
        if key_range.is_empty:
            return
        start = None if reverse else key_range.start
        try:
            items = store.index.items(backwards=reverse, from_key=start, read_opt=self._options)
            self._items = cast("Iterator[tuple[bytes, bytes]]", iter(items))
            self._sentinel = Sentinel(store, store.index, self._options, key_range, reverse=reverse)
        except Exception as error:
            raise store.failure(error) from error
        self._open = True
        BucketCursor.open_cursors += 1

    def next_entries(self, max_entries: int) -> tuple[list[bytes], list[bytes]]:
        """The keys and values of the next entries, at most so many; both empty at the end, which is proven.

        Raises:
            DataLoss: The end is not the end. A damaged entry goes unnoticed.
        """
        found: list[tuple[bytes, bytes]] = []
        while len(found) < max_entries:
            step = max_entries - len(found)
            if self._floor is not None:
                # What lies below the range is read for nothing: no more of it than of the range.
                step = min(step, max(self.entries_scanned + len(found), _FIRST_STEP_ENTRIES))
            part = list(islice(self._items, step))
            ended = len(part) < step
            if self._floor is not None and part and part[-1][0] < self._floor:
                self._cut_at(self._floor, part)
                ended = True
            found += part
            if ended:
                break
        if not found:
            self._prove_end()
            return [], []
        self.entries_scanned += len(found)
        keys, values = map(list, zip(*found, strict=True))
        self._last = keys[-1]
        return keys, values

    def _cut_at(self, floor: bytes, part: list[tuple[bytes, bytes]]) -> None:
        """Drops entries below `floor` from a step in descending order; to have seen one proves the end of the range."""
        del part[bisect_left(part, True, key=lambda entry: entry[0] < floor) :]
        self._items = iter(())
        self._proven = True

    def _prove_end(self) -> None:
        if not self._proven:
            assert self._sentinel is not None
            self._sentinel.prove_end(self._last, self.entries_scanned)
            self._proven = True

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        self._items = iter(())
        if self._sentinel is not None:
            self._sentinel.close()
        BucketCursor.open_cursors -= self._open
        self._open = False
