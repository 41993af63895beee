"""The staged rows of a bootstrap: a file of sorted runs, from which each bucket is read in ranges of its keys.

The file has a frame for each request, followed by the runs of the request. A run is an Arrow IPC message: the rows of
one request and one bucket in key order, with their encoded keys in a last column. The frame has the sizes and the
checksums of the runs.

Rule: a request is durable before the next one is written. So after a crash, only the last one may be torn.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss, RequestTooLarge
from streaming_server.arrays.sorted_merge import stable_order
from streaming_server.storage.files.frames import encode_frame, read_frame

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    import numpy.typing as npt

_KEY: Final = "\0key"  # No column of a table has such a name.
_ALIGNMENT: Final = 64  # As Arrow recommends.
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
class RequestOnDisk:
    """What is known of a request that is staged.

    Attributes:
        rows: Its rows.
        size_bytes: The bytes of the Arrow data that the client has sent.
        digest: The digest by which the client recognizes the rows.
        service_micros: When it was staged, in service time.
    """

    rows: int
    size_bytes: int = 0
    digest: bytes = b""
    service_micros: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    request: BootstrapRequest
    bucket: int
    start: int
    size: int
    checksum: int


class StagedRuns:
    """Writes the runs of a bootstrap, and then reads them. Not thread-safe until `seal`, thread-safe after it.

    Args:
        path: The file. If it exists, its requests count as staged, except for a torn one at its end.
        schema: The columns of the rows.
        is_sealed: Whether another process has sealed the file. It is not written then.

    Attributes:
        requests: The requests of each part, in order.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, is_sealed: bool = False) -> None:
        self.requests: dict[str, list[RequestOnDisk]] = {}
        self._path = path
        self._schema = schema.append(pa.field(_KEY, pa.binary(), nullable=False))
        self._runs: list[_Run] = []
        self._end = 0
        self._data: pa.Buffer | None = None
        self._is_synced = is_sealed
        access = os.O_RDONLY if is_sealed else os.O_RDWR | os.O_CREAT
        self._file = os.open(path, access | os.O_CLOEXEC, 0o600)
        try:
            self._recover(may_be_torn=not is_sealed)
        except BaseException:
            self.close()
            raise
        # What an earlier process has written may have been damaged since.
        self._is_checked = bool(self._runs)

    def _recover(self, *, may_be_torn: bool) -> None:
        """Reads which requests the file has, and cuts off one at its end that may be torn, and is."""
        size, last = os.fstat(self._file).st_size, (0, 0, "")
        with self._path.open("rb") as file:
            while self._end < size:
                file.seek(self._end)
                frame = read_frame(file, self._path, size - self._end)
                if frame is None:
                    break
                head, _, frame_bytes = frame
                start, runs = self._end, len(self._runs)
                self._record(head, start + frame_bytes)
                last = start, runs, head["part"]
            if not may_be_torn:
                return
            end, runs, part = last
            if not all(_is_intact(file, run) for run in self._runs[runs:]):
                self._end = end
                del self._runs[runs:]
                self.requests[part].pop()
                if not self.requests[part]:
                    del self.requests[part]
        os.ftruncate(self._file, self._end)

    def append(
        self,
        request: BootstrapRequest,
        rows: pa.RecordBatch,
        keys: pa.BinaryArray,
        buckets: npt.NDArray[np.int32],
        staged: RequestOnDisk | None = None,
    ) -> None:
        """Writes the rows of a request, after a sync of the request before. They are durable after the next `sync`.

        Args:
            request: The request.
            rows: The rows.
            keys: The encoded key of each row.
            buckets: The bucket of each row.
            staged: What is to be known of the request later. None: only its number of rows.
        """
        self.sync()
        staged = staged or RequestOnDisk(rows.num_rows)
        runs = [(bucket, run.serialize()) for bucket, run in self._sort(rows, keys, buckets)]
        head = {
            "part": request.part,
            "rows": staged.rows,
            "bytes": staged.size_bytes,
            "digest": staged.digest.hex(),
            "service_micros": staged.service_micros,
            "runs": [[bucket, run.size, google_crc32c.value(run)] for bucket, run in runs],
        }
        frame = encode_frame(head)
        _write(self._file, self._end, frame)
        first = self._end + len(frame)
        for at, (_, run) in zip(_places(first, [run.size for _, run in runs]), runs, strict=False):
            _write(self._file, at, run)
        self._is_synced = False
        self._record(head, first)

    def sync(self) -> None:
        """Makes everything that was written durable. Does nothing if it already is."""
        if not self._is_synced:
            os.fdatasync(self._file)
            self._is_synced = True

    def _sort(
        self, rows: pa.RecordBatch, keys: pa.BinaryArray, buckets: npt.NDArray[np.int32]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields each bucket with its run."""
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
            yield number, everything.slice(first, end - first)

    def _record(self, head: dict[str, Any], first: int) -> None:
        """Records the request of a frame that ends at an offset."""
        requests = self.requests.setdefault(head["part"], [])
        request = BootstrapRequest(head["part"], len(requests))
        *starts, self._end = _places(first, [size for _, size, _ in head["runs"]])
        self._runs += [
            _Run(request, bucket, start, size, checksum)
            for start, (bucket, size, checksum) in zip(starts, head["runs"], strict=True)
        ]
        digest = bytes.fromhex(head["digest"])
        requests.append(RequestOnDisk(head["rows"], head["bytes"], digest, head["service_micros"]))

    def seal(self) -> None:
        """Ends writing, durably, so that the runs can be read."""
        self.sync()
        self._close_file()
        if self._runs:
            self._data = pa.memory_map(str(self._path)).read_buffer()

    def close(self) -> None:
        """Closes the file, which may then be removed, and forgets the requests. Idempotent."""
        self._data = None
        self._runs = []
        self.requests = {}
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

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
            DataLoss: What an earlier process has staged is damaged.
        """
        place = {request: number for number, request in enumerate(requests)}
        chosen = [run for run in self._runs if run.bucket == bucket and run.request in place]
        chosen.sort(key=lambda run: place[run.request])
        runs = [self._read(run) for run in chosen]
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

    def _read(self, run: _Run) -> pa.RecordBatch:
        """Returns the rows of a run, which stay in the file until they are used."""
        assert self._data is not None
        message = self._data.slice(run.start, run.size)
        if self._is_checked and google_crc32c.value(message) != run.checksum:
            raise DataLoss(f"the staged rows in {self._path} are damaged: begin the bootstrap again")
        return pa.ipc.read_record_batch(pa.ipc.read_message(message), self._schema)


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


def _places(first: int, sizes: Collection[int]) -> list[int]:
    """Returns where runs of some sizes begin that follow an offset, and where the next frame begins."""
    places = [_aligned(first)]
    for size in sizes:
        places.append(_aligned(places[-1] + size))
    return places


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _write(file: int, offset: int, data: bytes | pa.Buffer) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _is_intact(file: BinaryIO, run: _Run) -> bool:
    file.seek(run.start)
    return bool(google_crc32c.value(file.read(run.size)) == run.checksum)


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
