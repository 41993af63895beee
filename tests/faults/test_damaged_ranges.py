"""A cursor over a damaged table file never skips a row silently, whatever its range, direction and limit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.chunk_source import Cursor
from streaming_server.scan.columnar.base_cursor import BaseCursor
from streaming_server.scan.columnar.delta import EMPTY_DELTA
from streaming_server.storage.columnar.columnar_base import ColumnarBase
from tests.support.offline import OfflineBucket, bucket_path, definition_in, opened
from tests.support.offline_bases import BATCH_ROWS, flip_in_batch, written
from tests.support.prepared import flip, prepared_table, rows_file, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.storage.cursors.cursor import BucketCursor

MakesCursor: TypeAlias = Callable[[KeyRange, bool], Cursor]
ROWS = 3000
FAR = 700
"""More rows than fit into two blocks."""


class DamagedRange(NamedTuple):
    """A bucket with the rows 0, 1, 2, ..., and the rows that cannot be read."""

    offline: OfflineBucket
    harm: range
    cursor: MakesCursor


@pytest.fixture(scope="module", params=[0, ROWS // 2, ROWS - 1], ids=["first", "middle", "last"])
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DamagedRange]:
    """Creates a bucket in which the block with the row `request.param` is damaged."""
    data: Path = tmp_path_factory.mktemp("ranges") / "data"
    prepared_table(data, "test.t", ROWS, buckets=1)
    path = bucket_path(data, "test.t", 0)
    file = rows_file(path)
    flip(file, file.read_bytes().find(value_of(request.param).encode()) + 3)
    with opened(path, definition_in(data, "test.t")) as offline:
        keys = _keys(offline)
        cursor = partial(_cursor, offline)
        lost = [row for row in range(ROWS) if _is_lost(cursor, KeyRange(keys[row]))]
        assert request.param in lost
        assert lost == list(range(lost[0], lost[-1] + 1))
        assert len(lost) < FAR // 2
        yield DamagedRange(offline, range(lost[0], lost[-1] + 1), cursor)


def _keys(offline: OfflineBucket) -> list[bytes]:
    keys: list[bytes] = offline.keys.codec.encode([pa.array(range(ROWS), pa.int64())]).to_pylist()
    return keys


def _is_lost(cursor: MakesCursor, key_range: KeyRange) -> bool:
    """Returns whether the first row of a range cannot be read."""
    try:
        return not _read(cursor, key_range, reverse=False, limit=1, chunk_rows=1)
    except DataLoss:
        return True


def _cursor(offline: OfflineBucket, key_range: KeyRange, reverse: bool) -> BucketCursor:
    decoder = offline.codec.decoder(["k"])
    return offline.bucket.cursor(offline.codec, decoder, offline.keys.codec, key_range, reverse=reverse)


def _read(make: MakesCursor, key_range: KeyRange, reverse: bool, limit: int, chunk_rows: int) -> list[int]:
    """Reads the first `limit` rows of a range in chunks."""
    cursor = make(key_range, reverse)
    rows: list[int] = []
    try:
        while len(rows) < limit:
            batch = cursor.next_batch(min(chunk_rows, limit - len(rows)), 1 << 20)
            if batch is None:
                break
            rows += batch.column("k").to_pylist()
        return rows
    finally:
        cursor.close()


def _ranges(keys: list[bytes], harm: range) -> Iterator[tuple[KeyRange, range]]:
    """Returns ranges with their rows: everything, each prefix, nothing, and ranges near the damage and elsewhere."""
    yield KeyRange(), range(ROWS)
    for first in range(0, ROWS, 256):
        rows = range(first, min(first + 256, ROWS))
        prefix = keys[first][:-1]
        yield KeyRange(prefix, prefix[:-1] + bytes([prefix[-1] + 1])), rows
    edges = {harm.start, harm.start + 1, harm.stop - 1, harm.stop, 0, 1, ROWS // 3, ROWS - 1}
    for start, end in itertools.product(sorted(edges - {ROWS}), repeat=2):
        yield KeyRange(keys[start], keys[end]), range(start, end)
        yield KeyRange(None, keys[start]), range(start)
        yield KeyRange(keys[start], None), range(start, ROWS)


@pytest.fixture(scope="module", params=[0.0, 0.5, 1.0], ids=["first", "middle", "last"])
def damaged_base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DamagedRange]:
    """Creates a columnar base with a damaged batch."""
    directory: Path = tmp_path_factory.mktemp("based")
    prepared_table(directory / "data", "test.t", ROWS, buckets=1)
    with opened(bucket_path(directory / "data", "test.t", 0), definition_in(directory / "data", "test.t")) as offline:
        (rows,) = offline.rows().combine_chunks().to_batches()
        path = written(offline, rows, directory / "base")
        flip_in_batch(path, "rows.arrow", request.param)
        base = ColumnarBase.open(path, "")
        first = round(request.param * (len(base) - 1)) * BATCH_ROWS
        yield DamagedRange(offline, range(first, first + BATCH_ROWS), partial(_base_cursor, offline, base))


def _base_cursor(offline: OfflineBucket, base: ColumnarBase, key_range: KeyRange, reverse: bool) -> BaseCursor:
    return BaseCursor(
        base, lambda: EMPTY_DELTA, offline.codec, ["k"], None, key_range, reverse=reverse, location="a bucket"
    )


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("limit", [1, 100, pytest.param(1000, marks=pytest.mark.soak), 2 * ROWS])
@pytest.mark.represented_by("first-1-forward", "last-6000-reverse")
def test_a_range_of_a_damaged_file_is_complete_or_data_loss(damaged: DamagedRange, reverse: bool, limit: int) -> None:
    check_ranges(damaged, reverse=reverse, limit=limit)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("limit", [1, 2 * ROWS])
@pytest.mark.represented_by("first-1-forward", "last-6000-reverse")
def test_a_range_of_a_damaged_base_is_complete_or_data_loss(
    damaged_base: DamagedRange, reverse: bool, limit: int
) -> None:
    check_ranges(damaged_base, reverse=reverse, limit=limit)


def check_ranges(damaged: DamagedRange, *, reverse: bool, limit: int) -> None:
    offline, harm, cursor = damaged
    lost = 0
    for (key_range, rows), chunk_rows in itertools.product(_ranges(_keys(offline), harm), (90, 8192)):
        wanted = (rows[::-1] if reverse else rows)[:limit]
        try:
            found = _read(cursor, key_range, reverse, limit, chunk_rows)
        except DataLoss:
            lost += 1
            assert not rows or _meet(rows, range(harm.start - FAR, harm.stop + FAR)), "the range is far from the damage"
            # In reverse, RocksDB reads the next row before it returns one, and seeks by the excluded end.
            touched = range(harm.start - reverse, harm.stop + reverse)
            assert len(wanted) < limit or _meet(wanted, touched), "the limit ends before the damage"
        else:
            assert found == list(wanted)
            assert not _meet(wanted, harm)
    assert lost


def _meet(rows: range, others: range) -> bool:
    return bool(rows) and max(rows[0], rows[-1]) >= others.start and min(rows[0], rows[-1]) < others.stop
