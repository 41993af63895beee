"""The front page says what ScanKV is, shows it in twelve lines and a picture, and has no figure of its own."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest

from tests.support.pages import read_page

DOCS: Final = Path(__file__).parents[2] / "docs"
STATIC: Final = DOCS / "_static"
FRONT: Final = (DOCS / "index.md").read_text()
DRAWINGS: Final = ("logo", "favicon", "instant-light", "instant-dark")
# How the benchmarks name the work of each figure, up to the figures that come before it in a row with several.
FIGURES: Final = (
    r"\| the same \| Arrow Flight `DoGet` over the same store and decoder \| ",
    r"\| scan from a columnar base, 0 / 1 / 10 % .*? \| the same scan from RocksDB \| \S+ \(.*?\) / ",
    r"\| durable upsert, full changelog \| `WriteBatch` of the same rows in-process \| ",
)


def test_twelve_lines_of_code_show_their_output() -> None:
    code, output = read_page("docs/index.md").blocks[-2:]
    assert (code.language, output.language) == ("python", "text")
    assert len(code.code.replace("\n\n", "\n").splitlines()) <= 12
    assert code.code.count("print(") == len(output.code.splitlines())


def test_the_figures_are_those_of_the_benchmarks() -> None:
    shown = re.findall(r"\[(\S+) times as fast\]\(benchmarks\.md#results\)", FRONT)
    benchmarks = (DOCS / "benchmarks.md").read_text()
    measured = [re.findall(f"{start}(\\S+) \\(", benchmarks) for start in FIGURES]
    assert [[figure] for figure in shown] == measured


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_need_no_other_file_and_have_a_title(name: str) -> None:
    drawing = ET.parse(STATIC / f"{name}.svg").getroot()
    assert drawing.findtext("{http://www.w3.org/2000/svg}title")
    assert [key for element in drawing.iter() for key in element.keys() if key.endswith("href")] == []


def test_the_light_and_the_dark_picture_differ_only_in_colours() -> None:
    light, dark = ((STATIC / f"instant-{mode}.svg").read_text() for mode in ("light", "dark"))
    assert light != dark
    assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", dark)
    assert {"_static/instant-light.svg", "_static/instant-dark.svg"} <= set(re.findall(r'src="(.+?)"', FRONT))
