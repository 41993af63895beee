"""Finds the last request of a transaction that writes a key, in tables where the last row of a key wins.

This makes the changes of a transaction net, see `net_rows`, without merging it in memory: a row that a later request
replaces or deletes is skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from xxhash import xxh3_128_digest

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming_server.engine.functions.function import Mask

    Digests: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.uint64]]


class RepeatedKeys:
    """The keys that several requests of a transaction write in one bucket. Not thread-safe.

    Keys are compared by digests of 128 bits, as two halves. Memory: 16 bytes a key until `close`, 48 during it, then
    24 for each key that several requests write.

    Attributes:
        keys: The number of distinct keys, after `close`.
    """

    def __init__(self) -> None:
        self.keys = 0
        self._rows = 0
        self._digests: list[Digests] = []
        self._requests: list[int] = []
        self._repeated: Digests = np.zeros((2, 0), np.uint64)
        self._last = np.zeros(0, np.int64)

    def add(self, request: int, keys: pa.Array) -> None:
        """Adds the encoded keys of a request, each once. Call it in the order of the requests."""
        self._digests.append(_digests(keys))
        self._requests.append(request)

    def add_rows(self, rows: int) -> None:
        """Adds rows each of which counts as a key that no other request writes. Not together with `add`."""
        self._rows += rows

    def close(self) -> None:
        """Finds the repeated keys. Call it once all requests are added."""
        if not self._digests:
            self.keys = self._rows
            return
        halves, others = np.concatenate([self._repeated, *self._digests], axis=1)
        requests = np.repeat(np.array(self._requests, np.int64), [each.shape[1] for each in self._digests])
        self._digests, self.keys = [], len(halves)
        # Repeated keys are rare. Comparing one of the halves rules them out faster.
        ascending = np.sort(halves)
        if not (ascending[1:] == ascending[:-1]).any():
            return
        order = np.lexsort((others, halves))
        halves, others, requests = halves[order], others[order], requests[order]
        is_new = np.ones(len(order) + 1, np.bool_)
        is_new[1:-1] = (halves[1:] != halves[:-1]) | (others[1:] != others[:-1])
        is_repeated = is_new[1:] & ~is_new[:-1]
        self.keys = int(is_new[:-1].sum())
        self._repeated, self._last = np.stack([halves[is_repeated], others[is_repeated]]), requests[is_repeated]

    def last(self, request: int, keys: pa.Array) -> Mask | None:
        """Returns a mask of the keys of a request that no later request writes. None: all of them."""
        if not len(self._last):
            return None
        halves, others = _digests(keys)
        first = np.searchsorted(self._repeated[0], halves)
        replaced = np.zeros(len(halves), np.bool_)
        # Two digests may share their first half by chance. Three sharing it is too unlikely to matter.
        for places in (first, first + 1):
            at = places.clip(max=len(self._last) - 1)
            same = (self._repeated[0][at] == halves) & (self._repeated[1][at] == others)
            replaced |= same & (self._last[at] > request)
        return ~replaced if replaced.any() else None


def _digests(keys: pa.Array) -> Digests:
    halves = np.frombuffer(b"".join(map(xxh3_128_digest, keys.to_pylist())), np.uint64)
    return np.ascontiguousarray(halves.reshape(-1, 2).T)
