"""The staged rows of a bootstrap: a file of sorted runs, from which each bucket is read in ranges of its keys.

The file is an Arrow IPC file. Each of its batches is a run: the rows of one request and one bucket in key order, with
their encoded keys in a last column. It has no checksums, because it does not outlive the process that writes it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import RequestTooLarge
from streaming_server.arrays.sorted_merge import stable_order

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    import numpy.typing as npt

_KEY: Final = "\0key"  # No column of a table has such a name.
_SAMPLES: Final = 32
"""How many keys are considered as ends of ranges, for each range. More of them make ranges more equal."""
_MOST_RANGE_BYTES: Final = 512 << 20
"""The most bytes of one range. Only rows of one key reach that, because no key is in two ranges."""


@dataclass(frozen=True, slots=True, order=True)
class BootstrapRequest:
    """One request of one part of a bootstrap."""

    part: str
    sequence: int


@dataclass(frozen=True, slots=True)
class _Run:
    request: BootstrapRequest
    bucket: int


class StagedRuns:
    """Writes the runs of a bootstrap, and then reads them. Not thread-safe until `seal`, thread-safe after it.

    Args:
        path: The file, which does not exist.
        schema: The columns of the rows.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema.append(pa.field(_KEY, pa.binary(), nullable=False))
        self._runs: list[_Run] = []
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, self._schema)
        self._reader: pa.ipc.RecordBatchFileReader | None = None

    def append(
        self, request: BootstrapRequest, rows: pa.RecordBatch, keys: pa.BinaryArray, buckets: npt.NDArray[np.int32]
    ) -> None:
        """Writes the rows of a request.

        Args:
            request: The request.
            rows: The rows.
            keys: The encoded key of each row.
            buckets: The bucket of each row.
        """
        if not rows.num_rows:
            return
        order = stable_order(keys).to_numpy()
        order = order[np.argsort(buckets[order], kind="stable")]
        numbers, firsts = np.unique(buckets[order], return_index=True)
        places = pa.array(order)
        columns = [column.take(places) for column in (*rows.columns, keys)]
        everything = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        ends = [*firsts.tolist()[1:], len(order)]
        for number, first, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True):
            run = everything.slice(first, end - first)
            self._writer.write_batch(run)
            self._runs.append(_Run(request, number))

    def seal(self) -> None:
        """Ends writing, so that the runs can be read."""
        self._writer.close()
        self._file.close()
        if self._runs:
            self._reader = pa.ipc.open_file(pa.memory_map(str(self._path)))

    def close(self) -> None:
        """Closes the file, which may then be removed, and forgets the runs. Idempotent."""
        self._reader = None
        self._runs = []
        self._file.close()

    def buckets(self) -> list[int]:
        """Returns the buckets that have rows, ascending."""
        return sorted({run.bucket for run in self._runs})

    def read(self, bucket: int, requests: Collection[BootstrapRequest], range_bytes: int) -> Iterator[StagedRange]:
        """Yields all rows of a bucket, in ranges of keys, ascending.

        Args:
            bucket: The bucket.
            requests: The requests whose rows count. Rows with the same key come in the order of their requests.
            range_bytes: About how many bytes of rows a range has.

        Raises:
            RequestTooLarge: The rows of one key have more than 512 MiB.
        """
        assert self._reader is not None
        place = {request: number for number, request in enumerate(requests)}
        chosen = [number for number, run in enumerate(self._runs) if run.bucket == bucket and run.request in place]
        chosen.sort(key=lambda number: place[self._runs[number].request])
        runs = [self._reader.get_batch(number) for number in chosen]
        if not runs:
            return
        ranges = max(1, sum(run.nbytes for run in runs) // range_bytes)
        ends = _choose_ends(runs, ranges)
        positions = [[0, *pc.search_sorted(run.column(_KEY), ends).to_pylist(), run.num_rows] for run in runs]
        for number in range(len(ends) + 1):
            parts = [
                run.slice(at[number], at[number + 1] - at[number])
                for run, at in zip(runs, positions, strict=True)
                if at[number + 1] > at[number]
            ]
            if (size := sum(part.nbytes for part in parts)) > _MOST_RANGE_BYTES:
                raise RequestTooLarge(
                    f"the rows of one key have {size:,} bytes; the limit is {_MOST_RANGE_BYTES:,}: merge them before, "
                    "or create the table and upsert them"
                )
            if parts:
                yield StagedRange(pa.concat_batches(parts))


class StagedRange:
    """The rows of a bucket within a range of keys.

    Args:
        rows: The rows with their keys, in the order of their requests.

    Attributes:
        keys: The keys, ascending.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        keys = rows.column(_KEY)
        self._rows = rows.drop_columns([_KEY])
        self._order = stable_order(keys)
        self.keys: pa.BinaryArray = keys.take(self._order)

    def slices(self, count: int) -> Iterator[tuple[pa.RecordBatch, pa.BinaryArray]]:
        """Yields the rows in key order with their keys, about so many at a time. No key is in two of these."""
        start, end = 0, len(self.keys)
        starts_key = np.ones(end + 1, np.bool_)
        starts_key[1:end] = pc.not_equal(self.keys[1:], self.keys[:-1]).to_numpy(zero_copy_only=False)
        while start < end:
            following = min(start + count, end)
            following += int(np.argmax(starts_key[following:]))
            rows = self._rows.take(self._order.slice(start, following - start))
            yield rows, self.keys.slice(start, following - start)
            start = following

    def find_duplicate(self) -> pa.RecordBatch | None:
        """Returns a row whose key another row has as well. None: each key occurs once."""
        same = pc.equal(self.keys[1:], self.keys[:-1])
        place = pc.index(same, True).as_py()
        return None if place < 0 else self._rows.take(self._order.slice(place, 1))


def _choose_ends(runs: list[pa.RecordBatch], ranges: int) -> pa.BinaryArray:
    """Returns keys that divide all rows into ranges of about equal bytes. Each belongs to the range above it."""
    if ranges == 1:
        return pa.array([], pa.binary())
    count = min(ranges * _SAMPLES, sum(run.num_rows for run in runs))
    samples = pa.array(_sample(runs, count), pa.binary())
    samples = samples.take(stable_order(samples))
    places = np.arange(1, ranges) * count // ranges
    return samples.take(pa.array(places)).unique()


def _sample(runs: list[pa.RecordBatch], count: int) -> Iterator[bytes]:
    """Yields the keys at random positions in the bytes of all runs, one in each of `count` equal parts of them.

    Large rows are met more often than small ones. Runs may be smaller than a part.
    """
    ends = np.cumsum([run.nbytes for run in runs])
    parts = (np.arange(count) + np.random.default_rng(count).random(count)) * (ends[-1] / count)
    owners = np.minimum(np.searchsorted(ends, parts, side="right"), len(runs) - 1)
    for number, position in zip(owners.tolist(), parts.tolist(), strict=True):
        run = runs[number]
        before = position - (ends[number] - run.nbytes)
        yield run.column(_KEY)[_row_at(run, before)].as_py()


def _row_at(run: pa.RecordBatch, position: float) -> int:
    """Returns the number of the row that has the byte at a position of a run."""
    return bisect_right(range(1, run.num_rows), position, key=lambda rows: run.slice(0, rows).nbytes)
