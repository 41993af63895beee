from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.formats import csv_rows
from scankv.formats.csv_rows import length_of_complete_rows, read_rows


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"", b""),
        (b"a,b", b""),
        (b"a,b\nc", b"a,b\n"),
        (b'a,"b\nc', b""),
        (b'a,"b\nc"\nd,"e\n', b'a,"b\nc"\n'),
        (b'"a ""quote""\n"\nb', b'"a ""quote""\n"\n'),
        (b'"",""\n"', b'"",""\n'),
        (b"a,b\rc,d\r\ne,f\rg", b"a,b\rc,d\r\ne,f\r"),
        (b'a,"b\rc"\rd,"e\r', b'a,"b\rc"\r'),
        (b'5" nails,1\r6" nails,2\rx', b'5" nails,1\r'),
        (b'5" nails,1\n6" nails,2\nx', b'5" nails,1\n'),
        (b'5" nails,1\n"quoted\nline",2\nx,3\ny', b'5" nails,1\n"quoted\nline",2\n'),
    ],
)
def test_a_block_ends_where_a_row_does(data: bytes, whole: bytes) -> None:
    assert data[: length_of_complete_rows(data)] == whole


FIELDS = st.text(st.sampled_from('ab",\n 5'), max_size=6)


@given(st.lists(st.tuples(FIELDS, FIELDS), max_size=12), st.integers(1, 20), st.booleans())
def test_blocks_divide_rows_and_nothing_else(rows: list[tuple[str, str]], size: int, stray_quotes: bool) -> None:
    text = io.StringIO()
    if stray_quotes:
        text.write('5" nails,x\n' * 2)
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    data = text.getvalue().encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "_BLOCK_BYTES", size)
        blocks = list(read_rows(io.BufferedReader(io.BytesIO(data))))
    assert b"".join(blocks) == data
    parts = [row for block in blocks for row in csv.reader(io.StringIO(block.decode()))]
    assert parts == list(csv.reader(io.StringIO(data.decode())))


def test_a_quote_behind_another_delimiter_begins_a_field() -> None:
    data = b'a;"b\nc"\nd;"e\n'
    assert data[: length_of_complete_rows(data, ";")] == b'a;"b\nc"\n'
