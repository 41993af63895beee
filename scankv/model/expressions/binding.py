"""Binds predicates to a table: checks that their columns exist, and casts values to the types of the columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import SchemaMismatch, did_you_mean
from scankv.model.expressions.fitting import fit_comparison, fit_list
from scankv.model.expressions.literals import Literal, ValueList
from scankv.model.expressions.nodes import (
    Comparison,
    FieldPath,
    IsIn,
    IsNull,
    Match,
    Not,
    Predicate,
    TextMatch,
    _Connective,
)
from scankv.model.types.casts import cast_exactly
from scankv.model.types.types import format_type

_EXACT_INTEGER_BITS: Final = {16: 16, 32: 16, 64: 32}
"""For the bits of a float column: the bits of the widest integer column that compares with it without rounding."""


@dataclass(frozen=True, slots=True)
class BoundPredicate:
    """A predicate that fits a schema. Immutable, hashable, picklable.

    Attributes:
        predicate: The predicate, with values of the types of their columns.
        columns: The columns that the predicate reads, in the order of the schema. No other column needs to be decoded.
    """

    predicate: Predicate
    columns: tuple[str, ...]


def bind(predicate: Predicate, schema: pa.Schema) -> BoundPredicate:
    """Checks a predicate against the columns of a table, and gives its values the types of the columns.

    Numbers of all types can be compared, and so can dates and timestamps without a time zone. A comparison with a value
    that the column cannot have, such as 1.5 in a column of integers, is replaced by an equivalent one. A column of
    float16 or float32 is compared as float64; with a float column, integers and decimals are the nearest float64.

    Args:
        predicate: Any predicate, bound or not.
        schema: Columns of storable types with unique names, as in `Schema.arrow`.

    Raises:
        SchemaMismatch: A column or field does not exist, or cannot be compared with a value of this type. The message
            does not contain the value, because the server sends it to the client.
    """
    bound = _bind_node(predicate, schema)
    return BoundPredicate(bound, columns_of(bound, schema))


def columns_of(predicate: Predicate, schema: pa.Schema) -> tuple[str, ...]:
    """Returns the columns that a predicate reads, in the order of the schema."""
    read = {path.names[0] for node in predicate.walk() for path in node.paths}
    return tuple(name for name in schema.names if name in read)


def _bind_node(predicate: Predicate, schema: pa.Schema) -> Predicate:
    match predicate:
        case Comparison(left=left, right=FieldPath() as right):
            _check_comparable(left, _scalar_type(left, schema), right, _scalar_type(right, schema))
            return predicate
        case Comparison(left=left, right=Literal() as value):
            return _bind_comparison(predicate, value, _scalar_type(left, schema))
        case IsIn(path=path):
            return _bind_list(predicate, _scalar_type(path, schema))
        case IsNull(path=path):
            _type_of(path, schema)
            return predicate
        case TextMatch(path=path):
            _check_text(predicate, _scalar_type(path, schema))
            return predicate
        case Not(operand=operand):
            return Not(_bind_node(operand, schema))
        case _Connective(parts=parts):
            return replace(predicate, parts=tuple(_bind_node(part, schema) for part in parts))
        case _:
            return predicate


def _type_of(path: FieldPath, schema: pa.Schema) -> pa.DataType:
    """Returns the type of a column, or of a field within structs. Raises SchemaMismatch if it does not exist."""
    name = path.names[0]
    if name not in schema.names:
        message = f'"{name}" is not a column{did_you_mean(name, schema.names)}'
        raise SchemaMismatch(message, column=name)
    type_ = schema.field(name).type
    for depth, field in enumerate(path.names[1:], start=1):
        outer = FieldPath(path.names[:depth])
        if not pat.is_struct(type_):
            raise SchemaMismatch(f"{outer} is {format_type(type_)}, not a struct: it has no fields", column=name)
        names = [child.name for child in type_.fields]
        if field not in names:
            raise SchemaMismatch(f'"{field}" is not a field of {outer}{did_you_mean(field, names)}', column=name)
        type_ = type_.field(names.index(field)).type
    return type_


def _scalar_type(path: FieldPath, schema: pa.Schema) -> pa.DataType:
    type_ = _type_of(path, schema)
    if pat.is_nested(type_):
        what = "compare its fields, or use is_null()" if pat.is_struct(type_) else "use is_null()"
        raise SchemaMismatch(f"{path} is {format_type(type_)}, which cannot be compared: {what}", column=path.names[0])
    return type_


def _check_comparable(left: FieldPath, left_type: pa.DataType, right: FieldPath, right_type: pa.DataType) -> None:
    """Raises SchemaMismatch unless Arrow compares the types without rounding.

    Arrow does so for equal types, and for numbers if one type can represent the values of both.
    """
    if left_type == right_type:
        return
    types = (left_type, right_type)
    if all(pat.is_integer(t) for t in types) and not (pa.uint64() in types and any(map(pat.is_signed_integer, types))):
        return
    floats, integers = [t for t in types if pat.is_floating(t)], [t for t in types if pat.is_integer(t)]
    if len(floats) == 2 or (floats and integers and integers[0].bit_width <= _EXACT_INTEGER_BITS[floats[0].bit_width]):
        return
    raise SchemaMismatch(
        f"{left} is {format_type(left_type)} and {right} is {format_type(right_type)}: columns of these types cannot "
        "be compared with each other",
        column=left.names[0],
    )


def _check_text(predicate: TextMatch, type_: pa.DataType) -> None:
    given, method = predicate.text.scalar.type, predicate.match.value
    if given != type_ or not (pat.is_string(type_) or pat.is_binary(type_)):
        takes = {pa.string(): "text", pa.binary(): "bytes"}.get(type_)
        if predicate.match is Match.LIKE:
            takes, method = None, "like with % or _ inside"
        needed = "string" if predicate.match is Match.LIKE else "string or binary"
        reason = f"{method} must be given {takes}" if takes else f"{method} needs a {needed} column"
        message = f"{predicate.path} is {format_type(type_)}: {reason}"
        raise SchemaMismatch(message, column=predicate.path.names[0])


def _bind_comparison(predicate: Comparison, value: Literal, type_: pa.DataType) -> Predicate:
    try:
        return replace(predicate, right=Literal(_exact(value.as_array(), type_)[0]))
    except (TypeError, ValueError, pa.ArrowException) as error:
        fitted = fit_comparison(predicate.left, predicate.operator, value, type_)
        if fitted is None:
            raise _does_not_fit(predicate.left, type_, value.scalar.type, error) from error
        return fitted


def _bind_list(predicate: IsIn, type_: pa.DataType) -> Predicate:
    values = predicate.values.array
    try:
        array = _exact(values, type_)
    except (TypeError, ValueError, pa.ArrowException) as error:
        fitted = fit_list(predicate, type_)
        if fitted is None:
            raise _does_not_fit(predicate.path, type_, values.type, error) from error
        return fitted
    return predicate if array is values else replace(predicate, values=ValueList(array))


def _does_not_fit(path: FieldPath, type_: pa.DataType, given: pa.DataType, error: Exception) -> SchemaMismatch:
    where = f"{path} is {format_type(type_)}"
    if isinstance(error, TypeError):
        message = f"{where}: it cannot be compared with a value of type {given}{_hint(given, type_)}"
    else:
        message = f"{where}: it cannot be compared with this value of type {given}; use a value of the column's type"
    return SchemaMismatch(message, column=path.names[0])


def _exact(values: pa.Array, type_: pa.DataType) -> pa.Array:
    return _floats(values, type_) if pat.is_floating(type_) else cast_exactly(values, type_)


def _floats(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Returns values in the column's type if they are exact in it and Arrow can compare it, otherwise as float64.

    Integers and decimals become the nearest float64, as number literals do in SQL.
    """
    if pat.is_decimal(values.type):
        floats = pa.array([None if value is None else float(value) for value in values.to_pylist()], pa.float64())
    elif pat.is_integer(values.type):
        floats = values.cast(pa.float64(), safe=False)
    else:
        floats = cast_exactly(values, pa.float64())
    if pat.is_float16(type_):
        return floats
    try:
        return cast_exactly(floats, type_)
    except ValueError:
        return floats


def _hint(given: pa.DataType, type_: pa.DataType) -> str:
    if pat.is_timestamp(type_) and pat.is_timestamp(given):
        return "; give one with a time zone" if type_.tz is not None else "; give one without a time zone"
    if pat.is_timestamp(type_) and pat.is_date(given):
        return "; give a timestamp with a time zone"
    if pat.is_temporal(type_) and pat.is_string(given):
        return "; give a date, time or datetime, or in SQL text DATE '...' or TIMESTAMP '...'"
    if pat.is_date(type_) and pat.is_timestamp(given):
        return "; give a date, or a timestamp without a time zone"
    if pat.is_binary(type_) and pat.is_string(given):
        return "; give bytes"
    return ""
