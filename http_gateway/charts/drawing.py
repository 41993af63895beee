"""Where are the lines, the axes and the words of a chart? Pure; the templates of the console write the SVG.

Drawn here because no library fits the console. pygal 3.1 adds scripts and a style of its own to each chart, which the
policy of the pages forbids. leather 0.4 writes its colours into the elements, so a dark page cannot change them, and
has no gaps. svg.py 1.10 has only the elements, which the templates write as well, and does not escape what is in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WIDTH: Final = 360
HEIGHT: Final = 150
LEFT, RIGHT, TOP, BOTTOM = 58, 344, 10, 122
_STEPS: Final = (1, 2, 5, 10)

Values: TypeAlias = "Sequence[tuple[float, float]]"
"""The values of a line, each after its time, oldest first. A NaN is a gap."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: where it is, and what it says."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        label: What it shows. Empty: the title of the chart says it.
        path: Its shape, as an SVG path.
        newest: The newest value. Empty: it is not known.
        highest: The highest value. Empty: no value is known.
    """

    label: str
    path: str
    newest: str
    highest: str

    @property
    def text(self) -> str:
        """What it shows, in words."""
        now = f"{self.newest} now" if self.newest else "no value now"
        values = f"{now}, {self.highest} at most" if self.highest else "no values"
        return f"{self.label}: {values}" if self.label else values


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, ready to be written.

    Attributes:
        title: What it shows.
        lines: Its lines.
        rows: The marks of the vertical axis.
        columns: The marks of the horizontal axis.
    """

    title: str
    lines: tuple[Line, ...]
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]


def draw_chart(
    title: str,
    lines: Iterable[tuple[str, Values]],
    *,
    now: float,
    seconds: float,
    words: Callable[[float], str],
    mark: Callable[[float], str],
    least_top: float = 1.0,
) -> Chart:
    """Draws a chart.

    Args:
        title: What it shows.
        lines: The label of each line, and its values.
        now: The time at the right end.
        seconds: The length of the horizontal axis.
        words: Returns a value for a sentence. The title has its unit, unless a value may have several.
        mark: Returns a value for the vertical axis.
        least_top: The least value at the top.
    """
    given = [(label, [(at, value) for at, value in values if 0 <= now - at <= seconds]) for label, values in lines]
    known = [value for _, values in given for _, value in values if math.isfinite(value)]
    top, step = _scale(max([least_top, *known]))

    def x(at: float) -> float:
        return round(RIGHT - (now - at) / seconds * (RIGHT - LEFT), 1)

    def y(value: float) -> float:
        return round(BOTTOM - value / top * (BOTTOM - TOP), 1)

    minutes = round(seconds / 60)
    return Chart(
        title=title,
        lines=tuple(
            Line(
                label,
                _path((x(at), y(value)) if math.isfinite(value) else None for at, value in values),
                *_newest_and_highest(values, words),
            )
            for label, values in given
        ),
        rows=tuple(Tick(y(count * step), mark(count * step)) for count in range(round(top / step) + 1)),
        columns=tuple(
            Tick(x(now - ago * 60), f"-{ago} min" if ago else "now") for ago in range(minutes - minutes % 5, -1, -5)
        ),
    )


def _path(places: Iterable[tuple[float, float] | None]) -> str:
    """Returns a path through places. None interrupts it; a place between two gaps is a dot."""
    parts, is_open = list[str](), False
    for place in places:
        if place is None:
            is_open = False
        else:
            # A line without length shows its round ends.
            parts.append(f"L{place[0]:g} {place[1]:g}" if is_open else f"M{place[0]:g} {place[1]:g}h0")
            is_open = True
    return "".join(parts)


def _newest_and_highest(values: Values, words: Callable[[float], str]) -> tuple[str, str]:
    """Returns the newest and the highest value in words; both are empty if no value is known."""
    known = [value for _, value in values if math.isfinite(value)]
    if not known:
        return "", ""
    return words(values[-1][1]) if math.isfinite(values[-1][1]) else "", words(max(known))


def _scale(highest: float) -> tuple[float, float]:
    """Returns the value at the top of an axis, and the distance of its marks: round numbers, at most 5 marks."""
    power = 10.0 ** math.floor(math.log10(highest / 2))
    step = next(each * power for each in _STEPS if highest <= 4 * each * power)
    return math.ceil(highest / step) * step, step
