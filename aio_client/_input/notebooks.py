"""How objects look in notebooks: small tables in HTML. All texts are escaped, because users choose names and values."""

from __future__ import annotations

from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

_MOST_ROWS: Final = 20
_LONGEST_TEXT: Final = 200


def html_table(title: object, header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Returns a table with a title, and its first rows."""
    found = list(islice(rows, _MOST_ROWS + 1))
    lines = [_row(header, "th"), *(_row(each, "td") for each in found[:_MOST_ROWS])]
    if len(found) > _MOST_ROWS:
        lines.append("<tr><td>…</td></tr>")
    return f"<table><caption>{_text(title)}</caption>{''.join(lines)}</table>"


def html_of_rows(title: object, rows: pa.Table) -> str:
    """Returns the first rows of Arrow data as a table."""
    # The text of a scalar, because Python lacks some values, such as years after 9999.
    first = rows.slice(0, _MOST_ROWS + 1)
    values = ([str(column[row]) for column in first.columns] for row in range(first.num_rows))
    return html_table(title, rows.schema.names, values)


def _row(cells: Iterable[object], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(each)}</{tag}>' for each in cells)}</tr>"


def _text(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…")
