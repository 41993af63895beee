"""Parses the text form of columns and types, such as `player string, score int64 not null`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

import pyarrow as pa

from scankv.model.errors import InvalidRequest, did_you_mean
from scankv.model.limits import MAX_NESTING

if TYPE_CHECKING:
    from collections.abc import Callable

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "int8": pa.int8(),
    "tinyint": pa.int8(),
    "int16": pa.int16(),
    "smallint": pa.int16(),
    "int32": pa.int32(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "int64": pa.int64(),
    "bigint": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "halffloat": pa.float16(),
    "float32": pa.float32(),
    "float": pa.float32(),
    "real": pa.float32(),
    "float64": pa.float64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "utf8": pa.string(),
    "text": pa.string(),
    "binary": pa.binary(),
    "bytes": pa.binary(),
    "blob": pa.binary(),
    "time": pa.time64("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_DECIMALS: Final = ("decimal128", "decimal", "numeric")
_UNITS: Final[dict[str, tuple[str, ...]]] = {"time32": ("s", "ms"), "time64": ("us", "ns")}
_TIMESTAMP_UNITS: Final = ("s", "ms", "us", "ns")
TYPE_WORDS: Final = (
    *_SIMPLE, *_DECIMALS, *_UNITS, "varchar", "date", "date32", "timestamp", "list", "struct", "map",
)  # fmt: skip

_SPACE: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"[^\W\d]\w*")
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"')
_NUMBER: Final = re.compile(r"-?\d{1,9}")
_ZONE: Final = re.compile(r"[^\]\s]+")
_FOUND: Final = re.compile(r'\w+|"[^"]*"?|\S')


def is_plain_name(name: str) -> bool:
    """Returns whether the name can be written without quotes."""
    return _WORD.fullmatch(name) is not None


def parse_fields(text: str) -> list[pa.Field]:
    """Parses `name type [not null], ...`. Does not check whether the types are storable.

    Raises:
        InvalidRequest: The text cannot be parsed. The message has the position and what was expected there.
    """
    parser = _TypeParser(text)
    fields = parser.fields(depth=0)
    parser.expect_end()
    return fields


class _TypeParser:
    """A recursive-descent parser of one text. `_at` is the position of the next character to read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fields(self, depth: int) -> list[pa.Field]:
        found = [self._field(depth)]
        while self._take(","):
            found.append(self._field(depth))
        return found

    def expect_end(self) -> None:
        self._skip_space()
        if self._at < len(self._text):
            self._fail('expected "," or the end')

    def _field(self, depth: int) -> pa.Field:
        name = self._name()
        self._take(":")
        type_ = self._type(depth)
        return pa.field(name, type_, nullable=not self._not_null())

    def _name(self) -> str:
        quoted = self._match(_QUOTED)
        if quoted is not None:
            return quoted[1].replace('""', '"')
        word = self._match(_WORD)
        if word is None:
            self._fail("expected a column name (in double quotes if it is not a plain word)")
        return word[0]

    def _not_null(self) -> bool:
        if self._take_word("not"):
            if not self._take_word("null"):
                self._fail('expected "null" after "not"')
            return True
        self._take_word("null")
        return False

    def _type(self, depth: int) -> pa.DataType:
        if depth > MAX_NESTING:
            self._fail(f"types are nested more than {MAX_NESTING} levels deep")
        self._skip_space()
        start = self._at
        match = self._match(_WORD)
        if match is None:
            self._fail("expected a type, such as int64, string or timestamp[us]")
        word = match[0].lower()
        if word in _SIMPLE:
            return _SIMPLE[word]
        nested: dict[str, Callable[[int], pa.DataType]] = {"list": self._list, "struct": self._struct, "map": self._map}
        if word in nested:
            self._expect("<", f'after "{word}"')
            type_ = nested[word](depth + 1)
            self._expect(">", f'to end "{word}<"')
            return type_
        if word in _DECIMALS:
            return self._decimal(word)
        if word == "varchar":
            if self._take("("):
                self._number("the length")
                self._expect(")", "after the length")
            return pa.string()
        if word in ("date", "date32"):
            if self._take("["):
                self._one_of(("day",))
                self._expect("]", "after the unit")
            return pa.date32()
        if word in _UNITS:
            return self._time(word)
        if word == "timestamp":
            return self._timestamp()
        self._at = start
        self._fail(f"there is no such type{_nearest(word)}; expected one such as int64, string or timestamp[us]")

    def _list(self, depth: int) -> pa.DataType:
        start = self._at
        named = self._match(_WORD) is not None and self._take(":")
        if not named:
            self._at = start
        type_ = self._type(depth)
        return pa.list_(pa.field("item", type_, nullable=not self._not_null()))

    def _struct(self, depth: int) -> pa.DataType:
        return pa.struct(self.fields(depth))

    def _map(self, depth: int) -> pa.DataType:
        key = self._type(depth)
        self._not_null()
        self._expect(",", "between the types of key and value")
        value = self._type(depth)
        return pa.map_(key, pa.field("value", value, nullable=not self._not_null()))

    def _decimal(self, word: str) -> pa.DataType:
        self._expect("(", f'after "{word}", as in {word}(10, 2)')
        start = self._at
        precision = self._number("the number of digits")
        if not 1 <= precision <= 38:
            self._at = start
            self._fail("a decimal must have between 1 and 38 digits")
        scale = self._number("the digits after the point") if self._take(",") else 0
        self._expect(")", "after the digits")
        return pa.decimal128(precision, scale)

    def _time(self, word: str) -> pa.DataType:
        self._expect("[", f'and a unit after "{word}", as in {word}[{_UNITS[word][0]}]')
        unit = self._one_of(_UNITS[word])
        self._expect("]", "after the unit")
        return pa.time32(unit) if word == "time32" else pa.time64(unit)

    def _timestamp(self) -> pa.DataType:
        if not self._take("["):
            return pa.timestamp("us")
        unit = self._one_of(_TIMESTAMP_UNITS)
        zone = None
        if self._take(","):
            if not self._take_word("tz") or not self._take("="):
                self._fail('expected "tz=" and a time zone, as in timestamp[us, tz=UTC]')
            match = self._match(_ZONE)
            if match is None:
                self._fail("expected a time zone, such as UTC or +02:00")
            zone = match[0]
        self._expect("]", "after unit and time zone")
        return pa.timestamp(unit, zone)

    def _number(self, what: str) -> int:
        match = self._match(_NUMBER)
        if match is None:
            self._fail(f"expected {what}, a number")
        return int(match[0])

    def _one_of(self, units: tuple[str, ...]) -> str:
        self._skip_space()
        start = self._at
        match = self._match(_WORD)
        if match is None or match[0].lower() not in units:
            self._at = start
            self._fail("expected the unit: " + " or ".join(units))
        return match[0].lower()

    def _expect(self, mark: str, where: str) -> None:
        if not self._take(mark):
            self._fail(f'expected "{mark}" {where}')

    def _take(self, mark: str) -> bool:
        self._skip_space()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _take_word(self, word: str) -> bool:
        self._skip_space()
        match = _WORD.match(self._text, self._at)
        if match is None or match[0].lower() != word:
            return False
        self._at = match.end()
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._skip_space()
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match is not None else self._at

    def _fail(self, complaint: str) -> NoReturn:
        self._skip_space()
        found = _FOUND.match(self._text, self._at)
        where = f'at "{found[0]}" (character {self._at + 1})' if found is not None else "at the end"
        raise InvalidRequest(f"schema text, {where}: {complaint}")


def _nearest(word: str) -> str:
    hint = did_you_mean(word, TYPE_WORDS)
    return hint.removesuffix("?")
