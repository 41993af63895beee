"""Infers the schema of a CSV or JSON lines file from all of its rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.formats.bounds import BeyondBoundsError, check_column_count, short_pieces
from scankv.formats.csv_reader import CsvFile, csv_values, report_wrong, shorten
from scankv.formats.exact_floats import has_large_integer, has_many_digits, large_numbers, large_paths
from scankv.formats.json_text import infer_json_lines
from scankv.formats.jsonl_reader import JsonlBlock, Lines, read_lines
from scankv.model import lazy_compute as pc
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator

    from scankv.formats.blocks import BadRows
    from scankv.formats.csv_dialect import CsvOptions
    from scankv.formats.exact_floats import FieldPath

_MICROS: Final = pa.timestamp("us")
_NANOS: Final = pa.timestamp("ns")
_INSTANT: Final = pa.timestamp("us", "UTC")
# The types of a text column in the order they are tried, and the wider type if a later value does not fit.
_CANDIDATES: Final = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.time64("us"), _MICROS, _NANOS, _INSTANT)
_WIDER: Final = {pa.int64(): pa.float64(), pa.date32(): _MICROS, _MICROS: _NANOS, _INSTANT: pa.timestamp("ns", "UTC")}
# 007 is a code, not a number: an int64 column would return it as 7.
_LEADING_ZERO: Final = r"^[+-]?0[0-9xX]"
_CODE: Final = re.compile(_LEADING_ZERO.encode())
_NUMBERS: Final = (pa.int64(), pa.float64())
_SAMPLE_ROWS: Final = 100


def infer_csv(
    stream: io.BufferedReader, options: CsvOptions, bad: BadRows, warn: Callable[[str], None] = lambda message: None
) -> pa.Schema:
    """Returns the schema of a CSV file: for each column the narrowest type that can hold all of its values.

    A column is int64, double, bool, date32, time64[us] or timestamp, and string if none of these can hold all of its
    values. Integers with leading zeros are strings. So is a column that mixes fractions with integers beyond 2^53, or
    has numbers that double would change (see `exact_floats`).

    Args:
        stream: The file.
        options: The dialect of the file.
        bad: Handles rows with a wrong number of fields.
        warn: Is called for each column that one value makes string although the values before have another type.

    Raises:
        ValueError: The file is not CSV.
        BadFile: A row has a wrong number of fields, and bad rows must not be skipped.
    """
    file = CsvFile(stream, options)
    guesses = {name: ColumnGuess() for name in file.names}
    for fields in file.fields():
        report_wrong(fields, bad)
        for name, guess in guesses.items():
            fallback = guess.add(fields.rows.column(name))
            if fallback is not None:
                row, type_ = fields.number(fallback.row), format_type(fallback.type)
                warn(
                    f'the column "{name}" is string, because row {row} has "{fallback.text}", while all rows before it '
                    f"fit {type_}; to have {type_}, create the table first, or name the text with --null"
                )
    return pa.schema([(name, guess.type) for name, guess in guesses.items()])


def infer_jsonl(stream: io.BufferedReader, bad: BadRows) -> pa.Schema:
    """Returns the schema of a JSON lines file: the fields of all objects, in the order of first appearance.

    Numbers are int64, or double if one of them has a fraction. Text is string, because JSON has no times.

    Raises:
        BadFile: A line is not an object, or no type can hold all values of a field, and bad rows must not be skipped.
            This includes integers beyond 2^53 in a field that also has fractions (see `exact_floats`).
    """
    schema, large = pa.schema([]), _LargeNumbers()
    for lines in _pieces(stream):
        schema = _widen_by_lines(schema, lines, bad, large)
    schema = pa.schema([(field.name, _without_nulls(field.type)) for field in schema])
    if not bad.skip:
        large.report(schema, bad)
    return schema


@dataclass(frozen=True, slots=True)
class Fallback:
    """The value that makes a column string although the values before it have another type.

    Attributes:
        row: The row of the value among those added last.
        text: The value, shortened.
        type: The type of the values before it.
    """

    row: int
    text: str
    type: pa.DataType


class ColumnGuess:
    """The type of a text column, inferred from the values added so far."""

    def __init__(self) -> None:
        self._type: pa.DataType | None = None
        self._beyond_double = False

    @property
    def type(self) -> pa.DataType:
        """The narrowest type that can hold all values added so far; string without values."""
        return self._type or pa.string()

    def add(self, fields: pa.BinaryArray) -> Fallback | None:
        """Adds further values of the column.

        Returns which value makes it string. None: none does, it is text anyway, or the numbers are codes.
        """
        before = self._type, self._beyond_double
        self._add(fields)
        if before[0] == pa.string() or self._type != pa.string():
            return None
        # The first value for which no type is left. A column of text becomes string with its first value.
        fits, breaks = 0, len(fields)
        while breaks - fits > 1:
            middle = (fits + breaks) // 2
            if self._after(before, fields[:middle]) == pa.string():
                breaks = middle
            else:
                fits = middle
        type_, value = self._after(before, fields[:fits]), fields[fits].as_py()
        if type_ is None or (type_ in _NUMBERS and _CODE.match(value)):
            return None
        return Fallback(fits, shorten(value), type_)

    def _after(self, state: tuple[pa.DataType | None, bool], fields: pa.BinaryArray) -> pa.DataType | None:
        """Returns what the type would be after some values."""
        other = ColumnGuess()
        other._type, other._beyond_double = state
        other._add(fields)
        return other._type

    def _add(self, fields: pa.BinaryArray) -> None:
        if self._type == pa.string():
            return
        try:
            texts = fields.cast(pa.string())
        except ValueError:
            self._type = pa.string()
            return
        candidates = _CANDIDATES if self._type is None else _widening(self._type)
        for candidate in candidates:
            values = self._values(texts, candidate)
            if values is not None:
                if values.null_count < len(values):
                    self._type = candidate
                return
        self._type = pa.string()

    def _values(self, texts: pa.StringArray, candidate: pa.DataType) -> pa.Array | None:
        """Returns the texts as values of a type, or None if they do not fit the type."""
        number = candidate in _NUMBERS
        if number and pc.any(pc.match_substring_regex(texts, _LEADING_ZERO)).as_py():
            return None
        try:
            # A small sample rules out most wrong types cheaply.
            csv_values(texts[:_SAMPLE_ROWS], candidate)
            values = csv_values(texts, candidate)
        except ValueError:
            return None
        if number:
            self._beyond_double |= has_large_integer(texts, values)
        return None if candidate == pa.float64() and self._beyond_double else values


def _widening(type_: pa.DataType) -> list[pa.DataType]:
    """Returns the type and all wider types except string, narrowest first."""
    chain = [type_]
    while chain[-1] in _WIDER:
        chain.append(_WIDER[chain[-1]])
    return chain


class _LargeNumbers:
    """Finds numbers that should not become double. Whether their field becomes double is known only at the end."""

    def __init__(self) -> None:
        self._first: dict[FieldPath, tuple[str, str, bytes]] = {}

    def add(self, rows: pa.Table, block: JsonlBlock) -> None:
        """Adds the numbers of a block.

        Args:
            rows: The rows of the block, with types inferred from this block alone.
            block: The block.
        """
        paths = {
            path for field in rows.schema for path in large_paths(rows[field.name].combine_chunks(), (field.name,))
        }
        # Only the first block in which a field has such a number is searched, line by line.
        if paths <= self._first.keys():
            return
        for row in range(len(block)):
            if has_many_digits(block.line(row)):
                for path, text in large_numbers(block.line(row)):
                    self._first.setdefault(path, (block.where(row), text, block.line(row)))

    def report(self, schema: pa.Schema, bad: BadRows) -> None:
        """Passes to `bad` the first such number of each field that is double."""
        for path, (where, text, line) in self._first.items():
            if _type_at(schema, path) == pa.float64():
                bad.add(
                    where,
                    f'the field "{path[0]}" has {text}, for which double is not exact, and other numbers for which '
                    "int64 is not enough: create the table first, with a type that holds all of them, such as "
                    "decimal128(38, 2), and load the file without --create",
                    partial(bytes, line),
                )


def _type_at(schema: pa.Schema, path: FieldPath) -> pa.DataType:
    type_ = pa.struct(list(schema))
    for name in path:
        type_ = type_.value_type if pat.is_list(type_) else type_.field(name).type
    return type_


def _pieces(stream: io.BufferedReader) -> Iterator[Lines]:
    for lines in read_lines(stream):
        first_line = lines.first_line
        for piece in short_pieces(lines.data):
            yield Lines(piece, first_line)
            first_line += piece.count(b"\n")


def _widen_by_lines(schema: pa.Schema, lines: Lines, bad: BadRows, large: _LargeNumbers) -> pa.Schema:
    try:
        rows = infer_json_lines(lines.data)
        widened = _unify(schema, rows.schema)
        large.add(rows, JsonlBlock(lines, schema))
        return widened
    except ValueError:
        # At least one line is bad. Reading line by line shows which.
        block = JsonlBlock(lines, schema)
        for row in range(len(block)):
            try:
                schema = _unify(schema, infer_json_lines(block.line(row)).schema)
            except BeyondBoundsError as error:
                bad.add(block.where(row), f"the line {error}", partial(block.line, row))
            except ValueError as error:
                bad.add(block.where(row), str(error), partial(block.line, row))
        return schema


def _unify(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    types = {field.name: field.type for field in left}
    for field in right:
        types[field.name] = _union(types.get(field.name, pa.null()), field.type, field.name)
    check_column_count(len(types), "together with the lines before")
    return pa.schema(list(types.items()))


def _union(left: pa.DataType, right: pa.DataType, name: str) -> pa.DataType:
    """Returns the narrowest type that can hold the JSON values of both types."""
    left, right = _as_json(left), _as_json(right)
    if left == right or pat.is_null(right):
        return left
    if pat.is_null(left):
        return right
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pat.is_struct(left) and pat.is_struct(right):
        return pa.struct(_unify(pa.schema(left.fields), pa.schema(right.fields)))
    if pat.is_list(left) and pat.is_list(right):
        return pa.list_(_union(left.value_type, right.value_type, name))
    raise ValueError(f'the field "{name}" is {right} in this line and {left} in the lines before')


def _as_json(type_: pa.DataType) -> pa.DataType:
    # pyarrow infers a timestamp from text that looks like one.
    return pa.string() if pat.is_timestamp(type_) else type_


def _without_nulls(type_: pa.DataType) -> pa.DataType:
    """Returns the type with string in place of null, the type of columns with no values, at any depth."""
    if pat.is_null(type_):
        return pa.string()
    if pat.is_list(type_):
        return pa.list_(_without_nulls(type_.value_type))
    if pat.is_struct(type_):
        return pa.struct([(field.name, _without_nulls(field.type)) for field in type_.fields])
    return _as_json(type_)
