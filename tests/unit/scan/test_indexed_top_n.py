"""Top-N by an index returns exactly what top-N over all rows returns, in the same order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from scankv.model.expressions import Predicate, bind, col
from scankv.model.expressions.nodes import Comparison, FieldPath, Operator
from streaming_server.scan.queries.indexed_top_n import FoundRows, choose_order, find_top_by_index
from streaming_server.scan.queries.top_n import TopNCollector, TopNSpec
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.indexed import IndexedTable, indexed_table
from tests.support.plans import plan_of
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def by_index(table: IndexedTable, spec: TopNSpec, where: Predicate | None = None) -> FoundRows | None:
    locked = table.locked_view()
    bound = None if where is None else bind(where, table.codec.schema)
    choice = choose_order(spec, bound, table.keys, locked.indexes)
    found = None if choice is None else asyncio.run(find_top_by_index(spec, choice, locked))
    assert BucketCursor.open_cursors == 0
    return found


def by_looking_at_all(table: IndexedTable, spec: TopNSpec, where: Predicate | None = None) -> pa.RecordBatch:
    scan, _ = table.opened(replace(plan_of(where, columns=[spec.by]), stored_rows=True), indexed=False)
    top = TopNCollector(spec, table.definition)
    while (chunk := scan.source.next_chunk(64, 1 << 20)) is not None:
        top.add(chunk)
        if top.is_due:
            top.settle()
    return top.result()


NUMBERS = pa.schema([pa.field("k", pa.int64(), nullable=False), ("score", pa.int64()), ("text", pa.string())])


def numbers(scores: Sequence[int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"k": range(len(scores)), "score": scores, "text": [f"text {place}" for place in range(len(scores))]},
        schema=NUMBERS,
    )


def top(n: int, *, ascending: bool = False, columns: tuple[str, ...] | None = None, ties: bool = False) -> TopNSpec:
    return TopNSpec(by="score", n=n, ascending=ascending, columns=columns, with_ties=ties)


@pytest.fixture(scope="module", params=[1, 4])
def scores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexedTable]:
    """Makes 20,000 rows with different scores, except the lowest 1,000, and some without a score."""
    values = [None if place % 100 == 7 else max(place * 7919 % 20_000, 1000) for place in range(20_000)]
    path = tmp_path_factory.mktemp("scores")
    with indexed_table(path, numbers(values), buckets=request.param, indexes=[["score"]]) as found:
        yield found


@pytest.mark.parametrize("ascending", [False, True])
def test_ten_rows_take_few_entries(scores: IndexedTable, ascending: bool) -> None:
    for columns in (None, ("k", "score")):
        found = by_index(scores, top(10, ascending=ascending, columns=columns))
        assert found is not None
        assert found.scanned <= 40 + 25 * ascending * (len(scores.buckets) > 1)
        assert found.index == ("score",)
        assert len(found.stored) == 10


def test_many_ties_are_not_all_read(scores: IndexedTable) -> None:
    found = by_index(scores, top(5, ascending=True))
    assert found is not None
    assert found.scanned < 60
    everything = by_index(scores, top(5, ascending=True, ties=True))
    assert everything is not None
    assert 900 < len(everything.stored) < 1100


@pytest.mark.represented_by("1")
def test_ten_thousand_rows_are_read_by_the_index_and_more_are_not(scores: IndexedTable) -> None:
    spec = top(10_000, columns=("k",))
    found = by_index(scores, spec)
    assert found is not None
    assert exact_rows(found.result()) == exact_rows(by_looking_at_all(scores, spec))
    assert by_index(scores, top(10_001)) is None


def test_an_index_is_given_up_where_it_would_not_find_the_rows_soon(tmp_path: Path) -> None:
    with indexed_table(tmp_path, numbers(list(range(12_000))), buckets=2, indexes=[["score"]]) as table:
        rare = Comparison(FieldPath(("k",)), Operator.NOT_EQUAL, FieldPath(("score",)))
        assert by_index(table, top(10), rare) is None
        last = by_index(table, top(10), col("score") < 500)
        assert last is not None
        assert last.scanned < 60


@pytest.mark.timeout(180)  # writes megabytes of entries
@pytest.mark.soak
def test_an_index_of_very_long_entries_is_given_up(tmp_path: Path) -> None:
    long = pa.RecordBatch.from_pydict(
        {"k": range(5000), "score": range(5000), "text": [f"{k:05}" + "x" * 16_000 for k in range(5000)]},
        schema=NUMBERS,
    )
    with indexed_table(tmp_path, long, buckets=1, indexes=[["text"]]) as table:
        for n, given_up in ((100, False), (5000, True)):
            spec = TopNSpec(by="text", n=n, ascending=True, columns=("k",))
            assert (by_index(table, spec) is None) == given_up


def test_a_row_that_is_missing_behind_an_entry_is_data_loss(tmp_path: Path) -> None:
    with indexed_table(tmp_path, numbers(list(range(100))), buckets=2, indexes=[["score"]]) as table:
        key = table.keys.encode_one([97])
        for offline in table.buckets.values():
            batch = offline.bucket._store.batch()
            batch.delete_rows([key])
            offline.bucket._store.write(batch)
        with pytest.raises(DataLoss, match="disagree; run `scankv check`") as caught:
            by_index(table, top(10))
        assert "bucket" in caught.value.details
        assert by_index(table, top(2)) is not None


def test_an_index_that_is_not_whole_in_every_bucket_is_not_used(tmp_path: Path) -> None:
    with indexed_table(tmp_path, numbers(list(range(50))), buckets=2, indexes=[["score"]]) as table:
        locked = table.locked_view()
        assert len(locked.indexes) == 1
        state = table.buckets[1].bucket.state
        object.__setattr__(state, "ready_indexes", ())
        assert not table.locked_view().indexes
        assert by_index(table, top(3)) is None
        object.__setattr__(state, "ready_indexes", (1,))
