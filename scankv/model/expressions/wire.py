"""Converts predicates to and from the messages of `expression.proto`. Messages are checked completely."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

import pyarrow as pa

from scankv.model.errors import InvalidRequest, UsageError
from scankv.model.expressions.like_patterns import STORED_ESCAPE, like
from scankv.model.expressions.literals import MAX_LIST_VALUES, Literal, ValueList, literal_of
from scankv.model.expressions.nodes import (
    MAX_NODES,
    And,
    Comparison,
    Constant,
    FieldPath,
    IsIn,
    IsNull,
    Match,
    Not,
    Operator,
    Or,
    Predicate,
    TextMatch,
)
from scankv.model.types.types import format_type, parse_schema
from scankv.v1 import expression_pb2 as pb

_OPERATORS: Final = {
    Operator.EQUAL: pb.COMPARISON_OPERATOR_EQUAL,
    Operator.NOT_EQUAL: pb.COMPARISON_OPERATOR_NOT_EQUAL,
    Operator.LESS: pb.COMPARISON_OPERATOR_LESS,
    Operator.LESS_EQUAL: pb.COMPARISON_OPERATOR_LESS_EQUAL,
    Operator.GREATER: pb.COMPARISON_OPERATOR_GREATER,
    Operator.GREATER_EQUAL: pb.COMPARISON_OPERATOR_GREATER_EQUAL,
}
_OPERATOR_OF: Final = {number: operator for operator, number in _OPERATORS.items()}
_MATCHES: Final = {
    Match.STARTS_WITH: pb.MATCH_KIND_STARTS_WITH,
    Match.CONTAINS: pb.MATCH_KIND_CONTAINS,
    Match.ENDS_WITH: pb.MATCH_KIND_ENDS_WITH,
    Match.LIKE: pb.MATCH_KIND_LIKE,
}
_MATCH_OF: Final = {number: match for match, number in _MATCHES.items()}
_DECIMAL: Final = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?")
_INT64: Final = range(-(2**63), 2**63)
_LONGEST_TYPE: Final = 200


def to_proto(predicate: Predicate) -> pb.Predicate:
    """Returns the message for a predicate."""
    match predicate:
        case Comparison(left=left, operator=operator, right=FieldPath() as right):
            comparison = pb.Comparison(left=_path(left), operator=_OPERATORS[operator], column=_path(right))
            return pb.Predicate(comparison=comparison)
        case Comparison(left=left, operator=operator, right=Literal() as value):
            comparison = pb.Comparison(left=_path(left), operator=_OPERATORS[operator], value=_literal(value))
            return pb.Predicate(comparison=comparison)
        case IsIn(path=path, values=values):
            return pb.Predicate(in_list=pb.InList(column=_path(path), values=_value_array(values.array)))
        case IsNull(path=path):
            return pb.Predicate(is_null=_path(path))
        case TextMatch(path=path, match=kind, text=text):
            pattern = text.scalar.as_py()
            message = pb.TextMatch(column=_path(path), kind=_MATCHES[kind])
            if isinstance(pattern, str):
                message.text = pattern
            else:
                message.binary = pattern
            return pb.Predicate(text_match=message)
        case Constant(value=value):
            return pb.Predicate(constant=pb.Constant(value=value))
        case _:
            return _connective(predicate)


def from_proto(message: pb.Predicate) -> Predicate:
    """Reads a predicate from a message. `bind` checks its columns and types.

    Raises:
        InvalidRequest: A part is missing, unknown or exceeds a limit. The message contains no value of the predicate.
    """
    _check_size(message)
    try:
        return _from_proto(message)
    except UsageError as error:  # a limit, which our own client checks before it sends a request
        raise InvalidRequest(error.message) from error


def _check_size(message: pb.Predicate) -> None:
    """Raises InvalidRequest for a tree that is too large, before it is converted."""
    nodes, values, stack = 1, 0, [message]
    while stack:
        node = stack.pop()
        nodes += len(node.operands)
        values += node.in_list.values.length if node.HasField("in_list") else 0
        if nodes > MAX_NODES or values > MAX_LIST_VALUES:
            limits = f"{MAX_NODES:,} nodes, or more than {MAX_LIST_VALUES:,} values in its lists"
            raise InvalidRequest(f"the predicate has more than {limits}")
        stack += node.operands


def _connective(predicate: Predicate) -> pb.Predicate:
    kinds = {And: pb.CONNECTIVE_AND, Or: pb.CONNECTIVE_OR, Not: pb.CONNECTIVE_NOT}
    operands = [to_proto(operand) for operand in predicate.operands]
    return pb.Predicate(connective=kinds[type(predicate)], operands=operands)


def _path(path: FieldPath) -> pb.FieldPath:
    return pb.FieldPath(names=path.names)


def _literal(literal: Literal) -> pb.Literal:
    type_ = literal.scalar.type
    if literal.is_null:
        return pb.Literal(null=True)
    if pa.types.is_temporal(type_):
        return pb.Literal(time=pb.TimeValue(type=format_type(type_), value=literal.scalar.value))
    value = literal.scalar.as_py()
    match value:
        case bool():
            return pb.Literal(boolean=value)
        case int() if value in _INT64:
            return pb.Literal(integer=value)
        case int() | Decimal():
            return pb.Literal(decimal=f"{value:f}" if isinstance(value, Decimal) else str(value))
        case float():
            return pb.Literal(number=value)
        case str():
            return pb.Literal(text=value)
        case _:
            return pb.Literal(binary=value)


def _value_array(array: pa.Array) -> pb.ValueArray:
    if pa.types.is_null(array.type):
        return pb.ValueArray(type="null", length=len(array))
    whole = pa.concat_arrays([array])
    if whole.offset or len(whole) != len(array):
        whole = array.take(pa.array(range(len(array)), pa.int64()))
    buffers = [b"" if buffer is None else buffer.to_pybytes() for buffer in whole.buffers()]
    return pb.ValueArray(type=format_type(array.type), length=len(array), buffers=buffers)


def _from_proto(message: pb.Predicate) -> Predicate:
    kind = message.WhichOneof("predicate")
    if kind != "connective" and message.operands:
        raise InvalidRequest("the predicate has operands but no connective")
    match kind:
        case "comparison":
            return _comparison_of(message.comparison)
        case "in_list":
            return IsIn(_path_of(message.in_list.column), _values_of(message.in_list.values))
        case "is_null":
            return IsNull(_path_of(message.is_null))
        case "text_match":
            return _text_match_of(message.text_match)
        case "constant":
            return Constant(message.constant.value if message.constant.HasField("value") else None)
        case "connective":
            return _connective_of(message)
        case _:
            raise InvalidRequest("the predicate is empty, or has an empty operand")


def _connective_of(message: pb.Predicate) -> Predicate:
    parts = tuple(_from_proto(operand) for operand in message.operands)
    match message.connective:
        case pb.CONNECTIVE_AND:
            return And(parts)
        case pb.CONNECTIVE_OR:
            return Or(parts)
        case pb.CONNECTIVE_NOT if len(parts) == 1:
            return Not(parts[0])
        case pb.CONNECTIVE_NOT:
            raise InvalidRequest(f"NOT must have one operand, not {len(parts)}")
        case _:
            raise InvalidRequest(f"the predicate has the unknown connective {message.connective}")


def _comparison_of(message: pb.Comparison) -> Comparison:
    operator = _OPERATOR_OF.get(message.operator)
    if operator is None:
        raise InvalidRequest(f"the predicate has the unknown comparison operator {message.operator}")
    left = _path_of(message.left)
    match message.WhichOneof("right"):
        case "value":
            return Comparison(left, operator, _literal_of(message.value))
        case "column":
            return Comparison(left, operator, _path_of(message.column))
        case _:
            raise InvalidRequest(f"the comparison of {left} has no value and no column on its right side")


def _text_match_of(message: pb.TextMatch) -> Predicate:
    path, match = _path_of(message.column), _MATCH_OF.get(message.kind)
    pattern = message.WhichOneof("pattern")
    if match is None or pattern is None:
        raise InvalidRequest(f"the text match of {path} has no pattern, or is of the unknown kind {message.kind}")
    if match is Match.LIKE:
        if pattern != "text":
            raise InvalidRequest(f"the pattern of LIKE for {path} must be text")
        return like(path, message.text, STORED_ESCAPE)
    return TextMatch(path, match, literal_of(message.text if pattern == "text" else message.binary))


def _path_of(message: pb.FieldPath) -> FieldPath:
    if not message.names:
        raise InvalidRequest("the predicate does not name a column where one is needed")
    return FieldPath(tuple(message.names))


def _literal_of(message: pb.Literal) -> Literal:
    kind = message.WhichOneof("value")
    match kind:
        case "null":
            return literal_of(None)
        case "decimal":
            if not _DECIMAL.fullmatch(message.decimal):
                raise InvalidRequest("a decimal in a predicate must be a number of at most 38 digits")
            return literal_of(Decimal(message.decimal))
        case "time":
            type_ = _type_of(message.time.type)
            if not pa.types.is_temporal(type_):
                raise InvalidRequest(f"a time value of the predicate cannot be of type {type_}")
            return Literal(_time_scalar(message.time.value, type_))
        case None:
            raise InvalidRequest("a value of the predicate is missing")
        case _:
            return literal_of(getattr(message, kind))


def _time_scalar(value: int, type_: pa.DataType) -> pa.Scalar:
    try:
        return pa.array([value], pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)[0]
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidRequest(f"a time value of the predicate is too large for {type_}") from error


def _type_of(text: str) -> pa.DataType:
    if len(text) > _LONGEST_TYPE:
        raise InvalidRequest(f"a type in the predicate has more than {_LONGEST_TYPE:,} characters")
    fields = parse_schema(f"value {text}")
    if len(fields) != 1:
        raise InvalidRequest("a type in the predicate must be a single type")
    type_ = fields.field(0)
    if pa.types.is_nested(type_.type) or not type_.nullable:
        raise InvalidRequest("values in the predicate must be of a scalar, nullable type")
    return type_.type


def _values_of(message: pb.ValueArray) -> ValueList:
    length, buffers = message.length, [pa.py_buffer(data) if data else None for data in message.buffers]
    if message.type == "null":
        return ValueList(pa.nulls(length))
    type_ = _type_of(message.type)
    expected = 3 if pa.types.is_string(type_) or pa.types.is_binary(type_) else 2
    if len(buffers) != expected:
        raise InvalidRequest(f"a list of {type_} must have {expected} buffers, not {len(buffers)}")
    # Arrow does not accept missing value buffers, and Array.validate does not detect them.
    buffers[1:] = [pa.py_buffer(b"") if buffer is None else buffer for buffer in buffers[1:]]
    try:
        array = pa.Array.from_buffers(type_, length, buffers)
        array.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRequest(f"a list in the predicate is not a valid Arrow array of {type_}") from error
    return ValueList(array)
