"""Computes by how many rows a change lets the partitions of its bucket grow."""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streaming_server.storage.bucket.bucket_change import FewBytes, as_array

if TYPE_CHECKING:
    from scankv.model.tables.partitioning import Partitioning
    from streaming_server.storage.bucket.bucket_change import BucketChange


def count_by_partition(change: BucketChange, partitioning: Partitioning) -> dict[bytes, int | None]:
    """Returns by how many rows each partition grows, as `BucketChange.partitions`; vectorized over the rows.

    Args:
        change: The change. If it knows how many rows the bucket gains, all keys that it deletes have a row.
        partitioning: How the keys divide into partitions.
    """
    is_known = change.rows_added is not None and (change.inserted is not None or not len(change.put_keys))
    if isinstance(change.put_keys, FewBytes) and isinstance(change.delete_keys, FewBytes):
        counts: Counter[bytes] = Counter()
        grows = change.inserted if change.inserted is not None else repeat(False)
        for key, is_new in zip(change.put_keys, grows, strict=False):
            counts[partitioning.prefix_of(key)] += bool(is_new)
        for key in change.delete_keys:
            counts[partitioning.prefix_of(key)] -= 1
        return dict(counts) if is_known else dict.fromkeys(counts)
    keys = pa.concat_arrays([as_array(change.put_keys), as_array(change.delete_keys)])
    if not len(keys):
        return {}
    found = partitioning.prefixes(keys).dictionary_encode()
    names: list[bytes] = found.dictionary.to_pylist()
    if not is_known:
        return dict.fromkeys(names)
    grown = np.full(len(keys), -1, np.int64)
    grown[: len(change.put_keys)] = 0 if change.inserted is None else change.inserted
    counted = np.zeros(len(names), np.int64)
    np.add.at(counted, found.indices.to_numpy(), grown)
    return dict(zip(names, counted.tolist(), strict=True))
