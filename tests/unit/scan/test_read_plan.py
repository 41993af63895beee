"""A plan binds its predicate once, and again only if the table was altered in between."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import SchemaMismatch
from scankv.model.expressions import col
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.plans import plan_of
from tests.support.tables import define

if TYPE_CHECKING:
    from streaming_server.scan.read_plan import ReadPlan

FIRST = define(pa.schema([("k", pa.int64()), ("v", pa.int64())]))
SECOND = FIRST.add_columns(pa.schema([("more", pa.string())]))
UNKNOWN = col("unknown") > 0


def test_a_reader_uses_the_predicate_that_the_plan_has_bound() -> None:
    codec = TableCodec.of(FIRST)
    bound = plan_of(col("v") > 0).bind(FIRST.schema)
    expected = plan_of(col("v") > 0).reader(codec.rows, codec.key_codec).residual
    # Binding this predicate again would fail.
    assert replace(bound, where=UNKNOWN).reader(codec.rows, codec.key_codec).residual == expected


def test_a_plan_binds_again_after_the_table_was_altered() -> None:
    codec = TableCodec.of(SECOND)
    bound = plan_of(col("v") > 0).bind(FIRST.schema)
    assert bound.reader(codec.rows, codec.key_codec).residual is not None
    with pytest.raises(SchemaMismatch, match="unknown"):
        replace(bound, where=UNKNOWN).reader(codec.rows, codec.key_codec)


@pytest.mark.parametrize("plan", [plan_of(UNKNOWN), plan_of(None, columns=["unknown"])])
def test_binding_refuses_unknown_columns(plan: ReadPlan) -> None:
    with pytest.raises(SchemaMismatch, match="unknown"):
        plan.bind(FIRST.schema)
