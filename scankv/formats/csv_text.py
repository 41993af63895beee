"""Record batches as CSV, by columns: a field is quoted where it has to be, and an empty value always.

A null is an empty field. The rest is as in `text`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from scankv.formats.csv_dialect import DELIMITERS
from scankv.formats.scalar_text import concatenated
from scankv.formats.text import to_text
from scankv.model import lazy_compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence


def csv_header(names: Sequence[str]) -> bytes:
    """The line with the names of the columns."""
    # Quoted where a reader that guesses the delimiter by the header could take it for another.
    fields: list[str] = _quoted(pa.array(names, pa.string()), "".join(DELIMITERS)).to_pylist()
    return (",".join(fields) + "\n").encode()


def csv_lines(rows: pa.RecordBatch) -> pa.Buffer:
    """The rows of a batch with at least one column, one a line, each line with its newline."""
    fields = [pc.fill_null(_field(column), "") for column in rows.columns]
    lines = pc.binary_join_element_wise(*fields, ",")
    return concatenated(pc.binary_join_element_wise(lines, "\n", ""))


def _field(column: pa.Array) -> pa.StringArray:
    text = to_text(column)
    may_need_quotes = pat.is_string(column.type) or pat.is_binary(column.type) or pat.is_nested(column.type)
    return _quoted(text) if may_need_quotes else text


def _quoted(texts: pa.StringArray, delimiters: str = ",") -> pa.StringArray:
    special = pc.or_(pc.match_substring_regex(texts, rf'["{delimiters}\r\n]|^\s|\s$'), pc.equal(texts, ""))
    if not pc.any(special).as_py():
        return texts
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.if_else(special, quoted, texts)
