"""Parses predicates in the syntax of a WHERE clause: `score > 100 and player in ('ann', 'bob')`."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import pyarrow as pa

from scankv.model.errors import SchemaMismatch, UsageError
from scankv.model.expressions.binding import bind
from scankv.model.expressions.like_patterns import like
from scankv.model.expressions.literals import MAX_LIST_VALUES, Literal, literal_of, values_of
from scankv.model.expressions.nodes import (
    MAX_DEPTH,
    MAX_NODES,
    Comparison,
    Constant,
    FieldPath,
    IsIn,
    IsNull,
    Not,
    Operator,
    Predicate,
    all_of,
    any_of,
)
from scankv.model.short_tracebacks import SHORT_TRACEBACK
from scankv.model.types.time_text import times_from_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot.tokenizer_core import Token

    Operand = FieldPath | Literal

SUPPORTED: Final = (
    "= <> != < <= > >=, AND, OR, NOT, parentheses, IN (...), BETWEEN ... AND ..., IS [NOT] NULL, LIKE '...' "
    "[ESCAPE '...'], columns, fields of structs as a.b, \"quoted names\", numbers, 'text', DATE '...', "
    "TIMESTAMP '...', TRUE, FALSE, NULL"
)
MAX_TEXT_LENGTH: Final = 4 * 1024 * 1024
"""The most characters of the text of a predicate."""

_RESERVED: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "LIKE", "NULL", "TRUE", "FALSE"})
_AFTER_COMPARISON: Final = frozenset({"AND", "OR", ")"})
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_OPERATORS: Final = {
    "=": Operator.EQUAL,
    "<>": Operator.NOT_EQUAL,
    "!=": Operator.NOT_EQUAL,
    "<": Operator.LESS,
    "<=": Operator.LESS_EQUAL,
    ">": Operator.GREATER,
    ">=": Operator.GREATER_EQUAL,
}
_LONGEST_SHOWN: Final = 60
_DATE: Final = re.compile(r"^[+-]?\d+-\d\d-\d\d")
_ZONE: Final = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*"|--[^\n]*|/\*.*?\*/|(?P<opened>'|"|/\*)""", re.DOTALL)
_OPENED: Final = {"'": "quote", '"': "quote", "/*": "comment"}
_NANOSECONDS: Final = re.compile(r"\.\d{7,9}")


