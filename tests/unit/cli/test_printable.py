"""Text shown on a terminal contains nothing that can control the terminal."""

from __future__ import annotations

import io
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.cli.show import text_cells
from scankv.formats.printable import PrintableStream, printable, printable_texts

STEERING = "\x00\x07\x08\x1b\x7f\x85\x9b\x9d\u061c\u200e\u2028\u202e\u2066\r"
TEXTS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(STEERING + "\n\t")), max_size=30)


def is_steering(character: str) -> bool:
    point = ord(character)
    return (
        point < 0x20
        or 0x7F <= point <= 0x9F
        or point in (0x61C, 0x200E, 0x200F)
        or 0x2028 <= point <= 0x202E
        or 0x2066 <= point <= 0x2069
    )


@pytest.mark.breadth
@given(text=TEXTS)
def test_characters_that_steer_become_dots_and_others_stay(text: str) -> None:
    assert printable(text) == "".join("·" if is_steering(each) else each for each in text)
    assert printable_texts(pa.array([text, None])).to_pylist() == [printable(text), None]
    kept = "".join("·" if is_steering(each) and each not in "\n\t" else each for each in text)
    assert printable(text, lines=True) == kept


@given(text=TEXTS, cuts=st.lists(st.integers(0, 120), max_size=5))
def test_a_stream_shows_the_same_however_it_is_cut(text: str, cuts: list[int]) -> None:
    data, shown = text.encode(), io.BytesIO()
    stream = PrintableStream(shown)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        assert stream.write(data[start:end]) == end - start
    stream.flush()
    assert shown.getvalue().decode() == printable(text, lines=True)


@pytest.mark.parametrize("character", STEERING)
def test_cells_are_printable(character: str) -> None:
    assert text_cells(pa.array([f"a{character}]0;owned"])) == ["a·]0;owned"]
