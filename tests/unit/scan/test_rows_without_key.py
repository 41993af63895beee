"""A predicate on the bucket key of a table without a primary key leaves out no bucket that has matching rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.expressions import Predicate, bind, col, evaluate
from scankv.model.expressions.nodes import FieldPath
from scankv.model.tables.schema import TableDefinition
from streaming_server.scan.rows_without_key import buckets_of_rows
from streaming_server.storage.rows.key_encoder import KeyEncoder
from tests.support.examples import examples
from tests.unit.model.expression_strategies import batches, conjunctions, disjunctions

if TYPE_CHECKING:
    from collections.abc import Sequence

BUCKETS = 61
HOSTS = pa.schema([("host", pa.string()), ("port", pa.float64()), ("v", pa.int64())])


def log_table(schema: pa.Schema, bucket_key: Sequence[str]) -> TableDefinition:
    return TableDefinition.create(
        "test.log",
        schema,
        primary_key=[],
        bucket_key=bucket_key,
        buckets=BUCKETS,
        incarnation="i1",
        created_millis=0,
    )


@pytest.mark.breadth
@given(data=st.data(), batch=batches(), bucket_key=st.sampled_from([["a"], ["b", "a"]]))
@examples(25)
def test_rows_that_match_are_in_the_buckets_that_are_read(
    data: st.DataObject, batch: pa.RecordBatch, bucket_key: list[str]
) -> None:
    definition = log_table(batch.schema, bucket_key)
    paths = [FieldPath(("a",)), FieldPath(("b",))]
    where = bind(data.draw(conjunctions(batch, paths) | disjunctions(batch, paths)), batch.schema)
    read = buckets_of_rows(where, definition)
    matches = evaluate(where, batch.select(list(where.columns)) if where.columns else batch)
    if read is not None:
        buckets = KeyEncoder(definition).buckets_of_rows(batch).tolist()
        matching = {bucket for bucket, is_kept in zip(buckets, matches.to_pylist(), strict=True) if is_kept}
        assert matching <= set(read)


@pytest.mark.parametrize(
    ("where", "most"),
    [
        ((col("host") == "a") & (col("port") == -0.0), 1),
        ((col("host") == "a") & col("port").is_in([1, 2, 3]) & (col("v") > 3), 3),
        (col("host").is_null() & col("port").is_null(), 1),
        ((col("host") == "a") & col("port").is_null() | (col("host") == "b") & (col("port") == 1), 2),
        ((col("host") == "a") & (col("host") == "b"), 0),
        (col("host") == "a", None),
        ((col("host") > "a") & (col("port") == 1), None),
        ((col("host") == "a") & (col("port") == 1) | (col("v") == 3), None),
    ],
)
def test_only_single_values_of_all_columns_restrict_the_buckets(where: Predicate, most: int | None) -> None:
    read = buckets_of_rows(bind(where, HOSTS), log_table(HOSTS, ["host", "port"]))
    assert (read is None) == (most is None)
    assert read is None or len(read) == most


@pytest.mark.parametrize("bucket_key", [[], ["port"]])
def test_a_predicate_on_other_columns_restricts_nothing(bucket_key: list[str]) -> None:
    assert buckets_of_rows(bind(col("host") == "a", HOSTS), log_table(HOSTS, bucket_key)) is None
