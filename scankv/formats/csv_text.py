"""Formats record batches as CSV, column by column.

A null becomes an empty field, and an empty string a quoted one. Other fields are quoted only where necessary. Values
are formatted as in `text`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.formats.csv_dialect import DELIMITERS
from scankv.formats.scalar_text import concatenate
from scankv.formats.text import to_text
from scankv.model import lazy_compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALL_DELIMITERS: Final = "".join(DELIMITERS)
# Some spreadsheets also take the wide forms.
_OPERATORS: Final = "=+@\\-\uff1d\uff0b\uff0d\uff20"
_FORMULA: Final = f"^[{_OPERATORS}\\t\\r\\n]"
# Where the spreadsheet's delimiter is not the comma, quotes within its field protect nothing: `1,"x;=2"` has the field
# `=2"`. A line break ends the row then.
_LATER_FORMULA: Final = f'([{_ALL_DELIMITERS[1:]}\\r\\n])([\\s"]*[{_OPERATORS}])'


def csv_header(names: Sequence[str], *, quote_formulas: bool = False) -> bytes:
    """Returns the line with the names of the columns. `quote_formulas` is as in `csv_lines`."""
    texts = pa.array(names, pa.string())
    # Names that contain any common delimiter are quoted, because readers detect the delimiter from the header.
    fields = _quote(_without_formulas(texts) if quote_formulas else texts, _ALL_DELIMITERS).to_pylist()
    return (",".join(fields) + "\n").encode()


def csv_lines(rows: pa.RecordBatch, *, quote_formulas: bool = False) -> pa.Buffer:
    """Returns the rows of a batch, one per line, each line with its newline. The batch has at least one column.

    Args:
        rows: The rows.
        quote_formulas: Whether to put an apostrophe before text that a spreadsheet would take for a formula, and
            before each such part of a text after another delimiter or a line break. Spreadsheets choose the delimiter
            by their language, so texts with any of them are quoted.
    """
    fields = [pc.fill_null(_field(column, quote_formulas=quote_formulas), "") for column in rows.columns]
    lines = pc.binary_join_element_wise(*fields, ",")
    return concatenate(pc.binary_join_element_wise(lines, "\n", ""))


def _field(column: pa.Array, *, quote_formulas: bool) -> pa.StringArray:
    type_, text = column.type, to_text(column)
    is_text = pat.is_string(type_) or pat.is_large_string(type_)
    if quote_formulas and (is_text or pat.is_nested(type_)):
        text = _without_formulas(text)
    may_need_quotes = is_text or pat.is_binary(type_) or pat.is_nested(type_)
    return _quote(text, _ALL_DELIMITERS if quote_formulas else ",") if may_need_quotes else text


def _without_formulas(texts: pa.StringArray) -> pa.StringArray:
    texts = pc.if_else(pc.match_substring_regex(texts, _FORMULA), pc.binary_join_element_wise("'", texts, ""), texts)
    return pc.replace_substring_regex(texts, _LATER_FORMULA, r"\1'\2")


def _quote(texts: pa.StringArray, delimiters: str = ",") -> pa.StringArray:
    special = pc.or_(pc.match_substring_regex(texts, rf'["{delimiters}\r\n]|^\s|\s$'), pc.equal(texts, ""))
    if not pc.any(special).as_py():
        return texts
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.if_else(special, quoted, texts)
