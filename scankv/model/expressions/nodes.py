"""The tree of a predicate, as plain values that can be compared, stored and sent.

    Predicate
    ├── Comparison      column == != < <= > >= value or column
    ├── IsIn            column is one of a list of values
    ├── IsNull          column is null
    ├── TextMatch       column starts or ends with, or contains, a text or bytes, or matches a pattern
    ├── And, Or         of at least two predicates
    ├── Not
    └── Constant        true, false or unknown for every row

Predicates use SQL's three-valued logic: a comparison with a null is unknown, `False & unknown` is false,
`True | unknown` is true, and `~unknown` is unknown. A scan keeps the rows for which the predicate is true. Floats
compare as in IEEE 754: -0.0 equals 0.0, and only `!=` is true for NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn

from scankv.model.errors import UsageError
from scankv.model.expressions.literals import MAX_LIST_VALUES, Literal, ValueList
from scankv.model.names import is_column_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_NODES: Final = 1000
"""The most nodes of one expression."""

MAX_DEPTH: Final = 90
"""The most levels of nested nodes. Protocol Buffers read at most 100 nested messages, and the request needs some."""

MAX_SEARCHED_BYTES: Final = 64 * 1024
"""The most bytes of all texts that one expression searches for. Each text is prepared again for every chunk of rows."""

_SPARE_NODES: Final = 5

NO_TRUTH: Final = (
    "a predicate has no truth value in Python: combine predicates with & and | and ~ (not with and, or, not), put each "
    "comparison in parentheses, and write between(a, b) instead of a <= x <= b"
)


class Operator(Enum):
    """A comparison operator. Its value is the Python form."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="

    @property
    def mirrored(self) -> Operator:
        """The equivalent operator with exchanged sides."""
        return _FLIPPED.get(self, self)


_FLIPPED: Final = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_EQUAL: Operator.GREATER_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_EQUAL: Operator.LESS_EQUAL,
}


class Match(Enum):
    """How a text is matched. The value is the method of a column.

    In the pattern of LIKE, a `%`, `_` or backslash that stands for itself has a backslash before it.
    """

    STARTS_WITH = "starts_with"
    CONTAINS = "contains"
    ENDS_WITH = "ends_with"
    LIKE = "like"


@dataclass(frozen=True, slots=True, repr=False)
class FieldPath:
    """A column, or a field within struct columns. Immutable, hashable, picklable.

    Attributes:
        names: The column's name, then the fields' names from the outside in.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raises UsageError if a name is not text or not valid UTF-8."""
        if not self.names or not all(name and is_column_name(name) for name in self.names):
            raise UsageError(
                f"the name of a column must be non-empty, valid text, as in col('score'), not {self.names!r}"
            )
        if len(self.names) > MAX_DEPTH:
            raise UsageError(f"the path of a field must have at most {MAX_DEPTH} names, not {len(self.names):,}")

    def __repr__(self) -> str:
        return f"col({_quote(self.names[0])})" + "".join(f"[{_quote(name)}]" for name in self.names[1:])

    def __str__(self) -> str:
        """Returns the name for messages: `column "a"`, `field "a.b"`."""
        return f'{"field" if len(self.names) > 1 else "column"} "{".".join(self.names)}"'


