"""What tells the end of a range from a damaged block, where RocksDB's fast iterators end in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from table_model.errors import DataLoss, ScanKvError

if TYPE_CHECKING:
    from rocksdict import Rdict, RdictIter, ReadOptions

    from streaming_server.storage.rocks import RocksStore
    from table_model.key_range import KeyRange


class Sentinel:
    """A second, slower iterator of the moment at which a fast one was made, to be asked once that has ended.

    It seeks to the last key that the fast one gave, steps once, and must find nothing in the range and report no error.
    Make it together with the fast iterator, and close it with it.
    """

    def __init__(
        self, store: RocksStore, family: Rdict, options: ReadOptions, key_range: KeyRange, *, reverse: bool
    ) -> None:
        """Makes the iterator.

        Args:
            store: Names the place in errors.
            family: The column family that is read.
            options: Those of the fast iterator.
            key_range: What is read of it.
            reverse: Whether in descending order.
        """
        self._store = store
        self._range = key_range
        self._reverse = reverse
        self._iterator: RdictIter | None = family.iter(options)
        # The iterator only borrows its options: these are freed after it, as the last attribute.
        self._options = options

    def prove_end(self, last: bytes | None, read: int) -> None:
        """Proves that there is nothing more in the range.

        Args:
            last: The last key that was read, None when there was none.
            read: How many were, for the message.

        Raises:
            DataLoss: There is more, or what is there cannot be read.
        """
        try:
            if last is None:
                self._seek_begin()
            else:
                self._seek_behind(last, read)
            self._end.status()
            if self._end.valid() and self._end.key() in self._range:
                self._short(read)
        except ScanKvError:
            raise
        except Exception as error:
            raise self._store.failure(error) from error

    @property
    def _end(self) -> RdictIter:
        """The iterator. Keep it in no variable: an error's traceback would hold it, and its files, after `close`."""
        assert self._iterator is not None
        return self._iterator

    def _seek_begin(self) -> None:
        """To where the range begins in the direction of the reading."""
        if self._reverse:
            self._end.seek_to_last()
        elif self._range.start is None:
            self._end.seek_to_first()
        else:
            self._end.seek(self._range.start)

    def _seek_behind(self, last: bytes, read: int) -> None:
        """To what is behind `last`, which must be there."""
        (self._end.seek_for_prev if self._reverse else self._end.seek)(last)
        if not self._end.valid() or self._end.key() != last:
            self._end.status()
            self._short(read)
        (self._end.prev if self._reverse else self._end.next)()

    def _short(self, read: int) -> NoReturn:
        raise DataLoss(f"{self._store.place} is damaged: reading stopped after {read} rows, before the end")

    def close(self) -> None:
        """Frees the iterator. Closing twice is allowed."""
        self._iterator = None
