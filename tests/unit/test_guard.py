"""The regression guard notices a factor of two, accepts less, and keeps its committed values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from benchmarks.guard.__main__ import VALUES
from benchmarks.guard.bounds import GuardedRatio, RatioCheck, advice, read_values, write_values
from benchmarks.guard.measurements import GROUPS
from benchmarks.measure import CpuRounds

if TYPE_CHECKING:
    from pathlib import Path

RATIOS = [ratio for group in GROUPS for ratio in group.ratios]
GET = GuardedRatio(name="get", work="`get`", against="nothing", tolerance=1.6)
SCAN = GuardedRatio(name="scan", work="full scan", against="a loop", tolerance=1.6)


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda ratio: ratio.name)
def test_every_guarded_ratio_notices_a_factor_of_two(ratio: GuardedRatio) -> None:
    committed = read_values(VALUES, RATIOS)[ratio.name]
    assert RatioCheck(ratio, 2 * committed, committed).is_regression
    assert not RatioCheck(ratio, committed, committed).is_regression


@pytest.mark.parametrize("tolerance", [1, 2, 2.5])
def test_a_tolerance_that_would_not_notice_a_factor_of_two_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance must be between 1 and 2"):
        GuardedRatio(name="get", work="`get`", against="nothing", tolerance=tolerance)


def test_a_slowdown_within_the_tolerance_is_accepted() -> None:
    assert not RatioCheck(GET, 1.59, 1.0).is_regression
    assert RatioCheck(GET, 1.61, 1.0).is_regression


def test_a_machine_that_slows_the_work_down_more_than_its_reference_allows_more() -> None:
    assert not RatioCheck(GET, 9.5, 1.0, slowdown=6).is_regression
    assert RatioCheck(GET, 9.7, 1.0, slowdown=6).is_regression


def test_an_improvement_is_accepted_and_one_to_less_than_half_asks_for_a_new_value() -> None:
    assert advice([RatioCheck(GET, 0.51, 1.0)]) == []
    much_better = RatioCheck(GET, 0.49, 1.0)
    assert not much_better.is_regression
    (line,) = advice([much_better])
    assert "Refresh the values" in line
    assert line.endswith("--update --only get")


def test_a_check_says_what_was_measured_what_is_committed_and_what_is_allowed() -> None:
    text = str(RatioCheck(SCAN, 5.5, 2.5))
    assert text == "SLOWER scan: measured 5.5, committed 2.5, allowed up to 4 (full scan, against a loop)"


def test_advice_names_all_slower_ratios_and_the_command_that_commits_new_values() -> None:
    (line,) = advice([RatioCheck(SCAN, 5.5, 2.5), RatioCheck(GET, 9.0, 1.0)])
    assert line.startswith("scan, get: this work takes more processor time than is allowed")
    assert line.endswith("--update --only get --only scan")


def test_values_that_were_measured_are_replaced_and_all_others_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "ratios.toml"
    write_values(path, [GET, SCAN], {"get": 1.2345, "scan": 2.0})
    assert read_values(path, [GET, SCAN]) == {"get": 1.23, "scan": 2.0}
    write_values(path, [GET, SCAN], {"scan": 3.0})
    assert read_values(path, [GET, SCAN]) == {"get": 1.23, "scan": 3.0}
    assert "# full scan, against a loop\nscan = 3\n" in path.read_text()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("get = 1.0", "has no value of scan: measure it with .* --update --only scan"),
        ("get = 1.0\nscan = 1.0\nfast = 1.0", "values of unknown ratios: delete fast"),
        ("get = 1.0\nscan = 0", "scan in ratios.toml must be a positive number, not 0"),
        ("get = 1.0\nscan = nan", "scan in ratios.toml must be a positive number, not nan"),
        ('get = 1.0\nscan = "2"', "scan in ratios.toml must be a positive number, not '2'"),
    ],
)
def test_a_file_without_exactly_one_number_for_each_ratio_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "ratios.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_values(path, [GET, SCAN])


def test_the_committed_file_is_as_the_update_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "ratios.toml"
    write_values(path, RATIOS, read_values(VALUES, RATIOS))
    assert path.read_text() == VALUES.read_text()


@pytest.mark.alone
def test_processor_time_is_counted_per_unit_of_work() -> None:
    def work(turns: int) -> float:
        for _ in range(turns):
            sum(range(1000))
        return turns

    cpu = CpuRounds(
        3,
        {
            "one": ([os.getpid()], lambda: work(2000)),
            "same": ([os.getpid()], lambda: work(6000)),
            "twice": ([os.getpid()], lambda: work(4000) / 2),
        },
    )
    assert 0.6 < cpu.ratios("same", "one").median < 1.6
    assert 1.3 < cpu.ratios("twice", "one").median < 3