@dataclass(frozen=True, slots=True, repr=False)
class Predicate:
    """A predicate, which is true, false or unknown for a row. Immutable, hashable, picklable; `==` compares structure.

    Combine predicates with `&`, `|` and `~`.

    Attributes:
        nodes: The number of nodes.
        depth: The number of levels of nested nodes.
        list_values: The number of values in all lists together.
        searched_bytes: The number of bytes of all searched texts together.
    """

    nodes: int = field(init=False, compare=False, default=1)
    depth: int = field(init=False, compare=False, default=1)
    list_values: int = field(init=False, compare=False, default=0)
    searched_bytes: int = field(init=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Raises UsageError if the predicate exceeds a limit, so that no larger tree can exist."""
        # What the server adds to a predicate does not count against the limits of its caller.
        spare = _SPARE_NODES if any(isinstance(operand, Unexpired) for operand in self.operands) else 0
        nodes = 1 + sum(operand.nodes for operand in self.operands)
        depth = 1 + max((operand.depth for operand in self.operands), default=0)
        list_values = self._own_values() + sum(operand.list_values for operand in self.operands)
        searched_bytes = self._own_bytes() + sum(operand.searched_bytes for operand in self.operands)
        for what, found, limit in (
            ("nodes", nodes, MAX_NODES),
            ("levels of depth", depth, MAX_DEPTH),
            ("values in its lists", list_values, MAX_LIST_VALUES),
            ("bytes of searched text", searched_bytes, MAX_SEARCHED_BYTES),
        ):
            if found > limit + spare:
                hint = "; is_in takes many values as one node" if what == "nodes" else ""
                raise UsageError(f"the predicate has more than {limit:,} {what}{hint}")
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "list_values", list_values)
        object.__setattr__(self, "searched_bytes", searched_bytes)

    @property
    def operands(self) -> tuple[Predicate, ...]:
        """The direct operands."""
        return ()

    @property
    def paths(self) -> tuple[FieldPath, ...]:
        """The columns and fields that this node reads itself."""
        return ()

    def walk(self) -> Iterator[Predicate]:
        """Yields this node, then all nodes below it."""
        yield self
        for operand in self.operands:
            yield from operand.walk()

    def _own_values(self) -> int:
        return 0

    def _own_bytes(self) -> int:
        return 0

    def _as_predicate(self) -> Predicate:
        return self

    def __and__(self, other: object) -> Predicate:
        return all_of([self, other_predicate(other, "&")])

    def __rand__(self, other: object) -> Predicate:
        return all_of([other_predicate(other, "&"), self])

    def __or__(self, other: object) -> Predicate:
        return any_of([self, other_predicate(other, "|")])

    def __ror__(self, other: object) -> Predicate:
        return any_of([other_predicate(other, "|"), self])

    def __invert__(self) -> Predicate:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise UsageError(NO_TRUTH)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Predicate):
    """Compares a column with a value or another column. Unknown if one of them is null."""

    left: FieldPath
    operator: Operator
    right: Literal | FieldPath

    @property
    def paths(self) -> tuple[FieldPath, ...]:
        """The columns compared."""
        return (self.left, self.right) if isinstance(self.right, FieldPath) else (self.left,)

    def __repr__(self) -> str:
        return f"{self.left!r} {self.operator.value} {self.right!r}"


@dataclass(frozen=True, slots=True, repr=False)
class IsIn(Predicate):
    """Whether a column is one of some values.

    True if a value is equal. Otherwise unknown if the column or one of the values is null, and false if neither is.
    With an empty list, it is false for every row.
    """

    path: FieldPath
    values: ValueList

    @property
    def paths(self) -> tuple[FieldPath, ...]:
        """The column."""
        return (self.path,)

    def _own_values(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"{self.path!r}.is_in({self.values!r})"


@dataclass(frozen=True, slots=True, repr=False)
class IsNull(Predicate):
    """Whether a column is null: true or false, never unknown."""

    path: FieldPath

    @property
    def paths(self) -> tuple[FieldPath, ...]:
        """The column."""
        return (self.path,)

    def __repr__(self) -> str:
        return f"{self.path!r}.is_null()"


@dataclass(frozen=True, slots=True, repr=False)
class TextMatch(Predicate):
    """Whether a string or binary column starts or ends with, or contains, a text or bytes, or matches a pattern.

    Unknown if the column is null.
    """

    path: FieldPath
    match: Match
    text: Literal

    @property
    def paths(self) -> tuple[FieldPath, ...]:
        """The column."""
        return (self.path,)

    def _own_bytes(self) -> int:
        return int(self.text.scalar.as_buffer().size)

    def __repr__(self) -> str:
        escape = r', escape="\\"' if self.match is Match.LIKE and "\\" in self.text.scalar.as_py() else ""
        return f"{self.path!r}.{self.match.value}({self.text!r}{escape})"


@dataclass(frozen=True, slots=True, repr=False)
class _Connective(Predicate):
    parts: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        """Raises UsageError if there are fewer than two parts, or if the predicate exceeds a limit."""
        if len(self.parts) < 2:
            raise UsageError(f"{type(self).__name__} must join at least two predicates, not {len(self.parts)}")
        Predicate.__post_init__(self)

    @property
    def operands(self) -> tuple[Predicate, ...]:
        """The direct operands."""
        return self.parts


@dataclass(frozen=True, slots=True, repr=False)
class And(_Connective):
    """False if a part is false, otherwise unknown if a part is unknown, otherwise true."""

    def __repr__(self) -> str:
        return " & ".join(map(_in_parentheses, self.parts))


@dataclass(frozen=True, slots=True, repr=False)
class Or(_Connective):
    """True if a part is true, otherwise unknown if a part is unknown, otherwise false."""

    def __repr__(self) -> str:
        return " | ".join(map(_in_parentheses, self.parts))


@dataclass(frozen=True, slots=True, repr=False)
class Unexpired(Or):
    """True for the rows that have not expired: their time is null or greater than a bound. See `Expiry`.

    The server adds it to predicates, so it is never sent.

    Attributes:
        column_id: The id of the column with the time.
        bound: The greatest value that has expired, as it is stored.
    """

    column_id: int = field(kw_only=True)
    bound: int = field(kw_only=True)


@dataclass(frozen=True, slots=True, repr=False)
class Not(Predicate):
    """True if the operand is false, false if it is true, and unknown if it is unknown."""

    operand: Predicate

    @property
    def operands(self) -> tuple[Predicate, ...]:
        """The predicate negated."""
        return (self.operand,)

    def __repr__(self) -> str:
        if isinstance(self.operand, IsNull):
            return f"{self.operand.path!r}.is_not_null()"
        return f"~{_in_parentheses(self.operand)}"


@dataclass(frozen=True, slots=True, repr=False)
class Constant(Predicate):
    """The same truth value for every row: True, False, or None for unknown."""

    value: bool | None

    def __repr__(self) -> str:
        return f"Constant({self.value})"


def all_of(predicates: Iterable[Predicate]) -> Predicate:
    """Joins predicates by AND into one flat node. Without predicates, the result is true."""
    return _join(And, predicates, Constant(True))


def any_of(predicates: Iterable[Predicate]) -> Predicate:
    """Joins predicates by OR into one flat node. Without predicates, the result is false."""
    return _join(Or, predicates, Constant(False))


def conjuncts(predicate: Predicate) -> list[Predicate]:
    """Splits a predicate into conjuncts: the predicate is true exactly if all of its conjuncts are."""
    match predicate:
        case And(parts=parts):
            return [conjunct for part in parts for conjunct in conjuncts(part)]
        case Not(operand=Not(operand=inner)):
            return conjuncts(inner)
        case Not(operand=Or(parts=parts)):
            return [conjunct for part in parts for conjunct in conjuncts(Not(part))]
        case _:
            return [predicate]


def other_predicate(other: object, operator: str) -> Predicate:
    """Returns the right side of `&` or `|`, which is a predicate or a boolean column, as a predicate.

    Raises:
        UsageError: It is anything else, as in `a > 1 & b < 2`, where Python evaluates `1 & b` first.
    """
    as_predicate = getattr(other, "_as_predicate", None)
    if as_predicate is None:
        raise UsageError(
            f"{operator} joins predicates, not {type(other).__name__}; put each comparison in parentheses, as in "
            f"(col('a') > 1) {operator} (col('b') < 2)"
        )
    predicate: Predicate = as_predicate()
    return predicate


def _join(kind: type[_Connective], predicates: Iterable[Predicate], empty: Predicate) -> Predicate:
    parts: list[Predicate] = []
    for predicate in predicates:
        parts += predicate.operands if isinstance(predicate, kind) else [predicate]
    if len(parts) > 1:
        return kind(tuple(parts))
    return parts[0] if parts else empty


def _in_parentheses(predicate: Predicate) -> str:
    return f"({predicate!r})" if isinstance(predicate, Comparison | _Connective) else repr(predicate)


def _quote(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
