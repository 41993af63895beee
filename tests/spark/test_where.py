"""Option `where` keeps the rows that Spark's `filter` of the same text keeps, also of NaN, zeros and nulls."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from aio_client import SchemaMismatch
from spark_bridge import count
from spark_bridge.options import ReadOptions
from spark_bridge.predicates import spark_predicate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from aio_client import sync
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema(
    [
        pa.field("x", pa.float64(), nullable=False),
        pa.field("k", pa.int64(), nullable=False),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("i", pa.int32()),
        ("s", pa.struct([("e", pa.float64())])),
    ]
)
NAN, INFINITE = float("nan"), float("inf")
FLOATS = [NAN, INFINITE, -INFINITE, 0.0, -0.0, 0.1, 1.0, -1.0, 2.5, None]
COLUMNS = ["x", "d", "f", "i", "s.e"]
NUMBERS = ["0", "0.0", "-0.0", "0.1", "1", "2.5", "-1.0", "1e300", "-3"]
PREDICATES = 120


def filled(client: sync.Client, name: str, chance: random.Random) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["x", "k"], buckets=2, indexes=["d"])
    floats = [each for each in FLOATS if each is not None]
    table.upsert(
        [
            {
                "x": chance.choice(floats),
                "k": k,
                "d": chance.choice(FLOATS),
                "f": chance.choice(FLOATS),
                "i": chance.choice([None, 0, 1, -1, 2]),
                "s": chance.choice([None, {"e": None}, {"e": chance.choice(FLOATS)}]),
            }
            for k in range(200)
        ]
    )
    return table


def predicate(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if depth < 3 and kind < 0.4:
        joined = chance.choice([" and ", " or "]).join(
            f"({predicate(chance, depth + 1)})" for _ in range(chance.choice([2, 2, 3]))
        )
        return f"not ({joined})" if chance.random() < 0.3 else joined
    column, negated = chance.choice(COLUMNS), chance.choice(["", "", "not "])
    if kind < 0.5:
        return f"{column} is {negated}null"
    if kind < 0.6:
        return f"{column} {negated}in ({', '.join(chance.sample(NUMBERS, 3))})"
    if kind < 0.7:
        return f"{column} {negated}between {chance.choice(NUMBERS)} and {chance.choice(NUMBERS)}"
    compared = chance.choice(["=", "<>", "<", "<=", ">", ">="])
    if kind < 0.85:
        return f"{negated}{column} {compared} {chance.choice(COLUMNS)}"
    return f"{negated}{column} {compared} {chance.choice(NUMBERS)}"


@pytest.mark.breadth
def test_option_where_keeps_the_rows_that_filter_keeps(
    load: Callable[..., DataFrame], client: sync.Client, name: str, shared_server: ServerProcess
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    table = filled(client, name, chance)
    texts: list[str] = []
    while len(texts) < PREDICATES:
        text = predicate(chance)
        # The server refuses a comparison that would round a value.
        with suppress(SchemaMismatch):
            spark_predicate(table, text)
            texts.append(text)
    # Combined into a few queries, since each takes Spark a second.
    expected: list[set[int]] = [set() for _ in texts]
    rows = load(table.name)
    for start in range(0, PREDICATES, 60):
        for row in rows.select(
            "k", *(F.expr(text).alias(f"p{n}") for n, text in enumerate(texts[start:][:100]))
        ).collect():
            for number in range(min(100, PREDICATES - start)):
                if row[f"p{number}"]:
                    expected[start + number].add(row.k)
    for text, keys in zip(texts, expected, strict=True):
        options = ReadOptions(table=table.name, url=shared_server.url, where=text)
        found = options.build_scan(table).select(["k"]).to_arrow()["k"].to_pylist()
        assert set(found) == keys, (seed, text)
        assert len(found) == len(keys), (seed, text)
    assert {0, 200} < {len(keys) for keys in expected}


@pytest.mark.parametrize("text", ["d > 0", "not (f <= 1)", "s.e >= d", "x > 1 and d <> d"])
@pytest.mark.breadth
def test_every_way_to_pass_a_predicate_means_the_same(
    load: Callable[..., DataFrame], client: sync.Client, name: str, shared_server: ServerProcess, text: str
) -> None:
    table = filled(client, name, random.Random(1))
    rows = load(table.name)
    wanted = sorted(row.k for row in rows.filter(text).collect())
    assert 0 < len(wanted) < 200 or "<>" in text
    assert sorted(row.k for row in load(table.name, where=text).collect()) == wanted
    assert count(shared_server.url, table.name, text) == len(wanted)


def test_predicates_without_floats_are_not_rewritten(client: sync.Client, name: str) -> None:
    table = filled(client, name, random.Random(1))
    for text in (
        "d < 3 and d <= 9",
        "i > 3",
        "k = 1 or i in (1, 2)",
        "d < 3",
        "d = 3",
        "d <> 1.5",
        "d is null",
        "d in (1, 2)",
    ):
        assert spark_predicate(table, text) == table.scan(where=text).spec.where
    assert spark_predicate(table, None) is None
