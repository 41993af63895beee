"""The checker finds nothing in the product, and each of the seeded faults in a product that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.model.checker.model import CheckerColumn, CheckerTable
from tests.model.checker.pairs import Coverage, coverage_of, read_pairs, write_pairs
from tests.model.checker.run import from_lines, replay, run, shorten, to_lines
from tests.model.checker.seeded_faults import FAULTS, ROOT, SCRIPTS, SeededFault, edit, plant, run_checker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.one_process

SCRIPT = """
# Each line is a step. The second one writes, the last one looks for it.
create {"table": "checker.a", "columns": {"x": "int"}, "engine": "last_row", "buckets": 2, "tablets": 1}
upsert {"table": "checker.a", "rows": [{"k": 1, "x": 5}]}
keep_offsets {"table": "checker.a", "as": "p1"}
upsert {"table": "checker.a", "rows": [{"k": 1, "x": 6}, {"k": 2, "x": null}]}
drop {"table": "checker.b"}
read_from_offsets {"kept": "p1"}
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        (1, 60),
        *(pytest.param(seed, 250, marks=pytest.mark.breadth) for seed in range(2, 18)),
        *(pytest.param(seed, 3000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]) for seed in range(18, 24)),
    ],
)
def test_the_server_answers_as_the_model_does(tmp_path: Path, seed: int, steps: int) -> None:
    failure, taken, coverage = run(tmp_path, seed, most_steps=steps)
    if failure is not None:
        short = tmp_path / "shorter"
        short.mkdir()
        pytest.fail(f"seed {seed}:\n{shorten(short, failure, min(steps / 3, 300))}")
    assert len(taken) == steps
    assert coverage.pairs


def test_a_script_has_the_same_steps_again_and_leaves_out_what_has_become_impossible(tmp_path: Path) -> None:
    steps = from_lines(SCRIPT)
    assert from_lines(to_lines(steps)) == steps
    assert [name for name, _ in steps][-2:] == ["drop", "read_from_offsets"]
    assert replay(tmp_path / "replayed", steps) is None
    assert replay(tmp_path / "without", steps[1:]) is None


@pytest.mark.breadth
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.txt")), ids=lambda script: script.stem)
def test_the_server_answers_a_script_as_the_model_does(tmp_path: Path, script: Path) -> None:
    failure = replay(tmp_path / "replayed", from_lines(script.read_text()))
    assert failure is None, str(failure)


def test_the_model_tells_which_changes_are_wrong() -> None:
    table = CheckerTable("checker.a", 1, (CheckerColumn(2, "x", "int"),))
    table.upsert([{"k": 1, "x": 5}])
    position = table.position()
    table.upsert([{"k": 1, "x": 6}])
    right = [("-U", {"k": 1, "x": 5}), ("+U", {"k": 1, "x": 6})]
    assert table.wrong_changes(position, {1: right}) == {}
    assert table.wrong_changes(position, {1: right[1:]}) == {1: right}
    assert table.wrong_changes(position, {}) == {1: right}
    assert table.wrong_changes(position, {1: right, 2: right}) == {2: []}


def test_the_removal_of_an_expired_row_may_be_seen_or_not() -> None:
    table = CheckerTable("checker.a", 1, (CheckerColumn(2, "x", "int"),))
    table.plan_ttl(100.0, None)
    table.upsert([{"k": 1, "x": 5}])
    position = table.position()
    assert not table.expire(95.0, slack=10.0)
    assert table.expire(120.0, slack=10.0)
    assert table.rows == {}
    assert table.wrong_changes(position, {}) == table.wrong_changes(position, {1: [("-D", {"k": 1, "x": 5})]}) == {}
    table.upsert([{"k": 1, "x": 6}])
    assert table.wrong_changes(position, {1: [("+I", {"k": 1, "x": 6})]}) != {}


def test_rows_that_are_written_without_their_changes_count_as_changed() -> None:
    table = CheckerTable("checker.untracked", 1, (CheckerColumn(2, "x", "int"),))
    position = table.position()
    assert table.lacks_changes(position) == {False}
    table.upsert([{"k": 1, "x": 5}], tracked=False)
    assert table.lacks_changes(position) == table.changed(1, position) == {True}
    assert table.changed(2, position) == {False, True}
    assert table.changed(1, table.position()) == table.lacks_changes(table.position()) == {False}


def test_the_list_of_pairs_keeps_those_of_earlier_runs_and_says_which_cannot_meet(tmp_path: Path) -> None:
    keyed, log = CheckerTable("checker.a", 1, ()), CheckerTable("checker.log", 2, (), engine="log")
    gains = list[int]()
    for effects in (("upsert", "kill", "get"), ("kill", "upsert")):
        coverage = coverage_of(tmp_path / "pairs.md")
        for effect in effects:
            coverage.add(effect, keyed)
        coverage.add("read_log_in_order", log)
        gains += [coverage.gain(("upsert",)), coverage.gain(("upsert", "kill"))]
        write_pairs(tmp_path / "pairs.md", coverage)
    assert gains == [4, 7, 2, 4]
    text = (tmp_path / "pairs.md").read_text()
    assert read_pairs(text)[0] == {("upsert", "kill"), ("upsert", "get"), ("kill", "get"), ("kill", "upsert")}
    assert "4 are covered, 7 cannot meet" in text


def test_what_happens_to_a_table_created_again_follows_its_drop(tmp_path: Path) -> None:
    coverage = Coverage()
    for effect, number in (("create", 1), ("get", 1), ("drop", 1), ("create", 2), ("upsert", 2)):
        coverage.add(effect, CheckerTable("checker.a", number, ()))
    assert coverage.pairs == {
        *(("create", "get"), ("create", "drop"), ("get", "drop")),
        *(("create", "create"), ("get", "create"), ("drop", "create"), ("drop", "upsert"), ("create", "upsert")),
    }


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_found(tmp_path: Path, fault: SeededFault) -> None:
    plant(fault, tmp_path)
    script = SCRIPTS / f"{fault.name}.txt" if fault.has_script else None
    code, output = run_checker(tmp_path, fault.seed, 600, script)
    assert code == 1, output


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_fits_the_source(fault: SeededFault) -> None:
    text = (ROOT / fault.file).read_text()
    assert edit(fault, text) != text
