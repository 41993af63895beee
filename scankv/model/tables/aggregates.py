"""Aggregates in queries: their functions, and how they are checked against a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import InvalidRequest, SchemaMismatch
from scankv.model.types.types import check_unique, format_type, is_key_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.columns import ColumnDefinition, Schema


_MOST_DIGITS: Final = 38


class AggregateFunction(StrEnum):
    """An aggregate function over the values of a column that are not null. `lookup.proto` defines their results."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One function of one column.

    Attributes:
        column: The column.
        function: The function.
    """

    column: str
    function: AggregateFunction

    @property
    def name(self) -> str:
        """The name of the column in the result."""
        return f"{self.column}_{self.function}"


def check_aggregates(aggregates: Sequence[Aggregate], group_by: Sequence[str], schema: Schema) -> pa.Schema:
    """Checks a query against a table, and returns the columns of its result: `group_by`, then the aggregates.

    Raises:
        InvalidRequest: No aggregate and no column was given, or two columns of the result would have the same name.
        SchemaMismatch: A column does not exist, or its type does not have the function or cannot be grouped by.
    """
    if not aggregates and not group_by:
        raise InvalidRequest("the query has no aggregates: name a function of a column, or columns to group by")
    fields = []
    for column in map(schema.column, group_by):
        check_orderable(column, "rows cannot be grouped by it")
        fields.append(pa.field(column.name, column.type, column.nullable))
    fields += [pa.field(each.name, _result_type(each, schema.column(each.column))) for each in aggregates]
    check_unique([field.name for field in fields], "would be in the result twice; ask for it once", InvalidRequest)
    return pa.schema(fields)


def check_orderable(column: ColumnDefinition, consequence: str) -> None:
    """Raises SchemaMismatch if the values of a column have no order. The message contains the consequence."""
    if not is_key_type(column.type):
        raise SchemaMismatch(
            f'column "{column.name}" is {format_type(column.type)}, which has no order: {consequence}',
            column=column.name,
        )


def _result_type(aggregate: Aggregate, column: ColumnDefinition) -> pa.DataType:
    match aggregate.function:
        case AggregateFunction.COUNT:
            return pa.int64()
        case AggregateFunction.MIN | AggregateFunction.MAX:
            check_orderable(column, f"it has no {aggregate.function}")
            return column.type
    if not (pat.is_integer(column.type) or pat.is_floating(column.type) or pat.is_decimal(column.type)):
        raise SchemaMismatch(
            f'column "{column.name}" is {format_type(column.type)}, which has no {aggregate.function}: '
            "only integers, floats and decimals have it",
            column=column.name,
        )
    return mean_type(column.type) if aggregate.function is AggregateFunction.MEAN else sum_type(column.type)


def sum_type(type_: pa.DataType) -> pa.DataType:
    """Returns the type of the sums of numbers of a type."""
    if pat.is_floating(type_):
        return pa.float64()
    if pat.is_decimal(type_):
        return pa.decimal128(_MOST_DIGITS, type_.scale)
    return pa.uint64() if pat.is_uint64(type_) else pa.int64()


def mean_type(type_: pa.DataType) -> pa.DataType:
    """Returns the type of the means of numbers of a type.

    A mean of decimals has four more digits after the point, as in SQL, but only as many as fit beside the digits before
    the point, so that each mean fits.
    """
    if not pat.is_decimal(type_):
        return pa.float64()
    whole = max(type_.precision - type_.scale, 0)
    scale = max(type_.scale, min(type_.scale + 4, _MOST_DIGITS - whole, _MOST_DIGITS))
    return pa.decimal128(whole + scale, scale)