def parse_where(text: str, schema: pa.Schema | None = None) -> Predicate:
    """Parses a predicate in the syntax that SQL has after WHERE.

    SQL keywords are not case-sensitive, but column names are. A name that is not a plain word must be in double quotes.
    A number with a decimal point is a decimal, and a number with an exponent is a float. A timestamp has a time zone if
    its text has one: `TIMESTAMP '2026-01-31 12:00:00'`, `TIMESTAMP '2026-01-31 12:00:00+00:00'`.

    Args:
        text: The predicate.
        schema: The columns of the table. If given, columns and types are also checked, so that errors about them have
            positions in the text. The result is not bound.

    Raises:
        UsageError: The text cannot be parsed. The message has line and column, shows the text there, and lists the
            supported syntax.
        SchemaMismatch: As for `bind`, with the position in the text.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise UsageError(f"the text of the predicate has {len(text):,} characters; the limit is {MAX_TEXT_LENGTH:,}")
    with SHORT_TRACEBACK:
        parser = _PredicateParser(text, schema)
        return parser.parse()


def _tokens(text: str) -> list[Token]:
    from sqlglot import Tokenizer  # on use: it takes as long as all other imports together
    from sqlglot.errors import TokenError

    try:
        return list(Tokenizer().tokenize(text))
    except TokenError:
        opened = next((found for found in _QUOTED.finditer(text) if found["opened"]), None)
        position, what = (0, "quote") if opened is None else (opened.start(), _OPENED[opened["opened"]])
        raise UsageError(_at(text, position, f"a {what} that is opened here is never closed")) from None


def _at(text: str, position: int, message: str, supported: str = "") -> str:
    """Returns the message with line and column, and with the line of the text and a caret under the position."""
    line_start = text.rfind("\n", 0, position) + 1
    line_end = text.find("\n", position)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    column = position - line_start
    first = max(0, min(column - _LONGEST_SHOWN // 2, len(line) - _LONGEST_SHOWN))
    before, after = "..." * (first > 0), "..." * (len(line) > first + _LONGEST_SHOWN)
    shown = f"{before}{line[first : first + _LONGEST_SHOWN]}{after}".replace("\t", " ")
    caret = " " * (len(before) + column - first) + "^"
    place = f"line {text.count(chr(10), 0, position) + 1}, column {column + 1}"
    return f"the predicate, {place}: {message}\n  {shown}\n  {caret}" + (
        f"\nsupported: {supported}" if supported else ""
    )


class _PredicateParser:
    """A recursive-descent parser: OR, then AND, then NOT, then comparisons."""

    def __init__(self, text: str, schema: pa.Schema | None) -> None:
        self.text, self.schema = text, schema
        self.tokens = _tokens(text)
        self.position = 0
        self.depth = 0

    def parse(self) -> Predicate:
        predicate = self._or()
        if self.position < len(self.tokens):
            self._fail("expected AND, OR or the end")
        return predicate

    def _or(self) -> Predicate:
        start = self._offset()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} levels of parentheses and NOT")
        parts = [self._and()]
        while len(parts) <= MAX_NODES and self._skip("OR"):
            parts.append(self._and())
        self.depth -= 1
        return self._within_limits(start, partial(any_of, parts))

    def _and(self) -> Predicate:
        start = self._offset()
        parts = [self._not()]
        while len(parts) <= MAX_NODES and self._skip("AND"):
            parts.append(self._not())
        return self._within_limits(start, partial(all_of, parts))

    def _not(self) -> Predicate:
        start, negations = self._offset(), 0
        while self._skip("NOT"):
            negations += 1
        predicate = self._primary()
        if negations > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} levels of parentheses and NOT", start)
        for _ in range(negations):
            predicate = self._within_limits(start, partial(Not, predicate))
        return predicate

    def _primary(self) -> Predicate:
        if self._skip("("):
            predicate = self._or()
            self._expect(")")
            return predicate
        start = self._offset()
        if self._word() in _CONSTANTS and self._word(1) not in _OPERATORS:
            return Constant(_CONSTANTS[self._next_word()])
        operand = self._operand()
        predicate = self._mirror(operand) if isinstance(operand, Literal) else self._about(operand)
        if (
            self._peek() is not None and self._word() not in _AFTER_COMPARISON
        ):  # what cannot be read goes before what does not fit
            self._fail("expected AND, OR or the end")
        return self._check_depth(start, predicate)

    def _mirror(self, value: Literal) -> Predicate:
        """Parses a comparison that begins with the value: `100 < score`."""
        operator = self._operator()
        column = self._operand()
        if isinstance(column, Literal):
            self._fail("a value must be compared with a column, not with another value", self._offset(-1))
        return Comparison(column, operator.mirrored, value)

    def _about(self, column: FieldPath) -> Predicate:
        """Parses the comparison after a column. A boolean column needs no comparison."""
        if self._word() in _OPERATORS:
            return Comparison(column, self._operator(), self._operand())
        if self._skip("IS"):
            negated = self._skip("NOT")
            self._expect("NULL")
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self._skip("NOT")
        for word, read in (("IN", self._in), ("BETWEEN", self._between), ("LIKE", self._like)):
            if self._skip(word):
                predicate = read(column)
                return Not(predicate) if negated else predicate
        if negated:
            self._fail("expected IN, BETWEEN or LIKE after NOT")
        return Comparison(column, Operator.EQUAL, literal_of(True))

    def _in(self, column: FieldPath) -> Predicate:
        self._expect("(")
        start, values = self._offset(), [self._literal()]
        while self._skip(","):
            values.append(self._literal())
            if len(values) > MAX_LIST_VALUES:
                self._fail(f"IN has more than {MAX_LIST_VALUES:,} values")
        self._expect(")")
        return self._within_limits(start, partial(_in_list, column, values))

    def _between(self, column: FieldPath) -> Predicate:
        low = self._operand()
        self._expect("AND")
        high = self._operand()
        bounds = (Operator.GREATER_EQUAL, low), (Operator.LESS_EQUAL, high)
        return all_of([Comparison(column, operator, bound) for operator, bound in bounds])

    def _like(self, column: FieldPath) -> Predicate:
        start = self._offset()
        if self._skip("NULL"):
            return Comparison(column, Operator.EQUAL, literal_of(None))
        pattern = self._string("expected a pattern in single quotes after LIKE")
        escape = self._string("expected a character in single quotes after ESCAPE") if self._skip("ESCAPE") else None
        return self._within_limits(start, partial(like, column, pattern, escape))

    def _operand(self) -> Operand:
        if not self._is_name():
            return self._literal()
        names = [self._next().text]
        while self._skip("."):
            if not self._is_name():
                self._fail("expected the name of a field")
            names.append(self._next().text)
        start = self._offset(-1)
        try:
            return FieldPath(tuple(names))
        except UsageError as error:
            self._fail(error.message, start, cause=error)

    def _is_name(self) -> bool:
        token = self._peek()
        if token is None or self._is_string() or self._is_typed_text():
            return False
        return self._is_quoted() or (_is_word(token.text) and token.text.upper() not in _RESERVED)

    def _literal(self) -> Literal:
        start = self._offset()
        if self._is_string():
            return self._text()
        if self._is_typed_text():
            return self._parse_typed_text()
        if self._word() in _CONSTANTS:
            return literal_of(_CONSTANTS[self._next_word()])
        sign = "-" if self._skip("-") else ""
        token = self._peek()
        if token is None or token.token_type.name != "NUMBER":
            self._fail("expected a value" if not sign else "expected a number after -")
        try:
            number = _number(sign + self._next().text)
            return literal_of(number)
        except (UsageError, ArithmeticError, ValueError) as error:
            self._fail(
                "this number is not valid, is too large for a float, or has more than 38 digits", start, cause=error
            )

    def _text(self) -> Literal:
        start, text = self._offset(), self._next().text
        try:
            return literal_of(text)
        except UsageError as error:
            self._fail("this text is not valid UTF-8", start, cause=error)

    def _parse_typed_text(self) -> Literal:
        kind = self._next_word()
        text = self._string("expected text in single quotes")
        try:
            return Literal(times_from_text(pa.array([text]), _type_of_text(kind, text))[0])
        except (pa.ArrowException, ValueError) as error:
            example = "2026-01-31" if kind == "DATE" else "2026-01-31 12:00:00"
            self._fail(f"this is not a {kind.lower()}; write {kind} '{example}'", self._offset(-1), cause=error)

    def _operator(self) -> Operator:
        if self._word() not in _OPERATORS:
            self._fail("expected one of = <> < <= > >=")
        return _OPERATORS[self._next().text]

    def _string(self, message: str) -> str:
        if not self._is_string():
            self._fail(message)
        return self._next().text

    def _peek(self, ahead: int = 0) -> Token | None:
        position = self.position + ahead
        return self.tokens[position] if 0 <= position < len(self.tokens) else None

    def _is_string(self, ahead: int = 0) -> bool:
        token = self._peek(ahead)
        return token is not None and token.token_type.name == "STRING"

    def _is_quoted(self, ahead: int = 0) -> bool:
        token = self._peek(ahead)
        return token is not None and token.token_type.name == "IDENTIFIER"

    def _is_typed_text(self) -> bool:
        return self._word() in {"DATE", "TIMESTAMP"} and self._is_string(1)

    def _word(self, ahead: int = 0) -> str:
        """Returns the next word or symbol in capitals; an empty text at the end and for quoted text."""
        token = self._peek(ahead)
        return "" if token is None or self._is_string(ahead) or self._is_quoted(ahead) else token.text.upper()

    def _next(self) -> Token:
        token = self.tokens[self.position]
        self.position += 1
        return token

    def _next_word(self) -> str:
        return self._next().text.upper()

    def _skip(self, word: str) -> bool:
        found = self._word() == word
        self.position += found
        return found

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            self._fail(f"expected {word}")

    def _offset(self, ahead: int = 0) -> int:
        token = self._peek(ahead)
        return len(self.text) if token is None else token.start

    def _check_depth(self, start: int, predicate: Predicate) -> Predicate:
        """Checks columns and types of the predicate, and returns it."""
        if self.schema is not None:
            try:
                bind(predicate, self.schema)
            except SchemaMismatch as error:
                raise SchemaMismatch(_at(self.text, start, error.message), column=error.details.get("column")) from None
        return predicate

    def _within_limits(self, start: int, build: Callable[[], Predicate]) -> Predicate:
        try:
            return build()
        except UsageError as error:
            self._fail(error.message, start, cause=error)

    def _fail(self, message: str, offset: int | None = None, cause: Exception | None = None) -> NoReturn:
        if offset is None:
            token = self._peek()
            found = "the end" if token is None else f'"{self.text[token.start : token.end + 1][:_LONGEST_SHOWN]}"'
            message, offset = f"{message}, found {found}", self._offset()
        raise UsageError(_at(self.text, offset, message, SUPPORTED)) from cause


def _is_word(text: str) -> bool:
    return text.isidentifier()


def _number(text: str) -> int | float | Decimal:
    if "e" in text.lower():
        number = float(text)
        if math.isinf(number):
            raise OverflowError(text)
        return number
    return Decimal(text) if "." in text else int(text)


def _type_of_text(kind: str, text: str) -> pa.DataType:
    if kind == "DATE":
        return pa.date32()
    time = _DATE.sub("", text.strip())  # the dashes of a date are not the sign of a time zone
    return pa.timestamp("ns" if _NANOSECONDS.search(time) else "us", "UTC" if _ZONE.search(time) else None)


def _in_list(column: FieldPath, values: list[Literal]) -> Predicate:
    """Returns one `IsIn` if the values are of one kind; otherwise one per type, as for dates and timestamps."""
    by_type: dict[pa.DataType, list[pa.Scalar]] = {}
    for value in values:
        by_type.setdefault(value.scalar.type, []).append(value.scalar)
    nulls = by_type.pop(pa.null(), [])
    if len(by_type) > 1:
        try:
            return IsIn(column, values_of([value.scalar for value in values]))
        except UsageError:
            pass
    arrays = [pa.array([*scalars, *(None for _ in nulls)], type_) for type_, scalars in by_type.items()]
    return any_of([IsIn(column, values_of(array)) for array in arrays or [pa.nulls(1)]])
