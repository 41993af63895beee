"""The drawing of charts: axes, gaps, dots, and words, for any values."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest

from http_gateway.charts.counted import GAP, Point
from http_gateway.charts.drawing import BOTTOM, LEFT, RIGHT, TOP, Chart, draw_chart
from http_gateway.charts.figures import charts_of, number_text, short_text
from http_gateway.console.chart_pages import ShownCharts
from http_gateway.console.rendering import page

NAN = math.nan


def draw(*values: float, step: float = 5.0) -> Chart:
    """Draws one line whose newest value is now."""
    now = 1000.0
    line = [(now - step * (len(values) - 1 - number), value) for number, value in enumerate(values)]
    return draw_chart("Rows (rows/s)", [("", line)], now=now, seconds=900, words=number_text, mark=short_text)


def places(chart: Chart) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.e+]+) ([-\d.e+]+)", chart.lines[0].path)]


def test_a_line_goes_from_left_to_right() -> None:
    chart = draw(*range(181))
    xs = [x for x, _ in places(chart)]
    assert xs == sorted(xs)
    assert (xs[0], xs[-1]) == (LEFT, RIGHT)
    assert [tick.text for tick in chart.columns] == ["-15 min", "-10 min", "-5 min", "now"]


def test_a_gap_interrupts_the_line() -> None:
    assert draw(1, 2, NAN, 3, 4).lines[0].path.count("M") == 2


def test_one_value_is_a_dot() -> None:
    for values in ((3,), (NAN, 3, NAN)):
        chart = draw(*values)
        assert chart.lines[0].path.endswith("h0")
        assert chart.lines[0].highest == "3"


def test_no_values_are_said_in_words() -> None:
    for values in ((), (NAN, NAN)):
        chart = draw(*values)
        assert chart.lines[0].path == ""
        assert chart.lines[0].text == "no values"
        assert [tick.text for tick in chart.rows] == ["0", "0.5", "1"]


def test_zeros_lie_on_the_axis() -> None:
    assert {y for _, y in places(draw(0, 0, 0))} == {BOTTOM}


@pytest.mark.parametrize("highest", [1e-9, 0.3, 1, 4, 7, 99, 100, 101, 12_345, 1e9, 1.8e19, 1e300])
def test_any_value_fits_and_the_marks_are_round(highest: float) -> None:
    chart = draw(0, highest, highest / 3)
    assert all(TOP <= y <= BOTTOM and LEFT <= x <= RIGHT for x, y in places(chart))
    assert 2 <= len(chart.rows) <= 5
    assert chart.rows[0].text == "0"


def test_old_values_are_not_drawn() -> None:
    assert len(places(draw(5, 1, 1, step=600))) == 2


def test_the_words_have_the_newest_and_the_highest_value() -> None:
    assert draw(5, 2000, 1234).lines[0].text == "1,234 now, 2,000 at most"
    assert draw(5, 2000, NAN).lines[0].text == "no value now, 2,000 at most"


@pytest.mark.parametrize(
    ("value", "short"), [(0, "0"), (0.25, "0.25"), (200, "200"), (1500, "1.5k"), (2e7, "20M"), (1e18, "1000P")]
)
def test_marks_are_short(value: float, short: str) -> None:
    assert short_text(value) == short


def test_sizes_have_marks_of_their_unit() -> None:
    points = [(float(at), Point(disk_bytes=at * 1_000_000)) for at in range(0, 900, 5)]
    disk = charts_of(points, 900.0)[-1]
    assert [tick.text for tick in disk.rows] == ["0 bytes", "500.0 MB", "1.0 GB"]
    assert disk.lines[0].newest == "895.0 MB"


@pytest.mark.parametrize(
    "points",
    [[], [(899.0, Point())], [(899.0, GAP)], [(5.0 * n, GAP if n % 3 else Point(*[1e18] * 10)) for n in range(181)]],
    ids=["none", "one", "a gap", "gaps and huge values"],
)
def test_every_chart_is_well_formed(points: list[tuple[float, Point]]) -> None:
    charts = ShownCharts(charts_of(points, 900.0), note="<b>&", problem='"quoted" <i>')
    text = bytes(page("charts_part.html", charts=charts).body).decode()
    root = ET.fromstring(f"<div>{text}</div>")
    drawings = root.findall(".//figure/svg")
    assert len(drawings) == 7
    assert "<b>" not in text
    assert "style=" not in text
    assert "NaN" not in text
    assert "nan" not in text.replace("nant", "")
    for drawing in drawings:
        # The caption says all of it, once.
        assert drawing.get("aria-hidden") == "true"
    for caption in root.findall(".//figcaption"):
        words = "".join(caption.itertext())
        assert "at most" in words or "no values" in words
