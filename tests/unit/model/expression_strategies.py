"""Random rows and predicates about them, and a model that evaluates predicates row by row in plain Python."""

from __future__ import annotations

import operator
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from scankv.model.expressions.like_patterns import like
from scankv.model.expressions.literals import Literal, literal_of, values_of
from scankv.model.expressions.nodes import (
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
from tests.unit.model.strategies import key_types, scalars

if TYPE_CHECKING:
    from collections.abc import Sequence

PATHS = [FieldPath(("a",)), FieldPath(("b",)), FieldPath(("s", "x")), FieldPath(("s", "y", "z"))]
_COMPARE = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_EQUAL: operator.ge,
}
_OPERATORS = st.sampled_from(list(Operator))
_MATCHES = st.sampled_from([Match.STARTS_WITH, Match.CONTAINS, Match.ENDS_WITH])
_CONSTANTS = st.sampled_from([True, False, None]).map(Constant)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Generates up to 6 rows of two scalar columns and one of nested structs, with nulls in all of them;

    sometimes a slice.
    """
    a, b, x, z = (draw(key_types()) for _ in range(4))
    inner = pa.struct([pa.field("z", z)])
    rows = draw(st.integers(0, 7))
    struct = pa.struct([pa.field("x", x), pa.field("y", inner)])
    nested = st.none() | st.fixed_dictionaries(
        {"x": nullable(x), "y": st.none() | st.fixed_dictionaries({"z": nullable(z)})}
    )
    arrays = [pa.array(draw(_lists(values, rows)), type_) for values, type_ in ((nullable(a), a), (nullable(b), b))]
    arrays.append(pa.array(draw(_lists(nested, rows)), struct))
    batch = pa.RecordBatch.from_arrays(arrays, names=["a", "b", "s"])
    return batch.slice(draw(st.integers(0, min(rows, 2))))


@st.composite
def keyed_batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[str]]:
    """Generates up to 8 rows of 1 to 3 key columns without nulls and one other column, and the key columns' names."""
    rows = draw(st.integers(1, 8))
    names = ["k", "l", "m"][: draw(st.integers(1, 3))]
    arrays = []
    for _ in names:
        type_ = draw(key_types())
        # Few values, so that several rows have equal leading columns.
        few = draw(st.lists(scalars(type_), min_size=1, max_size=4))
        arrays.append(pa.array(draw(_lists(st.sampled_from(few), rows)), type_))
    other = draw(key_types())
    arrays.append(pa.array(draw(_lists(nullable(other), rows)), other))
    fields = [pa.field(name, array.type, name == "v") for name, array in zip([*names, "v"], arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), names


@lru_cache(256)
def nullable(type_: pa.DataType) -> st.SearchStrategy[pa.Scalar | None]:
    return st.none() | scalars(type_)


def _lists(values: st.SearchStrategy[Any], rows: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=rows, max_size=rows)


def type_of(path: FieldPath, schema: pa.Schema) -> pa.DataType:
    type_ = schema.field(path.names[0]).type
    for name in path.names[1:]:
        type_ = type_.field(name).type
    return type_


def predicates(batch: pa.RecordBatch, paths: Sequence[FieldPath]) -> st.SearchStrategy[Predicate]:
    """Generates predicates that can be bound to the batch; their values are often values of the batch."""
    leaves = st.one_of(*(leaves_of(path, batch) for path in paths), _CONSTANTS)
    return st.recursive(leaves, _joined, max_leaves=6)


def conjunctions(batch: pa.RecordBatch, paths: Sequence[FieldPath]) -> st.SearchStrategy[Predicate]:
    """Generates typical predicates on keys: mostly a few comparisons joined by AND."""
    leaves = st.one_of(*(leaves_of(path, batch) for path in paths))
    parts = st.lists(leaves, min_size=2, max_size=5).map(lambda found: And(tuple(found)))
    return st.one_of(leaves, parts, predicates(batch, paths))


def disjunctions(batch: pa.RecordBatch, paths: Sequence[FieldPath]) -> st.SearchStrategy[Predicate]:
    """Generates predicates for several keys: some conjunctions joined by OR, perhaps within a conjunction."""
    leaves = st.one_of(*(leaves_of(path, batch) for path in paths))
    parts = st.lists(leaves, min_size=2, max_size=3).map(lambda found: And(tuple(found)))
    either = st.lists(st.one_of(parts, parts, leaves, parts.map(Not)), min_size=2, max_size=4).map(tuple).map(Or)
    return st.one_of(either, either.map(Not), st.tuples(either, leaves).map(And))


def _joined(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(parts.map(And), parts.map(Or), inner.map(Not))


def leaves_of(path: FieldPath, batch: pa.RecordBatch) -> st.SearchStrategy[Predicate]:
    type_ = type_of(path, batch.schema)
    present = [value for value in column_of(path, batch) if value is not None]
    values = st.one_of(st.sampled_from(present), scalars(type_)) if present else scalars(type_)
    if pa.types.is_floating(type_):
        values |= st.floats().map(pa.scalar)  # includes values that float32 cannot represent
    literals = st.one_of(values, values, values, st.none()).map(literal_of)
    lists = st.lists(values | st.none(), max_size=4).map(lambda found: _list_of(found, type_))
    same_type = [other for other in PATHS if batch.schema.names[0] == "a" and type_of(other, batch.schema) == type_]
    kinds = [
        st.builds(Comparison, st.just(path), _OPERATORS, literals),
        lists.map(lambda found: IsIn(path, found)),
        st.just(IsNull(path)),
    ]
    if same_type:
        others = st.sampled_from(same_type)
        kinds.append(st.builds(Comparison, st.just(path), _OPERATORS, others))
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        texts = st.tuples(values, st.integers(0, 3)).map(lambda found: literal_of(found[0].as_py()[: found[1]]))
        kinds.append(st.builds(TextMatch, st.just(path), _MATCHES, texts))
    if pa.types.is_string(type_):
        pieces = texts.map(lambda text: text.scalar.as_py()) | st.sampled_from(["%", "_", "\\%", "\\_"])
        patterns = st.lists(pieces, max_size=3).map("".join).map(lambda pattern: pattern.removesuffix("\\"))
        kinds.append(patterns.map(lambda pattern: like(path, pattern, "" if pattern.endswith("\\") else "\\")))
    return st.one_of(kinds)


def _list_of(values: list[pa.Scalar | None], type_: pa.DataType) -> Any:
    wide = pa.float64() if pa.types.is_floating(type_) else type_
    return values_of(pa.array([value.as_py() if wide is not type_ and value else value for value in values], wide))


def column_of(path: FieldPath, batch: pa.RecordBatch) -> list[pa.Scalar | None]:
    """Returns the values of a column or field, without Arrow's kernels for nested fields."""
    return [_inside(batch.column(path.names[0])[row], path.names[1:]) for row in range(batch.num_rows)]


def _inside(scalar: pa.Scalar, names: Sequence[str]) -> pa.Scalar | None:
    for name in names:
        if not scalar.is_valid:
            return None
        scalar = scalar[name]
    return scalar if scalar.is_valid else None


def answers(predicate: Predicate, batch: pa.RecordBatch) -> list[bool | None]:
    """Evaluates the predicate for each row, by the rules of SQL and IEEE 754."""
    columns = {path: column_of(path, batch) for node in predicate.walk() for path in node.paths}
    rows = [{path: _plain(values[row]) for path, values in columns.items()} for row in range(batch.num_rows)]
    return [_answer(predicate, row) for row in rows]


def _plain(scalar: pa.Scalar | None) -> Any:
    """Returns a value for which Python's comparison follows these rules."""
    if scalar is None or not scalar.is_valid:
        return None
    if pa.types.is_string(scalar.type):
        return scalar.as_py().encode()
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def _answer(predicate: Predicate, row: dict[FieldPath, Any]) -> bool | None:
    match predicate:
        case Comparison(left=left, operator=how, right=right):
            value = _plain(right.scalar) if isinstance(right, Literal) else row[right]
            return None if row[left] is None or value is None else bool(_COMPARE[how](row[left], value))
        case IsIn(path=path, values=values):
            equals = [Comparison(path, Operator.EQUAL, Literal(value)) for value in values.array]
            return _any([_answer(equal, row) for equal in equals])
        case IsNull(path=path):
            return row[path] is None
        case TextMatch(path=path, match=match, text=text):
            value = row[path]
            return None if value is None else _matches(value, match, _plain(text.scalar))
        case And(parts=parts):
            return _not(_any([_not(_answer(part, row)) for part in parts]))
        case Or(parts=parts):
            return _any([_answer(part, row) for part in parts])
        case Not(operand=operand):
            return _not(_answer(operand, row))
        case Constant(value=constant):
            return constant
    raise AssertionError(predicate)


def _matches(value: bytes, match: Match, text: bytes) -> bool:
    match match:
        case Match.STARTS_WITH:
            return value.startswith(text)
        case Match.ENDS_WITH:
            return value.endswith(text)
        case Match.CONTAINS:
            return text in value
        case Match.LIKE:
            parts = re.findall(r"\\.|.", text.decode(), re.DOTALL)
            wild = {"%": ".*", "_": "."}
            regex = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)
            return re.fullmatch(regex, value.decode(), re.DOTALL) is not None


def _any(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value
