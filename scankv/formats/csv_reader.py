"""Reads CSV files. Fields are read as bytes first and converted later, so errors can name the row and the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.types as pat

from scankv.formats.blocks import BadRowError
from scankv.formats.columns import check_file_columns, conform_block
from scankv.formats.csv_rows import read_header, read_rows
from scankv.formats.text import from_text, not_a_value
from scankv.model import lazy_compute as pc
from scankv.model.types.default_values import NO_DEFAULTS

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from scankv.formats.blocks import BadRows
    from scankv.formats.csv_dialect import CsvOptions

NULL_WORDS: Final = ("NA", "N/A", "NULL", "null")
"""Texts that mean null in every column except string columns. An empty field is always null."""

_LONGEST_SHOWN: Final = 40
_FIRST_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A row with a wrong number of fields.

    Attributes:
        number: Its number in the file.
        reason: What is wrong.
        text: The row.
    """

    number: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Fields:
    """Consecutive rows of a file, unconverted. Rows are numbered as in a spreadsheet: the header is row 1.

    Attributes:
        rows: The rows with the right number of fields. Every column is binary.
        first_number: The number of the first row, whether its number of fields is right or wrong.
        wrong: The rows with a wrong number of fields, with ascending numbers.
        delimiter: The character between two fields.
        null_texts: Texts that are null unless they are quoted.
    """

    rows: pa.RecordBatch
    first_number: int
    wrong: list[WrongRow]
    delimiter: str
    null_texts: tuple[str, ...]

    def number(self, row: int) -> int:
        """Returns the number in the file of one of `rows`."""
        number = self.first_number + row
        for wrong in self.wrong:
            if wrong.number > number:
                break
            number += 1
        return number

    def line(self, row: int) -> bytes:
        """Returns one of `rows` as a line. A field that is null is empty, and other texts that mean null are quoted."""
        values = [column[row].as_py() for column in self.rows.columns]
        texts = [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]
        return csv_line(texts, self.delimiter, (*NULL_WORDS, *self.null_texts))


class CsvFile:
    """The header and the fields of a CSV file. An empty field is null; a quoted empty field is not.

    Args:
        stream: The file, positioned at its start; UTF-8 with or without a byte order mark.
        options: The dialect of the file.

    Raises:
        ValueError: The file has no header, or a column name occurs twice.
    """

    def __init__(self, stream: io.BufferedReader, options: CsvOptions) -> None:
        self.names: list[str]
        self.names, self._delimiter = read_header(stream, options.delimiter)
        self._null_texts = options.null_texts
        self._stream = stream
        self._convert_options = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(self.names, pa.binary()),
            null_values=["", *options.null_texts],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    @property
    def header(self) -> bytes:
        """The names of the columns as a line."""
        return csv_line(self.names, self._delimiter)

    def fields(self) -> Iterator[Fields]:
        """Yields all rows, in blocks."""
        number = _FIRST_ROW
        for data in read_rows(self._stream, self._delimiter):
            fields = self._parse(data, number)
            yield fields
            number += fields.rows.num_rows + len(fields.wrong)

    def _parse(self, data: bytes, first_number: int) -> Fields:
        wrong: list[WrongRow] = []

        def on_wrong_length(row: pyarrow.csv.InvalidRow) -> str:
            reason = f"{row.actual_columns} fields instead of {row.expected_columns}"
            wrong.append(WrongRow(first_number + row.number - 1, reason, row.text))
            if "\ufffd" in row.text:
                unreadable.append(f"{_where(first_number + row.number - 1)}: {reason}, and the row is not UTF-8")
            return "skip"

        unreadable: list[str] = []
        if not data.isascii() and (text := data.decode(errors="replace").encode()) != data:
            # pyarrow cannot pass a row that is not UTF-8 to the handler, and would leave it out without a word.
            self._read(text, on_wrong_length)
            wrong.clear()
            if unreadable:
                raise ValueError(f"{unreadable[0]}: convert the file to UTF-8")
        table = self._read(data, on_wrong_length)
        columns = [column.combine_chunks() for column in table.columns]
        rows = pa.RecordBatch.from_arrays(columns, names=self.names)
        return Fields(rows, first_number, wrong, self._delimiter, self._null_texts)

    def _read(self, data: bytes, on_wrong_length: Callable[[pyarrow.csv.InvalidRow], str]) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(data),
            # A single block, because a row must not cross the end of a block. A single thread, because pyarrow numbers
            # invalid rows only then.
            pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self.names),
            pyarrow.csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=b'"' in data, invalid_row_handler=on_wrong_length
            ),
            self._convert_options,
        )


