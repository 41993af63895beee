"""A batch that zone maps rule out has no matching row."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.expressions import bind, evaluate
from scankv.model.expressions.columns import col
from scankv.model.expressions.nodes import FieldPath
from streaming_server.scan.columnar.zone_maps import may_match
from streaming_server.storage.columnar.base_writer import BaseWriter
from streaming_server.storage.columnar.columnar_base import ColumnarBase, Zone
from tests.support.examples import examples
from tests.support.tables import define
from tests.unit.model.expression_strategies import keyed_batches, predicates

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.expressions import Predicate


@pytest.mark.breadth
@given(drawn=keyed_batches(), data=st.data())
@examples(8)
def test_a_batch_with_a_row_to_keep_is_never_ruled_out(drawn: Any, data: st.DataObject) -> None:
    batch, _ = drawn
    # Zones do not depend on the key. A number is the first column, so that the others may have any values.
    numbered = [pa.array(range(batch.num_rows), pa.int32()), *batch.columns]
    fields = [pa.field("number", pa.int32(), nullable=False), *(field.with_nullable(True) for field in batch.schema)]
    rows = pa.RecordBatch.from_arrays(numbered, schema=pa.schema(fields))
    definition = define(rows.schema, "number")
    with tempfile.TemporaryDirectory() as name:
        writer = BaseWriter(Path(name), definition, 0, now_micros=time.time_ns() // 1000)
        writer.write(
            pa.RecordBatch.from_arrays(rows.columns, schema=definition.schema.arrow),
            pa.array([b"%d" % number for number in range(rows.num_rows)], pa.binary()),
        )
        base = ColumnarBase.open(writer.finish(0), "bucket 0")
    for _ in range(5):
        bound = bind(data.draw(predicates(batch, [FieldPath((name,)) for name in batch.schema.names])), batch.schema)
        if not may_match(bound.predicate, lambda column: base.zone(0, column)):
            assert True not in evaluate(bound, rows).to_pylist()


def zone(least: object, greatest: object, nulls: int = 0, *, has_nan: bool = False) -> Callable[[str], Zone | None]:
    bounds = None if least is None else pa.scalar(least), None if greatest is None else pa.scalar(greatest)
    return lambda column: Zone(*bounds, nulls, has_nan) if column == "a" else None


A = col("a")


@pytest.mark.parametrize(
    ("predicate", "possible"),
    [
        (A == 9, False),
        (A == 10, True),
        (A == 20, True),
        (A == 21, False),
        (A < 10, False),
        (A <= 10, True),
        (A > 20, False),
        (A >= 20, True),
        (A != 15, True),
        (~(A <= 20), False),
        (~(A <= 19), True),
        (~(A < 21), False),
        (~(A < 20), True),
        (~(A >= 10), False),
        (~(A != 9), False),
        (~(A == 15), True),
        (A.between(1, 9), False),
        (A.between(1, 10), True),
        (A.is_in([1, 30]), False),
        (A.is_in([1, 15]), True),
        (A.is_in([]), False),
        (A.is_null(), False),
        (A.is_not_null(), True),
        ((A < 10) | (A > 20), False),
        ((A < 10) | (A > 19), True),
        ((A > 11) & (A < 5), False),
        ((A > 11) & (col("b") < 5), True),
        ((A > 21) & (col("b") < 5), False),
        ((A > 21) | (col("b") < 5), True),
        (A < col("b"), True),
        (~(A > 5), False),
        (~A.is_in([5]), True),
    ],
)
def test_zones_rule_out_what_they_can(predicate: Predicate, possible: bool) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    assert may_match(bind(predicate, schema).predicate, zone(10, 20)) is possible


@pytest.mark.parametrize(
    ("predicate", "found", "possible"),
    [
        (A.is_null(), zone(None, None, 5), True),
        (A.is_not_null(), zone(None, None, 5), False),
        (A.is_not_null(), zone(None, None, 5, has_nan=True), True),
        (A > 0.0, zone(None, None, 5, has_nan=True), False),
        (A != 0.0, zone(None, None, 0, has_nan=True), True),
        (~(A <= 5.0), zone(1.0, 2.0), False),
        (~(A <= 5.0), zone(1.0, 2.0, has_nan=True), True),
        (~(A <= 5.0), zone(None, None, 5), False),
        (~(A <= float("nan")), zone(1.0, 2.0), True),
        (A == float("nan"), zone(1.0, 2.0, 0, has_nan=True), False),
        (A == 0.0, zone(-0.0, -0.0), True),
    ],
)
def test_nulls_and_nans_are_minded(predicate: Predicate, found: Callable[[str], Zone | None], possible: bool) -> None:
    assert may_match(bind(predicate, pa.schema([("a", pa.float64())])).predicate, found) is possible
