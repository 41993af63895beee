"""A read by an index with a damaged table file returns the right rows or DATA_LOSS, never fewer rows."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from scankv.model.expressions import Predicate, bind, col
from streaming_server.scan.queries.indexed_top_n import choose_order, find_top_by_index
from streaming_server.scan.queries.top_n import TopNSpec
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.indexed import IndexedTable, indexed_table
from tests.support.offline import opened
from tests.support.plans import plan_of
from tests.support.prepared import flip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 6000
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string()), ("more", pa.string())])


def text_of(place: int) -> str:
    return f"<entry {place:08} of an index>"


@pytest.fixture(scope="module", params=[0, ROWS // 2, ROWS - 1], ids=["first", "middle", "last"])
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexedTable]:
    """A table of one bucket with an index. The block with the entry `request.param` is damaged."""
    path = tmp_path_factory.mktemp("index")
    texts = [text_of(place) for place in range(ROWS)]
    rows = pa.RecordBatch.from_pydict({"k": range(ROWS), "text": texts, "more": texts[::-1]}, schema=SCHEMA)
    with indexed_table(path, rows, buckets=1, indexes=[["text"]], compression="none") as table:
        definition = table.definition
    file = index_file(path / "0000")
    flip(file, file.read_bytes().find(text_of(request.param).encode()) + 3)
    with opened(path / "0000", definition) as offline:
        yield IndexedTable({0: offline}, rows)
    assert BucketCursor.open_cursors == 0


def index_file(path: Path) -> Path:
    """Returns the largest table file of a bucket that contains index entries."""
    files = [file for file in path.glob("*.sst") if b"nameindex" in file.read_bytes()]
    return max(files, key=lambda file: file.stat().st_size)


def scanned(table: IndexedTable, where: Predicate, *, ordered: bool) -> list[int]:
    scan, reader = table.opened(plan_of(where, columns=["k", "more"], ordered=ordered), indexed=True)
    assert reader.indexed is not None
    found: list[int] = []
    with closing(scan.source) as source:
        while (chunk := source.next_chunk(8192, 1 << 20)) is not None:
            found += chunk.batch["k"].to_pylist()
    return found


@pytest.mark.represented_by("first-True")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_scan_by_a_damaged_index_is_complete_or_data_loss(damaged: IndexedTable, ordered: bool) -> None:
    lost: list[str] = []
    for first in range(0, ROWS, 250):
        try:
            found = scanned(damaged, col("text").between(text_of(first), text_of(first + 249)), ordered=ordered)
        except DataLoss as error:
            lost.append(error.details["bucket"])
        else:
            assert found == list(range(first, first + 250))
    assert 0 < len(lost) < 6
    assert set(lost) == {"0"}


@pytest.mark.parametrize("ascending", [False, True])
def test_a_top_n_by_a_damaged_index_is_right_or_data_loss(damaged: IndexedTable, ascending: bool) -> None:
    lost: list[str] = []
    for end in (*range(1, ROWS, 251), ROWS):
        where = col("text") > text_of(end) if ascending else col("text") < text_of(end)
        for n in (1, 200):
            spec = TopNSpec(by="text", n=n, ascending=ascending, columns=("k",))
            locked = damaged.locked_view()
            choice = choose_order(spec, bind(where, damaged.codec.schema), damaged.keys, locked.indexes)
            assert choice is not None
            try:
                rows = asyncio.run(find_top_by_index(spec, choice, locked))
            except DataLoss as error:
                lost.append(error.details["bucket"])
            else:
                assert rows is not None
                expected = range(end + 1, ROWS) if ascending else range(end - 1, -1, -1)
                assert rows.result()["k"].to_pylist() == list(expected)[:n]
    assert 0 < len(lost) < 12
    assert set(lost) == {"0"}


def test_rows_can_be_read_without_the_damaged_index(damaged: IndexedTable) -> None:
    scan, _ = damaged.opened(plan_of(col("more").contains("index")), indexed=True)
    with closing(scan.source) as source:
        chunks = list(iter(lambda: source.next_chunk(8192, 1 << 20), None))
    assert sum(chunk.batch.num_rows for chunk in chunks) == ROWS
