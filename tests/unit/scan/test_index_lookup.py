"""Scans through an index return the same rows in the same order as scans of all rows."""

from __future__ import annotations

import asyncio
import math
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss, TableNotFound
from scankv.model.expressions import Predicate, all_of, col
from scankv.model.expressions.nodes import FieldPath
from scankv.model.keys.key_range import KeyRange
from streaming_server.scan.execution.explain import explain
from streaming_server.scan.read_plan import ReadPath
from streaming_server.scan.rows import index_lookup
from streaming_server.scan.rows.index_choice import choose_index, index_choices
from streaming_server.storage.cursors.cursor import BucketCursor
from tests.support.examples import examples
from tests.support.indexed import IndexedTable, indexed_table, random_rows, upsert
from tests.support.plans import plan_of
from tests.support.tables import exact_rows
from tests.unit.model.expression_strategies import disjunctions, leaves_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader

_ALL_KEYS = KeyRange()
NAMES = ["league", "number", "real", "small", "money", "flag", "name", "at"]
PATHS = [["league", "number"], ["league", "small", "name"], ["flag", "name"], ["small"], ["real"], ["at"], NAMES]


@pytest.fixture(scope="module", params=[(1, 150), (3, 200), (4, 3)], ids=str)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexedTable]:
    buckets, rows = request.param
    with indexed_table(tmp_path_factory.mktemp("where"), random_rows(rows, seed=rows), buckets=buckets) as found:
        yield found


def read(scan: OpenedScan, chunk_rows: int = 8192, chunks: int = 10**9) -> tuple[list[object], bytes]:
    """Returns the rows of the first chunks, and the token after them."""
    rows: list[object] = []
    token, left = b"", scan.limit
    with closing(scan.source) as source:
        while chunks > 0 and left != 0:
            chunk = source.next_chunk(chunk_rows if left is None else min(chunk_rows, left), 1 << 20)
            if chunk is None:
                break
            rows += exact_rows(chunk.batch)
            left = None if left is None else left - chunk.batch.num_rows
            position = source.position()
            assert position is not None
            token = scan.tokens.token(position, left)
            chunks -= 1
    assert BucketCursor.open_cursors == 0
    return rows, token


@given(st.data())
@examples(8)
@pytest.mark.represented_by("(1, 150)")
def test_rows_order_and_tokens_are_the_same_with_and_without_the_index(
    table: IndexedTable, data: st.DataObject
) -> None:
    leaves = st.one_of([leaves_of(FieldPath((name,)), table.rows) for name in NAMES])
    draw = data.draw
    paths = [FieldPath((name,)) for name in draw(st.sampled_from(PATHS))]
    where = draw(st.lists(leaves, min_size=1, max_size=3).map(all_of) | disjunctions(table.rows, paths))
    question: dict[str, Any] = {
        "columns": draw(st.sampled_from([None, (), ("l", "k"), ("number",), ("items", "name"), ("k", "league", "l")])),
        "reverse": draw(st.booleans()),
        "ordered": draw(st.booleans()),
        "limit": draw(st.sampled_from([None, None, 0, 1, 5, 70])),
    }
    chunk_rows, chunks = draw(st.sampled_from([1, 7, 8192])), draw(st.integers(1, 4))
    first_indexed, then_indexed = draw(st.booleans()), draw(st.booleans())
    plan = plan_of(where, **question)
    limited = plan.limit is not None and not plan.ordered
    plain, _ = table.opened(plan, indexed=False)
    everything, _ = read(plain)
    scan, _ = table.opened(plan, indexed=True)
    assert scan.source.schema == plain.source.schema
    by_index, _ = read(scan, chunk_rows)
    assert by_index == everything
    # After any chunk, the rest is the same however the parts are read, even if the index is added or dropped.
    begun, token = read(table.opened(plan, indexed=first_indexed)[0], chunk_rows, chunks)
    if token:
        rest, _ = read(table.opened(plan_of(where, **question, token=token), indexed=then_indexed)[0])
        assert begun + rest == everything or (limited and len(begun + rest) == len(everything))


NUMBERS = pa.schema([pa.field("k", pa.int64(), nullable=False), ("score", pa.int64()), ("text", pa.string())])


