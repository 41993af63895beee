"""The benchmarks measure what they say, on a table small enough for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks import t4
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios

if TYPE_CHECKING:
    from pathlib import Path


def test_every_figure_is_measured_over_all_rows(tmp_path: Path) -> None:
    report, markdown = tmp_path / "report.json", tmp_path / "report.md"
    command = [sys.executable, "-m", "benchmarks", "--rows", "20000", "--runs", "1"]
    subprocess.run([*command, "--json", str(report), "--markdown", str(markdown)], check=True, capture_output=True)
    found = json.loads(report.read_text())
    figures = {figure["name"]: figure for result in found["results"].values() for figure in result["figures"]}
    assert set(figures) == {
        "scan_vs_loop",
        "scan_vs_flight",
        "server_peak_memory",
        "upsert_vs_write_batch",
        "upsert",
        "load_flights",
        "first_row_vs_call",
        "pin",
        "pin_hold",
        "tokens",
    }
    for figure in figures.values():
        spread = figure["spread"]
        assert 0 < spread["least"] <= spread["median"] <= spread["greatest"]
    assert set(found["results"]) == {"scan", "latency", "memory", "shares", "upsert", "load", "pin"}
    assert found["machine"]["cores"]
    assert "## What this does not measure" in markdown.read_text()
    for figure in figures.values():
        assert figure["work"] in markdown.read_text()


def test_a_run_with_too_few_rows_is_no_result() -> None:
    assert Timing(20_000, 1.0).checked(20_000).rate == 20_000
    with pytest.raises(RuntimeError, match=r"19,999 rows came where 20,000 were expected"):
        Timing(19_999, 1.0).checked(20_000)


def test_contenders_take_turns_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []

    def contender(name: str) -> Timing:
        order.append(name)
        return Timing(len(order), 1.0)

    rates = interleaved(2, {"a": lambda: contender("a"), "b": lambda: contender("b")})
    assert order == ["a", "b"] * 3
    assert rates == {"a": [3, 5], "b": [4, 6]}


def test_ratios_are_those_of_the_same_round() -> None:
    assert paired_ratios([1.0, 6.0, 9.0], [2.0, 4.0, 3.0]) == Spread(1.5, 0.5, 3.0)


def test_t4_has_the_same_rows_however_it_is_cut() -> None:
    whole = t4.rows(0, 1000)
    assert whole.schema == t4.SCHEMA
    assert [row for batch in t4.batches(1000, 300) for row in batch.to_pylist()] == whole.to_pylist()
    assert whole.column("id").to_pylist() == list(range(1000))
