"""Top-N equals the head of a full sort: nulls last, NaN above infinity, ties by ascending key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidRequest, RequestTooLarge, SchemaMismatch
from streaming_server.scan.chunk_source import Chunk
from streaming_server.scan.queries import top_n
from streaming_server.scan.queries.top_n import TopNCollector, TopNSpec
from streaming_server.storage.rows.row_codec import RowCodec
from tests.support.examples import examples
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = pa.schema(
    [
        pa.field("a", pa.int16(), nullable=False),
        pa.field("b", pa.string(), nullable=False),
        ("number", pa.int64()),
        ("unsigned", pa.uint64()),
        ("half", pa.float16()),
        ("single", pa.float32()),
        ("real", pa.float64()),
        ("money", pa.decimal128(9, 2)),
        ("hundreds", pa.decimal128(5, -2)),
        ("flag", pa.bool_()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("clock", pa.time64("ns")),
        ("items", pa.list_(pa.int64())),
    ]
)
TABLE = define(SCHEMA, "a", "b")
CODEC = RowCodec(TABLE)
ORDERED = [name for name in SCHEMA.names if name != "items"]
# In key order; the two zeros are equal, and so are the two NaNs.
FLOATS = [-math.inf, -2.5, -0.0, 0.0, 1.5, math.inf, math.nan, -math.nan]
RANKS: dict[str, list[Any]] = {
    "number": [-(2**63), -1, 0, 1, 2**63 - 1],
    "unsigned": [0, 1, 2**63, 2**64 - 1],
    "half": FLOATS,
    "single": FLOATS,
    "real": FLOATS,
    "money": [-99999, -1, 0, 250],
    "hundreds": [-99999, -1, 0, 250],
    "flag": [False, True],
    "name": ["", "a", "a\0", "ab", "b", "ü"],
    "raw": [b"", b"\0", b"a", b"\xff"],
    "day": [-5, 0, 7],
    "clock": [0, 1, 86_399_999_999_999],
    "items": [[1], [2]],
}
"""The values of each column in ascending order, as Arrow stores them."""


def array_of(ranks: Sequence[int | None], field: pa.Field) -> pa.Array:
    values = [None if rank is None else RANKS[field.name][rank] for rank in ranks]
    type_ = field.type
    if pa.types.is_float16(type_):
        return pa.array(values, pa.float64(), from_pandas=False).cast(type_)
    if pa.types.is_decimal(type_):
        return pa.array(values, pa.decimal128(type_.precision, 0)).view(type_)
    if pa.types.is_temporal(type_):
        return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    return pa.array(values, type_, from_pandas=False)


def batch_of(keys: Sequence[tuple[int, str]], ranks: dict[str, list[int | None]]) -> pa.RecordBatch:
    a, b = (pa.array([key[place] for key in keys], SCHEMA.field(place).type) for place in (0, 1))
    return pa.RecordBatch.from_arrays(
        [a, b, *(array_of(ranks[field.name], field) for field in list(SCHEMA)[2:])], schema=SCHEMA
    )


def added(top: TopNCollector, batch: pa.RecordBatch, by: str, *, late: bool = False) -> None:
    stored = CODEC.encode(batch)
    if late:
        top.add(Chunk(0, batch.select([by]), stored=stored.take))
    else:
        top.add(Chunk(0, pa.RecordBatch.from_arrays([batch.column(by), stored], ["by", "stored"])))
    if top.is_due:
        top.settle()
        assert not top.is_due


def spec(
    by: str, n: int, *, ascending: bool = False, columns: tuple[str, ...] | None = None, ties: bool = False
) -> TopNSpec:
    return TopNSpec(by=by, n=n, ascending=ascending, columns=columns, with_ties=ties)


@given(st.data())
@examples(12)
def test_top_n_is_the_beginning_of_a_sort_for_every_type_and_both_directions(data: st.DataObject) -> None:
    keys = [
        (place // 3 - 5, ["", "x", "x\0"][place % 3]) for place in range(data.draw(st.sampled_from([0, 5, 30, 60])))
    ]
    by = data.draw(st.sampled_from(ORDERED))
    ranks: dict[str, list[int | None]] = {}
    for name in SCHEMA.names[2:]:
        if name == by:
            one = st.none() | st.integers(0, len(RANKS[name]) - 1)
            ranks[name] = data.draw(st.lists(one, min_size=len(keys), max_size=len(keys)))
        else:
            ranks[name] = [place % len(RANKS[name]) for place in range(len(keys))]
    rows = batch_of(keys, ranks)
    n, ascending, ties = data.draw(st.sampled_from([1, 3, 5, 20])), data.draw(st.booleans()), data.draw(st.booleans())

    def order(place: int) -> Any:
        if by in ("a", "b"):
            value = keys[place][by == "b"]
            rank: int | None = sorted({key[by == "b"] for key in keys}).index(value)
        else:
            rank = ranks[by][place]
            if RANKS[by] is FLOATS and rank in (3, 7):
                rank -= 1
        return (rank is None, 0 if rank is None else rank if ascending else -rank, keys[place])

    # Buckets are read one after another, each in key order.
    top = TopNCollector(spec(by, n, ascending=ascending, ties=ties), TABLE)
    buckets = data.draw(st.integers(1, 3))
    step, late = data.draw(st.integers(1, 15)), data.draw(st.integers(0, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_n, "_DEFERRED_ROWS", data.draw(st.sampled_from([1, 4, 1024])))
        patch.setattr(top_n, "_DEFERRED_BATCHES", data.draw(st.sampled_from([1, 3, 64])))
        patch.setattr(top_n, "_QUICK_ROWS", data.draw(st.sampled_from([0, 4096])))
        for bucket in range(buckets):
            part = rows.take(pa.array(range(bucket, rows.num_rows, buckets), pa.int64()))
            for start in range(0, part.num_rows, step):
                # Some buckets are read from their bases, and some row by row.
                added(top, part.slice(start, step), by, late=late >> bucket & 1 == 1)
    best = sorted(range(len(keys)), key=order)
    while len(best) > n and not (ties and order(best[-1])[:2] == order(best[n - 1])[:2]):
        best.pop()
    result = top.result()
    result.validate(full=True)
    assert list(zip(result["a"].to_pylist(), result["b"].to_pylist(), strict=True)) == [keys[i] for i in best]
    expected = rows.take(pa.array(best, pa.int64()))
    assert CODEC.encode(result) == CODEC.encode(expected)


@pytest.mark.parametrize("ties", [100_000, 100_001])
def test_ties_that_are_too_many_are_let_go_and_matter_only_at_the_end(ties: int) -> None:
    top = TopNCollector(spec("number", 2, ties=True, columns=("a",)), NUMBERS)
    for start in range(0, 310_000, 10_000):
        part = range(start, start + 10_000)
        top.add(numbers(part, [1 if key < 200_000 else 2 if key < 200_000 + ties else None for key in part]))
        if top.is_due:
            top.settle()
        assert top.kept_rows <= 2 * 100_000 + 10_000
    if ties > 100_000:
        with pytest.raises(InvalidRequest, match="more than 100,000"):
            top.result()
    else:
        assert top.result()["a"].to_pylist() == list(range(200_000, 300_000))


def test_what_is_kept_does_not_grow_with_the_rows_however_they_come() -> None:
    """First every row is better than all before, then every row equals all before."""
    for values in (range(50_000), [7] * 50_000):
        top = TopNCollector(spec("number", 10), NUMBERS)
        for start in range(0, 50_000, 1000):
            top.add(numbers(range(start, start + 1000), values[start : start + 1000]))
            assert top.kept_rows <= 20
        best = top.result()["a"].to_pylist()
        assert best == (list(range(49_999, 49_989, -1)) if values[0] == 0 else list(range(10)))


NUMBERS = define(pa.schema([pa.field("a", pa.int64(), nullable=False), ("number", pa.int64()), ("text", pa.string())]))


def numbers(keys: Sequence[int], values: Sequence[int | None], text: str = "") -> Chunk:
    codec = RowCodec(NUMBERS)
    columns = {"a": list(keys), "number": list(values), "text": [text] * len(keys)}
    batch = pa.RecordBatch.from_pydict(columns, schema=codec.schema)
    return Chunk(0, pa.RecordBatch.from_arrays([batch.column("number"), codec.encode(batch)], ["by", "stored"]))


def test_rows_that_take_too_much_memory_are_refused_and_fewer_are_not() -> None:
    megabyte = "x" * (1 << 20)

    def largest(n: int) -> TopNCollector:
        top = TopNCollector(spec("number", n, columns=("a",)), NUMBERS, max_kept_bytes=30 * len(megabyte))
        for number in range(50):
            top.add(numbers([number], [number], megabyte))
            if top.is_due:
                top.settle()
        return top

    assert largest(25).result().num_rows == 25
    with pytest.raises(RequestTooLarge, match="ask for fewer"):
        largest(45).result()


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (spec("number", 0), InvalidRequest, "n must be between 1 and 100,000, not 0"),
        (spec("number", 100_001), InvalidRequest, "n must be between 1 and 100,000, not 100,001"),
        (spec("nmber", 1), SchemaMismatch, "did you mean"),
        (spec("items", 1), SchemaMismatch, r'"items" is list<item: int64>, which has no order'),
        (spec("number", 1, columns=("a", "bb")), SchemaMismatch, '"bb"'),
        (spec("number", 1, columns=("a", "a")), SchemaMismatch, "twice"),
    ],
)
def test_what_does_not_fit_the_table_is_refused(wanted: TopNSpec, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wanted.check(TABLE.schema)
