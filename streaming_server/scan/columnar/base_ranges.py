"""How a columnar base and what was written since are read side by side: in stretches of keys, a step at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.arrays.arrow_buffers import var_offsets
from streaming_server.arrays.sorted_merge import Merge
from streaming_server.scan.columnar.delta import NO_ROWS, NetRows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from scankv.model.keys.key_range import KeyRange
    from streaming_server.storage.columnar.columnar_base import ColumnarBase

    Places: TypeAlias = npt.NDArray[np.int64]

_NET_ROWS: Final = 8192
"""Rows written since that one step has at most: they are decoded, and 32,768 of them would hold the event loop."""
_BLOCK_ROWS: Final = 4096
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """Some rows of the base, and those laid over them.

    Attributes:
        rows: Rows of the base, some of them perhaps replaced or deleted.
        keys: Gives the encoded key of one of them.
        all_keys: Gives those of all of them.
        block: Rows written since, without deleted ones: those of this step, and of some that follow.
        first: Where in it those of this step begin.
        behind: Where they end.
        places: What the step has, in its order: places in `rows`, and from `len(rows)` on in those of the block. None:
            all `rows`.
        end: A key up to which it reaches, for a step without rows.
        whole: The number of the batch of the base that it is, None when it is not.
        replaced: As that of its `Merge`, where it has all rows of that.
    """

    rows: pa.RecordBatch
    keys: Callable[[int], bytes]
    all_keys: Callable[[], pa.BinaryArray]
    block: NetRows
    first: int
    behind: int
    places: Places | None
    end: bytes
    whole: int | None = None
    replaced: Places | None = None

    def __len__(self) -> int:
        return self.rows.num_rows if self.places is None else len(self.places)

    def taking(self, places: Places) -> Step:
        """The same with other places."""
        return replace(self, places=places, whole=None, replaced=None)

    def at(self, places: Places) -> Step:
        """A step of those of its rows that come at some places in its order."""
        return self.taking(places if self.places is None else self.places[places])

    def split(self, rows: int) -> tuple[Step, Step | None]:
        """The first rows, and a step of the others if there are any."""
        if self.places is None or len(self) <= rows:
            return self, None
        return self.taking(self.places[:rows]), self.taking(self.places[rows:])

    def encoded_keys(self) -> pa.BinaryArray:
        """The encoded keys of its rows. Raises DataLoss."""
        below = self.all_keys()
        if self.places is None:
            return below
        above = self.block.keys.slice(self.first, self.behind - self.first)
        return Merge(self.rows.num_rows, self.places).apply(below, above)

    def last_key(self) -> bytes:
        """The encoded key of its last row."""
        if not len(self):
            return self.end
        below = self.rows.num_rows
        place = below - 1 if self.places is None else int(self.places[-1])
        return self.keys(place) if place < below else _key_at(self.block.keys, self.first + place - below)


@dataclass(frozen=True, slots=True)
class _Block:
    """Net rows that are read one after another, without deleted ones.

    Attributes:
        first: Where they begin among all net rows.
        behind: Where they end.
        rows: Those that were not deleted.
        before: How many of these come before each of all, and behind the last.
    """

    first: int
    behind: int
    rows: NetRows
    before: Places

    @classmethod
    def of(cls, net: NetRows, first: int, behind: int) -> _Block:
        """The block of some places."""
        part = net.slice(first, behind)
        alive = part.values.is_valid()
        before = np.zeros(len(part) + 1, np.int64)
        np.cumsum(alive.to_numpy(zero_copy_only=False), out=before[1:])
        if part.values.null_count:
            part = NetRows(part.keys.filter(alive), part.values.filter(alive))
        return cls(first, behind, part, before)


class Stretches:
    """The rows of a base and net rows, cut into stretches of keys.

    Rows of the base have the numbers that they would have in one table; what is left to be read are those from `_low`
    up to `_high`, and likewise of the net rows.

    Args:
        base: The base.
        net: The net rows.
        key_range: The keys that are read.
        reverse: Whether in descending order.
        is_worthy: Whether a batch of the base has to be read.
    """

    def __init__(
        self, base: ColumnarBase, net: NetRows, key_range: KeyRange, reverse: bool, is_worthy: Callable[[int], bool]
    ) -> None:
        self._base = base
        self._reverse = reverse
        self._is_worthy = is_worthy
        self._batch: tuple[int, pa.RecordBatch] | None = None
        self._batch_keys: tuple[int, pa.BinaryArray] | None = None
        self._starts = [0, *accumulate(base.rows_in(number) for number in range(len(base)))]
        self._low = 0 if key_range.start is None else self._number_of(key_range.start)
        self._high = self._starts[-1] if key_range.end is None else self._number_of(key_range.end)
        self._net = net.between(key_range.start, key_range.end)
        if key_range.is_empty:
            self._high, self._net = self._low, NO_ROWS
        self._net_low, self._net_high = 0, len(self._net)
        self._block = _Block(0, 0, NO_ROWS, np.zeros(1, np.int64))

    def next(self, max_rows: int, max_bytes: int) -> Step | None:
        """The rows of the next stretch: at most so many of either, and about so many bytes; None at the end.

        Of those written since, 8,192 at most.
        """
        self._skip()
        first, behind = self._of_base(max_rows, max_bytes)
        net_first, net_behind = self._beside(first, behind)
        if first == behind and net_first == net_behind:
            return None
        few_first, few_behind = self._few(net_first, net_behind, min(max_rows, _NET_ROWS), max_bytes)
        if (few_first, few_behind) != (net_first, net_behind):
            net_first, net_behind = few_first, few_behind
            first, behind = self._cut(first, behind, net_first, net_behind)
        step = self._step(first, behind, net_first, net_behind)
        if self._reverse:
            self._high, self._net_high = first, net_first
        else:
            self._low, self._net_low = behind, net_behind
        return step

    def _skip(self) -> None:
        """Leaves out batches of the base. What was written since is read as if there had been no row before."""
        while self._low < self._high:
            number = self._batch_of(self._high - 1 if self._reverse else self._low)
            if self._is_worthy(number):
                return
            if self._reverse:
                self._high = max(self._low, self._starts[number])
            else:
                self._low = min(self._high, self._starts[number + 1])

    def _of_base(self, max_rows: int, max_bytes: int) -> tuple[int, int]:
        """The next rows of the base, all of one batch."""
        if self._low == self._high:
            return self._low, self._high
        number = self._batch_of(self._high - 1 if self._reverse else self._low)
        first, behind = max(self._low, self._starts[number]), min(self._high, self._starts[number + 1])
        count = min(behind - first, max_rows)
        if count == self._base.rows_in(number) and self._base.bytes_in(number) <= max_bytes:
            return first, behind
        # A batch has 2 MiB at most, but for a single row. Once more where the rows at this end are the longer ones.
        while count > 1:
            size = self._rows(behind - count if self._reverse else first, count).nbytes
            if size <= max_bytes:
                break
            count = max(1, min(count - 1, count * max_bytes // size))
        return (behind - count, behind) if self._reverse else (first, first + count)

    def _beside(self, first: int, behind: int) -> tuple[int, int]:
        """The net rows up to the row of the base that follows these."""
        if self._net_low == self._net_high:
            return self._net_low, self._net_high
        if self._reverse:
            if first == self._low:
                return self._net_low, self._net_high
            # Behind that row, which a net row with its key replaces.
            return self._net.place_of(self._key(first - 1) + b"\0"), self._net_high
        if behind == self._high:
            return self._net_low, self._net_high
        return self._net_low, self._net.place_of(self._key(behind))

    def _few(self, first: int, behind: int, max_rows: int, max_bytes: int) -> tuple[int, int]:
        """Those of some net rows that a step may have, at least one."""
        if behind - first <= 1:
            return first, behind
        offsets = var_offsets(self._net.values)
        if self._reverse:
            fitting = int(np.searchsorted(offsets[: behind + 1], offsets[behind] - max_bytes))
            return min(behind - 1, max(first, behind - max_rows, fitting)), behind
        fitting = int(np.searchsorted(offsets[: behind + 1], offsets[first] + max_bytes, side="right")) - 1
        return first, max(first + 1, min(behind, first + max_rows, fitting))

    def _cut(self, first: int, behind: int, net_first: int, net_behind: int) -> tuple[int, int]:
        """Those of some rows of the base that come before the net row that follows these."""
        if first == behind:
            return first, behind
        if self._reverse:
            number = self._number_of(_key_at(self._net.keys, net_first - 1) + b"\0")
            return min(behind, max(first, number)), behind
        return first, max(first, min(behind, self._number_of(_key_at(self._net.keys, net_behind))))

    def _step(self, first: int, behind: int, net_first: int, net_behind: int) -> Step:
        count = behind - first
        rows = self._rows(first, count)

        def key(place: int) -> bytes:
            return self._key(first + place)

        all_keys = partial(self._keys, first, count)
        net = self._net.slice(net_first, net_behind)
        end = self._end(first, behind, net)
        if not len(net):
            if self._reverse:
                return Step(rows, key, all_keys, NO_ROWS, 0, 0, np.arange(count - 1, -1, -1, dtype=np.int64), end)
            number = self._batch_of(first)
            whole = number if count == self._base.rows_in(number) else None
            return Step(rows, key, all_keys, NO_ROWS, 0, 0, None, end, whole)
        kept = net.values.is_valid().to_numpy(zero_copy_only=False) if net.values.null_count else None
        merge = Merge.of(self._keys(first, count), net.keys, kept)
        block = self._block_with(net_first, net_behind)
        return Step(
            rows,
            key,
            all_keys,
            block.rows,
            int(block.before[net_first - block.first]),
            int(block.before[net_behind - block.first]),
            merge.places[::-1] if self._reverse else merge.places,
            end,
            replaced=None if self._reverse else merge.replaced,
        )

    def _block_with(self, first: int, behind: int) -> _Block:
        """A block that has some net rows, which are the next ones."""
        if not self._block.first <= first <= behind <= self._block.behind:
            more = self._few(self._net_low, self._net_high, _BLOCK_ROWS, _BLOCK_BYTES)
            self._block = _Block.of(self._net, min(first, more[0]), max(behind, more[1]))
        return self._block

    def _end(self, first: int, behind: int, net: NetRows) -> bytes:
        """A key up to which the bucket has been read, should none of these be a row any more."""
        if first < behind:
            return self._key(first if self._reverse else behind - 1)
        return _key_at(net.keys, 0 if self._reverse else len(net) - 1)

    def _batch_of(self, number: int) -> int:
        return bisect_right(self._starts, number) - 1

    def _rows(self, first: int, count: int) -> pa.RecordBatch:
        if not count:
            return pa.RecordBatch.from_pylist([], schema=self._base.schema)
        number = self._batch_of(first)
        if self._batch is None or self._batch[0] != number:
            self._batch = number, self._base.batch(number)
        return self._batch[1].slice(first - self._starts[number], count)

    def _keys(self, first: int, count: int) -> pa.BinaryArray:
        if not count:
            return NO_ROWS.keys
        number = self._batch_of(first)
        return self._keys_of(number).slice(first - self._starts[number], count)

    def _keys_of(self, number: int) -> pa.BinaryArray:
        """The encoded keys of a batch, most often the same as before."""
        if self._batch_keys is None or self._batch_keys[0] != number:
            self._batch_keys = number, self._base.keys(number)
        return self._batch_keys[1]

    def _key(self, number: int) -> bytes:
        """The encoded key of a row of the base; that of a batch's first and last row without reading its keys."""
        batch = self._batch_of(number)
        if number == self._starts[batch]:
            return self._base.first_keys[batch]
        if number == self._starts[batch + 1] - 1:
            return self._base.last_keys[batch]
        return _key_at(self._keys_of(batch), number - self._starts[batch])

    def _number_of(self, key: bytes) -> int:
        """How many rows of the base have a lower key."""
        batch = bisect_left(self._base.last_keys, key)
        if batch == len(self._base) or key <= self._base.first_keys[batch]:
            return self._starts[batch]
        found = pc.search_sorted(self._keys_of(batch), pa.scalar(key, pa.binary()))
        return self._starts[batch] + int(found.as_py())


def _key_at(keys: pa.BinaryArray, place: int) -> bytes:
    key: bytes = keys[place].as_py()
    return key
