"""Finds the bucket of a row: xxh3_64 of its encoded bucket key, modulo the number of buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from scankv.model.keys.key_parts import leading_columns
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def bucket_of(keys: pa.BinaryArray, buckets: int) -> npt.NDArray[np.int32]:
    """Returns the bucket of every key.

    Args:
        keys: Encoded bucket keys, as `KeyCodec.encode` makes them; no nulls.
        buckets: The number of buckets of the table.

    Returns:
        Bucket numbers from 0 to `buckets - 1`, in the order of the keys.
    """
    if buckets == 1:
        return np.zeros(len(keys), dtype=np.int32)
    hashes = np.fromiter(map(xxh3_64_intdigest, keys.to_pylist()), dtype=np.uint64, count=len(keys))
    return (hashes % np.uint64(buckets)).astype(np.int32)


def bucket_of_one(key: bytes, buckets: int) -> int:
    """Returns the bucket of one encoded bucket key, the same as `bucket_of` for an array of one."""
    return xxh3_64_intdigest(key) % buckets


_Numbers = TypeVar("_Numbers", int, "npt.NDArray[np.int64]")


def tablet_of(bucket: _Numbers, buckets: int, tablets: int) -> _Numbers:
    """Returns the tablet of a bucket, or of each bucket of an array: tablets are ranges of about equal length.

    Args:
        bucket: The number of the bucket, or several.
        buckets: The number of buckets of the table.
        tablets: The number of its tablets, at most as many as buckets.
    """
    return ((bucket + 1) * tablets - 1) // buckets


class KeyPlaces:
    """Finds the buckets of a table that can contain some primary keys. Immutable, thread-safe.

    Args:
        primary_key: The names and types of the key columns, in key order.
        bucket_key: The names of the columns that choose the bucket, in key order.
        buckets: The number of buckets of the table.
    """

    def __init__(self, primary_key: pa.Schema, bucket_key: Sequence[str], buckets: int) -> None:
        self._types = primary_key.types
        self._places = [primary_key.get_field_index(name) for name in bucket_key]
        self._is_complete_key = len(self._places) == len(self._types)
        self._is_prefix = self._places == list(range(len(self._places)))
        self._buckets = buckets

    def bucket_of(self, key: bytes) -> int:
        """Returns the bucket of one encoded primary key. Any bucket for bytes that are no key."""
        return 0 if self._buckets == 1 else bucket_of_one(self._bucket_key_of(key), self._buckets)

    def of_ranges(self, ranges: KeyRanges, buckets: Sequence[int]) -> dict[int, KeyRanges]:
        """Returns for each bucket the ranges that can have keys in it; leaves out buckets without such ranges.

        A single key is in one bucket. A range is in one bucket if the bucket key is a prefix of the primary key and the
        same in all keys of the range. Any other range can have keys in all buckets.
        """
        if len(ranges) == 1 and not ranges.are_keys:
            only = self.of_range(ranges.span)
            return dict.fromkeys(buckets if only is None else [only] if only in buckets else [], ranges)
        if self._buckets == 1:
            return dict.fromkeys(buckets, ranges) if ranges else {}
        keys = ranges.keys
        if len(keys) == len(ranges):
            return self._of_keys(keys, buckets)
        of_keys = dict(zip(keys, self.buckets_of(keys), strict=True))
        found: dict[int, list[int]] = {bucket: [] for bucket in buckets}
        for place, (start, key_range) in enumerate(zip(ranges.starts, ranges, strict=True)):
            only = of_keys.get(start)
            if only is None:
                only = self.of_range(key_range)
            for bucket in buckets if only is None else (only,):
                if bucket in found:
                    found[bucket].append(place)
        return {bucket: ranges.at(places) for bucket, places in found.items() if places}

    def _of_keys(self, keys: Sequence[bytes], buckets: Sequence[int]) -> dict[int, KeyRanges]:
        """Returns what `of_ranges` returns, for single keys: about a million keys a second."""
        found: dict[int, list[bytes]] = {bucket: [] for bucket in range(self._buckets)}
        for key, bucket in zip(keys, self.buckets_of(keys), strict=True):
            found[bucket].append(key)
        return {bucket: KeyRanges.of_keys(found[bucket]) for bucket in buckets if found[bucket]}

    def buckets_of(self, keys: Sequence[bytes]) -> list[int]:
        """Returns the buckets of some encoded primary keys, as `bucket_of`: about a million keys a second."""
        bucket_keys = keys if self._is_complete_key else [self._bucket_key_of(key) for key in keys]
        buckets: list[int] = bucket_of(pa.array(bucket_keys, pa.binary()), self._buckets).tolist()
        return buckets

    def of_range(self, keys: KeyRange) -> int | None:
        """Returns the only bucket that can contain keys of a range; None if there may be several.

        There is only one if the bucket key is a prefix of the primary key and the same in all keys of the range.
        """
        if self._buckets == 1:
            return 0
        columns, _ = leading_columns(keys.start or b"", self._types[: len(self._places)])
        prefix = b"".join(columns)
        if not self._is_prefix or len(columns) < len(self._places) or keys & KeyRange.under(prefix) != keys:
            return None
        return bucket_of_one(prefix, self._buckets)

    def _bucket_key_of(self, key: bytes) -> bytes:
        if self._is_complete_key:
            return key
        columns, _ = leading_columns(key, self._types)
        # A start that is not a complete key is not in any bucket, so any bucket will do.
        return b"".join([columns[place] for place in self._places if place < len(columns)])
