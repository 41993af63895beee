"""Binds predicates to a table: checks that their columns exist, and casts values to the types of the columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import SchemaMismatch, did_you_mean
from scankv.model.expressions.literals import Literal, ValueList
from scankv.model.expressions.nodes import (
    Comparison,
    FieldPath,
    IsIn,
    IsNull,
    Not,
    Predicate,
    TextMatch,
    _Connective,
)
from scankv.model.types.casts import cast_exactly
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Checks a predicate against the columns of a table, and casts its values to the types of the columns.

    Values are cast without loss, by `casts.cast_exactly`, with two additions: a column of float16 or float32 is
    compared as float64, so any float64 value is allowed; and for a float column, a decimal becomes the float64 with the
    same text, because that is what 0.1 in a text means.

    Args:
        predicate: Any predicate, bound or not.
        schema: Columns of storable types with unique names, as in `Schema.arrow`.

    Raises:
        SchemaMismatch: A column or field does not exist, cannot be compared with a value of this type, or cannot have
            exactly this value. The message does not contain the value, because the server sends it to the client.
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
            array = _exact(value.as_array(), _scalar_type(left, schema), left)
            return replace(predicate, right=Literal(array[0]))
        case IsIn(path=path, values=values):
            array = _exact(values.array, _scalar_type(path, schema), path)
            return predicate if array is values.array else replace(predicate, values=ValueList(array))
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
        reason = f"{method} must be given {takes}" if takes else f"{method} needs a string or binary column"
        message = f"{predicate.path} is {format_type(type_)}: {reason}"
        raise SchemaMismatch(message, column=predicate.path.names[0])


def _exact(values: pa.Array, type_: pa.DataType, path: FieldPath) -> pa.Array:
    cast: Callable[[pa.Array, pa.DataType], pa.Array] = _exact_floats if pat.is_floating(type_) else cast_exactly
    where = f"{path} is {format_type(type_)}"
    try:
        return cast(values, type_)
    except TypeError as error:
        hint = _hint(values.type, type_)
        message = f"{where}: it cannot be compared with a value of type {values.type}{hint}"
        raise SchemaMismatch(message, column=path.names[0]) from error
    except (ValueError, pa.ArrowException) as error:
        message = f"{where}: it cannot have exactly the {values.type} value that it is compared with"
        raise SchemaMismatch(f"{message}; use a value of the column's type", column=path.names[0]) from error


def _exact_floats(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Returns values in the column's type if they are exact in it and Arrow can compare it, otherwise as float64."""
    if pat.is_decimal(values.type):
        floats = pa.array(
            [None if value is None else _float_of_same_text(value) for value in values.to_pylist()], pa.float64()
        )
    else:
        floats = cast_exactly(values, pa.float64())
    if pat.is_float16(type_):
        return floats
    try:
        return cast_exactly(floats, type_)
    except ValueError:
        return floats


def _float_of_same_text(value: Decimal) -> float:
    """Returns the float whose shortest text is this decimal, such as 0.1 for the decimal 0.1."""
    number = float(value)
    if Decimal(repr(number)) != value:
        raise ValueError("no 64-bit float has this text")
    return number


def _hint(given: pa.DataType, type_: pa.DataType) -> str:
    if pat.is_decimal(type_) and pat.is_floating(given):
        return "; give a decimal.Decimal"
    if pat.is_timestamp(type_) and pat.is_timestamp(given):
        return "; give one with a time zone" if type_.tz is not None else "; give one without a time zone"
    if pat.is_timestamp(type_) and pat.is_date(given):
        return "; give a timestamp with a time zone"
    if pat.is_temporal(type_) and pat.is_string(given):
        return "; give a date, time or datetime, or in SQL text DATE '...' or TIMESTAMP '...'"
    if pat.is_date(type_) and pat.is_timestamp(given):
        return "; give a date"
    if pat.is_binary(type_) and pat.is_string(given):
        return "; give bytes"
    return ""
