"""Predicates as messages: the same after a round trip, and hostile messages are refused cheaply."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidRequest, SchemaMismatch
from scankv.model.expressions import Predicate, bind, col, evaluate
from scankv.model.expressions.literals import MAX_LIST_VALUES
from scankv.model.expressions.nodes import MAX_DEPTH, MAX_NODES, Constant, Not, any_of
from scankv.model.expressions.wire import from_proto, to_proto
from scankv.v1 import expression_pb2 as pb
from tests.support.examples import examples
from tests.unit.model.expression_strategies import PATHS, batches, predicates

if TYPE_CHECKING:
    from collections.abc import Callable


@st.composite
def questions(draw: st.DrawFn) -> tuple[pa.RecordBatch, Predicate]:
    batch = draw(batches())
    return batch, draw(predicates(batch, PATHS))


@given(questions())
@examples(8)
def test_a_predicate_arrives_as_it_was_sent(question: tuple[pa.RecordBatch, Predicate]) -> None:
    batch, predicate = question
    sent = to_proto(predicate).SerializeToString()
    assert from_proto(pb.Predicate.FromString(sent)) == predicate
    # A bound predicate may return with wider types; its answers are the same.
    bound = bind(predicate, batch.schema)
    again = bind(from_proto(to_proto(bound.predicate)), batch.schema)
    assert evaluate(again, batch).equals(evaluate(bound, batch))


@pytest.mark.parametrize(
    "predicate",
    [
        col("a") == Decimal("-12.50"),
        col("a") == 2**64 - 1,
        col("a") == 10**38 - 1,
        col("a") == float("nan"),
        col("a") == -0.0,
        col("a") == pa.scalar(1, pa.timestamp("ns", "Europe/Berlin")),
        col("a") == dt.time(1, 2, 3),
        col("a").is_in([]),
        col("a").is_in([None]),
        col("a").is_in([None, "a", "b\0"]),
        col("a").is_in([True, None]),
        col("a").is_in(pa.array([[1, 2, 3], [1]]).values[1:]),
        col("a").is_in(["x"] * MAX_LIST_VALUES),
        col("a").is_in(range(MAX_LIST_VALUES)),
        any_of(col("a") == number for number in range(MAX_NODES - 1)),
        Constant(None),
        Constant(False),
    ],
    ids=lambda predicate: repr(predicate)[:40],
)
def test_every_kind_of_value_arrives_as_it_was_sent(predicate: Predicate) -> None:
    assert from_proto(pb.Predicate.FromString(to_proto(predicate).SerializeToString())) == predicate


def test_the_deepest_predicate_passes_protocol_buffers_with_room_for_the_request() -> None:
    predicate = col("a") == dt.date(2026, 1, 31)
    while predicate.depth < MAX_DEPTH:
        predicate = Not(predicate)
    message = to_proto(predicate)
    # Around the predicate: the request, and the messages that may contain a request.
    for _ in range(4):
        message = pb.Predicate(connective=pb.CONNECTIVE_NOT, operands=[message])
    received = pb.Predicate.FromString(message.SerializeToString())
    for _ in range(4):
        received = received.operands[0]
    assert from_proto(received) == predicate


def test_a_message_can_be_written_by_hand() -> None:
    message = json_format.Parse(
        """{"connective": "CONNECTIVE_AND", "operands": [
            {"comparison": {"left": {"names": ["score"]}, "operator": "COMPARISON_OPERATOR_GREATER",
                            "value": {"integer": 100}}},
            {"textMatch": {"column": {"names": ["home", "city"]}, "kind": "MATCH_KIND_STARTS_WITH", "text": "a"}}]}""",
        pb.Predicate(),
    )
    assert from_proto(message) == (col("score") > 100) & col("home")["city"].starts_with("a")


A = pb.FieldPath(names=["a"])
NULL = pb.Predicate(is_null=A)
VALUE = pb.Literal(integer=1)
EQUAL = pb.COMPARISON_OPERATOR_EQUAL
ONE = (1).to_bytes(8, "little")


def comparison(value: pb.Literal) -> pb.Predicate:
    return pb.Predicate(comparison=pb.Comparison(left=A, operator=EQUAL, value=value))


def like(pattern: str) -> pb.Predicate:
    return pb.Predicate(text_match=pb.TextMatch(column=A, kind=pb.MATCH_KIND_LIKE, text=pattern))


def in_list(type_: str, length: int, *buffers: bytes) -> pb.Predicate:
    return pb.Predicate(in_list=pb.InList(column=A, values=pb.ValueArray(type=type_, length=length, buffers=buffers)))


def connective(kind: pb.Connective.ValueType, *operands: pb.Predicate) -> pb.Predicate:
    return pb.Predicate(connective=kind, operands=operands)


def nested(levels: int) -> pb.Predicate:
    message = NULL
    for _ in range(levels):
        message = connective(pb.CONNECTIVE_NOT, message)
    return message


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: pb.Predicate(), "empty"),
        (lambda: connective(pb.CONNECTIVE_AND, NULL, pb.Predicate()), "empty operand"),
        (lambda: connective(pb.CONNECTIVE_AND, NULL), "at least two"),
        (lambda: connective(pb.CONNECTIVE_OR), "at least two"),
        (lambda: connective(pb.CONNECTIVE_NOT, NULL, NULL), "NOT must have one operand"),
        (lambda: connective(pb.CONNECTIVE_UNSPECIFIED, NULL, NULL), "connective 0"),
        (lambda: connective(9, NULL, NULL), "connective 9"),  # type: ignore[arg-type]
        (lambda: pb.Predicate(is_null=A, operands=[NULL]), "no connective"),
        (lambda: pb.Predicate(is_null=pb.FieldPath()), "does not name a column"),
        (lambda: pb.Predicate(is_null=pb.FieldPath(names=["a", ""])), "must be non-empty, valid text"),
        (lambda: pb.Predicate(is_null=pb.FieldPath(names=["a"] * 1000)), "at most 90 names"),
        (lambda: pb.Predicate(comparison=pb.Comparison(left=A, value=VALUE)), "operator 0"),
        (
            lambda: pb.Predicate(comparison=pb.Comparison(left=A, operator=EQUAL)),
            "has no value and no column on its right side",
        ),
        (lambda: comparison(pb.Literal()), "missing"),
        (lambda: comparison(pb.Literal(decimal="1e999999999")), "38 digits"),
        (lambda: comparison(pb.Literal(decimal="9" * 39)), "38 digits"),
        (lambda: comparison(pb.Literal(decimal="9" * 38 + ".9")), "38 digits"),
        (lambda: comparison(pb.Literal(time=pb.TimeValue(type="int64", value=1))), "cannot be of type int64"),
        (lambda: comparison(pb.Literal(time=pb.TimeValue(type="date32", value=2**40))), "too large"),
        (lambda: comparison(pb.Literal(time=pb.TimeValue(type="date32, b int64", value=1))), "must be a single type"),
        (lambda: comparison(pb.Literal(time=pb.TimeValue(type="timestamp[xx]", value=1))), "expected the unit"),
        (lambda: comparison(pb.Literal(time=pb.TimeValue(type="list<" * 1000, value=1))), "200 characters"),
        (lambda: pb.Predicate(text_match=pb.TextMatch(column=A, text="x")), "unknown kind"),
        (lambda: pb.Predicate(text_match=pb.TextMatch(column=A, kind=pb.MATCH_KIND_CONTAINS)), "has no pattern"),
        (
            lambda: pb.Predicate(text_match=pb.TextMatch(column=A, kind=pb.MATCH_KIND_CONTAINS, text="x" * 70_000)),
            "more than 65,536 bytes of searched text",
        ),
        (lambda: like("x\\"), "ends with its escape character"),
        (lambda: like("%x" + "_" * 9), "has 9 _ after its first %"),
        (lambda: like("_" * 1_001), "the LIKE pattern has 1,001 characters"),
        (
            lambda: pb.Predicate(text_match=pb.TextMatch(column=A, kind=pb.MATCH_KIND_LIKE, binary=b"_")),
            'the pattern of LIKE for column "a" must be text',
        ),
        (lambda: pb.Predicate(text_match=pb.TextMatch(column=A, kind=9, text="x")), "unknown kind"),  # type: ignore[arg-type]
        (lambda: in_list("int64", 2, b"", ONE), "not a valid Arrow array"),
        (lambda: in_list("int64", 1, b"", b""), "not a valid Arrow array"),
        (lambda: in_list("int64", 2**32 - 1, b"", ONE), "more than 100,000 values"),
        (lambda: in_list("int64", 1, ONE), "must have 2 buffers"),
        (lambda: in_list("int64", 100, b"\1", ONE * 100), "not a valid Arrow array"),
        (lambda: in_list("bool", 100, b"", b"\1"), "not a valid Arrow array"),
        (lambda: in_list("string", 1, b"", b"", b"abc"), "not a valid Arrow array"),
        (lambda: in_list("string", 1, b"", bytes(4) + b"\xff\xff\xff\x7f", b"abc"), "not a valid Arrow array"),
        (lambda: in_list("string", 1, b"", b"\2\0\0\0\1\0\0\0", b"abc"), "not a valid Arrow array"),
        (lambda: in_list("string", 1, b"", bytes(4) + b"\1\0\0\0", b"\xff"), "not a valid Arrow array"),
        (lambda: in_list("decimal128(2, 0)", 1, b"", ONE * 2), "not a valid Arrow array"),
        (lambda: in_list("list<item: int64>", 1, b"", ONE), "must be of a scalar, nullable type"),
        (lambda: in_list("int64 not null", 1, b"", ONE), "must be of a scalar, nullable type"),
        (lambda: in_list("null", 2**32 - 1), "more than 100,000 values"),
        (lambda: nested(MAX_DEPTH), "more than 90 levels"),
        (lambda: connective(pb.CONNECTIVE_OR, *[NULL] * MAX_NODES), "more than 1,000 nodes"),
        (
            lambda: connective(pb.CONNECTIVE_OR, *[in_list("bool", 60_000, b"", bytes(7_500))] * 2),
            "values in its lists",
        ),
    ],
)
def test_a_hostile_message_is_refused(build: Callable[[], pb.Predicate], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        from_proto(build())


def test_a_value_of_another_kind_than_its_column_is_left_to_binding() -> None:
    predicate = from_proto(comparison(pb.Literal(text="x")))
    with pytest.raises(SchemaMismatch):
        bind(predicate, pa.schema([("a", pa.int64())]))
