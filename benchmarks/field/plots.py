"""Draws a comparison as small SVG files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.field.competitors import COMPETITORS
from benchmarks.field.operations import OPERATIONS, POINT_OPERATIONS
from benchmarks.measure import Spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.field.comparison import FieldComparison, Measured

_BULK: Final = ("load", "scan", "project", "select", "count")
_POINT: Final = ("get", "get_concurrently", "write", "write_concurrently", "top_n", "change")
_BY_ROWS: Final = ("load", "scan", "get", "get_concurrently")
_BY_BUCKETS: Final = ("load", "scan", "get_concurrently", "write_concurrently")


def write_plots(folder: Path, found: Sequence[FieldComparison]) -> None:
    """Writes `bulk.svg`, `points.svg` and `callers.svg`, and `rows.svg` and `buckets.svg` if they were varied."""
    folder.mkdir(parents=True, exist_ok=True)
    main, *others = found
    _write_bars(folder / "bulk.svg", main, _BULK)
    _write_bars(folder / "points.svg", main, _POINT)
    callers = {
        method: {**main.by_callers[method], main.scale.callers: main.measured[method]} for method in POINT_OPERATIONS
    }
    if any(len(each) > 1 for each in callers.values()):
        _write_lines(folder / "callers.svg", callers, "concurrent callers")
    by_rows = [main, *(each for each in others if each.scale.rows != main.scale.rows)]
    if len(by_rows) > 1:
        grown = {method: {each.scale.rows: each.measured[method] for each in by_rows} for method in _BY_ROWS}
        _write_lines(folder / "rows.svg", grown, "rows")
    by_buckets = [main, *(each for each in others if each.scale.buckets != main.scale.buckets)]
    if len(by_buckets) > 1:
        by_method = {
            method: {each.scale.buckets: _with_buckets(each.measured[method]) for each in by_buckets}
            for method in _BY_BUCKETS
        }
        _write_lines(folder / "buckets.svg", by_method, "buckets")


def _with_buckets(measured: Mapping[str, Measured]) -> dict[str, Measured]:
    names = {system.NAME for system in COMPETITORS.values() if system.HAS_BUCKETS}
    return {name: each for name, each in measured.items() if name in names}


def _write_bars(path: Path, main: FieldComparison, methods: Sequence[str]) -> None:
    """Draws the median of every system, and lines from the least to the greatest, one chart for each operation."""
    operations = [each for each in OPERATIONS if each.method in methods]
    figure, axes = _new_figure(len(operations), width=4.2, height=2.3)
    for operation, axis in zip(operations, axes, strict=True):
        measured = main.measured[operation.method]
        spreads = {name: Spread.of(each.rates) for name, each in reversed(measured.items())}
        medians = [spread.median for spread in spreads.values()]
        ranges = [
            [spread.median - spread.least for spread in spreads.values()],
            [spread.greatest - spread.median for spread in spreads.values()],
        ]
        colors = [_COLORS[name] for name in spreads]
        axis.barh(list(spreads), medians, xerr=ranges, color=colors, height=0.6, error_kw={"linewidth": 0.8})
        axis.set_title(operation.title.partition(";")[0], fontsize=8, loc="left")
        axis.set_xlabel(operation.unit, fontsize=7)
        axis.xaxis.set_major_formatter(_formatter())
    _save(figure, path)


def _write_lines(path: Path, found: Mapping[str, Mapping[int, Mapping[str, Measured]]], what: str) -> None:
    """Draws medians over a number, both logarithmic, one chart for each operation."""
    titles = {operation.method: operation for operation in OPERATIONS}
    figure, axes = _new_figure(len(found), width=4.2, height=2.9)
    for (method, by_number), axis in zip(found.items(), axes, strict=True):
        numbers = sorted(by_number)
        for name in dict.fromkeys(name for number in numbers for name in by_number[number]):
            points = [(n, Spread.of(by_number[n][name].rates).median) for n in numbers if name in by_number[n]]
            axis.plot(
                *zip(*points, strict=True), marker="o", markersize=3, linewidth=1.2, color=_COLORS[name], label=name
            )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(numbers, [f"{number:,}" for number in numbers])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(_formatter())
        axis.set_title(titles[method].title, fontsize=8, loc="left")
        axis.set_xlabel(what, fontsize=7)
        axis.set_ylabel(titles[method].unit, fontsize=7)
        axis.grid(visible=True, linewidth=0.3)
        axis.legend(fontsize=6, frameon=False)
    _save(figure, path)


_COLORS: Final = {
    system.NAME: color
    for system, color in zip(
        COMPETITORS.values(),
        ("#1f5fbf", "#7fb0f0", "#c0392b", "#2d7d6f", "#7cc4b6", "#b8860b", "#7d5ba6", "#888888", "#444444"),
        strict=False,
    )
}


def _new_figure(charts: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    """Returns a figure with two charts in each row."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text, so that files are small, and ids are the same in every run.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scankv", "font.size": 7})
    lines = -(-charts // 2)
    figure = Figure(figsize=(2 * width, lines * height), layout="constrained")
    axes = list(figure.subplots(lines, 2, squeeze=False).flat)
    for unused in axes[charts:]:
        unused.set_visible(False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes[:charts]


def _formatter() -> Any:  # noqa: ANN401  # matplotlib is imported on use
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def _save(figure: Any, path: Path) -> None:  # noqa: ANN401
    figure.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
