"""Converts the `where` of Python, the command line and Spark into a predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from scankv.model import lazy_compute as pc
from scankv.model.errors import UsageError
from scankv.model.expressions.arrow_expressions import from_pyarrow
from scankv.model.expressions.columns import Column
from scankv.model.expressions.nodes import Predicate, other_predicate
from scankv.model.expressions.sql_text import parse_where

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute

Where: TypeAlias = "Predicate | Column | str | pyarrow.compute.Expression"
"""The types that `predicate_of` accepts."""


def predicate_of(where: object, schema: pa.Schema | None = None) -> Predicate:
    """Converts a predicate, a boolean column, SQL text or a `pyarrow.compute.Expression` to a predicate.

    Args:
        where: The predicate in one of these forms.
        schema: The columns of the table, so that errors about a text have positions; see `parse_where`.

    Raises:
        UsageError: The argument is of another type, or is text or an Arrow expression that is not supported.
        SchemaMismatch: As for `parse_where`.
    """
    if isinstance(where, Predicate | Column):
        return other_predicate(where, "where")
    if isinstance(where, str):
        return parse_where(where, schema)
    if isinstance(where, pc.Expression):
        return from_pyarrow(where)
    raise UsageError(
        f"where must be a predicate such as col('score') > 100, text such as 'score > 100', or a "
        f"pyarrow.compute.Expression, not {type(where).__name__}"
    )
