"""Converts a `pyarrow.compute.Expression` to a predicate, if the predicate has exactly the same meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import pyarrow as pa

from scankv.model import lazy_compute as pc
from scankv.model.errors import UsageError
from scankv.model.expressions.like_patterns import STORED_ESCAPE, like
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
    Predicate,
    TextMatch,
    all_of,
    any_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    Argument: TypeAlias = FieldPath | Literal | Predicate
    Part: TypeAlias = "Argument | _Unsupported"

_COMPARISONS: Final = {
    "equal": Operator.EQUAL,
    "not_equal": Operator.NOT_EQUAL,
    "less": Operator.LESS,
    "less_equal": Operator.LESS_EQUAL,
    "greater": Operator.GREATER,
    "greater_equal": Operator.GREATER_EQUAL,
}
_MATCHES: Final = {"starts_with": Match.STARTS_WITH, "match_substring": Match.CONTAINS, "ends_with": Match.ENDS_WITH}
_SHOWN_OPTIONS: Final = ("ignore_case", "nan_is_null", "null_matching_behavior")
_NULLS_MATCH, _NULLS_SKIPPED = 0, 1  # arrow::compute::SetLookupOptions::NullMatchingBehavior


def from_pyarrow(expression: pc.Expression) -> Predicate:
    """Converts an Arrow expression to a predicate with exactly the same meaning, including nulls.

    Supported are comparisons of columns with values or other columns, `&`, `|`, `~`, `isin`, `is_null`, `is_valid`,
    `starts_with`, `ends_with`, `match_substring` and `match_like`. Arrow's `isin` is false for a null, for which SQL's
    `IN` is unknown; the predicate returned contains a null check for that.

    Raises:
        UsageError: The expression contains anything else, such as a cast, arithmetic, or `isin` with a NaN, or is not
            an Arrow expression.
    """
    converted = convert_arrow(expression)
    if converted.reason is not None:
        raise converted.reason
    return all_of(converted.predicates)


@dataclass(frozen=True, slots=True)
class ConvertedExpression:
    """What an Arrow expression becomes.

    Attributes:
        predicates: The conjuncts of the expression that have a predicate with exactly the same meaning.
        columns: The columns that the whole expression reads. None: this is unknown.
        reason: Why the rest has no such predicate. None: there is no rest.
    """

    predicates: tuple[Predicate, ...]
    columns: frozenset[str] | None
    reason: UsageError | None


def convert_arrow(expression: pc.Expression) -> ConvertedExpression:
    """Converts as much of an Arrow expression as predicates can express; see `from_pyarrow`.

    Raises:
        UsageError: It is not an Arrow expression.
    """
    if not isinstance(expression, pc.Expression):
        raise UsageError(f"expected a pyarrow.compute.Expression, not {type(expression).__name__}")
    try:
        parts = list(_serialize(expression))
        whole = _build(parts)
    except UsageError as error:
        return ConvertedExpression((), None, error)
    columns = frozenset(value.names[0] for _, value in parts if isinstance(value, FieldPath))
    if isinstance(whole, _Unsupported):
        return ConvertedExpression(whole.others, columns, whole.reason)
    return ConvertedExpression((_predicate(whole),), columns, None)


def _build(parts: list[tuple[str, Any]]) -> Part:
    stack: list[_Call] = [_Call("")]
    for kind, value in parts:
        if kind == "call":
            stack.append(_Call(value))
        elif kind == "end":
            call = stack.pop()
            stack[-1].arguments.append(_build_part(call))
        elif kind == "options":
            stack[-1].options = value
        else:
            stack[-1].arguments.append(value)
    (whole,) = stack[0].arguments
    return whole


@dataclass(slots=True)
class _Call:
    function: str
    arguments: list[Part] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Unsupported:
    """A part without a predicate.

    Attributes:
        reason: Why it has none.
        others: The conjuncts within it that have one.
        listed: SQL's `IN` with the values of an `is_in` that has none.
    """

    reason: UsageError
    others: tuple[Predicate, ...] = ()
    listed: IsIn | None = None


def _serialize(expression: pc.Expression) -> Iterator[tuple[str, Any]]:
    """Yields the parts of an expression, a call before its arguments, from the format in which pyarrow pickles it.

    That format is an Arrow IPC file with one row. The schema's metadata contains the tree, which refers to literals and
    options by their column numbers (arrow/compute/expression.cc, `Serialize`). Unlike `str(expression)`, it is
    unambiguous.
    """
    try:
        batch = pa.ipc.open_file(expression.__reduce__()[1][0]).get_batch(0)
    except (pa.ArrowException, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"this Arrow expression cannot be read: {error}") from error
    parts = iter(_metadata(batch.schema))
    for kind, text in parts:
        match kind:
            case "nested_field_ref":
                yield kind, FieldPath(tuple(name for _, name in (next(parts) for _ in range(int(text)))))
            case "field_ref":
                yield kind, FieldPath((text,))
            case "literal":
                yield kind, literal_of(batch.column(int(text))[0])
            case "options":
                column = batch.column(int(text))
                names = [child.name for child in column.type.fields]
                yield kind, dict(zip(names, (child[0] for child in column.flatten()), strict=True))
            case _:
                yield kind, text


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Returns all metadata of a schema in order. pyarrow's dict keeps only the last of several values of a key.

    Reads the flatbuffer tables `Message` (field 2: the schema), `Schema` (field 2: the metadata) and `KeyValue`, as
    defined in Arrow's `format/Schema.fbs`.
    """
    data = memoryview(schema.serialize())

    def u32(position: int) -> int:
        return int.from_bytes(data[position : position + 4], "little")

    def follow(position: int) -> int:
        return position + u32(position)

    def field_of(table: int, number: int) -> int:
        vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        slot = vtable + 4 + 2 * number
        return follow(table + int.from_bytes(data[slot : slot + 2], "little"))

    def text(position: int) -> str:
        return bytes(data[position + 4 : position + 4 + u32(position)]).decode()

    message = follow(8)  # after the continuation marker and the length
    pairs = field_of(field_of(message, 2), 2)
    tables = [follow(pairs + 4 + 4 * number) for number in range(u32(pairs))]
    return [(text(field_of(table, 0)), text(field_of(table, 1))) for table in tables]


