"""Looks up rows that must exist, at one instant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import DataLoss, ScanKvError
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.cursors.range_reader import is_skip_limit_reached
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocksdict import RdictIter

    from streaming_server.storage.rocks.store import RocksStore


class RowLookup:
    """Looks up rows whose keys index entries name, as of the instant when the lookup was created.

    Create it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Args:
        store: The store of the bucket.
    """

    def __init__(self, store: RocksStore) -> None:
        self._store = store
        # The iterator only borrows its options: never change them, and free them after it. A lookup finds an existing
        # key without skipping anything.
        self._options = scan_options(max_skips=1)
        self._iterator: RdictIter | None = None
        self._use = store.readers.add(self._create)
        self._is_open = True
        BucketCursor.open_cursors += 1

    def _create(self) -> None:
        self._iterator = self._store.rows.iter(self._options)

    def rows(self, keys: Iterable[bytes]) -> list[bytes]:
        """Returns the stored rows of some keys, preferably ascending. Takes 2 us a key if its block is in memory.

        Raises:
            DataLoss: A key has no row, or its row cannot be read.
        """
        self._use.begin()
        assert self._iterator is not None
        seek, key_there, row_there = self._iterator.seek, self._iterator.key, self._iterator.value
        rows: list[bytes] = []
        try:
            for key in keys:
                seek(key)
                if key_there() != key:
                    self._raise_missing()
                rows.append(row_there())
        except ScanKvError:
            raise
        except Exception as error:
            raise self._store.failure(error) from error
        finally:
            # The traceback of an error would keep the iterator and its files open.
            del seek, key_there, row_there
        return rows

    def _raise_missing(self) -> None:
        assert self._iterator is not None
        is_skip_limit_reached(self._iterator)
        raise missing_rows(self._store.location)

    def close(self) -> None:
        """Frees the iterator, and with it the files it pins. Closing twice is allowed."""
        self._use.close()
        self._iterator = None
        BucketCursor.open_cursors -= self._is_open
        self._is_open = False


def missing_rows(location: str) -> DataLoss:
    """Returns the error for index entries without rows in a bucket."""
    return DataLoss(f"an index and the rows of {location} disagree; run `scankv check`")
