"""Predicates over the rows of a table: written in Python, SQL text or pyarrow, checked, evaluated, planned and sent."""

from __future__ import annotations

from scankv.model.expressions.arrow_expressions import convert_arrow, from_pyarrow
from scankv.model.expressions.binding import BoundPredicate, bind
from scankv.model.expressions.columns import Column, col
from scankv.model.expressions.evaluation import evaluate, nanoseconds_a_byte, nanoseconds_a_row
from scankv.model.expressions.index_planning import IndexPlan, OrderPlan, plan_index, plan_order
from scankv.model.expressions.key_planning import KeyPlan, plan_keys
from scankv.model.expressions.nodes import Predicate, all_of, any_of, conjuncts
from scankv.model.expressions.range_planning import MAX_POINTS
from scankv.model.expressions.sql_text import parse_where
from scankv.model.expressions.where import Where, predicate_of

__all__ = [
    "MAX_POINTS",
    "BoundPredicate",
    "Column",
    "IndexPlan",
    "KeyPlan",
    "OrderPlan",
    "Predicate",
    "Where",
    "all_of",
    "any_of",
    "bind",
    "col",
    "conjuncts",
    "convert_arrow",
    "evaluate",
    "from_pyarrow",
    "nanoseconds_a_byte",
    "nanoseconds_a_row",
    "parse_where",
    "plan_index",
    "plan_keys",
    "plan_order",
    "predicate_of",
]
