"""Which charts does a history give, in which units? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_gateway.charts.drawing import Chart, draw_chart
from http_gateway.charts.history import SHOWN_SECONDS
from scankv.formats.amounts import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_gateway.charts.counted import Point
    from http_gateway.charts.drawing import Values

_PREFIXES = ("", "k", "M", "G", "T", "P")


def charts_of(points: Sequence[tuple[float, Point]], now: float) -> list[Chart]:
    """Returns the charts of a table or of the server.

    Args:
        points: What has happened, each with its time.
        now: The time at the right end of the charts.
    """

    def line(name: str, factor: float = 1.0) -> Values:
        return [(at, getattr(point, name) * factor) for at, point in points]

    def rate(title: str, unit: str, *lines: tuple[str, Values]) -> Chart:
        return draw_chart(
            f"{title} ({unit})",
            lines,
            now=now,
            seconds=SHOWN_SECONDS,
            words=number_text,
            mark=short_text,
        )

    def latency(title: str, kind: str) -> Chart:
        return draw_chart(
            f"{title} (ms)",
            (("median", line(f"{kind}_median", 1000)), ("99th percentile", line(f"{kind}_slow", 1000))),
            now=now,
            seconds=SHOWN_SECONDS,
            words=number_text,
            mark=short_text,
        )

    return [
        rate("Rows written", "rows/s", ("", line("rows_written"))),
        rate("Rows read", "rows/s", ("", line("rows_read"))),
        rate("Calls", "calls/s", ("writes", line("writes")), ("lookups and queries", line("reads"))),
        latency("Latency of writes", "write"),
        latency("Latency of lookups and queries", "read"),
        draw_chart(
            "Live scans and streams",
            (("", line("streams")),),
            now=now,
            seconds=SHOWN_SECONDS,
            words=number_text,
            mark=short_text,
            least_top=4.0,
        ),
        draw_chart(
            "Files on disk",
            (("", line("disk_bytes")),),
            now=now,
            seconds=SHOWN_SECONDS,
            words=_size_text,
            mark=_size_text,
            least_top=1000.0,
        ),
    ]


def _size_text(value: float) -> str:
    return size(round(value))


def number_text(value: float) -> str:
    """Returns a number for a sentence: 0.25, 7.5, 1,234."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"


def short_text(value: float) -> str:
    """Returns a number for an axis: 0.5, 200, 1.5k, 20M."""
    prefix = 0
    while abs(value) >= 1000 and prefix < len(_PREFIXES) - 1:
        value, prefix = value / 1000, prefix + 1
    return f"{value:.4g}{_PREFIXES[prefix]}"
