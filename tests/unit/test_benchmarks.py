"""The benchmarks measure what they claim to, on a table small enough for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import t4
from benchmarks.growth.series import SERIES
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.workloads import ON_REQUEST, WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(300)  # measures three workloads
@pytest.mark.soak
def test_figures_are_measured_over_all_rows(tmp_path: Path) -> None:
    found = _report(tmp_path, "--only=scan", "--only=predicate", "--only=changes")
    assert set(found["results"]) == {"scan", "predicate", "changes"}
    figures = _checked_figures(found)
    assert found["machine"]["cores"]
    markdown = (tmp_path / "report.md").read_text()
    assert "## What this does not measure" in markdown
    for figure in figures.values():
        assert figure["work"] in markdown


@pytest.mark.soak
def test_every_figure_is_measured_when_none_is_named(tmp_path: Path) -> None:
    found = _report(tmp_path)
    assert set(found["results"]) == set(WORKLOADS) - ON_REQUEST
    _checked_figures(found)


@pytest.mark.soak
def test_what_takes_long_is_measured_where_it_is_named(tmp_path: Path) -> None:
    found = _report(tmp_path, *(f"--only={name}" for name in sorted(ON_REQUEST)))
    assert set(found["results"]) == ON_REQUEST
    _checked_figures(found)


@pytest.mark.timeout(300)  # measures ten series
@pytest.mark.soak
def test_every_series_of_growth_is_measured_against_its_target() -> None:
    command = [sys.executable, "-m", "benchmarks.growth", "--rows", "20000", "--runs", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("reached") >= len(SERIES)


def _report(directory: Path, *arguments: str) -> dict[str, Any]:
    """Returns the JSON report of a run with a small table; the Markdown report is written next to it."""
    report, markdown = directory / "report.json", directory / "report.md"
    command = [sys.executable, "-m", "benchmarks", "--rows", "20000", "--runs", "1", *arguments]
    command += ["--json", str(report), "--markdown", str(markdown)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def _checked_figures(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a report by name. Each workload has some, and each figure is a spread."""
    assert all(result["figures"] for result in found["results"].values())
    figures = {figure["name"]: figure for result in found["results"].values() for figure in result["figures"]}
    for figure in figures.values():
        spread = figure["spread"]
        assert 0 < spread["least"] <= spread["median"] <= spread["greatest"]
    return figures


def test_a_run_with_too_few_rows_is_no_result() -> None:
    assert Timing(20_000, 1.0).check_rows(20_000).rate == 20_000
    with pytest.raises(RuntimeError, match="must have 20,000 rows, not 19,999"):
        Timing(19_999, 1.0).check_rows(20_000)


def test_contenders_take_turns_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []

    def contender(name: str) -> Timing:
        order.append(name)
        return Timing(len(order), 1.0)

    rates = run_interleaved(2, {"a": lambda: contender("a"), "b": lambda: contender("b")})
    assert order == ["a", "b"] * 3
    assert rates == {"a": [3, 5], "b": [4, 6]}


def test_ratios_are_those_of_the_same_round() -> None:
    assert paired_ratios([1.0, 6.0, 9.0], [2.0, 4.0, 3.0]) == Spread(1.5, 0.5, 3.0)


def test_t4_has_the_same_rows_however_it_is_cut() -> None:
    whole = t4.rows(0, 1000)
    assert whole.schema == t4.SCHEMA
    assert [row for batch in t4.batches(1000, 300) for row in batch.to_pylist()] == whole.to_pylist()
    assert whole.column("id").to_pylist() == list(range(1000))
