"""Which bucket a row belongs to: xxh3_64 of its encoded bucket key, modulo the number of buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa


def bucket_of(keys: pa.BinaryArray, buckets: int) -> npt.NDArray[np.int32]:
    """Finds the bucket of every key.

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
    """Finds the bucket of one encoded bucket key; the same as `bucket_of` for an array of one."""
    return xxh3_64_intdigest(key) % buckets
