"""Cutting a pinned view into key ranges of about equally many rows, by a sample of its keys.

The sample holds every n-th key of each bucket with its rank, the number of rows up to and with it. It is collected when
the view is first split, which reads all of its keys, and kept with the view.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from streaming_server.scan.base_cursor import BaseCursor
from streaming_server.scan.chunk_source import total_rows
from table_model.errors import DataLoss, ScanKvError
from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streaming_server.engine.executor import StorageExecutor
    from streaming_server.engine.pinned_view import PinnedView, SnapshotReader
    from streaming_server.storage.cursor import BucketCursor

MAX_SAMPLE_BYTES = 8 * 1024 * 1024
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


async def split_view(
    view: PinnedView, executor: StorageExecutor, splits: int, key_range: KeyRange, buckets: Sequence[int] | None
) -> list[KeyRange]:
    """What `Snapshots.split` promises, for a view that the caller keeps in use."""
    async with view.splitting:
        content = await executor.run(view.directory.read_splits)
        if content is None:
            sample = await _collect(await view.opened(None))
            try:
                await executor.run(lambda: view.directory.write_splits(sample.to_json()))
            except FileNotFoundError:
                # Gone with its table, most likely.
                view.check()
                raise
        else:
            sample = await executor.run(_read, content, view)
    return await executor.run(sample.split, splits, key_range, view.chosen(buckets))


def _read(content: dict[str, Any], view: PinnedView) -> KeySample:
    try:
        return KeySample.from_json(content)
    except (LookupError, TypeError, ValueError, binascii.Error) as error:
        raise DataLoss(f"the key sample of snapshot view {view.view_id} is damaged", table=view.table) from error


async def _collect(reader: SnapshotReader) -> KeySample:
    """Reads all keys of a view, on the event loop in slices of about a millisecond: see `BucketCursor`."""
    wanted = min(max(_KEYS_A_BUCKET * len(reader.rows), _LEAST_KEYS), _MOST_KEYS)
    # Where the rows are not counted, every key is taken at first, and every second one left out as often as it takes.
    collector = _Collector(min(max((total_rows(reader.rows.values()) or 0) // wanted, 1), _MAX_STEP_ROWS), 2 * wanted)
    rows: dict[int, int] = {}
    for bucket, counted in reader.rows.items():
        reader.check()
        cursor = await reader.keys_cursor(bucket)
        try:
            await collector.read(bucket, cursor, reader.check)
            rows[bucket] = cursor.rows_scanned
            if counted is not None and cursor.rows_scanned != counted:
                raise DataLoss(f"there are {cursor.rows_scanned} rows, where the manifest says {counted}")
        except ScanKvError as error:
            of_bases = [bucket] if isinstance(cursor, BaseCursor) else []
            raise reader.noted_of(of_bases, bucket, error) from error.__cause__
        finally:
            cursor.close()
    return KeySample(rows, collector.keys, collector.ranks)


class _Collector:
    """Gathers a sample: the last of every `step` rows; of fewer where that makes more than `most` keys."""

    def __init__(self, step: int, most: int) -> None:
        self.keys: dict[int, list[bytes]] = {}
        self.ranks: dict[int, list[int]] = {}
        self._step = step
        self._most = most
        self._count = self._bytes = 0

    async def read(self, bucket: int, cursor: BucketCursor | BaseCursor, check: Callable[[], None]) -> None:
        """Reads a bucket to its end; between two slices `check` may raise."""
        keys, ranks = self.keys.setdefault(bucket, []), self.ranks.setdefault(bucket, [])
        due, begun = self._step, time.perf_counter()
        while cursor.skim(min(due - cursor.rows_scanned, _MAX_STEP_ROWS), _SKIM_BYTES) is not None:
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

    def _thin(self) -> None:
        """Forgets every second key, and takes half as many from now on."""
        for bucket, keys in self.keys.items():
            del keys[::2], self.ranks[bucket][::2]
        self._bytes = sum(len(key) for keys in self.keys.values() for key in keys)
        self._count = sum(map(len, self.keys.values()))
        self._step *= 2
