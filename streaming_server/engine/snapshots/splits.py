"""Cutting a pinned view into key ranges of about equally many rows, by a sample of its keys.

The sample holds some keys of each bucket with their ranks, the number of rows up to and with each. Where there are few
keys to cut, all are read, and ranks are exact. Where there are many, some are looked at, and ranks are estimates. The
rule: a bounded number of keys is read, however large the table is. The sample of a whole view is kept with it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import time
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.expressions import bind
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES
from streaming_server.engine.snapshots.key_density import estimate_spans
from streaming_server.scan.chunk_source import total_rows
from streaming_server.scan.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scankv.model.expressions import Predicate
    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.engine.snapshots.key_density import KeySpan
    from streaming_server.engine.snapshots.pinned_view import PinnedView, SnapshotReader
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.chunk_source import Cursor

MAX_SAMPLE_BYTES = 8 * 1024 * 1024
MAX_KEYS_READ = 200_000
"""Up to so many keys are read to cut exactly; that takes some 0.1 s."""
MAX_LOOKS = 2048
"""Looks at some keys each, for an estimate, over all buckets; about as long."""
_MOST_PIECES = 64
_MAX_STEP_ROWS = 8192
_SKIM_BYTES = 1024 * 1024
_SLICE_SECONDS = 0.001
# Keys of a sample: so many a bucket, within these bounds. What a bound is off by grows with the root of the number of
# buckets, so that with 16,384 keys a 64th of the rows is off by 4 % for 1,024 buckets.
_KEYS_A_BUCKET, _LEAST_KEYS, _MOST_KEYS = 256, 4096, 16_384


class KeySample:
    """Some keys of each bucket of a view, with their ranks.

    Args:
        rows: The rows of each bucket.
        keys: For each bucket encoded keys, ascending.
        ranks: For each of these the number of rows up to and with it.
    """

    def __init__(self, rows: dict[int, int], keys: dict[int, list[bytes]], ranks: dict[int, list[int]]) -> None:
        self._rows = rows
        self._keys = keys
        self._ranks = ranks

    def to_json(self) -> dict[str, Any]:
        """The sample as JSON values."""
        return {
            str(bucket): {
                "rows": rows,
                "ranks": self._ranks[bucket],
                "keys": [base64.b64encode(key).decode("ascii") for key in self._keys[bucket]],
            }
            for bucket, rows in self._rows.items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> KeySample:
        """Reads what `to_json` made. Raises LookupError, TypeError or ValueError for anything else."""
        sample = cls({}, {}, {})
        for name, one in values.items():
            bucket = int(name)
            sample._rows[bucket] = int(one["rows"])
            sample._ranks[bucket] = [int(rank) for rank in one["ranks"]]
            sample._keys[bucket] = [base64.b64decode(key, validate=True) for key in one["keys"]]
        return sample

    def add(self, bucket: int, found: Sequence[KeySpan], rows: int | None, most: int | None) -> None:
        """Adds a bucket by estimates.

        Args:
            bucket: The bucket.
            found: Its spans, ascending.
            rows: The rows that they have together. None: that is not known.
            most: The most that they can have. None: that is not known.
        """
        total = sum(stretch.rows for stretch in found)
        scale = 1.0
        if rows is not None and total:
            scale = rows / total
        elif most is not None and total > most:
            scale = most / total
        ranks = np.cumsum([stretch.rows * scale for stretch in found]).round().astype(int).tolist() if found else []
        self._rows[bucket] = (ranks[-1] if ranks else 0) if rows is None else rows
        self._keys[bucket] = [stretch.end[:-1] if stretch.end.endswith(b"\0") else stretch.end for stretch in found]
        self._ranks[bucket] = ranks

    def rows_in(self, buckets: Sequence[int]) -> int:
        """About how many rows some buckets have in what the sample is of."""
        return sum(self._rows[bucket] for bucket in buckets)

    def split(self, splits: int, key_range: KeyRange, buckets: Sequence[int]) -> list[KeyRange]:
        """So many ranges in key order that together are `key_range`, of about equally many rows of these buckets."""
        first, last = self._estimate(key_range.start, buckets, 0), self._estimate(key_range.end, buckets, 1)
        keys, estimates = self._candidates(key_range, buckets)
        # Where nothing better is known, a range begins where the whole begins, and those before it are empty.
        keys.insert(0, key_range.start or b"")
        ranks = np.maximum.accumulate(np.array([first, *estimates]))
        targets = first + (last - first) * np.arange(1, splits) / splits
        above = np.minimum(np.searchsorted(ranks, targets), len(ranks) - 1)
        below = np.maximum(above - 1, 0)
        nearest = np.where(targets - ranks[below] <= ranks[above] - targets, below, above)
        bounds = [key_range.start, *(keys[place] for place in nearest), key_range.end]
        return [KeyRange(start, end) for start, end in pairwise(bounds)]

    def _estimate(self, key: bytes | None, buckets: Sequence[int], at_end: int) -> float:
        """About how many rows are below a key; None is the lowest, or the highest with `at_end`."""
        if key is None:
            return float(at_end * sum(self._rows[bucket] for bucket in buckets))
        return sum(self._middles(bucket)[bisect_left(self._keys[bucket], key)] for bucket in buckets)

    def _middles(self, bucket: int) -> list[float]:
        """For each gap between sampled keys, the first before them all: about how many rows are below a key in it."""
        ranks = [0, *self._ranks[bucket], self._rows[bucket] + 1]
        return [(low + high - 1) / 2 for low, high in pairwise(ranks)]

    def _candidates(self, key_range: KeyRange, buckets: Sequence[int]) -> tuple[list[bytes], list[float]]:
        """Where the range may be cut: right behind each sampled key, with about how many rows are below."""
        found: list[tuple[bytes, float, float]] = []
        below = 0.0
        for bucket in buckets:
            keys, ranks, middles = self._keys[bucket], self._ranks[bucket], self._middles(bucket)
            begin = 0 if key_range.start is None else bisect_left(keys, key_range.start)
            end = len(keys) if key_range.end is None else bisect_left(keys, key_range.end)
            below += middles[begin]
            # Behind a key its own bucket's rank is known, and every other's is that of the middle of a gap.
            found += (
                (keys[place] + b"\0", middles[place + 1] - middles[place], ranks[place] - middles[place + 1])
                for place in range(begin, end)
            )
        found.sort()
        estimates = below + np.cumsum([gap for _, gap, _ in found]) + np.array([own for _, _, own in found])
        return [key for key, _, _ in found], estimates.tolist()


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """How a view is to be cut. Immutable.

    Attributes:
        splits: Into how many ranges; the most of them where `rows_per_split` says how many rows each has.
        key_range: What is cut.
        buckets: The buckets that are read, None for all.
        where: What is true of the rows that are read, None for all: what it says of keys bounds what is counted.
        rows_per_split: About how many rows one range has at least, if there are so many. None: as many as it gets.
    """

    splits: int
    key_range: KeyRange
    buckets: Sequence[int] | None = None
    where: Predicate | None = None
    rows_per_split: int | None = None


async def split_view(view: PinnedView, executor: StorageExecutor, cut: SplitRequest) -> list[KeyRange]:
    """What `Snapshots.split` promises, for a view that the caller keeps in use."""
    chosen = view.select_buckets(cut.buckets)
    codec, keys = view.codec.rows, view.codec.key_codec
    where = None if cut.where is None else bind(cut.where, codec.schema)
    ranges = RowReader.of(codec, keys, (), where, cut.key_range).ranges
    if ranges != ALL_KEY_RANGES:
        # The sample of the whole view may have no key in a narrow range. A checkpoint alone is looked at, and never
        # changes: so equal questions have equal answers.
        sample = await _collect(await view.open_buckets(chosen), ranges)
    else:
        sample = await _whole_sample(view, executor)
    splits = cut.splits
    if cut.rows_per_split is not None:
        splits = max(1, min(splits, -(-round(sample.rows_in(chosen)) // cut.rows_per_split)))
    return await executor.run(sample.split, splits, cut.key_range, chosen)


async def _whole_sample(view: PinnedView, executor: StorageExecutor) -> KeySample:
    """The sample of all keys of a view, which is kept with it."""
    async with view.splitting:
        content = await executor.run(view.directory.read_splits)
        if content is not None:
            return await executor.run(_read, content, view)
        sample = await _collect(await view.open_buckets(None), ALL_KEY_RANGES)
        try:
            await executor.run(lambda: view.directory.write_splits(sample.to_json()))
        except FileNotFoundError:
            # Gone with its table, most likely.
            view.check()
            raise
        return sample


def _read(content: dict[str, Any], view: PinnedView) -> KeySample:
    try:
        return KeySample.from_json(content)
    except (LookupError, TypeError, ValueError, binascii.Error) as error:
        raise DataLoss(f"the key sample of snapshot view {view.view_id} is damaged", table=view.table) from error


async def _collect(reader: SnapshotReader, ranges: KeyRanges) -> KeySample:
    """A sample of the keys in some ranges, on the event loop in slices of about a millisecond.

    All of these keys are read where they are few, and looked at here and there where they are many.
    """
    known = total_rows(reader.rows.values())
    if ranges != ALL_KEY_RANGES or known is None or known <= MAX_KEYS_READ:
        sample = await _collect_all(reader, ranges)
        if sample is not None:
            return sample
    return await _estimate(reader, ranges)


async def _collect_all(reader: SnapshotReader, ranges: KeyRanges) -> KeySample | None:
    """The sample that reading all keys in the ranges gives; None where they are too many."""
    wanted = min(max(_KEYS_A_BUCKET * len(reader.rows), _LEAST_KEYS), _MOST_KEYS)
    # Every key is taken at first where the rows are not counted, and every second one left out as often as it takes.
    known = None if ranges != ALL_KEY_RANGES else total_rows(reader.rows.values())
    collector = _Collector(min(max((known or 0) // wanted, 1), _MAX_STEP_ROWS), 2 * wanted)
    rows: dict[int, int] = {}
    left = MAX_KEYS_READ
    for bucket, counted in reader.rows.items():
        reader.check()
        cursor = reader.ranges_cursor(bucket, ranges)
        try:
            is_all = await collector.read(bucket, cursor, reader.check, left)
            rows[bucket] = cursor.rows_scanned
            left -= cursor.rows_scanned
            if not is_all:
                return None
            if counted is not None and ranges == ALL_KEY_RANGES and cursor.rows_scanned != counted:
                raise DataLoss(f"there are {cursor.rows_scanned} rows, where the manifest says {counted}")
        except ScanKvError as error:
            raise reader.record_error(bucket, error) from error.__cause__
        finally:
            cursor.close()
    return KeySample(rows, collector.keys, collector.ranks)


async def _estimate(reader: SnapshotReader, ranges: KeyRanges) -> KeySample:
    """The sample that some thousand looks give; the ranges of a long list count as one."""
    pieces = list(ranges) if len(ranges) <= _MOST_PIECES else [ranges.span]
    looks = max(1, MAX_LOOKS // (len(reader.rows) * len(pieces)))
    sample = KeySample({}, {}, {})
    begun = time.perf_counter()
    for bucket, counted in reader.rows.items():
        found: list[KeySpan] = []
        probe = reader.probe(bucket)
        try:
            for piece in pieces:
                for given in estimate_spans(probe, piece, looks, math.inf if counted is None else max(counted, 1)):
                    found += given or ()
                    if time.perf_counter() - begun > _SLICE_SECONDS:
                        await asyncio.sleep(0)
                        reader.check()
                        begun = time.perf_counter()
        except ScanKvError as error:
            raise reader.record_error(bucket, error) from error.__cause__
        finally:
            probe.close()
        sample.add(bucket, found, None if ranges != ALL_KEY_RANGES else counted, counted)
    return sample


class _Collector:
    """Gathers a sample: the last of every `step` rows; of fewer where that makes more than `most` keys."""

    def __init__(self, step: int, most: int) -> None:
        self.keys: dict[int, list[bytes]] = {}
        self.ranks: dict[int, list[int]] = {}
        self._step = step
        self._most = most
        self._count = self._bytes = 0

    async def read(self, bucket: int, cursor: Cursor, check: Callable[[], None], most: int) -> bool:
        """Reads a bucket, to its end unless it has more rows than these; between two slices `check` may raise."""
        keys, ranks = self.keys.setdefault(bucket, []), self.ranks.setdefault(bucket, [])
        due, begun = self._step, time.perf_counter()
        while cursor.next_rows(min(due - cursor.rows_scanned, _MAX_STEP_ROWS), _SKIM_BYTES) is not None:
            if cursor.rows_scanned > most:
                return False
            if cursor.rows_scanned >= due:
                key = cursor.last_key
                assert key is not None
                keys.append(key)
                ranks.append(cursor.rows_scanned)
                self._bytes += len(key)
                self._count += 1
                if self._bytes > MAX_SAMPLE_BYTES or self._count > self._most:
                    self._thin()
                due = cursor.rows_scanned + self._step
            if time.perf_counter() - begun > _SLICE_SECONDS:
                await asyncio.sleep(0)
                check()
                begun = time.perf_counter()
        return True

    def _thin(self) -> None:
        """Forgets every second key, and takes half as many from now on."""
        for bucket, keys in self.keys.items():
            del keys[::2], self.ranks[bucket][::2]
        self._bytes = sum(len(key) for keys in self.keys.values() for key in keys)
        self._count = sum(map(len, self.keys.values()))
        self._step *= 2
