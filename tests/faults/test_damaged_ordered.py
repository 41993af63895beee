"""Ordered scans and lookups over a damaged file return the first rows and then DATA_LOSS, never fewer rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.expressions import col
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.chunk_source import View
from streaming_server.scan.columnar.base_view import NO_BASES
from streaming_server.scan.execution.open_scan import open_scan
from streaming_server.scan.read_plan import ReadPlan
from streaming_server.storage.columnar.columnar_base import ColumnarBase
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.offline import bucket_path, offline_table
from tests.support.offline_bases import based_view, flip_in_batch
from tests.support.prepared import flip, keys_in, prepared_table, rows_file, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from streaming_server.scan.columnar.base_view import BaseView
    from tests.support.offline import OfflineBucket

ROWS = 9000
BUCKETS = 3
HURT = 1


@pytest.fixture(scope="module", params=["first", "middle", "last"])
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OfflineBucket]]:
    """Creates the buckets of a table with the keys 0, 1, 2, .... One of them has a damaged block."""
    data: Path = tmp_path_factory.mktemp("ordered") / "data"
    prepared_table(data, "test.t", ROWS, buckets=BUCKETS)
    keys = keys_in(data, "test.t", HURT)
    victim = {"first": keys[0], "middle": keys[len(keys) // 2], "last": keys[-1]}[request.param]
    file = rows_file(bucket_path(data, "test.t", HURT))
    flip(file, file.read_bytes().find(value_of(victim).encode()) + 3)
    with offline_table(data, "test.t") as buckets:
        yield buckets


@pytest.fixture(
    scope="module", params=[("rows.arrow", 0.0), ("rows.arrow", 0.5), ("keys.arrow", 0.5), ("keys.arrow", 1)]
)
def damaged_bases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[OfflineBucket], dict[int, BaseView]]]:
    """Creates the same table without damage, and bases of its buckets. One of them has a damaged batch."""
    directory: Path = tmp_path_factory.mktemp("based")
    prepared_table(directory / "data", "test.t", ROWS, buckets=BUCKETS)
    with offline_table(directory / "data", "test.t") as buckets:
        bases = {number: based_view(bucket, directory / str(number)) for number, bucket in enumerate(buckets)}
        path = bases[HURT].base.path
        flip_in_batch(path, *request.param)
        hurt = replace(bases[HURT], base=ColumnarBase.open(path, ""))
        yield buckets, {**bases, HURT: hurt}


def read(
    buckets: list[OfflineBucket], wanted: int, bases: Mapping[int, BaseView] = NO_BASES, **plan: Any
) -> tuple[list[int], DataLoss | None]:
    """Returns up to `limit` keys in the order of the scan, and the error that ended it."""
    asked = ReadPlan(
        **{
            "buckets": None,
            "columns": ("k",),
            "where": None,
            "where_message": b"",
            "key_range": KeyRange(),
            "reverse": False,
            "ordered": True,
            "limit": None,
            "resume_token": b"",
            **plan,
        }
    )
    view = View(dict.fromkeys(range(BUCKETS), 0), 0, 0)
    reader = asked.reader(buckets[0].codec, buckets[0].keys.codec)

    def noted(bucket: int, error: ScanKvError) -> ScanKvError:
        error.details["bucket"] = str(bucket)
        return error

    opened = open_scan(asked, buckets[0].definition, reader, view, "", lambda n: buckets[n].bucket, noted, bases)
    rows: list[int] = []
    try:
        while len(rows) < wanted and (chunk := opened.source.next_chunk(min(wanted - len(rows), 500), 1 << 20)):
            rows += chunk.batch["k"].to_pylist()
    except DataLoss as error:
        return rows, error
    finally:
        opened.source.close()
    return rows, None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [(None, None), (1000, None), (None, 8000)])
@pytest.mark.parametrize("where", [None, col("k") >= 0, col("v") != "x"])
@pytest.mark.parametrize("wanted", [1, 100, 2 * ROWS])
@pytest.mark.represented_by("first-1-None-bounds0-False", "last-18000-where2-bounds2-True")
def test_an_ordered_scan_of_a_damaged_bucket_is_complete_up_to_the_damage(
    damaged: list[OfflineBucket],
    reverse: bool,
    bounds: tuple[int | None, int | None],
    where: Any,
    wanted: int,
) -> None:
    check_whole_up_to_the_damage(damaged, NO_BASES, reverse=reverse, bounds=bounds, where=where, wanted=wanted)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [(None, None), (1000, 8000)])
@pytest.mark.parametrize("where", [None, col("v") != "x"])
@pytest.mark.parametrize("wanted", [1, 2 * ROWS])
@pytest.mark.represented_by("damaged_bases0-1-None-bounds0-False", "damaged_bases3-18000-where1-bounds1-True")
def test_an_ordered_scan_of_a_damaged_base_is_complete_up_to_the_damage(
    damaged_bases: tuple[list[OfflineBucket], dict[int, BaseView]],
    reverse: bool,
    bounds: tuple[int | None, int | None],
    where: Any,
    wanted: int,
) -> None:
    check_whole_up_to_the_damage(*damaged_bases, reverse=reverse, bounds=bounds, where=where, wanted=wanted)


def check_whole_up_to_the_damage(
    damaged: list[OfflineBucket],
    bases: Mapping[int, BaseView],
    *,
    reverse: bool,
    bounds: tuple[int | None, int | None],
    where: Any,
    wanted: int,
) -> None:
    codec = damaged[0].keys.codec
    key_range = KeyRange(*(None if bound is None else codec.encode_one([bound]) for bound in bounds))
    every = list(range(bounds[0] or 0, ROWS if bounds[1] is None else bounds[1]))
    expected = every[::-1] if reverse else every
    found, error = read(damaged, wanted, bases, where=where, key_range=key_range, reverse=reverse)
    if error is not None:
        assert error.details["bucket"] == str(HURT)
        assert found == expected[: len(found)]
    else:
        assert found == expected[:wanted]
        # The scan ended before the damaged block.
        assert wanted < ROWS or bounds != (None, None)
    assert BucketCursor.open_cursors == 0


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_keys_of_a_damaged_block_are_data_loss(damaged: list[OfflineBucket], ordered: bool, reverse: bool) -> None:
    _, error = read(damaged, ROWS, where=col("k").is_in(range(ROWS)), ordered=ordered, reverse=reverse)
    assert error is not None
    assert error.details["bucket"] == str(HURT)
    assert BucketCursor.open_cursors == 0