@pytest.fixture(scope="module", params=[1, 4])
def scores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexedTable]:
    """Makes 12,000 rows, 20 of each score from 0 to 99 and the others without a score."""
    values = [place % 600 if place % 600 < 100 else None for place in range(12_000)]
    rows = {"k": range(12_000), "score": values, "text": [f"text {place}" for place in range(12_000)]}
    batch = pa.RecordBatch.from_pydict(rows, schema=NUMBERS)
    with indexed_table(
        tmp_path_factory.mktemp("scores"), batch, buckets=request.param, indexes=[["score"], ["text", "score"]]
    ) as found:
        yield found


def scanned(table: IndexedTable, plan: ReadPlan) -> tuple[int, int]:
    """Returns how many rows a scan returns, and how many it reads."""
    scan, _ = table.opened(plan, indexed=True)
    rows, _ = read(scan)
    return len(rows), scan.source.rows_scanned


def test_a_value_that_twenty_rows_have_scans_twenty(scores: IndexedTable) -> None:
    for columns in (None, ("k", "score"), ("text",)):
        for ordered in (False, True):
            plan = plan_of(col("score") == 7, columns=columns, ordered=ordered)
            assert scanned(scores, plan) == (20, 20)
    assert scanned(scores, plan_of(col("score").is_in([7, 9, 1000]))) == (40, 40)
    assert scanned(scores, plan_of((col("score") >= 98) & col("text").contains("5"))) == (len_of(scores, 98), 40)
    assert scanned(scores, plan_of(col("score") == 1000)) == (0, 0)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (((col("score") == 7) & (col("text") == "text 7")) | ((col("score") == 9) & (col("text") == "text 609")), 2),
        (col("text").is_in(["text 7", "text 8", "text 9"]) & (col("score") > 7), 2),
        ((col("text") == "text 7") | ((col("text") == "text 8") & (col("score") > 8)), 1),
        (col("score").is_in([3, 5, 99]), 60),
        ((col("score") < 2) | (col("score") >= 98), 80),
        (((col("score") > 97) & col("score").is_not_null()) | col("score").is_in([4, None]), 60),
        (~(col("score") <= 97), 40),
        ((col("text") == "text 7") | ((col("text") == "text 100") & col("score").is_null()), 2),
        ((col("score") > 9) & (col("score") < 3), 0),
    ],
    ids=str,
)
@pytest.mark.represented_by(
    '1-((col("score") == 7) & (col("text") == \'text 7\')) | ((col("score") == 9) & (col("text") == \'text 609\'))-2',
    '4-(col("score") > 9) & (col("score") < 3)-0',
)
def test_several_ranges_of_an_index_scan_only_their_rows(scores: IndexedTable, where: Predicate, rows: int) -> None:
    for reverse in (False, True):
        assert scanned(scores, plan_of(where, ordered=True, reverse=reverse)) == (rows, rows)
    scan, reader = scores.opened(plan_of(where), indexed=True)
    assert reader.indexed is not None
    assert sum(len(keys) for keys in reader.indexed.keys.values() if keys is not None) == rows
    found, _ = read(scan)
    assert found == read(scores.opened(plan_of(where), indexed=False)[0])[0]


def len_of(table: IndexedTable, least: int) -> int:
    return sum(
        score is not None and score >= least and "5" in text
        for score, text in zip(table.rows["score"].to_pylist(), table.rows["text"].to_pylist(), strict=True)
    )


def test_an_index_is_used_as_long_as_reading_all_rows_would_cost_more(scores: IndexedTable) -> None:
    assert scanned(scores, plan_of(col("score") < 60)) == (1200, 1200)
    assert scanned(scores, plan_of(col("score").is_null())) == (10_000, 12_000)
    # Entries that have all columns cost less than a row.
    assert scanned(scores, plan_of(col("score") < 100)) == (2000, 12_000)
    assert scanned(scores, plan_of(col("score") < 100, columns=["k", "score"])) == (2000, 2000)


