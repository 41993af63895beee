"""Splits a pinned view into key ranges with about equally many rows, by a sample of its keys.

The sample has some keys of each bucket with their ranks: the number of rows up to and including each key. Where few
keys are to be split, all of them are read and the ranks are exact. Where many are, some are probed and the ranks are
estimates. Rule: the number of keys read is bounded, however large the table is. The sample of a complete view is kept
with the view.
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

from scankv.model.counts import counted
from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.expressions import bind
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES
from streaming_server.engine.snapshots.key_density import estimate_spans
from streaming_server.scan.chunk_source import total_rows
from streaming_server.scan.row_reader import RowReader
from streaming_server.storage.changelog.offsets import row_key

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
"""The most keys that are read to split exactly, which takes about 0.1 s."""
MAX_PROBES = 2048
"""The most probes of an estimate over all buckets, which take about as long."""
_MOST_PIECES = 64
_MAX_STEP_ROWS = 8192
_SKIM_BYTES = 1024 * 1024
_SLICE_SECONDS = 0.001
# The number of keys in a sample: by bucket, and the bounds of the total. The error of a split grows with the square
# root of the number of buckets: with 16,384 keys and 1,024 buckets, a 64th of the rows is off by 4 %.
_KEYS_A_BUCKET, _LEAST_KEYS, _MOST_KEYS = 256, 4096, 16_384


class KeySample:
    """Some keys of each bucket of a view, with their ranks.

    Args:
        rows: The rows of each bucket.
        keys: For each bucket encoded keys, ascending.
        ranks: For each of these keys the number of rows up to and including it.
    """

    def __init__(self, rows: dict[int, int], keys: dict[int, list[bytes]], ranks: dict[int, list[int]]) -> None:
        self._rows = rows
        self._keys = keys
        self._ranks = ranks

    def to_json(self) -> dict[str, Any]:
        """Returns the sample as JSON values."""
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
        """Reads the result of `to_json`. Raises LookupError, TypeError or ValueError for anything else."""
        sample = cls({}, {}, {})
        for name, one in values.items():
            bucket = int(name)
            sample._rows[bucket] = int(one["rows"])
            sample._ranks[bucket] = [int(rank) for rank in one["ranks"]]
            sample._keys[bucket] = [base64.b64decode(key, validate=True) for key in one["keys"]]
        return sample

    def include(self, other: KeySample) -> None:
        """Adds the buckets of another sample."""
        self._rows |= other._rows
        self._keys |= other._keys
        self._ranks |= other._ranks

    def add(self, bucket: int, found: Sequence[KeySpan], rows: int | None, most: int | None) -> None:
        """Adds a bucket with estimated ranks.

        Args:
            bucket: The bucket.
            found: Its spans, ascending.
            rows: The rows of all spans together. None: not known.
            most: An upper bound of the rows. None: not known.
        """
        total = sum(span.rows for span in found)
        scale = 1.0
        if rows is not None and total:
            scale = rows / total
        elif most is not None and total > most:
            scale = most / total
        ranks = np.cumsum([span.rows * scale for span in found]).round().astype(int).tolist() if found else []
        self._rows[bucket] = (ranks[-1] if ranks else 0) if rows is None else rows
        self._keys[bucket] = [span.end[:-1] if span.end.endswith(b"\0") else span.end for span in found]
        self._ranks[bucket] = ranks

    def add_ranks(self, bucket: int, keys: list[bytes], ranks: list[int]) -> None:
        """Adds a bucket with exact ranks, of which the last one is the number of its rows."""
        self._rows[bucket], self._keys[bucket], self._ranks[bucket] = (ranks[-1] if ranks else 0), keys, ranks

    def rows_in(self, buckets: Sequence[int]) -> int:
        """Returns an estimate of the rows of some buckets."""
        return sum(self._rows[bucket] for bucket in buckets)

    def split(self, splits: int, key_range: KeyRange, buckets: Sequence[int]) -> list[KeyRange]:
        """Splits `key_range` into ranges in key order that have about equally many rows of these buckets."""
        first, last = self._estimate(key_range.start, buckets, 0), self._estimate(key_range.end, buckets, 1)
        keys, estimates = self._candidates(key_range, buckets)
        # Without a better candidate, a range begins where `key_range` begins, and the ranges before it are empty.
        keys.insert(0, key_range.start or b"")
        ranks = np.maximum.accumulate(np.array([first, *estimates]))
        targets = first + (last - first) * np.arange(1, splits) / splits
        above = np.minimum(np.searchsorted(ranks, targets), len(ranks) - 1)
        below = np.maximum(above - 1, 0)
        nearest = np.where(targets - ranks[below] <= ranks[above] - targets, below, above)
        bounds = [key_range.start, *(keys[place] for place in nearest), key_range.end]
        return [KeyRange(start, end) for start, end in pairwise(bounds)]

    def _estimate(self, key: bytes | None, buckets: Sequence[int], at_end: int) -> float:
        """Returns an estimate of the rows below a key. None is the lowest key, or with `at_end` the highest."""
        if key is None:
            return float(at_end * sum(self._rows[bucket] for bucket in buckets))
        return sum(self._middles(bucket)[bisect_left(self._keys[bucket], key)] for bucket in buckets)

    def _middles(self, bucket: int) -> list[float]:
        """Returns, for each gap before, between and after the sampled keys, the estimated rows below the keys in it."""
        ranks = [0, *self._ranks[bucket], self._rows[bucket] + 1]
        return [(low + high - 1) / 2 for low, high in pairwise(ranks)]

    def _candidates(self, key_range: KeyRange, buckets: Sequence[int]) -> tuple[list[bytes], list[float]]:
        """Returns where the range may be split: right after each sampled key, with an estimate of the rows below."""
        found: list[tuple[bytes, float, float]] = []
        below = 0.0
        for bucket in buckets:
            keys, ranks, middles = self._keys[bucket], self._ranks[bucket], self._middles(bucket)
            begin = 0 if key_range.start is None else bisect_left(keys, key_range.start)
            end = len(keys) if key_range.end is None else bisect_left(keys, key_range.end)
            below += middles[begin]
            # Right after a key, the rank is known in the key's own bucket. In the other buckets, it is estimated as the
            # middle of a gap.
            found += (
                (keys[place] + b"\0", middles[place + 1] - middles[place], ranks[place] - middles[place + 1])
                for place in range(begin, end)
            )
        found.sort()
        estimates = below + np.cumsum([gap for _, gap, _ in found]) + np.array([own for _, _, own in found])
        return [key for key, _, _ in found], estimates.tolist()


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """How to split a view. Immutable.

    Attributes:
        splits: The number of ranges, or with `rows_per_split` the largest number.
        key_range: The range to split.
        buckets: The buckets to read. None: all.
        where: The filter of the scan, whose key ranges bound the keys that are counted. None: all rows.
        rows_per_split: About how many rows a range has at least. None: the rows are divided by `splits`.
    """

    splits: int
    key_range: KeyRange
    buckets: Sequence[int] | None = None
    where: Predicate | None = None
    rows_per_split: int | None = None


async def sample_view(view: PinnedView, executor: StorageExecutor, cut: SplitRequest) -> KeySample:
    """Samples the keys of a view, which the caller keeps in use: see `Snapshots.sample`."""
    codec, keys = view.codec.rows, view.codec.key_codec
    where = None if cut.where is None else bind(cut.where, codec.schema)
    ranges = RowReader.of(codec, keys, (), where, cut.key_range).ranges
    if ranges != ALL_KEY_RANGES:
        # The sample of the complete view may have no key in a narrow range. Only a checkpoint is read, which never
        # changes, so equal requests get equal splits.
        return await _collect(await view.open_buckets(view.select_buckets(cut.buckets)), ranges)
    return await _complete_sample(view, executor)


def split_sample(sample: KeySample, cut: SplitRequest, buckets: Sequence[int]) -> list[KeyRange]:
    """Splits some buckets by a sample of their keys: see `Snapshots.split`."""
    splits = cut.splits
    if cut.rows_per_split is not None:
        splits = max(1, min(splits, -(-round(sample.rows_in(buckets)) // cut.rows_per_split)))
    return sample.split(splits, cut.key_range, buckets)


async def _complete_sample(view: PinnedView, executor: StorageExecutor) -> KeySample:
    """Returns the sample of all keys of a view, which is stored with the view."""
    async with view.splitting:
        content = await executor.run(view.directory.read_splits)
        if content is not None:
            return await executor.run(_read, content, view)
        sample = await _collect(await view.open_buckets(None), ALL_KEY_RANGES)
        try:
            await executor.run(lambda: view.directory.write_splits(sample.to_json()))
        except FileNotFoundError:
            # Most likely the table was dropped, and its views with it.
            ended = view.reason_of_end()
            if ended is None:
                raise
            raise ended from None
        return sample


def _read(content: dict[str, Any], view: PinnedView) -> KeySample:
    try:
        return KeySample.from_json(content)
    except (LookupError, TypeError, ValueError, binascii.Error) as error:
        raise DataLoss(f"the key sample of snapshot view {view.view_id} is damaged", table=view.table) from error


async def _collect(reader: SnapshotReader, ranges: KeyRanges) -> KeySample:
    """Samples the keys in some ranges, on the event loop in slices of about a millisecond.

    Reads all of these keys where they are few, and probes them where they are many.
    """
    if not reader.definition.has_key:
        return _sample_of_offsets(reader)
    known = total_rows(reader.rows.values())
    if ranges != ALL_KEY_RANGES or known is None or known <= MAX_KEYS_READ:
        sample = await _collect_all(reader, ranges)
        if sample is not None:
            return sample
    return await _estimate(reader, ranges)


async def _collect_all(reader: SnapshotReader, ranges: KeyRanges) -> KeySample | None:
    """Samples the ranges by reading all of their keys. None where they have too many."""
    wanted = min(max(_KEYS_A_BUCKET * len(reader.rows), _LEAST_KEYS), _MOST_KEYS)
    # If the number of rows is unknown, every key is taken at first, and half of them are dropped if they are too many.
    known = None if ranges != ALL_KEY_RANGES else total_rows(reader.rows.values())
    collector = _Collector(min(max((known or 0) // wanted, 1), _MAX_STEP_ROWS), 2 * wanted)
    rows: dict[int, int] = {}
    left = MAX_KEYS_READ
    for bucket, expected in reader.rows.items():
        reader.check()
        cursor = reader.ranges_cursor(bucket, ranges)
        try:
            is_all = await collector.read(bucket, cursor, reader.check, left)
            rows[bucket] = cursor.rows_scanned
            left -= cursor.rows_scanned
            if not is_all:
                return None
            if expected is not None and ranges == ALL_KEY_RANGES and cursor.rows_scanned != expected:
                raise DataLoss(
                    f"the bucket has {counted(cursor.rows_scanned, 'row')}, but its manifest says {expected:,}"
                )
        except ScanKvError as error:
            raise reader.record_error(bucket, error) from error.__cause__
        finally:
            cursor.close()
    return KeySample(rows, collector.keys, collector.ranks)


def _sample_of_offsets(reader: SnapshotReader) -> KeySample:
    """Samples the log offsets of a table without a key, with exact ranks. Reads no rows."""
    sample = KeySample({}, {}, {})
    for bucket in reader.rows:
        span = reader.log_span(bucket)
        ranks = np.unique(np.linspace(0, span.end - span.first, _KEYS_A_BUCKET + 1).astype(int))[1:].tolist()
        keys = [row_key(span.offset_of(span.first + rank - 1)) for rank in ranks]
        sample.add_ranks(bucket, keys, ranks)
    return sample


async def _estimate(reader: SnapshotReader, ranges: KeyRanges) -> KeySample:
    """Samples the ranges by up to `MAX_PROBES` probes. A long list of ranges counts as one range."""
    pieces = list(ranges) if len(ranges) <= _MOST_PIECES else [ranges.span]
    probes = max(1, MAX_PROBES // (len(reader.rows) * len(pieces)))
    sample = KeySample({}, {}, {})
    begun = time.perf_counter()
    for bucket, expected in reader.rows.items():
        found: list[KeySpan] = []
        probe = reader.probe(bucket)
        try:
            for piece in pieces:
                for given in estimate_spans(probe, piece, probes, math.inf if expected is None else max(expected, 1)):
                    found += given or ()
                    if time.perf_counter() - begun > _SLICE_SECONDS:
                        await asyncio.sleep(0)
                        reader.check()
                        begun = time.perf_counter()
        except ScanKvError as error:
            raise reader.record_error(bucket, error) from error.__cause__
        finally:
            probe.close()
        sample.add(bucket, found, None if ranges != ALL_KEY_RANGES else expected, expected)
    return sample


class _Collector:
    """Collects a sample: the last key of every `step` rows. Takes larger steps where the keys would exceed `most`."""

    def __init__(self, step: int, most: int) -> None:
        self.keys: dict[int, list[bytes]] = {}
        self.ranks: dict[int, list[int]] = {}
        self._step = step
        self._most = most
        self._count = self._bytes = 0

    async def read(self, bucket: int, cursor: Cursor, check: Callable[[], None], most: int) -> bool:
        """Reads a bucket. Returns False where it has more than `most` rows. `check` may raise between two slices."""
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
        """Drops every second key, and doubles the step for the next keys."""
        for bucket, keys in self.keys.items():
            del keys[::2], self.ranks[bucket][::2]
        self._bytes = sum(len(key) for keys in self.keys.values() for key in keys)
        self._count = sum(map(len, self.keys.values()))
        self._step *= 2
