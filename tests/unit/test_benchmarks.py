"""The benchmarks measure what they claim to, on a table small enough for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import t4
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
    assert figures.keys() == {
        "scan_vs_loop",
        "scan_vs_flight",
        "predicate_vs_scan",
        "log_vs_scan",
        "full_start_vs_scan",
    }
    assert found["machine"]["cores"]
    markdown = (tmp_path / "report.md").read_text()
    assert "## What this does not measure" in markdown
    for figure in figures.values():
        assert figure["work"] in markdown


@pytest.mark.soak
def test_every_figure_is_measured_when_none_is_named(tmp_path: Path) -> None:
    found = _report(tmp_path)
    assert set(_checked_figures(found)) == {
        "scan_vs_loop",
        "scan_vs_flight",
        "tls_scan_rate",
        "tls_scan_cpu",
        "server_peak_memory",
        "upsert_vs_write_batch",
        "upsert_mode_vs_write_batch",
        "upsert",
        "transaction_vs_upserts",
        "lookup_beside_commit",
        "get_latency",
        "get_cpu",
        "gets_64",
        "gets_256",
        "upsert_latency",
        "upsert_cpu",
        "upserts_64",
        "aggregate_40_cpu",
        "transaction_40_cpu",
        "load_flights",
        "aggregate_upsert",
        "aggregate_upsert_hot",
        "first_row_vs_call",
        "get_p99_during_scan",
        "upsert_p99_during_scan",
        "get_p99_during_scans",
        "upsert_p99_during_scans",
        "get_p99_during_load",
        "upsert_p99_during_load",
        "http_stalled_scan",
        "http_stalled_cpu",
        "http_stalled_get",
        "http_watchers_scan",
        "http_watchers_cpu",
        "http_watchers_get",
        "http_download_scan",
        "http_download_get",
        "pin",
        "pin_hold",
        "tokens",
        "top_n_vs_call",
        "poll_vs_call",
        "top_n_vs_scan",
        "predicate_vs_scan",
        "projection_vs_scan",
        "base_vs_scan_0",
        "base_vs_scan_1",
        "base_vs_scan_10",
        "base_projection",
        "base_clustered",
        "base_top_n",
        "base_count",
        "base_text_key",
        "base_writes",
        "base_rebuild",
        "base_first_query",
        "base_first_query_cpu",
        "log_vs_scan",
        "full_start_vs_scan",
        "commit_to_consumer_vs_call",
        "ticks",
        "append_vs_upsert",
        "untracked_ascending",
        "untracked_shuffled",
        "untracked_existing",
        "delete_where_key",
        "delete_where_column",
        "delete_where_column_base",
        "delete_range",
        "evolution_older",
        "evolution_mixed",
        "evolution_change",
        "expiry_scan_column",
        "expiry_scan_write",
        "expiry_upsert_column",
        "expiry_upsert_write",
        "partition_drop",
        "partition_drop_wait",
        "partition_pin_hold",
        "open_buckets_describe_beside",
        "open_buckets_first_row_beside",
        "open_buckets_statistics_beside",
        "open_buckets_describe_in_one",
        "open_buckets_first_row_in_one",
        "open_buckets_statistics_in_one",
        "closed_buckets_first_row_few",
        "closed_buckets_first_row_many",
    }
    assert set(found["results"]) == set(WORKLOADS) - ON_REQUEST


@pytest.mark.soak
def test_what_takes_long_is_measured_where_it_is_named(tmp_path: Path) -> None:
    found = _report(tmp_path, *(f"--only={name}" for name in sorted(ON_REQUEST)))
    assert set(found["results"]) == ON_REQUEST
    assert set(_checked_figures(found)) == {
        "consumers_cpu",
        "consumers_memory",
        "dashboards",
        "net_memory",
        "publish_clustered",
        "publish_files",
        "publish_server",
        "publish_vectors",
        "segments_vs_scan",
    }


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
    """Returns the figures of a report by name, each of which is a spread."""
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
