"""Ordered scans over real buckets return all rows sorted, however they are chunked, ended and resumed."""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss
from scankv.model.expressions import col
from scankv.model.keys.key_range import KeyRange
from scankv.model.tables.schema import TableDefinition
from streaming_server.scan.chunk_source import ScanPosition, View
from streaming_server.scan.execution.open_scan import OpenedScan, open_scan
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.examples import examples
from tests.support.offline import OfflineBucket, opened
from tests.support.offline_bases import based_view
from tests.support.plans import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scankv.model.errors import ScanKvError
    from scankv.model.expressions import Predicate
    from streaming_server.scan.columnar.base_view import BaseView

SCHEMA = pa.schema(
    [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string(), nullable=False), ("v", pa.int64())]
)
ROOM = 1 << 20

Key = tuple[int, str]


class Offline(NamedTuple):
    """The buckets of a table, and its keys in order."""

    definition: TableDefinition
    buckets: list[OfflineBucket]
    keys: list[Key]
    bases: dict[int, BaseView]


@contextmanager
def table_of(keys: Sequence[Key], buckets: int, bucket_key: Sequence[str], *, based: bool = False) -> Iterator[Offline]:
    """Makes a table of these keys; `v` is the position of a key. Read row by row, or from bases with `based`."""
    definition = TableDefinition.create(
        "t.t", SCHEMA, ["a", "b"], bucket_key, buckets=buckets, incarnation="i", created_millis=0
    )
    ordered = sorted(keys)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        made = [
            stack.enter_context(opened(Path(directory) / "b" / f"{number:04}", definition)) for number in range(buckets)
        ]
        rows = [{"a": a, "b": b, "v": place} for place, (a, b) in enumerate(ordered)]
        if rows:
            numbers = made[0].keys.encode(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))[1]
            for number, offline in enumerate(made):
                part = [row for row, bucket in zip(rows, numbers, strict=True) if bucket == number]
                if part:
                    offline.upsert(*part)
                if number % 2:
                    offline.bucket.flush()
        views = {number: based_view(offline, Path(directory) / f"{number}") for number, offline in enumerate(made)}
        yield Offline(definition, made, ordered, views if based else {})


def scan(table: Offline, **asked: Any) -> OpenedScan:
    """Opens an ordered scan of the column `v`; `asked` is the rest of its plan."""
    plan = plan_of(columns=("v",), ordered=True, **asked)
    offline = table.buckets[0]
    view = View({number: bucket.bucket.state.log_offset for number, bucket in enumerate(table.buckets)}, 0, 0)
    reader = plan.reader(offline.codec, offline.keys.codec)
    buckets = [each.bucket for each in table.buckets]
    return open_scan(plan, table.definition, reader, view, "", buckets.__getitem__, _in_bucket, table.bases)


def _in_bucket(bucket: int, error: ScanKvError) -> ScanKvError:
    error.details["bucket"] = str(bucket)
    return error


def values(opened: OpenedScan, max_rows: int, max_bytes: int = ROOM) -> list[int]:
    found: list[int] = []
    for number in count():
        while number % 3 and not opened.source.prefetch(max_rows, max_bytes):
            pass
        if (chunk := opened.source.next_chunk(max_rows, max_bytes)) is None:
            break
        assert chunk.batch.num_rows <= max_rows
        found += chunk.batch["v"].to_pylist()
    opened.source.close()
    return found


PREDICATES: list[tuple[Predicate | None, Callable[[int, Key], bool]]] = [
    (None, lambda place, key: True),
    (col("v") != 3, lambda place, key: place != 3),
    ((col("a") > 0) & (col("v") < 100), lambda place, key: key[0] > 0 and place < 100),
    (col("b") == "a", lambda place, key: key[1] == "a"),
    (col("v") < 0, lambda place, key: False),
]
KEYS = st.tuples(st.integers(-300, 300), st.sampled_from(["", "a", "a\0", "b"]))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Key], int, list[str]]:
    seed, size = draw(st.integers(0, 2**32)), draw(st.sampled_from([0, 1, 5, 200, 900]))
    rng = random.Random(seed)
    keys = {(rng.randrange(-300, 300), rng.choice(["", "a", "a\0", "b"])) for _ in range(size)}
    return list(keys), draw(st.integers(1, 9)), draw(st.sampled_from([[], ["a"], ["b"]]))