def test_an_index_that_finds_over_ten_thousand_rows_of_a_large_table_is_used(tmp_path: Path) -> None:
    columns = {"k": range(80_000), "score": [k % 100 for k in range(80_000)], "text": ["x" * 200] * 80_000}
    rows = pa.RecordBatch.from_pydict(columns, schema=NUMBERS)
    with indexed_table(tmp_path, rows, buckets=2, indexes=[["score"]]) as table:
        assert scanned(table, plan_of(col("score") < 13)) == (10_400, 10_400)
        assert scanned(table, plan_of(col("score") < 50)) == (40_000, 80_000)
        # With a limit, a scan of all rows ends soon. So few entries are read until it is chosen.
        assert scanned(table, plan_of(col("score") < 13, limit=10))[1] < 200


@pytest.mark.parametrize("matching", [5, 90])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("columns", [None, ["k", "score"]])
def test_a_scan_shows_the_instant_of_its_opening_whichever_plan_is_chosen_after_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matching: int, ordered: bool, columns: list[str] | None
) -> None:
    monkeypatch.setattr(index_lookup, "MAX_STEP_ENTRIES", 16)

    def rows(first: int) -> pa.RecordBatch:
        columns = {"k": range(3000), "score": [(first + k) % 100 for k in range(3000)], "text": ["x"] * 3000}
        return pa.RecordBatch.from_pydict(columns, schema=NUMBERS)

    with indexed_table(tmp_path, rows(0), buckets=3, indexes=[["score"]]) as table:
        plan = plan_of(col("score") < matching, columns=columns, ordered=ordered)
        expected = read(table.opened(plan, indexed=False)[0])[0]
        lookup = table.begin_lookup(plan)
        assert lookup is not None
        asyncio.run(lookup.read(16))
        assert lookup.is_chosen is None
        scans = [table.open(plan, plan.reader(table.codec, table.keys)), table.open(plan, lookup.reader)]
        upsert(table.buckets, rows(50))
        asyncio.run(lookup.read())
        assert lookup.is_chosen is (matching == 5)
        scans.pop(not lookup.is_chosen).source.close()
        assert read(scans[0])[0] == expected


@pytest.mark.parametrize("matching", [50, 100])
def test_entries_that_are_only_counted_lead_to_the_same_choice_and_are_not_kept(
    scores: IndexedTable, matching: int
) -> None:
    counted, kept = (scores.begin_lookup(plan_of(col("score") < matching)) for _ in range(2))
    assert counted is not None
    assert kept is not None
    asyncio.run(counted.read(keeps=False))
    asyncio.run(kept.read())
    assert counted.is_chosen is kept.is_chosen is (matching == 50)
    assert counted.reader.indexed is not None
    assert not any(counted.reader.indexed.keys.values())
    assert BucketCursor.open_cursors == 0


def test_a_lookup_that_is_aborted_closes_its_cursors_and_raises_why(scores: IndexedTable) -> None:
    lookup = scores.begin_lookup(plan_of(col("score") < 50))
    assert lookup is not None
    assert BucketCursor.open_cursors == len(scores.buckets)
    lookup.abort(TableNotFound("dropped"))
    assert BucketCursor.open_cursors == 0
    with pytest.raises(TableNotFound, match="dropped"):
        asyncio.run(lookup.read())


def reader_of(table: IndexedTable, where: Predicate, key_range: KeyRange = _ALL_KEYS) -> RowReader:
    return plan_of(where, key_range=key_range).reader(table.codec, table.keys)


def test_the_key_goes_before_an_index_and_the_best_index_before_the_others(scores: IndexedTable) -> None:
    indexes = scores.locked_view().indexes

    def chosen(where: Predicate, key_range: KeyRange = _ALL_KEYS) -> tuple[str, ...] | None:
        choice = choose_index(index_choices(reader_of(scores, where, key_range), indexes), indexes)
        return None if choice is None else choice.codec.index.columns

    assert chosen(col("score") == 7) == ("score",)
    assert chosen((col("score") == 7) & (col("text") == "x")) == ("text", "score")
    assert chosen((col("score") == 7) & (col("text") > "x")) == ("score",)
    assert chosen((col("score") > 7) & col("text").starts_with("x")) == ("text", "score")
    assert chosen((col("score") == 7) & (col("k") > 5)) is None
    assert chosen((col("score") == 7) & (col("k") == 5)) is None
    assert chosen(col("score") == 7, KeyRange(b"\x80")) is None
    assert chosen(col("score") != 7) is None
    assert chosen((col("score") == 7) | (col("text") == "x")) is None
    either = (col("text") == "x") | ((col("text") == "y") & (col("score") > 3))
    assert chosen(either) == ("text", "score")
    assert chosen((col("score") == 7) & either) == ("text", "score")
    assert chosen(col("score").is_in([1, 2]) & (col("text") > "x")) == ("score",)


