"""What the pages say that ScanKV has and lacks comes from one table, and the table is true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aio_client import sync
from tests.support.attempts import ATTEMPTS, ServerToTry
from tests.support.capabilities import find_lies, list_names, load_generator, problems_of_test
from tests.support.collected import COLLECTED
from tests.support.command_line import CommandLine
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

generator = load_generator()
ROWS: dict[str, dict[str, Any]] = generator.read_rows()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What each attempt ends with: None if the feature works, else the refusal."""
    directory = tmp_path_factory.mktemp("attempts")
    data, backups = directory / "data", directory / "backups"
    with (
        ServerProcess(data, "--backup-location", str(backups)) as server,
        sync.connect(server.url) as client,
    ):
        here = ServerToTry(client, CommandLine(server.url), data, backups)
        return {name: _outcome_of(attempt, here) for name, attempt in ATTEMPTS.items()}


def _outcome_of(attempt: Callable[[ServerToTry], None], here: ServerToTry) -> str | None:
    try:
        attempt(here)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_each_row_is_true(outcomes: dict[str, str | None]) -> None:
    assert find_lies(ROWS, outcomes, list_names()) == []


def test_each_attempt_has_a_row() -> None:
    assert {row["attempt"] for row in ROWS.values() if "attempt" in row} == set(ATTEMPTS)


def test_a_lie_in_either_direction_is_found(outcomes: dict[str, str | None]) -> None:
    lacking, having = ROWS["auto-increment"], ROWS["retraction"]
    lies = {
        "auto-increment": {"has": lacking["lacks"], "attempt": lacking["attempt"]},
        "retraction": {"lacks": having["has"], "attempt": having["attempt"], "refusal": "no function avg"},
        "partitions": {"lacks": "Partitions.", "tests": ROWS["partitions"]["tests"]},
        "watches": {"lacks": "Watches.", "attempt": lacking["attempt"], "refusal": "NOT NULL", "words": ["watch_top"]},
        "clusters": {"has": "Clusters."},
    }
    found = find_lies(lies, outcomes, list_names())
    assert [each for each in found if each.startswith("auto-increment: ScanKV lacks it: ")]
    assert "retraction: ScanKV has it: the attempt works" in found
    assert "partitions: no attempt shows that the feature is refused" in found
    assert "watches: ScanKV may have it: watch_top_n" in found
    assert "clusters: the feature has no test" in found


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("tests/docs/test_capabilities.py::test_a_lie_in_either_direction_is_found", []),
        ("tests/docs/test_links.py", []),
        ("tests/docs/test_missing.py::test_x", ["is not a file with tests"]),
        ("tests/docs/test_links.py::test_missing", ["does not exist"]),
        ("tests/integration/server/test_expiry.py::test_a_rescan_returns_expired_rows_as_deletes", []),
        ("tests/docs/test_reference.py::generators", ["does not exist"]),
        (
            "tests/model/checker/test_checker.py::test_a_seeded_fault_is_found",
            ["may be left out"],
        ),
    ],
)
def test_a_test_that_may_not_run_is_found(test: str, problem: list[str]) -> None:
    assert list(problems_of_test(test)) == problem


def test_named_tests_are_collected(request: pytest.FixtureRequest) -> None:
    """Of the files that a run has, it has the tests that the table names, unless single tests were chosen."""
    collected = request.config.stash[COLLECTED]
    named = {test for row in ROWS.values() for test in row.get("tests", ()) if test.partition("::")[0] in collected}
    is_narrowed = request.config.option.lf or any("::" in argument for argument in request.config.args)
    assert is_narrowed or sorted(named - collected) == []


@pytest.mark.parametrize("page", generator.list_pages(), ids=lambda page: page.name)
def test_the_pages_are_up_to_date(page: Any) -> None:
    assert generator.fill_in(page, ROWS) == page.read_text(), "run: make capabilities"


def test_no_page_about_another_system_has_a_list_of_its_own() -> None:
    """Sections about what ScanKV has and lacks are only written by the generator."""
    pages = {page.name: page.read_text() for page in generator.list_pages()}
    for system in generator.SYSTEMS:
        text = generator.PLACE.sub("", pages[f"from-{system}.md"])
        for section in ("## Concepts", "## What you gain", "## What is missing"):
            assert text.partition(section)[2].split("\n## ")[0].strip() == "", (system, section)