@given(
    made=tables(),
    reverse=st.booleans(),
    max_rows=st.sampled_from([1, 7, 100, 8192]),
    max_bytes=st.sampled_from([1, 500, ROOM]),
    bounds=st.tuples(st.none() | KEYS, st.none() | KEYS),
    where=st.sampled_from(range(len(PREDICATES))),
    based=st.booleans(),
)
@examples(10)
def test_an_ordered_scan_gives_what_sorting_gives(
    made: tuple[list[Key], int, list[str]],
    reverse: bool,
    max_rows: int,
    max_bytes: int,
    bounds: tuple[Key | None, Key | None],
    where: int,
    based: bool,
) -> None:
    predicate, kept = PREDICATES[where]
    with table_of(*made, based=based) as table:
        codec = table.buckets[0].keys.codec
        start, end = (None if key is None else codec.encode_one(key) for key in bounds)
        expected = [
            place
            for place, key in enumerate(table.keys)
            if codec.encode_one(key) in KeyRange(start, end) and kept(place, key)
        ]
        opened = scan(table, where=predicate, key_range=KeyRange(start, end), reverse=reverse)
        assert values(opened, max_rows, max_bytes) == (expected[::-1] if reverse else expected)
        assert BucketCursor.open_cursors == 0


@pytest.fixture(scope="module", params=[[], ["a"], ["b"]], ids=["whole", "leading", "last"])
def table(request: pytest.FixtureRequest) -> Iterator[Offline]:
    keys = [(number // 4, "abcd"[number % 4]) for number in range(3000)]
    with table_of(keys, 5, request.param) as table:
        yield table


@pytest.fixture(scope="module")
def based(table: Offline) -> Iterator[Offline]:
    """Makes the same table, read from bases."""
    with tempfile.TemporaryDirectory() as directory:
        views = {number: based_view(each, Path(directory) / f"{number}") for number, each in enumerate(table.buckets)}
        yield table._replace(bases=views)


@pytest.mark.parametrize("of_bases", [False, True])
def test_what_is_read_ahead_stays_within_two_chunks(table: Offline, based: Offline, of_bases: bool) -> None:
    opened = scan(based if of_bases else table)
    given = 0
    while (chunk := opened.source.next_chunk(300, ROOM)) is not None:
        given += chunk.batch.num_rows
        assert opened.source.rows_scanned - given <= 600
    assert given == 3000


def test_large_rows_are_read_ahead_by_their_bytes(table: Offline) -> None:
    opened = scan(table)
    opened.source.next_chunk(128, ROOM)
    given = 128
    for _ in range(20):
        chunk = opened.source.next_chunk(8192, 1000)
        assert chunk is not None
        given += chunk.batch.num_rows
        # A stored row has more than 20 bytes here.
        assert opened.source.rows_scanned - given <= 2 * 1000 / 20
    opened.source.close()


def test_a_damaged_row_names_its_bucket_and_leaves_nothing_open(table: Offline) -> None:
    opened = scan(table)
    assert opened.source.next_chunk(128, ROOM) is not None
    run = opened.source._runs[3]  # type: ignore[attr-defined]
    run._cursor._reader._fast = iter([b"no row"])
    with pytest.raises(DataLoss) as caught:
        values(opened, 8192)
    assert caught.value.details["bucket"] == "3"
    opened.source.close()
    assert BucketCursor.open_cursors == 0


def test_an_ended_scan_raises_the_reason_and_holds_nothing(table: Offline) -> None:
    opened = scan(table)
    assert opened.source.next_chunk(10, ROOM) is not None
    opened.source.abort(DataLoss("over"))
    assert BucketCursor.open_cursors == 0
    with pytest.raises(DataLoss, match="over"):
        opened.source.next_chunk(10, ROOM)
    assert opened.source.position() == ScanPosition(0, table.buckets[0].keys.codec.encode_one((2, "b")))


@given(data=st.data(), reverse=st.booleans(), max_rows=st.sampled_from([1, 10, 8192]))
@examples(10)
def test_points_are_read_in_order_and_only_those_found_are_counted(
    table: Offline, data: st.DataObject, reverse: bool, max_rows: int
) -> None:
    a = data.draw(st.integers(-1, 800))
    b = data.draw(st.sampled_from(["a", "d", "x"]))
    opened = scan(table, where=(col("a") == a) & (col("b") == b), reverse=reverse)
    expected = [place for place, key in enumerate(table.keys) if key == (a, b)]
    assert values(opened, max_rows) == expected
    assert opened.source.rows_scanned == len(expected)