def test_explain_tells_the_index_and_what_is_read_instead(scores: IndexedTable) -> None:
    plan = plan_of((col("score") == 7) & col("text").contains("5"), columns=["k"])
    reader = plan.reader(scores.codec, scores.keys)
    lookup = scores.begin_lookup(plan)
    assert lookup is not None
    asyncio.run(lookup.read())
    told = explain(plan, scores.definition, reader, range(len(scores.buckets)), lookup, (ReadPath.ROCKSDB, "why"))
    assert (list(told.index), list(told.index_ranges), told.index_range_count) == (["score"], ["score = 7"], 1)
    assert told.index_keys == lookup.most
    assert (list(told.ranges), told.points) == (["all keys"], 0)
    assert told.residual == "col(\"text\").contains('5')"
    assert list(told.columns_read) == ["text"]


def test_a_row_that_is_missing_behind_an_entry_is_data_loss(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"k": range(50), "score": [1] * 50, "text": ["x"] * 50}, schema=NUMBERS)
    with indexed_table(tmp_path, rows, buckets=2, indexes=[["score"]]) as table:
        for offline in table.buckets.values():
            batch = offline.bucket._store.batch()
            batch.delete_rows([table.keys.encode_one([17])])
            offline.bucket._store.write(batch)
        scan, _ = table.opened(plan_of(col("score") == 1), indexed=True)
        with pytest.raises(DataLoss, match="disagree; run `scankv check`"):
            read(scan)
        scan.source.close()
        # The entries contain all requested columns.
        assert len(read(table.opened(plan_of(col("score") == 1, columns=["k"]), indexed=True)[0])[0]) == 50


def test_two_entries_of_one_row_are_data_loss(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"k": range(5), "score": range(5), "text": ["x"] * 5}, schema=NUMBERS)
    with indexed_table(tmp_path, rows, buckets=1, indexes=[["score"]]) as table:
        offline = table.buckets[0]
        stale = pa.RecordBatch.from_pydict({"k": [3], "score": [4], "text": ["x"]}, schema=NUMBERS)
        keys, values = offline.indexes[0].entries(stale, pa.array([table.keys.encode_one([3])], pa.binary()))
        batch = offline.bucket._store.batch()
        batch.put_entries(keys.to_pylist(), values.to_pylist())
        offline.bucket._store.write(batch)
        with pytest.raises(DataLoss, match="several entries for one row"):
            table.opened(plan_of(col("score") >= 3), indexed=True)


def test_floats_are_looked_up_as_they_compare(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("x", pa.float32())])
    values = [None, math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, -0.1, 3.0]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(range(10), pa.int64()), pa.array(values, pa.float32(), from_pandas=False)], schema=schema
    )
    with indexed_table(tmp_path, rows, buckets=1, indexes=[["x"]]) as table:
        for where, found in [
            (col("x") > 5, [3]),
            (col("x") == 0, [5, 6]),
            (col("x").is_in([0.0, math.nan]), [5, 6]),
            (col("x") > 0.1, [3, 7, 9]),  # as a float32, 0.1 is slightly greater
            (col("x") <= -0.1, [4, 8]),
            (col("x") <= 0.1, [4, 5, 6, 8]),
            (col("x").is_null(), [0]),
            (col("x").is_not_null(), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
            (col("x") < math.nan, []),
        ]:
            scan, reader = table.opened(plan_of(where, columns=["k"]), indexed=True)
            assert (reader.indexed is not None) == ("nan" not in repr(where) or "is_in" in repr(where))
            assert read(scan)[0] == [(k,) for k in found]