def _predicate(argument: Argument) -> Predicate:
    match argument:
        case FieldPath():
            return Comparison(argument, Operator.EQUAL, literal_of(True))
        case Literal(scalar=scalar) if argument.is_null or pa.types.is_boolean(scalar.type):
            return Constant(scalar.as_py())
        case Literal():
            raise UsageError(f"a predicate must be true or false, not {argument!r}")
        case _:
            return argument


def _build_part(call: _Call) -> Predicate | _Unsupported:
    unsupported = [part for part in call.arguments if isinstance(part, _Unsupported)]
    try:
        match call.function, call.arguments:
            case "is_in", [FieldPath() as path]:
                return _is_in(path, call)
            case "if_else", [Not(IsNull(path)), found, Literal(is_null=True)] if (listed := _listed(found)) is not None:
                # How DuckDB writes SQL's `IN`.
                return listed if listed.path == path else _Unsupported(UsageError(_refusal(call)))
            case "and_kleene", parts if unsupported:
                supported = (_predicate(part) for part in parts if not isinstance(part, _Unsupported))
                others = (each for part in unsupported for each in part.others)
                return _Unsupported(unsupported[0].reason, (*supported, *others))
        if unsupported:
            return _Unsupported(unsupported[0].reason)
        return _build_predicate(call, cast("list[Argument]", call.arguments))
    except UsageError as error:
        return _Unsupported(error)


def _build_predicate(call: _Call, arguments: list[Argument]) -> Predicate:
    match call.function, arguments:
        case "and_kleene", parts:
            return all_of(map(_predicate, parts))
        case "or_kleene", parts:
            return any_of(map(_predicate, parts))
        case "invert", [part]:
            return Not(_predicate(part))
        case name, [FieldPath() as left, FieldPath() | Literal() as right] if name in _COMPARISONS:
            return Comparison(left, _COMPARISONS[name], right)
        case name, [Literal() as left, FieldPath() as right] if name in _COMPARISONS:
            return Comparison(right, _COMPARISONS[name].mirrored, left)
        case "is_valid", [FieldPath() as path]:
            return Not(IsNull(path))
        case "is_null", [FieldPath() as path] if not _option(call, "nan_is_null"):
            return IsNull(path)
        case name, [FieldPath() as path] if name in _MATCHES and not _option(call, "ignore_case"):
            return TextMatch(path, _MATCHES[name], literal_of(_option(call, "pattern")))
        case "match_like", [FieldPath() as path] if not _option(call, "ignore_case"):
            return like(path, _option(call, "pattern"), STORED_ESCAPE)
        case _:
            raise UsageError(_refusal(call))


def _is_in(path: FieldPath, call: _Call) -> Predicate | _Unsupported:
    """Converts Arrow's `is_in`.

    Unlike SQL's `IN`, Arrow's `is_in` is never unknown and can match nulls. It distinguishes 0.0 from -0.0, and NaN
    equals NaN.
    """
    nulls = _option(call, "null_matching_behavior")
    values = call.options["value_set"].values
    known = values_of(values.drop_null())
    if nulls not in (_NULLS_MATCH, _NULLS_SKIPPED) or len(known.candidates) != len(known):
        reason = UsageError(f"{_refusal(call)}; write col({path.names[0]!r}).is_in([...])")
        # Both zeros are added to the candidates, and NaN is not among them.
        has_no_nan = len(known.candidates) == len(known) + 2
        return _Unsupported(reason, listed=IsIn(path, known) if has_no_nan and not values.null_count else None)
    found = all_of([Not(IsNull(path)), IsIn(path, known)])
    return any_of([IsNull(path), found]) if nulls == _NULLS_MATCH and values.null_count else found


def _listed(part: Part) -> IsIn | None:
    """Returns SQL's `IN` that a conversion of Arrow's `is_in` has the values of."""
    match part:
        case And(parts=(Not(IsNull()), IsIn() as listed)) | _Unsupported(listed=listed):
            return listed
        case _:
            return None


def _option(call: _Call, name: str) -> Any:  # noqa: ANN401  # of any type
    scalar = call.options.get(name)
    return None if scalar is None else scalar.as_py()


def _refusal(call: _Call) -> str:
    options = ", ".join(f"{name}={value}" for name, value in call.options.items() if name in _SHOWN_OPTIONS)
    return (
        f"Arrow's {call.function}({options}) is not supported: use comparisons of columns with values, &, |, ~, isin "
        "without NaN and zero floats, is_null, is_valid, starts_with, ends_with, match_substring and match_like"
    )