@dataclass(frozen=True, slots=True)
class CsvBlock:
    """A block of a CSV file; see `Block`."""

    fields: Fields
    schema: pa.Schema
    defaults: Mapping[str, pa.Scalar]
    rows: int

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self.rows

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """See `Block.convert`."""
        rows = self.fields.rows.slice(start, stop - start)
        there = set(rows.schema.names)
        fields = [field for field in self.schema if field.name in there]
        columns = [_convert(rows.column(field.name), field) for field in fields]
        given = pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])
        return conform_block(given, self.schema, self.defaults)

    def where(self, row: int) -> str:
        """See `Block.where`."""
        return _where(self.fields.number(row))

    def line(self, row: int) -> bytes:
        """See `Block.line`."""
        return self.fields.line(row)


def read_csv(
    stream: io.BufferedReader,
    schema: pa.Schema,
    options: CsvOptions,
    bad: BadRows,
    defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS,
) -> Iterator[CsvBlock]:
    """Reads a CSV file as blocks of rows of a schema.

    Raises:
        ValueError: The file is not CSV.
        SchemaMismatch: The header has a column that the schema lacks, or lacks a column without a default.
        BadFile: A row has a wrong number of fields, and bad rows must not be skipped. The rows before it were yielded.
    """
    file = CsvFile(stream, options)
    if len(file.names) == 1 and file.names[0] not in schema.names and len(schema) > 1:
        raise ValueError(
            f'the header has the single column "{file.names[0]}", which is not a column of the table: if the fields '
            "are not separated by commas, give --delimiter"
        )
    check_file_columns(file.names, schema, defaults)
    bad.header = file.header
    for fields in file.fields():
        if fields.wrong and not bad.skip:
            yield CsvBlock(fields, schema, defaults, fields.wrong[0].number - fields.first_number)
        report_wrong(fields, bad)
        yield CsvBlock(fields, schema, defaults, fields.rows.num_rows)


def report_wrong(fields: Fields, bad: BadRows) -> None:
    """Passes the rows with a wrong number of fields to `bad`."""
    for each in fields.wrong:
        bad.add(_where(each.number), each.reason, each.text.encode)


def csv_values(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Converts CSV fields to values; `NULL_WORDS` become null, except in string columns.

    Raises:
        ValueError: A field is not a value of the type.
    """
    if pat.is_string(type_):
        return texts
    # A quoted empty field is not null yet. It is a value for binary columns and null for the other types.
    words = NULL_WORDS if pat.is_binary(type_) else ("", *NULL_WORDS)
    is_null = pc.is_in(pc.ascii_trim_whitespace(texts), pa.array(words))
    # Not if_else, which pyarrow 20 to 23 gets wrong for a slice and a null.
    return from_text(pc.replace_with_mask(texts, is_null, pa.scalar(None, pa.string())), type_)


def _convert(fields: pa.BinaryArray, field: pa.Field) -> pa.Array:
    try:
        return csv_values(fields.cast(pa.string()), field.type)
    except ValueError as error:
        shown = shorten(fields[0].as_py() or b"")
        raise BadRowError(f'column "{field.name}": "{shown}" {not_a_value(error, field.type)}') from error


def shorten(value: bytes) -> str:
    """Returns a field as a text for a message."""
    text = value.decode(errors="replace")
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def csv_line(texts: Sequence[str | None], delimiter: str, null_texts: Collection[str] = ()) -> bytes:
    """Returns fields as a line of CSV without its end. None becomes an empty field, an empty text a quoted one.

    Args:
        texts: The fields.
        delimiter: The character between two fields.
        null_texts: Further texts to be quoted, because they mean null without quotes.
    """
    shown = ["" if text is None else _quoted(text, delimiter, null_texts) for text in texts]
    return delimiter.join(shown).encode("utf-8", "surrogateescape")


def _quoted(text: str, delimiter: str, null_texts: Collection[str]) -> str:
    is_plain = text == text.strip() and not any(mark in text for mark in ('"', "\r", "\n", delimiter))
    if text and is_plain and text not in null_texts:
        return text
    return '"' + text.replace('"', '""') + '"'


def _where(number: int) -> str:
    return f"row {number}"
