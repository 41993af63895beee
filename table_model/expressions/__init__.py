"""Predicates over the rows of a table: written in Python, SQL text or pyarrow, checked, evaluated, planned and sent."""

from __future__ import annotations

from table_model.expressions.arrow_expressions import from_pyarrow
from table_model.expressions.binding import BoundPredicate, bind
from table_model.expressions.columns import Column, col
from table_model.expressions.evaluation import evaluate, nanoseconds_a_row
from table_model.expressions.index_planning import IndexPlan, OrderPlan, plan_index, plan_order
from table_model.expressions.key_planning import KeyPlan, plan_keys
from table_model.expressions.nodes import Predicate, all_of, any_of, conjuncts
from table_model.expressions.range_planning import MAX_POINTS
from table_model.expressions.sql_text import parse_where
from table_model.expressions.where import Where, predicate_of

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
    "evaluate",
    "from_pyarrow",
    "nanoseconds_a_row",
    "parse_where",
    "plan_index",
    "plan_keys",
    "plan_order",
    "predicate_of",
]
